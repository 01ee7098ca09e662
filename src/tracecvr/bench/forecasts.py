"""Forecasts of final conversions, judged: every estimator with the predictions of every row, by age and size."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from tracecvr.base.config import DAY
from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json, write_parquet
from tracecvr.bench.outcome import Line, Outcome
from tracecvr.bench.text_tables import Table, Text
from tracecvr.data import prepared
from tracecvr.forecast.backtest import SIZES, closing_in, judge, judged_days
from tracecvr.forecast.estimators import DEFAULT, ESTIMATORS
from tracecvr.forecast.of_run import of_run
from tracecvr.runs.replay import FullPlan

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
