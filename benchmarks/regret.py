"""How each method did on one log, beside the best that knows no future: regret, and what else `gauntlet.py` shows.

regret    NLL minus that of the best method on that log whose role is not `upper`
excess    NLL minus that of the true rates, on synthetic logs
logistic  NLL minus that of the logistic regression

Each has an interval for other days and other seeds: a bootstrap over days of the stream, or over its intervals where it
has fewer than five days, widened by how much NLL differs between seeds if there are several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean

import numpy as np
import polars as pl

from tracecvr.base import metrics
from tracecvr.base.config import DAY
from tracecvr.base.files import read_json
from tracecvr.bench import stats
from tracecvr.bench.outcome import Line, Outcome, numbers
from tracecvr.bench.stats import Difference, Floats, Spread
from tracecvr.data.table import ClickTable
from tracecvr.runs.replay import FullPlan

FIGURES = ("regret", "excess", "logistic")
SCHEMA = (
    dict.fromkeys(("log", "about", "method", "label", "role"), pl.String)
    | dict.fromkeys(("seeds", "clicks", "conversions"), pl.Int64)
    | {"nll": pl.Float64, "pcoc": pl.Float64}
    | {f"{figure}{end}": pl.Float64 for figure in FIGURES for end in ("", "_low", "_high")}
    | dict.fromkeys(("best", "near_best"), pl.Boolean)
    | {"over": pl.String, "seconds": pl.Float64}
)
"""Columns of `gauntlet.parquet`. `near_best`: it is the best, or the interval of its regret includes zero; null for
upper bounds, and where no interval is known."""


@dataclass(frozen=True)
class Score:
    """NLL of one method, or of a reference: by seed, and of each interval as the mean over seeds."""

    by_seed: list[float]
    intervals: Floats

    @property
    def mean(self) -> float:
        return float(np.mean(self.by_seed))


class Course:
    """A finished bench of one log: the scores of rows of which no seed failed, and how they differ."""

    def __init__(self, outcome: Outcome, frames: Mapping[Line, pl.DataFrame]) -> None:
        self.outcome = outcome
        self.intervals = next(iter(frames.values()))
        """Start, clicks and references of each interval: the same for all methods."""
        self.clicks = numbers(self.intervals["clicks"])
        self.scores = {
            line: Score(list(line.by_seed("nll").values()), numbers(frame["mean"])) for line, frame in frames.items()
        }
        # How far the mean NLL of a method may be from that of other seeds. All methods are taken together: two or three
        # seeds say little about one.
        self.seed_reach = pooled_reach([stats.spread(score.by_seed) for score in self.scores.values()])
        start = self.intervals["start"]
        days = ((start - start.min()) // DAY).n_unique()
        shortest = int(start.diff().drop_nulls().min() or DAY)  # type: ignore[arg-type]
        self.block = DAY if days >= stats.ENOUGH_DAYS else shortest  # seconds of the stream that are drawn together

    def logistic(self) -> Score:
        return self._same_for_all_seeds(numbers(self.intervals["logistic_nll"]))

    def truth(self) -> Score | None:
        """Of the true rates, where the log knows them."""
        data = self.outcome.out / "data"
        table = ClickTable.load(data) if ClickTable.exists(data) else None
        if table is None or "p" not in table.truth:
            return None
        result = read_json(self.outcome.out / "cells" / self.outcome.results["cell"][0] / "result.json")
        first, last = FullPlan(**result["plan"]).judged_rows(table)
        p = np.asarray(table.truth["p"][first:last], dtype=np.float64)
        loss = metrics.nll(np.log(p / (1 - p)), np.asarray(table.label[first:last]))
        edges = np.cumsum([0, *self.intervals["clicks"]])[:-1]
        return self._same_for_all_seeds(np.add.reduceat(loss, edges) / self.clicks)

    def _same_for_all_seeds(self, intervals: Floats) -> Score:
        mean = float(np.average(intervals, weights=self.clicks))
        return Score([mean] * len(self.outcome.bench["seeds"]), intervals)

    def difference(self, ours: Score, theirs: Score) -> Difference:
        """NLL of one minus that of another, with an interval for other days and other seeds."""
        start = self.intervals["start"].to_numpy()
        days = stats.over_days(start, self.clicks, ours.intervals, theirs.intervals, self.block)
        if days is None:
            return Difference(ours.mean - theirs.mean, None, None, None, len(ours.by_seed))
        vary = sum(len(set(score.by_seed)) > 1 for score in (ours, theirs))
        return stats.widen(days, ours.mean - theirs.mean, self.seed_reach * vary**0.5)


def pooled_reach(spreads: Sequence[Spread]) -> float:
    """How far a mean over seeds may be from the truth if all figures vary alike; 0 for one seed."""
    variances = [one.sd**2 for one in spreads if one.sd is not None]
    if not variances:
        return 0.0
    seeds = spreads[0].n
    return stats.quantile((seeds - 1) * len(variances)) * sqrt(fmean(variances) / seeds)


def measure(outcome: Outcome, log: str, about: str) -> pl.DataFrame | None:
    """A row per method of a finished bench; methods of which a seed failed are left out. None without any."""
    whole = [line for line in outcome.lines if len(line.cells) == len(outcome.bench["seeds"])]
    frames = {line: frame for line in whole if (frame := outcome.mean_intervals(line, "nll")) is not None}
    fair = [line for line in frames if line in outcome.fair]
    if not fair:
        return None
    course = Course(outcome, frames)
    best = min(fair, key=lambda line: course.scores[line].mean)
    others = {"regret": course.scores[best], "excess": course.truth(), "logistic": course.logistic()}
    rows = []
    for line, ours in course.scores.items():
        figures = {k: course.difference(ours, one) for k, one in others.items() if one is not None}
        regret = figures["regret"]
        rows.append(
            {
                "log": log,
                "about": about,
                "method": line.facts["method"],
                "label": line.name,
                "role": line.facts["role"],
                "seeds": len(line.cells),
                "clicks": line.cells["clicks"][0],
                "conversions": line.cells["conversions"][0],
                "nll": ours.mean,
                "pcoc": line.mean("pcoc"),
                "best": line is best,
                "near_best": line is best or (not regret.clear if line in fair and regret.low is not None else None),
                "over": regret.over,
                "seconds": line.seconds,
            }
            | {name: one.mean for name, one in figures.items()}
            | {f"{name}_{end}": getattr(one, end) for name, one in figures.items() for end in ("low", "high")}
        )
    return pl.DataFrame(rows, SCHEMA)


@dataclass(frozen=True)
class Standing:
    """A method over all logs. `worst` is None if it failed on one of them."""

    method: str
    label: str
    role: str
    logs: int
    near_best: int
    worst: float | None
    worst_log: str


def standings(frame: pl.DataFrame) -> list[Standing]:
    """Every method, the smallest worst regret first; upper bounds last."""
    every = frame["log"].n_unique()
    made = []
    for mine in frame.partition_by("label", maintain_order=True):
        worst = mine.sort("regret", descending=True).row(0, named=True)
        near = int(mine["near_best"].fill_null(False).sum())
        facts = (worst["method"], worst["label"], worst["role"], len(mine), near)
        made.append(Standing(*facts, worst["regret"] if len(mine) == every else None, worst["log"]))
    return sorted(made, key=lambda one: (one.role == "upper", one.worst is None, one.worst or 0.0))
