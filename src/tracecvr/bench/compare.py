"""What changed between two benches of the same kind, and whether it is more than noise."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from tracecvr.base.errors import UserError
from tracecvr.bench import stats
from tracecvr.bench.report import opened
from tracecvr.bench.tables import ARROWS, Line, column_of

_FACTS = ("fingerprint", "data_options", "settings", "tuned", "judged", "seeds", "tracecvr")


@dataclass(frozen=True)
class Change:
    """One figure in two benches: the second minus the first. `by` is how noise was judged: paired, Welch or nothing."""

    row: str
    metric: str
    before: float
    after: float
    difference: stats.Difference
    by: str

    @property
    def verdict(self) -> str:
        """same, noise, better, worse or changed; unknown where one seed leaves nothing to judge by."""
        if self.difference.mean == 0:
            return "same"
        if self.difference.low is None:
            return "unknown"
        if not self.difference.clear:
            return "noise"
        if self.metric not in ARROWS:
            return "changed"
        return "better" if stats.better(self.metric, self.after, self.before) else "worse"

    def to_json(self) -> dict[str, Any]:
        facts = {"row": self.row, "metric": self.metric, "before": self.before, "after": self.after}
        return (
            facts
            | {"by": self.by, "verdict": self.verdict}
            | {f"difference_{k}": v for k, v in asdict(self.difference).items()}
        )


@dataclass(frozen=True)
class Comparison:
    """All of it; `other` are facts in which the two benches differ, `only` rows that one of them lacks."""

    changes: tuple[Change, ...]
    other: dict[str, tuple[object, object]]
    only: tuple[tuple[str, ...], tuple[str, ...]]
    missing: tuple[int, int]


def compare(first: Path, second: Path) -> Comparison:
    """Two benches of one suite on one dataset, row by row and metric by metric."""
    a, b = opened(first), opened(second)
    for what, ours, theirs in (("suite", a.suite["name"], b.suite["name"]), ("data", a.bench["data"], b.bench["data"])):
        if ours != theirs:
            raise UserError(f"{first} and {second} are benches of two kinds: {what} is {ours!r} and {theirs!r}")
    before, after = ({line.name: line for line in one.lines} for one in (a, b))
    both = [name for name in before if name in after]
    if not both:
        raise UserError(f"{first} and {second} have no finished row in common")
    metrics = [metric for metric in a.metrics if metric in b.metrics]
    changes = [_change(before[name], after[name], metric) for name in both for metric in metrics]
    return Comparison(
        tuple(change for change in changes if change is not None),
        {key: (a.bench.get(key), b.bench.get(key)) for key in _FACTS if a.bench.get(key) != b.bench.get(key)},
        (tuple(sorted(set(before) - set(after))), tuple(sorted(set(after) - set(before)))),
        (a.missing, b.missing),
    )


def _change(before: Line, after: Line, metric: str) -> Change | None:
    column = column_of(metric, pooled=False)
    old, new = before.by_seed(column), after.by_seed(column)
    if not old or not new:
        return None
    shared = set(old) & set(new)
    if len(shared) == len(old) == len(new) or len(shared) > 1:
        by, difference = "paired", stats.paired(new, old)
    else:
        by, difference = "Welch", welch(list(new.values()), list(old.values()))
    assert difference is not None
    if difference.low is None:
        by = "one seed"
    old, new = ({s: v for s, v in one.items() if by != "paired" or s in shared} for one in (old, new))
    return Change(after.name, metric, fmean(old.values()), fmean(new.values()), difference, by)


def welch(ours: list[float], theirs: list[float], level: float = 0.95) -> stats.Difference:
    """The difference of two means whose values are not paired, by Welch's t; no interval if one side has one value."""
    mean, n = fmean(ours) - fmean(theirs), min(len(ours), len(theirs))
    if n < 2:
        return stats.Difference(mean, None, None, None, n)
    from scipy.special import stdtr, stdtrit  # half a second to import: only when there is something to test

    parts = [variance(side) / len(side) for side in (ours, theirs)]
    error = sqrt(sum(parts))
    if error == 0:
        return stats.Difference(mean, mean, mean, 0.0 if mean else 1.0, n)
    freedom = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (ours, theirs), strict=True))
    reach = float(stdtrit(freedom, (1 + level) / 2)) * error
    return stats.Difference(mean, mean - reach, mean + reach, float(2 * stdtr(freedom, -abs(mean) / error)), n)


def summary_lines(comparison: Comparison, names: tuple[str, str]) -> list[str]:
    """Everything but the table, in lines."""
    lines = []
    for key, (ours, theirs) in comparison.other.items():
        lines.append(f"{key} differs: {ours} and {theirs}")
    for which, rows in zip(names, comparison.only, strict=True):
        lines += [f"only in {which}: {', '.join(rows)}"] if rows else []
    for which, missing in zip(names, comparison.missing, strict=True):
        lines += [f"{which} is not complete: {missing} cells are not finished"] if missing else []
    if "fingerprint" in comparison.other:
        lines.append("the logs are not the same, so differences are not of the code or the settings alone")
    counts = {
        v: sum(c.verdict == v for c in comparison.changes)
        for v in ("same", "noise", "better", "worse", "changed", "unknown")
    }
    words = {
        "same": "the same",
        "noise": "changed, but not statistically significant",
        "better": "better",
        "worse": "worse",
        "changed": "changed",
        "unknown": "changed on one seed, significance unknown",
    }
    summary = ", ".join(f"{count} {words[verdict]}" for verdict, count in counts.items() if count)
    return [*lines, f"{len(comparison.changes)} figures: {summary}"]
