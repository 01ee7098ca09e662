"""Forecasts of final conversions, judged: every estimator with the predictions of every row, by age and size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tracecvr.base.config import DAY
from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json, write_parquet
from tracecvr.base.metrics import Floats
from tracecvr.bench.outcome import Line, Outcome
from tracecvr.bench.text_tables import Table, Text
from tracecvr.data import prepared
from tracecvr.data.table import Ints
from tracecvr.forecast.cells import Cells
from tracecvr.forecast.estimators import DEFAULT, ESTIMATORS, estimate
from tracecvr.forecast.forecast import LEVEL, between
from tracecvr.forecast.of_run import of_run
from tracecvr.runs.replay import FullPlan

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


def judge(cells: Cells, first: int, last: int) -> pl.DataFrame:
    """Forecasts of days `first` to `last` (exclusive, of `cells`), whose labels must be final. `error` is the sum of
    what cells are off over the sum of their final conversions, `bias` the same with signs. `constant_width` is that of
    the best intervals that are equally wide in all cells and hold as many: one that knows the outcome."""
    day, rows = np.arange(first, last), []
    final, clicks = cells.conversions[:, day, -1], cells.clicks[:, day]
    for age in (age for age in AGES if age < cells.lags):
        ages = np.full(len(day), age)
        estimates = estimate(cells, day, ages)
        for name in ESTIMATORS:
            ends = None if name == "so_far" else between(cells, day, ages, estimates, LEVEL, name)
            for size, (low, high) in SIZES.items():
                ours = (clicks >= low) & (clicks < high)
                facts: dict[str, Any] = {"estimator": name, "age_days": age, "size": size}
                rows.append(facts | _measure(estimates.final[name], final, ours, ends))
    return pl.DataFrame(rows, _SCHEMA)


def closing_in(cells: Cells, day: int) -> pl.DataFrame:
    """How the forecast of one day went on as it grew older: of its largest segment."""
    segment = int(cells.clicks[:, day].argmax())
    age = np.arange(cells.lags)
    days = np.full(len(age), day)
    estimates = estimate(cells, days, age)
    low, high = between(cells, days, age, estimates)
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


NAME = "forecast.parquet"
CLOSING = "forecast_day.parquet"


def write(out: Path, log: Path, by: str) -> None:
    """`forecast.parquet`: of each cell, estimator, age and size; `forecast_day.parquet`: one day of each cell."""
    ready, parts, days = prepared.load(log), [], []
    for cell in pl.read_parquet(out / "results.parquet")["cell"]:
        plan = FullPlan(**read_json(out / "cells" / cell / "result.json")["plan"])
        run = of_run(out / "cells" / cell, ready)
        matured = run.last - (-ready.table.schema.d_max // DAY) * DAY
        cells, _ = run.cells(by, matured)
        first, last = judged_days(cells, plan.judge_from, plan.until)
        if first == last:
            raise UserError("no whole day of the stream has final labels: give a longer log, or an earlier judge_from")
        mark = pl.lit(cell).alias("cell")
        parts.append(judge(cells, first, last).select(mark, pl.all()))
        days.append(closing_in(cells, (first + last) // 2).select(mark, pl.all()))
    for name, frames in ((NAME, parts), (CLOSING, days)):
        if frames:
            write_parquet(out / name, pl.concat(frames))


def read_row(outcome: Outcome, line: Line, name: str = NAME) -> pl.DataFrame | None:
    """What was measured of a row, all seeds; None without it."""
    path = outcome.out / name
    if not path.is_file():
        return None
    mine = pl.read_parquet(path).filter(pl.col("cell").is_in(line.cells["cell"].to_list()))
    return mine if len(mine) else None


def tables(outcome: Outcome) -> list[Table]:
    """For each row and size of cell: error and bias of every estimator at each age; intervals of the default."""
    made = []
    for line in outcome.lines:
        if (frame := read_row(outcome, line)) is None:
            continue
        for size in SIZES:
            mine = frame.filter(size=size).drop_nulls("error")
            if len(mine):
                made += [_errors(line, size, mine), _intervals(line, size, mine.filter(estimator=DEFAULT))]
    return made


def _errors(line: Line, size: str, frame: pl.DataFrame) -> Table:
    ages = frame["age_days"].unique().sort().to_list()
    table = Table(f"{line.name}: error of forecasts, cells of {size}", ["estimator", *map(_age, ages)])
    means = frame.group_by("estimator", "age_days").agg(pl.col("error", "bias").mean())
    best = dict(means.group_by("age_days").agg(pl.col("error").min()).iter_rows())
    for estimator in ESTIMATORS:
        mine = {row["age_days"]: row for row in means.filter(estimator=estimator).iter_rows(named=True)}
        cells = [
            Text(f"{mine[age]['error']:.4f} ({mine[age]['bias']:+.1%})", bold=mine[age]["error"] == best[age])
            for age in ages
        ]
        table.rows.append([Text(estimator), *cells])
    table.notes.append(
        "Sum of what cells are off over the sum of their final conversions; in brackets the bias. The age is that of "
        "the day: 0 d is its end."
    )
    return table


def _intervals(line: Line, size: str, frame: pl.DataFrame) -> Table:
    means = frame.group_by("age_days").agg(pl.col("coverage", "width", "constant_width", "cells").mean())
    means = means.sort("age_days").with_columns(ratio=pl.col("width") / pl.col("constant_width").clip(1e-9))
    headings = ["figure", *map(_age, means["age_days"])]
    table = Table(f"{line.name}: 90% intervals of {DEFAULT}, cells of {size}", headings)
    figures = {"coverage": "coverage", "mean width, conversions": "width", "over constant width": "ratio"}
    for title, column in figures.items():
        table.rows.append([Text(title), *(Text(f"{v:.{3 if column == 'coverage' else 2}f}") for v in means[column])])
    table.rows.append([Text("cells"), *(Text(f"{v:,.0f}") for v in means["cells"])])
    table.notes.append("Constant width: the shortest intervals of one width for all cells with the same coverage.")
    return table


def _age(days: int) -> str:
    return f"{days} d"
