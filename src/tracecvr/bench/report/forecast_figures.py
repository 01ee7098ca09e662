"""Forecasts as figures: how far estimators are off at each age, and how the forecast of one day closes in."""

from __future__ import annotations

import polars as pl

from tracecvr.bench.forecasts import CLOSING, read_row
from tracecvr.bench.report.figure import Axis, Chart, Figure, Series
from tracecvr.bench.report.scene import Scene
from tracecvr.forecast.backtest import SIZES
from tracecvr.forecast.estimators import DEFAULT

_STYLES = {DEFAULT: 0, "final": 1, "bf": 2, "model": 3, "projected": 4, "ladder": 5, "low": 6, "high": 7, "so_far": 8}
"""A name looks the same in every panel."""
_SHOWN = (DEFAULT, "bf", "model", "ladder", "projected")
_LINES = {DEFAULT: DEFAULT, "low": "lower end", "high": "upper end", "projected": "projected", "so_far": "so far"}


def draw_forecasts(scene: Scene) -> Figure | None:
    """Of the first row."""
    line = scene.outcome.lines[0]
    frame, day = read_row(scene.outcome, line), read_row(scene.outcome, line, CLOSING)
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
    for name in _SHOWN:
        mine = means.filter(estimator=name)
        series.append(Series(name, _STYLES[name], tuple(mine["age_days"]), tuple(mine["error"])))
    return Chart(f"error, cells of {size}", Axis("age in days", "count"), Axis("error", low=0.0), tuple(series))


def _closing(frame: pl.DataFrame) -> Chart:
    one = frame.filter(pl.col("cell") == frame["cell"][0]).sort("age_days")
    x = tuple(one["age_days"].to_list())
    lines = _LINES | {"final": "final"}
    series = [Series(words, _STYLES[name], x, tuple(one[name])) for name, words in lines.items()]
    title = f"conversions of one day ({one['final'][0]:,.0f} in the end)"
    return Chart(title, Axis("age in days", "count"), Axis("conversions", "count"), tuple(series))
