"""How good forecasts of final conversions are: every estimator with the predictions of a run, by age and size of cells.

    tracecvr run --method telescoped --data criteo_search --source data --set judge_from=50d --out run
    python benchmarks/forecasts.py run --by partner_id

A cell is a segment on a day. Days are those of judged clicks whose labels are final.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from rich.console import Console
from rich.table import Table

from tracecvr.base.config import DAY
from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json
from tracecvr.base.metrics import Floats
from tracecvr.data.table import Ints
from tracecvr.forecast.cells import Cells
from tracecvr.forecast.estimators import DEFAULT, ESTIMATORS, estimate
from tracecvr.forecast.forecast import LEVEL, between
from tracecvr.forecast.of_run import open_run
from tracecvr.runs.replay import FullPlan

SIZES = {"200 clicks or more": (200, np.inf), "20 to 199 clicks": (20, 200)}
"""Cells by their clicks; smaller ones are not judged."""
AGES = (0, 1, 2, 3, 5, 7, 10, 14, 21, 28)


def judge_run(folder: Path, by: str) -> pl.DataFrame:
    """`judge` of a finished run, on its judged clicks."""
    run, plan = open_run(folder), FullPlan(**read_json(folder / "result.json")["plan"])
    cells, _ = run.cells(by, run.last - (-run.table.schema.d_max // DAY) * DAY)
    first, last = judged_days(cells, plan.judge_from, plan.until)
    if first == last:
        raise UserError("no whole day of the stream has final labels: give a longer log, or an earlier judge_from")
    return judge(cells, first, last)


def judged_days(cells: Cells, start: int, end: int) -> tuple[int, int]:
    """The whole days between two moments (s) whose labels are final."""
    day: Ints = np.arange(cells.days)
    begins = cells.start(day)
    inside = np.flatnonzero((begins >= start) & (begins + DAY <= end) & (cells.days - 1 - day >= cells.lags))
    return (int(inside[0]), int(inside[-1]) + 1) if len(inside) else (0, 0)


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
    return pl.DataFrame(rows, infer_schema_length=None)


def _measure(guess: Any, final: Any, ours: Any, ends: tuple[Floats, Floats] | None) -> dict[str, float | None]:
    truth, off = final[ours].astype(np.float64), (guess - final)[ours].astype(np.float64)
    total = truth.sum()
    measured: dict[str, float | None] = dict.fromkeys(("error", "bias", "coverage", "width", "constant_width"))
    measured |= {"cells": float(len(truth))}
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


def tables(frame: pl.DataFrame) -> list[Table]:
    """For each size of cell: error and bias of every estimator at each age; intervals of the default."""
    made = []
    for size in SIZES:
        mine = frame.filter(size=size).drop_nulls("error").sort("age_days")
        if not len(mine):
            continue
        ages = [f"{age} d" for age in mine["age_days"].unique().sort()]
        errors = Table("error (bias)", *ages, title=f"Error of forecasts, cells of {size}")
        for name in ESTIMATORS:
            each = mine.filter(estimator=name)
            errors.add_row(name, *(f"{e:.4f} ({b:+.1%})" for e, b in each.select("error", "bias").iter_rows()))
        intervals = Table("figure", *ages, title=f"{LEVEL:.0%} intervals of {DEFAULT}, cells of {size}")
        best = mine.filter(estimator=DEFAULT)
        ratio = best["width"] / best["constant_width"].clip(1e-9)
        intervals.add_row("coverage", *(f"{one:.3f}" for one in best["coverage"]))
        intervals.add_row("mean width, conversions", *(f"{one:.2f}" for one in best["width"]))
        intervals.add_row("over constant width", *(f"{one:.2f}" for one in ratio))
        intervals.add_row("cells", *(f"{one:,.0f}" for one in best["cells"]))
        made += [errors, intervals]
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the directory of a finished run")
    parser.add_argument("--by", required=True, help="the feature whose values are segments")
    given = parser.parse_args()
    try:
        frame = judge_run(given.run, given.by)
    except UserError as error:
        parser.error(str(error))
    for table in tables(frame):
        Console(width=160).print(table)


if __name__ == "__main__":
    main()
