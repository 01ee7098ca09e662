"""From a bench to its figures. A figure whose data are missing is left out: runs that were not kept, for example."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import log

import polars as pl

from tracecvr.base.config import DAY, HOUR
from tracecvr.base.durations import duration
from tracecvr.bench import forecasts, stats
from tracecvr.bench.outcome import ARROWS, NAMES, Line, Outcome
from tracecvr.bench.report.drawing import Axis, Bar, Bars, Chart, Figure, Series
from tracecvr.forecast.estimators import DEFAULT
from tracecvr.forecast.forecast import LEVEL


def make_figures(outcome: Outcome) -> list[Figure]:
    """All figures of a bench, in the order of the page: the first is the one that decides."""
    if not outcome.lines or outcome.suite["layout"] == "tune":  # hundreds of trials: too many to look at
        return []
    made = [draw_forecast(outcome), compare(outcome), *(over_time(outcome, metric) for metric in METRICS)]
    return [figure for figure in made if figure is not None]


# Paired differences.


def compare(outcome: Outcome) -> Figure | None:
    """Bars of paired differences: to the upper bound, else to the best other method; of a change, to its base."""
    comparing = outcome.suite["layout"] == "comparison"
    bound = outcome.of_role("upper") if comparing else None
    metrics = sorted((m for m in outcome.metrics if m in ARROWS), key=lambda metric: metric != "nll")  # what decides
    panels = [panel for metric in metrics[: 2 if comparing else 3] if (panel := _compare(outcome, bound, metric)).bars]
    if not panels:
        return None
    panels += _pcoc_bars(outcome) if comparing else []
    other = bound.name if bound else "the best other row" if comparing else "the row that it is a variant of"
    over = "judged days, of one seed" if len(outcome.bench["seeds"]) == 1 else "seeds"
    caption = (
        f"How much worse each row is than {other}, paired: further left is better. Whiskers: 95\u00a0% interval over "
        f"{over}. Solid: the interval excludes zero. Hollow: not statistically significant, or no interval."
    )
    if comparing:
        caption += " PCOC: predicted over observed conversions; bars begin at 1, where the total is right."
    title = "Against the best other method" if comparing else "What each change does"
    key, title = ("distance", f"Distance to {bound.name}") if bound else ("differences", title)
    return Figure(key, title, caption, tuple(panels), columns=3)


def _compare(outcome: Outcome, bound: Line | None, metric: str) -> Bars:
    bars, comparing = [], outcome.suite["layout"] == "comparison"
    sign = -1 if metric in stats.HIGHER_IS_BETTER else 1
    for line in outcome.lines:
        other = bound if line is not bound else None
        if bound is None:
            other = outcome.best_other(line, metric) if comparing else outcome.base_of(line)
        gap = None if other is None else outcome.difference(line, other, metric, pooled=False)
        if gap is not None:
            low, high = sorted(sign * end for end in (gap.low, gap.high) if end is not None) or (None, None)
            value = sign * gap.mean
            bars.append(Bar(line.name, value, outcome.styles[line.name], low, high, gap.clear, f"{value:+.4f}"))
    if comparing:
        bars.sort(key=lambda bar: bar.value)
    other_name = bound.name if bound else "the other row"
    axis = Axis(f"{NAMES[metric]} {'below' if sign < 0 else 'above'} that of {other_name}")
    return Bars(NAMES[metric], axis, tuple(bars))


def _pcoc_bars(outcome: Outcome) -> list[Bars]:
    """PCOC of every line, the one nearest to 1 first; nothing if it is not known."""
    known = [(spread, line) for line in outcome.lines if (spread := line.spread("pcoc")) is not None]
    bars = []
    for spread, line in sorted(known, key=lambda one: abs(log(max(one[0].mean, 1e-9)))):
        reach = (None, None) if spread.sd is None else (spread.mean - spread.sd, spread.mean + spread.sd)
        bars.append(Bar(line.name, spread.mean, outcome.styles[line.name], *reach))
    axis = Axis("too few predicted < 1 is right < too many")
    return [Bars("PCOC: is the total right?", axis, tuple(bars), base=1.0)] if bars else []


# Forecasts.


_LINES = (DEFAULT, "final", "low", "high", "projected", "so_far")


def draw_forecast(outcome: Outcome) -> Figure | None:
    """How the forecast of one day closes in on the truth: of the first row."""
    frame = forecasts.read_row(outcome, outcome.lines[0], forecasts.ONE_DAY)
    if not len(frame):
        return None
    one = frame.filter(cell=frame["cell"][0]).sort("age_days")
    ages = tuple(one["age_days"])
    series = [Series(name.replace("_", " "), n, ages, tuple(one[name])) for n, name in enumerate(_LINES)]
    axes = Axis("age in days", digits=0), Axis("conversions", digits=1)
    title = f"conversions of one day ({one['final'][0]:,.0f} in the end)"
    caption = (
        f"{outcome.lines[0].name}. One day of the largest segment: what was forecast at each age with its {LEVEL:.0%} "
        "interval (low, high), and what it came to (final)."
    )
    return Figure("forecast", "Forecasts of one day", caption, (Chart(title, *axes, tuple(series)),))


# Metrics over time, each point from the clicks of its own day, so that drift is visible.


METRICS = ("auc", "nll", "pcoc")
_MOST_POINTS = 45
_BUCKETS = (HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 30 * DAY)
_FEWEST = 0.25
"""Share of a busy day's clicks that a point has at least: the luck of a few would set the scale for all others."""
_FURTHEST = 2.5
"""PCOC beyond this, or below its inverse, is drawn at the edge: one bad method would hide all others."""

