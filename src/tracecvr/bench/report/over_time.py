"""Metrics over time, each point from the clicks of its own day, so that drift is visible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from tracecvr.base.config import DAY, HOUR
from tracecvr.base.durations import duration
from tracecvr.bench import stats
from tracecvr.bench.outcome import NAMES, Line, Outcome
from tracecvr.bench.report.figure import Axis, Chart, Figure, Series
from tracecvr.bench.report.scene import Scene, day_axis, without_partial_ends

_MOST_POINTS = 45
_BUCKETS = (HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 30 * DAY)
_FEWEST = 0.05
"""Share of a usual day's clicks that a point has at least: the luck of a few would set the scale for all others."""
_FURTHEST = 2.5
"""PCOC beyond this, or below its inverse, is drawn at the edge: one bad method would hide all others."""

_FEW, _MANY = 5, 8
"""Rows of a chart over time that are drawn, if there are more than so many."""

Curve = dict[float, float]
"""Day of the log to value."""


def over_time(scene: Scene, metric: str) -> Figure | None:
    """One ranking or likelihood metric of all methods by day, and how far each is from the reference."""
    frames = _frames(scene.outcome, metric)
    if not frames:
        return None
    width = _bucket([frame for _, frame in frames])
    curves = [(line, by_day(frame, metric, width)) for line, frame in frames]
    name, reference = NAMES[metric], scene.reference
    panels = [_lines(scene, name, Axis(name), curves)]
    base = next((own for line, own in curves if line is reference), None)
    if reference is not None and base is not None and len(curves) > 1:
        others = [(line, own) for line, own in curves if line is not reference]
        gaps = [(line, {x: y - base[x] for x, y in own.items() if x in base}) for line, own in others]
        chart = _lines(scene, f"{name} minus that of {reference.name}", Axis(f"difference in {name}"), gaps)
        panels.append(replace(chart, level=0.0))
    better = "higher" if metric in stats.HIGHER_IS_BETTER else "lower"
    caption = (
        f"{name} of each {_length(width)} of the stream; {better} is better. A point is the mean over the intervals of "
        f"its {_length(width)}, weighted by clicks{_over_seeds(scene.outcome)}."
    )
    if len(panels) > 1:
        caption += " Days differ more than methods do. So the second panel shows the difference from one method."
    few, every = _best_few(scene, panels)
    return Figure(f"{metric}-over-time", f"{name} over time", caption, few, all_rows=every)


def calibration_over_time(scene: Scene) -> Figure | None:
    """PCOC of all methods by day, around 1."""
    frames = _frames(scene.outcome, "pcoc")
    if not frames:
        return None
    width = _bucket([frame for _, frame in frames])
    curves = [(line, by_day(frame, "pcoc", width)) for line, frame in frames]
    chart = _around_one(_lines(scene, "PCOC", Axis("PCOC"), curves))
    caption = (
        f"Predicted over observed conversions of each {_length(width)} of the stream{_over_seeds(scene.outcome)}. At 1 "
        "the rate is right; above it, too many conversions are predicted."
    )
    if any(not 1 / _FURTHEST <= y <= _FURTHEST for one in chart.series for y in one.y):
        caption += f" Values above {_FURTHEST} or below {1 / _FURTHEST} are drawn at the edge."
    few, every = _best_few(scene, [chart])
    return Figure("pcoc-over-time", "Calibration over time", caption, few, all_rows=every)


def _best_few(scene: Scene, charts: Sequence[Chart]) -> tuple[tuple[Chart, ...], tuple[Chart, ...]]:
    """Panels of a figure, with the best rows and the bounds alone if there are many more; then also with all rows."""
    if all(len(chart.series) <= _MANY for chart in charts):
        return tuple(charts), ()
    shown = {line.name for line in (*scene.best[:_FEW], scene.outcome.of_role("upper"), scene.reference) if line}
    few = (replace(chart, series=tuple(one for one in chart.series if one.name in shown)) for chart in charts)
    return tuple(few), tuple(charts)


