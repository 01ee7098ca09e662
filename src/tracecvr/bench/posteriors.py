"""Tables of how well open clicks are judged, by age: the trajectory against what is known without it."""

from __future__ import annotations

import polars as pl

from tracecvr.bench import stats
from tracecvr.bench.document import Table, Text
from tracecvr.bench.live import duration
from tracecvr.bench.tables import ARROWS, NAMES, Outcome, shown
from tracecvr.openclicks import ESTIMATES

WORDS = {"posterior": "p(y | x, trajectory)", "static": "p", "survival": "p S(e) / (1 - p + p S(e))"}


def table(outcome: Outcome) -> list[Table]:
    """One table per metric: ages across, methods and estimates down."""
    path = outcome.out / "posterior.parquet"
    found = pl.read_parquet(path) if path.is_file() else pl.DataFrame()
    return [_of(outcome, found, metric) for metric in ("auc", "nll", "ece")] if len(found) else []


def _of(outcome: Outcome, found: pl.DataFrame, metric: str) -> Table:
    ages = found["age_s"].unique().sort().to_list()
    title = f"{NAMES[metric]}{ARROWS[metric]} among clicks not converted by an age, with the model of that moment"
    made = Table(title, ["method", "estimate", *map(duration, ages)])
    for line in outcome.lines:
        mine = found.filter(pl.col("cell").is_in(line.cells["cell"].to_list()))
        spreads = {(e, age): _spread(mine, e, age, metric) for e in ESTIMATES for age in ages}
        best = {age: _best(metric, {e: spreads[e, age] for e in ESTIMATES}) for age in ages}
        for estimate in ESTIMATES:
            figures = [Text(shown(spreads[estimate, age]), bold=best[age] == estimate) for age in ages]
            made.rows.append([Text(line.name), Text(WORDS[estimate]), *figures])
    made.notes.append("Clicks of the stream alone. S is counted on the warm-up part. Best of a method's three in bold.")
    return made


def _spread(mine: pl.DataFrame, estimate: str, age: int, metric: str) -> stats.Spread | None:
    values = mine.filter((pl.col("estimate") == estimate) & (pl.col("age_s") == age))[metric].drop_nulls().to_list()
    return stats.spread(values) if values else None


def _best(metric: str, found: dict[str, stats.Spread | None]) -> str | None:
    means = {name: one.mean for name, one in found.items() if one is not None}
    first, second = stats.two_best(metric, means)
    equal = first is not None and second is not None and means[first] == means[second]
    return None if equal else first
