"""Past forecasts beside what became of them: error, bias, coverage and width, by estimator, age and size of cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from tracecvr.base.config import DAY
from tracecvr.base.metrics import Floats
from tracecvr.data.table import Ints
from tracecvr.forecast.cells import Cells
from tracecvr.forecast.estimators import ESTIMATORS, estimate
from tracecvr.forecast.forecast import LEVEL, between

SIZES = {"200 clicks or more": (200, np.inf), "20 to 199 clicks": (20, 200)}
"""Cells by their clicks; smaller ones are not judged."""
AGES = (0, 1, 2, 3, 5, 7, 10, 14, 21, 28)
_SCHEMA: dict[str, type[pl.DataType]] = {
    "estimator": pl.String,
    "age_days": pl.Int64,
    "size": pl.String,
    "cells": pl.Int64,
    "conversions": pl.Int64,
} | dict.fromkeys(("error", "bias", "coverage", "width", "constant_width"), pl.Float64)


def judge(cells: Cells, first: int, last: int, level: float = LEVEL) -> pl.DataFrame:
    """Forecasts of days `first` to `last` (exclusive, of `cells`), whose labels must be final. `error` is the sum of
    what cells are off over the sum of their final conversions, `bias` the same with signs. `constant_width` is that of
    the best intervals that are equally wide in all cells and hold as many: one that knows the outcome."""
    day, rows = np.arange(first, last), []
    final, clicks = cells.conversions[:, day, -1], cells.clicks[:, day]
    for age in (age for age in AGES if age < cells.lags):
        ages = np.full(len(day), age)
        estimates = estimate(cells, day, ages)
        for name in ESTIMATORS:
            ends = None if name == "so_far" else between(cells, day, ages, estimates, level, name)
            for size, (low, high) in SIZES.items():
                ours = (clicks >= low) & (clicks < high)
                facts: dict[str, Any] = {"estimator": name, "age_days": age, "size": size}
                rows.append(facts | _measure(estimates.final[name], final, ours, ends))
    return pl.DataFrame(rows, _SCHEMA)


def closing_in(cells: Cells, day: int, level: float = LEVEL) -> pl.DataFrame:
    """How the forecast of one day went on as it grew older: of its largest segment."""
    segment = int(cells.clicks[:, day].argmax())
    age = np.arange(cells.lags)
    days = np.full(len(age), day)
    estimates = estimate(cells, days, age)
    low, high = between(cells, days, age, estimates, level)
    columns = {name: estimates.final[name][segment].astype(np.float64) for name in ESTIMATORS}
    ends = {"low": low[segment], "high": high[segment]}
    return pl.DataFrame({"segment": segment, "day": day, "age_days": age} | columns | ends).with_columns(
        pl.lit(float(cells.conversions[segment, day, -1])).alias("final")
    )


def _measure(guess: Any, final: Any, ours: Any, ends: tuple[Floats, Floats] | None) -> dict[str, float | int | None]:
    truth, off = final[ours].astype(np.float64), (guess - final)[ours].astype(np.float64)
    total = truth.sum()
    measured: dict[str, float | int | None] = {"cells": len(truth), "conversions": int(total)}
    if not total:
        return measured
    measured |= {"error": float(np.abs(off).sum() / total), "bias": float(off.sum() / total)}
    if ends is not None:
        low, high = (end[ours] for end in ends)
        held = (truth >= low - 1e-6) & (truth <= high + 1e-6)
        measured |= {"coverage": float(held.mean()), "width": float((high - low).mean())}
        measured["constant_width"] = _shortest(-off, float(held.mean()))
    return measured


def _shortest(misses: Floats, share: float) -> float:
    ordered = np.sort(misses)
    count = min(max(int(np.ceil(share * len(ordered))), 1), len(ordered))
    return float((ordered[count - 1 :] - ordered[: len(ordered) - count + 1]).min())


def judged_days(cells: Cells, start: int, end: int) -> tuple[int, int]:
    """The whole days between two moments (s) whose labels are final."""
    day: Ints = np.arange(cells.days)
    begins = cells.start(day)
    inside = np.flatnonzero((begins >= start) & (begins + DAY <= end) & (cells.days - 1 - day >= cells.lags))
    return (int(inside[0]), int(inside[-1]) + 1) if len(inside) else (0, 0)
