"""How well open clicks are judged, by age: the trajectory against what is known without it, with differences."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tracecvr.base.durations import duration
from tracecvr.bench import stats
from tracecvr.bench.tables import ARROWS, NAMES, Line, Outcome, difference_cell, interval_notes, mean_text, numbers
from tracecvr.bench.text_tables import Table, Text
from tracecvr.runs.open_clicks import ESTIMATES

METRICS = ("auc", "nll", "ece")
WORDS = {"posterior": "p(y | x, trajectory)", "static": "p", "survival": "p S(e) / (1 - p + p S(e))"}


@dataclass(frozen=True)
class Judge:
    """One estimate of one row of a suite."""

    line: Line
    estimate: str

    @property
    def name(self) -> str:
        return f"{self.line.name}: {WORDS[self.estimate]}"


class Judged:
    """What the cells of a bench wrote of open clicks."""

    def __init__(self, outcome: Outcome) -> None:
        path = outcome.out / "posterior.parquet"
        self.outcome = outcome
        self.posteriors = pl.read_parquet(path) if path.is_file() else pl.DataFrame(schema={"age_s": pl.Int64})

    @property
    def ages(self) -> list[int]:
        """In seconds; none if no cell was asked about open clicks."""
        return self.posteriors["age_s"].unique().sort().to_list()

    def by_seed(self, judge: Judge, age: int, metric: str) -> dict[int, float]:
        """Where the figure is defined."""
        mine = self.posteriors.filter(
            pl.col("cell").is_in(judge.line.cells["cell"].to_list()), estimate=judge.estimate, age_s=age
        )
        return dict(mine.select("seed", metric).drop_nulls().iter_rows())

    def spread(self, judge: Judge, age: int, metric: str) -> stats.Spread | None:
        values = list(self.by_seed(judge, age, metric).values())
        return stats.spread(values) if values else None

    def own(self, line: Line) -> bool:
        """Whether a row has a posterior of its own; without, it is the served rate."""
        pairs = [(Judge(line, "posterior"), Judge(line, "static"), age) for age in self.ages]
        return any(self.by_seed(a, age, "nll") != self.by_seed(b, age, "nll") for a, b, age in pairs)

    def difference(self, ours: Judge, theirs: Judge, age: int, metric: str) -> stats.Difference | None:
        """Paired by seed; with one seed only, over days of the stream, of the metric of single days."""
        a, b = (self.by_seed(judge, age, metric) for judge in (ours, theirs))
        paired = stats.paired(a, b)
        if paired is None or paired.n > 1:
            return paired
        (seed,) = set(a) & set(b)
        mine, other = (self._days(judge, seed, age, metric) for judge in (ours, theirs))
        if mine is None or other is None:
            return paired
        both = mine.join(other, on="start", suffix="_theirs", maintain_order="left")
        clicks = both["clicks"].to_numpy().astype(float)
        pair = (numbers(both[metric]), numbers(both[f"{metric}_theirs"]))
        return stats.over_days(both["start"].to_numpy(), clicks, *pair) or paired

    def _days(self, judge: Judge, seed: int, age: int, metric: str) -> pl.DataFrame | None:
        """None where cells were cleared away and the results kept."""
        path = self.outcome.out / "cells" / f"{judge.line.facts['name']}~seed{seed}" / "posterior_days.parquet"
        if not path.is_file():
            return None
        mine = pl.read_parquet(path).filter(estimate=judge.estimate, age_s=age)
        return mine.select("start", "clicks", metric)


def tables(outcome: Outcome) -> list[Table]:
    """One table per metric: ages across, methods and estimates down."""
    judged = Judged(outcome)
    return [_of(judged, metric) for metric in METRICS] if judged.ages else []


def differences(outcome: Outcome) -> list[Table]:
    """The trajectory's estimate against those without it: of the same row, and for ours also of other rows."""
    judged = Judged(outcome)
    made = Table(
        "Paired differences among open clicks of estimates by p(y | x, trajectory) from those without the trajectory",
        ["method", "against", "metric", *map(duration, judged.ages)],
    )
    over = set()
    for ours, theirs in _compare(judged):
        for metric in METRICS:
            each = [judged.difference(ours, theirs, age, metric) for age in judged.ages]
            over |= {one.over for one in each if one is not None and one.low is not None}
            figures = [difference_cell(one) for one in each]
            named = WORDS[theirs.estimate] if theirs.line is ours.line else theirs.name
            made.rows.append([Text(ours.line.name), Text(named), Text(NAMES[metric] + ARROWS[metric]), *figures])
    made.notes += interval_notes(over)
    if "days" in over:
        made.notes.append("The difference is then the mean of days, weighted by clicks: of a day's AUC, NLL and ECE.")
    return [made] if made.rows else []


def _compare(judged: Judged) -> list[tuple[Judge, Judge]]:
    outcome = judged.outcome
    pairs = [
        (Judge(line, "posterior"), Judge(line, estimate))
        for line in outcome.lines
        for estimate in ("static", "survival")
        if line.facts["role"] != "upper" and judged.own(line)
    ]
    if ours := outcome.of_role("ours"):
        others = [line for line in outcome.fair if line.facts["method"] != ours.facts["method"]]
        pairs += [(Judge(ours, "posterior"), Judge(line, "survival")) for line in others]
    return pairs


def _of(judged: Judged, metric: str) -> Table:
    title = f"{NAMES[metric]}{ARROWS[metric]} among clicks not converted by an age, with the model of that moment"
    made = Table(title, ["method", "estimate", *map(duration, judged.ages)])
    for line in judged.outcome.lines:
        estimates = [e for e in ESTIMATES if e != "posterior" or judged.own(line)]
        spreads = {(e, age): judged.spread(Judge(line, e), age, metric) for e in estimates for age in judged.ages}
        best = {age: _best(metric, {e: spreads[e, age] for e in estimates}) for age in judged.ages}
        for estimate in estimates:
            figures = [Text(mean_text(spreads[estimate, age]), bold=best[age] == estimate) for age in judged.ages]
            made.rows.append([Text(line.name), Text(WORDS[estimate]), *figures])
    made.notes.append(
        "Clicks of the stream alone. S is counted on the warm-up part. Best of a method's estimates in bold."
    )
    return made


def _best(metric: str, spreads: dict[str, stats.Spread | None]) -> str | None:
    means = {name: one.mean for name, one in spreads.items() if one is not None}
    first, second = stats.two_best(metric, means)
    equal = first is not None and second is not None and means[first] == means[second]
    return None if equal else first
