"""Forecasts of final conversions, judged: every estimator with the predictions of every row, by age and size of cells.

A cell is a segment on a day. Days are those of judged clicks whose labels are final.
"""

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
from tracecvr.bench.text_tables import Table, Text, figure_cell
from tracecvr.data import prepared
from tracecvr.data.table import Ints
from tracecvr.forecast.cells import Cells, Counts
from tracecvr.forecast.estimators import DEFAULT, ESTIMATORS, estimate
from tracecvr.forecast.forecast import LEVEL, between
from tracecvr.forecast.of_run import of_run
from tracecvr.runs.replay import FullPlan

JUDGED, ONE_DAY = "forecast.parquet", "forecast_day.parquet"
SIZES = {"200 clicks or more": (200, np.inf), "20 to 199 clicks": (20, 200)}
"""Cells by their clicks; smaller ones are not judged."""
AGES = (0, 1, 2, 3, 5, 7, 10, 14, 21, 28)
_MEASURES = ("conversions", "error", "bias", "coverage", "width", "constant_width")
_SCHEMA = {"estimator": pl.String, "age_days": pl.Int64, "size": pl.String, "cells": pl.Int64}


def write(out: Path, log: Path, by: str) -> None:
    """`forecast.parquet`: of each run, estimator, age and size; `forecast_day.parquet`: one day of each run."""
    ready, judged, one_day = prepared.load(log), [], []
    for name in pl.read_parquet(out / "results.parquet")["cell"]:
        folder, run = pl.lit(name).alias("cell"), of_run(out / "cells" / name, ready)
        plan = FullPlan(**read_json(out / "cells" / name / "result.json")["plan"])
        cells, _ = run.cells(by, run.last - (-ready.table.schema.d_max // DAY) * DAY)
        day = np.arange(cells.days - cells.lags)
        begins = cells.start(day)
        day = day[(begins >= plan.judge_from) & (begins + DAY <= plan.until)]
        if not len(day):
            raise UserError("no whole day of the stream has final labels: give a longer log, or an earlier judge_from")
        judged.append(judge(cells, day).select(folder, pl.all()))
        one_day.append(follow(cells, (day[0] + day[-1] + 1) // 2).select(folder, pl.all()))
    if judged:
        write_parquet(out / JUDGED, pl.concat(judged))
        write_parquet(out / ONE_DAY, pl.concat(one_day))


def judge(cells: Cells, day: Ints) -> pl.DataFrame:
    """Forecasts of days whose labels are final. `error` is the sum of what cells are off over the sum of their final
    conversions, `bias` the same with signs. `constant_width` is that of the best intervals that are equally wide in all
    cells and hold as many: one that knows the outcome."""
    rows: list[dict[str, Any]] = []
    final, clicks = cells.conversions[:, day, -1], cells.clicks[:, day]
    for age in (age for age in AGES if age < cells.lags):
        ages = np.full(len(day), age)
        estimates = estimate(cells, day, ages)
        for name in ESTIMATORS:
            low, high = between(cells, day, ages, estimates, LEVEL, name)
            for size, (least, most) in SIZES.items():
                ours = (clicks >= least) & (clicks < most)
                if final[ours].any():
                    made = _measure(final[ours], estimates.final[name][ours], low[ours], high[ours])
                    rows.append({"estimator": name, "age_days": age, "size": size} | made)
    return pl.DataFrame(rows, _SCHEMA | dict.fromkeys(_MEASURES, pl.Float64))


def _measure(truth: Counts, guess: Counts, low: Floats, high: Floats) -> dict[str, float]:
    off, total = guess.astype(np.float64) - truth, truth.astype(np.float64).sum()
    held = (truth >= low - 1e-6) & (truth <= high + 1e-6)
    ordered, count = np.sort(off), max(int(held.sum()), 1)
    shortest = (ordered[count - 1 :] - ordered[: len(ordered) - count + 1]).min()
    figures = (total, np.abs(off).sum() / total, off.sum() / total, held.mean(), (high - low).mean(), shortest)
    return {"cells": len(truth)} | dict(zip(_MEASURES, map(float, figures), strict=True))


def follow(cells: Cells, day: int) -> pl.DataFrame:
    """How the forecast of one day goes on as it grows older, and what it came to: of its largest segment."""
    segment, age = int(cells.clicks[:, day].argmax()), np.arange(cells.lags)
    days = np.full(len(age), day)
    estimates = estimate(cells, days, age)
    low, high = between(cells, days, age, estimates)
    columns = {name: estimates.final[name][segment].astype(np.float64) for name in ESTIMATORS}
    final = np.full(len(age), float(cells.conversions[segment, day, -1]))
    return pl.DataFrame({"age_days": age} | columns | {"low": low[segment], "high": high[segment], "final": final})


def read_row(outcome: Outcome, line: Line, name: str) -> pl.DataFrame:
    """What a file has of a row, all seeds; empty without it."""
    path = outcome.out / name
    frame = pl.read_parquet(path) if path.is_file() else pl.DataFrame(schema={"cell": pl.String, "size": pl.String})
    return frame.filter(pl.col("cell").is_in(line.cells["cell"].to_list()))


def tables(outcome: Outcome) -> list[Table]:
    """For each row and size of cell: error and bias of every estimator at each age; intervals of the default."""
    made = []
    for line in outcome.lines:
        for (size,), frame in read_row(outcome, line, JUDGED).group_by("size", maintain_order=True):
            means = frame.group_by("estimator", "age_days").agg(pl.mean("cells", *_MEASURES)).sort("age_days")
            mine = means.filter(estimator=DEFAULT)
            ages = [f"{age} d" for age in mine["age_days"]]
            table = Table(f"{line.name}: error of forecasts, cells of {size}", ["estimator", *ages])
            least = means.group_by("age_days", maintain_order=True).agg(pl.min("error"))["error"]
            for name in ESTIMATORS:
                pairs = zip(means.filter(estimator=name).select("error", "bias").iter_rows(), least, strict=True)
                texts = [Text(f"{error:.4f} ({bias:+.1%})", bold=error == best) for (error, bias), best in pairs]
                table.rows.append([Text(name), *texts])
            table.apart.add(len(ESTIMATORS))
            ratio = mine["width"] / mine["constant_width"].clip(1e-9)
            table.rows += [
                [Text(f"coverage of {DEFAULT}"), *(figure_cell(value, 3) for value in mine["coverage"])],
                [Text("mean width, conversions"), *(figure_cell(value, 2) for value in mine["width"])],
                [Text("width over constant width"), *(figure_cell(value, 2) for value in ratio)],
                [Text("cells"), *(Text(f"{value:,.0f}") for value in mine["cells"])],
            ]
            table.notes = [
                "Sum of what cells are off over the sum of their final conversions; in brackets the bias. The age is "
                f"that of the day: 0 d is its end. Below: {LEVEL:.0%} intervals of {DEFAULT}. Constant width: the "
                "shortest intervals of one width for all cells with the same coverage."
            ]
            made.append(table)
    return made