Curves = dict[str, dict[float, float]]
"""Of each row, day of the log to value."""


def over_time(outcome: Outcome, metric: str) -> Figure | None:
    """A metric of the best methods and the bounds by day, and how far each is from one of them; PCOC around 1."""
    frames = _read_intervals(outcome, metric)
    if not frames:
        return None
    width, name = _choose_bucket(frames.values()), NAMES[metric]
    curves = {line: by_day(frame, metric, width) for line, frame in frames.items()}
    origin = outcome.bench.get("log", {}).get("origin")
    charts = [_chart(metric, name, origin, curves, outcome.styles)]
    caption = f"Each point is one {_say_width(width)} of the stream"
    caption += ", the mean over seeds. " if len(outcome.bench["seeds"]) > 1 else ". "
    if metric == "pcoc":
        caption += "Predicted over observed conversions: at 1 the total is right; above it, too many are predicted. "
        caption += f"Values above {_FURTHEST} or below {1 / _FURTHEST} are drawn at the edge."
    else:
        caption += f"Intervals are weighted by clicks. {'Higher' if '↑' in ARROWS[metric] else 'Lower'} is better."
    base = None if outcome.reference is None else outcome.reference.name
    if metric != "pcoc" and base in curves and len(curves) > 1:
        gaps = {
            line: {x: y - curves[base][x] for x, y in own.items() if x in curves[base]}
            for line, own in curves.items()
            if line != base
        }
        charts.append(replace(_chart(metric, f"{name} minus that of {base}", origin, gaps, outcome.styles), level=0.0))
        caption += " Days differ more than methods do. So the second panel shows the difference from one method."
    return Figure(f"{metric}-over-time", f"{name} over time", caption, tuple(charts))


def runs_over_time(intervals: Mapping[str, pl.DataFrame], origin: int | None = None) -> Figure:
    """AUC, NLL and PCOC of single runs by day. `intervals`: the content of `intervals.parquet` by name of the run."""
    frames = {name: frame.with_columns(seed=pl.lit(0)) for name, frame in intervals.items()}
    width, styles = _choose_bucket(frames.values()), {name: number for number, name in enumerate(frames)}
    panels = []
    for metric in METRICS:
        curves = {name: by_day(frame, metric, width) for name, frame in frames.items()}
        panels.append(_chart(metric, NAMES[metric], origin, curves, styles))
    caption = (
        f"Each point is one {_say_width(width)} of the stream. PCOC: predicted over observed conversions; 1 is right."
    )
    return Figure("over-time", "Metrics over time", caption, tuple(panels), columns=3)


def _chart(metric: str, title: str, origin: int | None, curves: Curves, styles: Mapping[str, int]) -> Chart:
    days = Axis("day of the log" if origin is None else "date (UTC)", days=True, origin=origin)
    series = tuple(Series(name, styles[name], tuple(own), tuple(own.values())) for name, own in curves.items())
    if metric != "pcoc":
        return Chart(title, days, Axis(title), series)
    values = [y for one in series for y in one.y]
    low = 1 / _FURTHEST if any(y < 1 / _FURTHEST for y in values) else None
    high = _FURTHEST if any(y > _FURTHEST for y in values) else None
    return Chart("PCOC; 1 is right", days, Axis(title, low=low, high=high), series, level=1.0)


def _say_width(width: int) -> str:
    return "day" if width == DAY else f"period of {duration(width)}"


def _read_intervals(outcome: Outcome, metric: str) -> dict[str, pl.DataFrame]:
    """Intervals of all seeds of each row that is drawn; without rows whose cells were not kept."""
    frames = {}
    for line in outcome.few:
        seeds = [frame for seed in line.cells["seed"] if (frame := outcome.intervals(line, seed)) is not None]
        if seeds and all(metric in frame.columns for frame in seeds):
            frames[line.name] = pl.concat([frame.with_columns(seed=pl.lit(n)) for n, frame in enumerate(seeds)])
    return frames


def _choose_bucket(frames: Iterable[pl.DataFrame]) -> int:
    """How much of the stream makes a point: a day, or less of a short stream, or more of a long one."""
    starts = pl.concat([frame["start"] for frame in frames])
    span = max(starts) - min(starts)
    least = DAY if span >= 7 * DAY else HOUR
    return next((width for width in _BUCKETS if width >= least and span / width <= _MOST_POINTS), _BUCKETS[-1])


def by_day(frame: pl.DataFrame, metric: str, width: int) -> dict[float, float]:
    """Mean over seeds of the metric by day of the log. Days with few clicks are left out, such as a first or last day
    of which most is not in the stream."""
    clicks, conversions = pl.col("clicks").sum(), pl.col("conversions").sum()
    if metric == "pcoc":  # undefined where nothing converted; ECE is the mean prediction there
        none = pl.col("ece") * pl.col("clicks")
        predicted = pl.when(pl.col("conversions") > 0).then(pl.col("pcoc") * pl.col("conversions")).otherwise(none)
        value: pl.Expr = pl.when(conversions > 0).then(predicted.sum() / conversions)
    else:
        frame = frame.drop_nulls(metric)
        value = (pl.col(metric) * pl.col("clicks")).sum() / clicks
    at = pl.col("start") // width * width / DAY
    by_seed = frame.group_by("seed", at=at).agg(value=value, clicks=clicks).drop_nulls("value")
    enough = by_seed.filter(pl.col("clicks") >= _FEWEST * pl.col("clicks").quantile(0.75))
    days = enough.group_by("at").agg(pl.col("value").sort().mean()).sort("at")
    return {float(day): float(mean) for day, mean in days.iter_rows()}