def runs_over_time(intervals: Mapping[str, pl.DataFrame], origin: int | None = None) -> Figure:
    """AUC, NLL and PCOC of single runs by day. `intervals`: the content of `intervals.parquet` by name of the run."""
    frames = {name: frame.with_columns(seed=pl.lit(0)) for name, frame in intervals.items()}
    width, panels = _bucket(list(frames.values())), []
    for metric in ("auc", "nll", "pcoc"):
        curves = {name: by_day(frame, metric, width) for name, frame in frames.items()}
        series = [Series(name, n, tuple(own), tuple(own.values())) for n, (name, own) in enumerate(curves.items())]
        chart = Chart(NAMES[metric], day_axis(origin), Axis(NAMES[metric]), tuple(series))
        panels.append(_around_one(chart) if metric == "pcoc" else chart)
    caption = (
        f"Each point is one {_length(width)} of the stream. PCOC: predicted over observed conversions; 1 is right."
    )
    return Figure("over-time", "Metrics over time", caption, tuple(panels), columns=3)


def _around_one(chart: Chart) -> Chart:
    values = [y for one in chart.series for y in one.y]
    low = 1 / _FURTHEST if any(y < 1 / _FURTHEST for y in values) else None
    high = _FURTHEST if any(y > _FURTHEST for y in values) else None
    return replace(chart, title="PCOC; 1 is right", y=replace(chart.y, low=low, high=high), level=1.0)


def _lines(scene: Scene, title: str, y: Axis, curves: Sequence[tuple[Line, Curve]]) -> Chart:
    series = [Series(line.name, scene.style(line), tuple(own), tuple(own.values())) for line, own in curves]
    return Chart(title, scene.days, y, tuple(series))


def _length(width: int) -> str:
    return "day" if width == DAY else f"period of {duration(width)}"


def _over_seeds(outcome: Outcome) -> str:
    return ", then the mean over seeds" if len(outcome.bench["seeds"]) > 1 else ""


def _frames(outcome: Outcome, metric: str) -> list[tuple[Line, pl.DataFrame]]:
    """Intervals of all seeds of each line; without lines whose cells were not kept."""
    frames = []
    for line in outcome.lines:
        paths = [outcome.out / "cells" / cell / "intervals.parquet" for cell in line.cells["cell"]]
        seeds = [pl.read_parquet(path) for path in paths if path.is_file()]
        if seeds and all(metric in frame.columns for frame in seeds):
            frames.append((line, pl.concat([frame.with_columns(seed=pl.lit(n)) for n, frame in enumerate(seeds)])))
    return frames


def _bucket(frames: Sequence[pl.DataFrame]) -> int:
    """How much of the stream makes a point: a day, or less of a short stream, or more of a long one."""
    starts = pl.concat([frame["start"] for frame in frames])
    span = max(starts) - min(starts)
    least = DAY if span >= 7 * DAY else HOUR
    return next((width for width in _BUCKETS if width >= least and span / width <= _MOST_POINTS), _BUCKETS[-1])


def by_day(frame: pl.DataFrame, metric: str, width: int) -> Curve:
    """Mean over seeds of the metric by day of the log. A first or last day that is only partly in the stream is left
    out, and so is a day with hardly any clicks."""
    clicks, conversions = pl.col("clicks").sum(), pl.col("conversions").sum()
    if metric == "pcoc":
        value: pl.Expr = pl.when(conversions > 0).then(_predict().sum() / conversions)
    else:
        frame = frame.drop_nulls(metric)
        value = (pl.col(metric) * pl.col("clicks")).sum() / clicks
    at = pl.col("start") // width * width / DAY
    by_seed = frame.group_by("seed", at=at).agg(value=value, clicks=clicks).drop_nulls("value")
    enough = by_seed.filter(pl.col("clicks") >= _FEWEST * pl.col("clicks").median())
    days = enough.group_by("at").agg(pl.col("value").sort().mean(), pl.col("clicks").mean()).sort("at")
    whole = days[without_partial_ends(days["clicks"].to_list())]
    return {float(day): float(mean) for day, mean in whole.select("at", "value").iter_rows()}


def _predict() -> pl.Expr:
    """The sum of predictions of an interval. If nothing converted, PCOC is undefined and ECE is the mean prediction."""
    none = pl.col("ece") * pl.col("clicks")
    return pl.when(pl.col("conversions") > 0).then(pl.col("pcoc") * pl.col("conversions")).otherwise(none)
