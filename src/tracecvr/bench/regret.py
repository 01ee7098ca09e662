"""How each method did on one log, beside the best that knows no future: regret, and what else the gauntlet tells.

regret    NLL minus that of the best method on that log whose role is not `upper`
excess    NLL minus that of the true rates, on synthetic logs
logistic  NLL minus that of the logistic regression

Each has an interval for other days and other seeds: a bootstrap over days of the stream, or over its intervals where it
has fewer than five days, widened by how much NLL differs between seeds if there are several.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import polars as pl

from tracecvr.base import metrics
from tracecvr.base.config import DAY
from tracecvr.base.files import read_json
from tracecvr.bench import stats
from tracecvr.bench.outcome import Line, Outcome, numbers
from tracecvr.bench.stats import Difference, Floats
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

    by_seed: dict[int, float]
    intervals: Floats

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.by_seed.values())))


class Course:
    """A finished bench of one log, and the scores of all that ran on it."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.seeds: list[int] = outcome.bench["seeds"]
        self.lines = [line for line in outcome.lines if len(line.cells) == len(self.seeds)]

    @cached_property
    def intervals(self) -> pl.DataFrame:
        """Start, clicks and references of each interval: the same for all methods."""
        return self._intervals(self.lines[0])[0]

    @cached_property
    def block(self) -> int:
        """Seconds of the stream that intervals are drawn by."""
        start = self.intervals["start"]
        days = ((start - start.min()) // DAY).n_unique()
        return DAY if days >= stats.ENOUGH_DAYS else int(start.diff().drop_nulls().min() or DAY)  # type: ignore[arg-type]

    def score(self, line: Line) -> Score:
        intervals = np.mean([numbers(one["nll"]) for one in self._intervals(line)], axis=0)
        return Score(line.by_seed("nll"), intervals)

    def reference(self, intervals: Floats) -> Score:
        """Of what is the same for all seeds."""
        mean = float(np.average(intervals, weights=self.clicks))
        return Score(dict.fromkeys(self.seeds, mean), intervals)

    @property
    def clicks(self) -> Floats:
        return self.intervals["clicks"].to_numpy().astype(float)

    @cached_property
    def truth(self) -> Score | None:
        """Of the true rates, where the log knows them."""
        data = self.outcome.out / "data"
        table = ClickTable.load(data) if ClickTable.exists(data) else None
        if table is None or "p" not in table.truth:
            return None
        result = read_json(self.outcome.out / "cells" / self.lines[0].cells["cell"][0] / "result.json")
        first, last = FullPlan(**result["plan"]).judged_rows(table)
        p = np.asarray(table.truth["p"][first:last], dtype=np.float64)
        loss = metrics.nll(np.log(p / (1 - p)), np.asarray(table.label[first:last]))
        edges = np.cumsum([0, *self.intervals["clicks"]])[:-1]
        return self.reference(np.add.reduceat(loss, edges) / self.clicks)

    @cached_property
    def scores(self) -> dict[str, Score]:
        return {line.name: self.score(line) for line in self.lines}

    @cached_property
    def seed_reach(self) -> float:
        """How far the mean NLL of a method may be from that of other seeds. All methods are taken together: two or
        three seeds say little about one."""
        each = [stats.spread(list(score.by_seed.values())) for score in self.scores.values()]
        return stats.pooled_reach(each)

    def difference(self, ours: Score, theirs: Score) -> Difference:
        """NLL of one minus that of another, with an interval for other days and other seeds."""
        start = self.intervals["start"].to_numpy()
        days = stats.over_days(start, self.clicks, ours.intervals, theirs.intervals, self.block)
        if days is None:
            return Difference(ours.mean - theirs.mean, None, None, None, len(self.seeds))
        vary = sum(len(set(score.by_seed.values())) > 1 for score in (ours, theirs))
        return stats.widen(days, ours.mean - theirs.mean, self.seed_reach * vary**0.5)

    def _intervals(self, line: Line) -> list[pl.DataFrame]:
        return [frame for seed in self.seeds if (frame := self.outcome.intervals(line, seed)) is not None]


def measure(outcome: Outcome, log: str, about: str) -> pl.DataFrame:
    """A row per method of a finished bench; methods of which a seed failed are left out."""
    course = Course(outcome)
    scores = course.scores
    fair = [line.name for line in course.lines if line.facts["role"] != "upper"]
    if not fair:
        return pl.DataFrame(schema=SCHEMA)
    best = min(fair, key=lambda name: scores[name].mean)
    logistic = course.reference(numbers(course.intervals["logistic_nll"]))
    others = {"excess": course.truth, "logistic": logistic}
    rows = []
    for line in course.lines:
        ours = scores[line.name]
        regret = course.difference(ours, scores[best])
        figures = {"regret": regret} | {k: course.difference(ours, one) for k, one in others.items() if one is not None}
        upper, known = line.facts["role"] == "upper", regret.low is not None
        rows.append(
            {
                "log": log,
                "about": about,
                "method": line.facts["method"],
                "label": line.name,
                "role": line.facts["role"],
                "seeds": len(course.seeds),
                "clicks": line.cells["clicks"][0],
                "conversions": line.cells["conversions"][0],
                "nll": ours.mean,
                "pcoc": line.mean("pcoc"),
                "best": line.name == best,
                "near_best": True if line.name == best else None if upper or not known else not regret.clear,
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


# What the gauntlet has shown of each method, packaged: `docs/collect.py` writes it.


FINDINGS = Path(__file__).with_name("gauntlet_results.json")


@dataclass(frozen=True)
class Findings:
    """Which logs and seeds there were, and how each method stands."""

    logs: tuple[str, ...]
    seeds: tuple[int, ...]
    methods: dict[str, Standing]

    def words(self, method: str) -> str:
        """Of one method, in one line; empty if it was not there."""
        if (one := self.methods.get(method)) is None or one.role == "upper":
            return ""
        worst = "failed on a log" if one.worst is None else f"worst regret {one.worst:.4f} ({one.worst_log})"
        return f"{worst}; near the best on {one.near_best} of {len(self.logs)} logs"


@cache
def load_findings() -> Findings:
    content = read_json(FINDINGS)
    methods = {name: Standing(**standing) for name, standing in content["methods"].items()}
    return Findings(tuple(content["logs"]), tuple(content["seeds"]), methods)
