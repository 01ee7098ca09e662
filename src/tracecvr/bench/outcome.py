"""What a bench directory holds: finished cells, as `results.parquet`; and rows with their cells and how they differ,
ready to be tabulated and drawn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tracecvr.base.durations import log_day
from tracecvr.base.files import read_json, write_parquet
from tracecvr.base.metrics import INTERVAL_METRICS, TITLES, Metrics
from tracecvr.bench import stats
from tracecvr.bench.suite import Cell

# Finished cells as `results.parquet`, one row each, in the suite's order.

POOLED = tuple(Metrics.__dataclass_fields__)
BESIDE = tuple(f"{reference}_{name}" for reference in ("constant", "logistic") for name in POOLED)
"""Pooled metrics of the references."""
_TIMES = ("prepare", "warm_up", "shared_warm_up", "stream")
_TEXT = ("cell", "label", "variant", "role", "base", "method", "plugins", "settings")
_COUNTS = ("seed", "clicks", "conversions", "events", "steps", "skipped_events", "clipped_weights")
SCHEMA = (
    dict.fromkeys(_TEXT, pl.String)
    | dict.fromkeys(("seed",), pl.Int64)
    | dict.fromkeys((*POOLED, *(f"interval_{name}" for name in INTERVAL_METRICS), *BESIDE), pl.Float64)
    | dict.fromkeys(_COUNTS[1:], pl.Int64)
    | dict.fromkeys(("events_per_click", "steps_per_click", "shown_per_click"), pl.Float64)
    | dict.fromkeys((*(f"time_{name}_s" for name in _TIMES), "memory_peak_mb"), pl.Float64)
)
"""Columns of `results.parquet` and their types; docs/bench.md tells what they mean."""


def is_finished(folder: Path) -> bool:
    return (folder / "result.json").is_file()


def write_results(out: Path, cells: Sequence[Cell]) -> None:
    """`results.parquet` of all finished cells."""
    folders = [(cell, out / "cells" / cell.name) for cell in cells]
    rows = [_make_row(cell, read_json(folder / "result.json")) for cell, folder in folders if is_finished(folder)]
    write_parquet(out / "results.parquet", pl.DataFrame(rows, SCHEMA))


def _make_row(cell: Cell, result: dict[str, Any]) -> dict[str, Any]:
    row, cost, clicks = cell.row, result["cost"], result["cost"]["clicks"]
    passes = result["config"]["method"]["passes"]
    content: dict[str, Any] = (
        {
            "cell": cell.name,
            "plugins": "+".join(row.plugins),
            "settings": json.dumps(row.settings, sort_keys=True),
            "seed": cell.seed,
            "events": cost["reveals"],
            "events_per_click": cost["reveals"] / clicks,
            "steps_per_click": cost["steps"] / clicks,
            "shown_per_click": cost["reveals"] * passes / clicks,
            "memory_peak_mb": cost["peak_rss_mb"],
        }
        | {name: getattr(row, name) for name in ("label", "variant", "role", "base", "method")}
        | {name: result["judged"][name] for name in ("clicks", "conversions")}
        | {name: cost[name] for name in ("steps", "skipped_events", "clipped_weights")}
        | dict.fromkeys((*POOLED, *BESIDE))
        | result["metrics"]["pooled"]
        | {f"{r}_{name}": v for r, content in result["references"].items() for name, v in content.items()}
        | {f"interval_{name}": result["metrics"]["interval"][name] for name in INTERVAL_METRICS}
        | {f"time_{name}_s": cost[f"{name}_s"] for name in _TIMES}
    )
    return content


# What is there, row by row.

NAMES = TITLES
ARROWS = dict.fromkeys(stats.HIGHER_IS_BETTER, " ↑") | dict.fromkeys(stats.LOWER_IS_BETTER, " ↓")

_FEW, _MANY = 5, 8
"""How many of the best methods are drawn over time, if there are more than so many in all."""

BY_INTERVAL = ("auc", "pr_auc", "ap", "nll")
"""Metrics that papers average over intervals; calibration is taken over the whole stream."""


@dataclass(frozen=True, eq=False)
class Line:
    """One row of a suite with its cells, one per seed."""

    facts: dict[str, Any]
    cells: pl.DataFrame

    @property
    def name(self) -> str:
        label, variant = self.facts["label"], self.facts["variant"]
        return f"{label} ({variant})" if variant else str(label)

    def by_seed(self, column: str) -> dict[int, float]:
        """Where the figure is defined."""
        pairs = zip(self.cells["seed"], self.cells[column], strict=True)
        return {seed: value for seed, value in pairs if value is not None}

    def spread(self, column: str) -> stats.Spread | None:
        values = list(self.by_seed(column).values())
        return stats.spread(values) if values else None

    def mean(self, column: str) -> float | None:
        spread = self.spread(column)
        return None if spread is None else spread.mean

    @property
    def seconds(self) -> float:
        """What a run takes, its warm-up included, also if another cell did that."""
        return sum(self.mean(f"time_{part}_s") or 0.0 for part in ("warm_up", "shared_warm_up", "stream"))


class Outcome:
    """What a bench directory holds, ready to be tabulated: also what a report starts from."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.bench: dict[str, Any] = read_json(out / "bench.json")
        self.suite: dict[str, Any] = self.bench["suite"]
        self.results = pl.read_parquet(out / "results.parquet")
        self.metrics: list[str] = self.suite["metrics"]

    @cached_property
    def lines(self) -> list[Line]:
        """Rows of the suite of which at least one cell is finished, in its order."""
        lines = []
        for row in self.bench["rows"]:
            cells = self.results.filter(pl.col("cell").is_in([f"{row['name']}~seed{s}" for s in self.bench["seeds"]]))
            if len(cells):
                lines.append(Line(row, cells))
        return lines

    @property
    def period(self) -> str | None:
        """The days whose clicks are judged, in words; None where rows differ."""
        judged = self.bench.get("judged")
        return None if judged is None else f"{log_day(judged['from'])} to {log_day(judged['until'])}"

    def of_role(self, role: str) -> Line | None:
        return next((line for line in self.lines if line.facts["role"] == role), None)

    @cached_property
    def fair(self) -> list[Line]:
        return [line for line in self.lines if line.facts["role"] != "upper"]

    def rank(self, metric: str, pooled: bool = False) -> list[Line]:
        """Rows that are no upper bound and have a metric, the best first."""
        known = [(mean, line) for line in self.fair if (mean := line.mean(column_of(metric, pooled))) is not None]
        return [line for _, line in sorted(known, key=lambda one: one[0], reverse=metric in stats.HIGHER_IS_BETTER)]

    @cached_property
    def best(self) -> list[Line]:
        """Rows that are no upper bound, the best first; those without the metric last."""
        ranked = self.rank(next((metric for metric in self.metrics if metric in ARROWS), "auc"))
        return ranked + [line for line in self.fair if line not in ranked]

    @cached_property
    def styles(self) -> dict[str, int]:
        """How each row looks, the same in every figure: 0 is the row of the suite, or the best; 1 the upper bound; then
        the best of the others."""
        first = self.of_role("ours") or next(iter(self.best), None)
        upper = [line for line in self.lines if line.facts["role"] == "upper"]
        order = [first, *upper[:1], *self.best, *upper[1:]]
        names = dict.fromkeys(line.name for line in order if line is not None)
        return {name: number for number, name in enumerate(names)}

    @cached_property
    def few(self) -> list[Line]:
        """The rows that are drawn where each takes room: the best and the bounds, or all if they are not many."""
        few = [*self.best[:_FEW], self.of_role("upper"), self.reference]
        return self.lines if len(self.lines) <= _MANY else [line for line in self.lines if line in few]

    @cached_property
    def reference(self) -> Line | None:
        """What others are compared with over time: Vanilla, or the best."""
        return self.of_role("zero") or next(iter(self.best), None)

    def best_other(self, line: Line, metric: str, pooled: bool = False) -> Line | None:
        """The best row but for one; of an upper bound, none."""
        others = self.rank(metric, pooled) if line in self.fair else []
        return next((one for one in others if one is not line), None)

    def base_of(self, line: Line) -> Line | None:
        """The row that a row is to be compared with, if its suite names one."""
        label = line.facts["base"]
        return next((one for one in self.lines if label and one.facts["label"] == label and one is not line), None)

    def difference(self, ours: Line, theirs: Line, metric: str, pooled: bool) -> stats.Difference | None:
        """Paired by seed; with one seed only, over days of the stream where the metric is one over intervals."""
        column = column_of(metric, pooled)
        paired = stats.compare_pairs(ours.by_seed(column), theirs.by_seed(column))
        if paired is None or paired.n > 1 or pooled or metric not in BY_INTERVAL:
            return paired
        return self._over_days(ours, theirs, metric) or paired

    def cautious_difference(self, ours: Line, theirs: Line, metric: str) -> stats.Difference | None:
        """The same, with an interval for other days as well as for other seeds: on a small log, days vary more."""
        paired = self.difference(ours, theirs, metric, pooled=False)
        if paired is None or paired.high is None or paired.over != "seeds" or metric not in BY_INTERVAL:
            return paired
        days = self._over_days(ours, theirs, metric)
        return paired if days is None else stats.widen(days, paired.mean, paired.high - paired.mean)

    def _over_days(self, ours: Line, theirs: Line, metric: str) -> stats.Difference | None:
        """The difference of the means over the seeds that both have."""
        seeds = sorted(set(ours.cells["seed"]) & set(theirs.cells["seed"]))
        a, b = (self.mean_intervals(line, metric, seeds) for line in (ours, theirs))
        if a is None or b is None or not a["start"].equals(b["start"]):
            return None
        return stats.over_days(a["start"].to_numpy(), numbers(a["clicks"]), numbers(a["mean"]), numbers(b["mean"]))

    def beyond_logistic(self, line: Line) -> stats.Difference | None:
        """NLL of a row, the mean over its seeds, minus that of the logistic regression, with an interval over days."""
        frame = self.mean_intervals(line, "nll")
        if frame is None:
            return None
        clicks, ours, logistic = (numbers(frame[name]) for name in ("clicks", "mean", "logistic_nll"))
        return stats.over_days(frame["start"].to_numpy(), clicks, ours, logistic)

    def mean_intervals(self, line: Line, metric: str, seeds: Sequence[int] = ()) -> pl.DataFrame | None:
        """Intervals of a row, with `mean`, that of a metric over these seeds (by default all that finished). None where
        a cell was cleared away or intervals differ."""
        frames = [self.intervals(line, seed) for seed in seeds or line.cells["seed"]]
        known = [frame for frame in frames if frame is not None]
        if len(known) < len(frames) or not all(frame["start"].equals(known[0]["start"]) for frame in known):
            return None
        return known[0].with_columns(pl.Series("mean", np.mean([numbers(frame[metric]) for frame in known], axis=0)))

    def intervals(self, line: Line, seed: int) -> pl.DataFrame | None:
        """Metrics of each interval; None where cells were cleared away and the results kept."""
        path = self.out / "cells" / f"{line.facts['name']}~seed{seed}" / "intervals.parquet"
        return pl.read_parquet(path) if path.is_file() else None


def numbers(column: pl.Series) -> stats.Floats:
    return column.cast(pl.Float64).fill_null(np.nan).to_numpy()


def column_of(metric: str, pooled: bool) -> str:
    """The column of `results.parquet` that a table shows."""
    return metric if pooled or metric not in BY_INTERVAL else f"interval_{metric}"


def losers(outcome: Outcome) -> list[Line]:
    """Rows whose NLL is worse than that of the constant."""
    known = [(line, line.mean("nll"), line.mean("constant_nll")) for line in outcome.lines]
    return [line for line, ours, constant in known if ours is not None and constant is not None and ours > constant]
