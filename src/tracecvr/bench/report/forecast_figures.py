"""Forecasts as figures: how far estimators are off at each age, and how the forecast of one day closes in."""

from __future__ import annotations

import polars as pl

from tracecvr.bench.forecasts import CLOSING, frame_of
from tracecvr.bench.report.figure import Axis, Chart, Figure, Series
from tracecvr.bench.report.scene import Scene
from tracecvr.forecast.backtest import SIZES
from tracecvr.forecast.estimators import DEFAULT

_SHOWN = (DEFAULT, "bf", "model", "ladder", "projected")
_LINES = {DEFAULT: DEFAULT, "low": "lower end", "high": "upper end", "projected": "projected", "so_far": "so far"}


def forecasts(scene: Scene) -> Figure | None:
    """Of the row that is ours, or the first."""
    line = scene.outcome.of_role("ours") or scene.outcome.lines[0]
    frame, day = frame_of(scene.outcome, line), frame_of(scene.outcome, line, CLOSING)
    if frame is None or day is None:
        return None
    panels = [_errors(frame.filter(size=size).drop_nulls("error"), size) for size in SIZES] + [_closing(day)]
    caption = (
        f"{line.name}. Error: what forecasts of cells are off, summed, over final conversions. Last, "
        "one day of the largest segment, with the 90% interval as it was forecast at each age, and what it came to."
    )
    return Figure("forecast", "Forecasts by age of the day", caption, tuple(panels), columns=2)


def _errors(frame: pl.DataFrame, size: str) -> Chart:
    means = frame.group_by("estimator", "age_days").agg(pl.col("error").mean()).sort("age_days")
    series = []
    for style, name in enumerate(_SHOWN):
        mine = means.filter(estimator=name)
        series.append(Series(name, style, tuple(mine["age_days"]), tuple(mine["error"])))
    return Chart(f"error, cells of {size}", Axis("age in days", "count"), Axis("error", low=0.0), tuple(series))


def _closing(frame: pl.DataFrame) -> Chart:
    one = frame.filter(pl.col("cell") == frame["cell"][0]).sort("age_days")
    x = tuple(one["age_days"].to_list())
    series = [Series(words, style, x, tuple(one[name])) for style, (name, words) in enumerate(_LINES.items())]
    series.append(Series("final", len(series), x, tuple(one["final"])))
    title = f"conversions of one day ({one['final'][0]:,.0f} in the end)"
    return Chart(title, Axis("age in days", "count"), Axis("conversions", "count"), tuple(series))
