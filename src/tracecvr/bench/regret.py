"""How each method did on one log, beside the best that knows no future: regret, and what else the gauntlet shows.

regret    NLL minus that of the best method on that log whose role is not `upper`
excess    NLL minus that of the true rates, on synthetic logs
logistic  NLL minus that of the logistic regression

Each has an interval for other days and other seeds: a bootstrap over days of the stream, or over its intervals where it
has fewer than five days, widened by how much NLL differs between seeds if there are several.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean
from typing import Any

import numpy as np
import polars as pl

from tracecvr.base import metrics
from tracecvr.base.config import DAY
from tracecvr.base.files import read_json
from tracecvr.bench import stats
from tracecvr.bench.outcome import Outcome, numbers
from tracecvr.bench.stats import Difference, Floats, Spread
from tracecvr.data.table import ClickTable
from tracecvr.runs.replay import FullPlan

SCHEMA = (
    dict.fromkeys(("log", "about", "method", "label", "role"), pl.String)
    | dict.fromkeys(("seeds", "clicks", "conversions"), pl.Int64)
    | {"nll": pl.Float64, "pcoc": pl.Float64}
    | {f"{name}{end}": pl.Float64 for name in ("regret", "excess", "logistic") for end in ("", "_low", "_high")}
    | dict.fromkeys(("best", "near_best"), pl.Boolean)
    | {"over": pl.String, "seconds": pl.Float64}
)
"""Columns of `gauntlet.parquet`. `near_best`: it is the best, or the interval of its regret includes zero; null for
upper bounds, and where no interval is known."""

Score = tuple[Spread, Floats]
"""NLL over seeds, and of each interval as their mean."""


def measure(outcome: Outcome, log: str, about: str) -> pl.DataFrame | None:
    """A row per method of a finished bench; methods of which a seed failed are left out. None without any."""
    frames, scores = {}, dict[Any, Score]()
    for line in outcome.lines:
        spread, frame = line.spread("nll"), outcome.mean_intervals(line, "nll")
        if len(line.cells) == len(outcome.bench["seeds"]) and spread is not None and frame is not None:
            frames[line], scores[line] = frame, (spread, numbers(frame["mean"]))
    if not (fair := [line for line in scores if line in outcome.fair]):
        return None
    best = min(fair, key=lambda line: scores[line][0].mean)
    intervals = frames[best]  # start, clicks and references: the same for all methods
    others = {"regret": scores[best], "logistic": _score(intervals, numbers(intervals["logistic_nll"]))}
    if (truth := _truth(outcome, intervals)) is not None:
        others["excess"] = truth
    # Two or three seeds say little about one method, so all are taken together.
    reach = pooled_reach([spread for spread, _ in scores.values()])
    rows = []
    for line, ours in scores.items():
        gaps = {name: _difference(intervals, ours, other, reach) for name, other in others.items()}
        regret = gaps["regret"]
        near = None if line not in fair or regret.low is None else not regret.clear
        facts = {"log": log, "about": about, "method": line.facts["method"], "label": line.name}
        facts |= {"role": line.facts["role"], "seeds": len(line.cells), "nll": ours[0].mean, "pcoc": line.mean("pcoc")}
        facts |= {name: line.cells[name][0] for name in ("clicks", "conversions")}
        facts |= {"best": line is best, "near_best": line is best or near, "over": regret.over}
        facts |= {name: gap.mean for name, gap in gaps.items()} | {"seconds": line.seconds}
        facts |= {f"{name}_{end}": getattr(gap, end) for name, gap in gaps.items() for end in ("low", "high")}
        rows.append(facts)
    return pl.DataFrame(rows, SCHEMA)


def _score(intervals: pl.DataFrame, nll: Floats) -> Score:
    """Of a reference: the same for all seeds."""
    return Spread(float(np.average(nll, weights=numbers(intervals["clicks"]))), None, 1), nll


def _truth(outcome: Outcome, intervals: pl.DataFrame) -> Score | None:
    """Of the true rates, where the log knows them."""
    data = outcome.out / "data"
    table = ClickTable.load(data) if ClickTable.exists(data) else None
    if table is None or "p" not in table.truth:
        return None
    result = read_json(outcome.out / "cells" / outcome.results["cell"][0] / "result.json")
    first, last = FullPlan(**result["plan"]).judged_rows(table)
    p = np.asarray(table.truth["p"][first:last], dtype=np.float64)
    loss = metrics.nll(np.log(p / (1 - p)), np.asarray(table.label[first:last]))
    edges = np.cumsum([0, *intervals["clicks"]])[:-1]
    return _score(intervals, np.add.reduceat(loss, edges) / numbers(intervals["clicks"]))


def _difference(intervals: pl.DataFrame, ours: Score, theirs: Score, reach: float) -> Difference:
    """NLL of one minus that of another, with an interval for other days and other seeds."""
    start = intervals["start"]
    days = ((start - start.min()) // DAY).n_unique()
    shortest = int(start.diff().drop_nulls().min() or DAY)  # type: ignore[arg-type]
    block = DAY if days >= stats.ENOUGH_DAYS else shortest  # seconds of the stream that are drawn together
    mean = ours[0].mean - theirs[0].mean
    over = stats.over_days(start.to_numpy(), numbers(intervals["clicks"]), ours[1], theirs[1], block)
    if over is None:
        return Difference(mean, None, None, None, ours[0].n)
    return stats.widen(over, mean, reach * sqrt(bool(ours[0].sd) + bool(theirs[0].sd)))


def pooled_reach(spreads: Sequence[Spread]) -> float:
    """How far a mean over seeds may be from the truth if all figures vary alike; 0 for one seed."""
    variances = [one.sd**2 for one in spreads if one.sd is not None]
    if not variances:
        return 0.0
    seeds = spreads[0].n
    return stats.quantile((seeds - 1) * len(variances)) * sqrt(fmean(variances) / seeds)


def standings(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Each method over all logs: the smallest worst regret first, upper bounds last. `worst` is None if it failed on a
    log."""
    whole = pl.len() == frame["log"].n_unique()
    made = frame.group_by("label", maintain_order=True).agg(
        pl.first("method", "role"),
        near_best=pl.col("near_best").fill_null(False).sum(),
        worst=pl.when(whole).then(pl.max("regret")),
        worst_log=pl.col("log").get(pl.col("regret").arg_max()),
    )
    return made.sort(pl.col("role") == "upper", pl.col("worst").is_null(), "worst", maintain_order=True).to_dicts()
