"""What all figures of a bench share: which methods stand out, how each looks, and what the log was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tracecvr.bench import stats
from tracecvr.bench.outcome import ARROWS, Line, Outcome, column_of
from tracecvr.bench.report.figure import Axis
from tracecvr.bench.report.palette import SERIES

_BY_ROLE = {"ours": 0, "upper": 1, "zero": 2, "lower": 3}


@dataclass(frozen=True)
class Scene:
    """A bench with what stands out in it: the same method looks the same in every figure."""

    outcome: Outcome

    @cached_property
    def styles(self) -> dict[str, int]:
        """Row to style. The first eight stand out: the row of the suite, the bounds, then the best of the others."""
        by_style = {style: line for role, style in _BY_ROLE.items() if (line := self.outcome.of_role(role)) is not None}
        chosen = {line.facts["name"] for line in by_style.values()}
        others = self._rank([line for line in self.outcome.lines if line.facts["name"] not in chosen])
        free = (
            style for style in range(1, len(self.outcome.lines) + SERIES) if style not in by_style
        )  # 0 is ours only
        by_style |= dict(zip(free, others, strict=False))
        return {line.facts["name"]: style for style, line in by_style.items()}

    def style(self, line: Line) -> int:
        return self.styles[line.facts["name"]]

    @cached_property
    def standing_out(self) -> list[tuple[int, Line]]:
        """The lines with a colour of their own, by style."""
        pairs = [(self.style(line), line) for line in self.outcome.lines]
        return sorted(((style, line) for style, line in pairs if style < SERIES), key=lambda one: one[0])

    @cached_property
    def best(self) -> list[Line]:
        """Rows that are no upper bound, the best first."""
        return self._rank(self.outcome.fair)

    def _rank(self, lines: Sequence[Line]) -> list[Line]:
        """The best first; those without the metric last."""
        metric = next((m for m in self.outcome.metrics if m in ARROWS), "auc")
        sign = -1 if metric in stats.HIGHER_IS_BETTER else 1
        means = [(line.mean(column_of(metric, pooled=False)), line) for line in lines]
        known = sorted(((sign * mean, line) for mean, line in means if mean is not None), key=lambda one: one[0])
        return [line for _, line in known] + [line for mean, line in means if mean is None]

    @cached_property
    def reference(self) -> Line | None:
        """What others are compared with over time: Vanilla, else ours, else the row that most are variants of."""
        bases = [base for line in self.outcome.lines if (base := self.outcome.base_of(line)) is not None]
        common = next((base for base in bases if sum(base is other for other in bases) > len(bases) / 2), None)
        return self.outcome.of_role("zero") or self.outcome.of_role("ours") or common

    @property
    def days(self) -> Axis:
        return day_axis(self.outcome.bench.get("log", {}).get("origin"))


def day_axis(origin: int | None) -> Axis:
    """Time, in days of the log: as dates if the log has a calendar."""
    return Axis("day of the log" if origin is None else "date (UTC)", "day", origin=origin)


def without_partial_ends(clicks: Sequence[float]) -> slice:
    """The days that are whole, by their clicks: the first or last is partial if it has less than half of the usual.

    >>> [10, 11, 9, 12, 1][without_partial_ends([10, 11, 9, 12, 1])]
    [10, 11, 9, 12]
    """
    if len(clicks) < 3:
        return slice(0, len(clicks))
    usual = sorted(clicks)[len(clicks) // 2]
    return slice(int(clicks[0] < usual / 2), len(clicks) - int(clicks[-1] < usual / 2))
