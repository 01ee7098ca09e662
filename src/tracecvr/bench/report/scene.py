"""What all figures of a bench share: which methods are drawn, and how each looks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tracecvr.bench.outcome import ARROWS, Line, Outcome

_FEW, _MANY = 5, 8
"""How many of the best methods are drawn over time, if there are more than so many in all."""


@dataclass(frozen=True)
class Scene:
    """A bench with what stands out in it: the same method looks the same in every figure."""

    outcome: Outcome

    @cached_property
    def best(self) -> list[Line]:
        """Rows that are no upper bound, the best first; those without the metric last."""
        metric = next((m for m in self.outcome.metrics if m in ARROWS), "auc")
        ranked = self.outcome.rank(metric)
        return ranked + [line for line in self.outcome.fair if line not in ranked]

    @cached_property
    def styles(self) -> dict[str, int]:
        """Row to style: 0 is the row of the suite, or the best; 1 the upper bound; then the best of the others."""
        first = self.outcome.of_role("ours") or next(iter(self.best), None)
        upper = [line for line in self.outcome.lines if line.facts["role"] == "upper"]
        order = [first, *upper[:1], *self.best, *upper[1:]]
        names = dict.fromkeys(line.name for line in order if line is not None)
        return {name: number for number, name in enumerate(names)}

    @cached_property
    def few(self) -> list[Line]:
        """The rows that are drawn where each takes room: the best and the bounds, or all if they are not many."""
        lines = self.outcome.lines
        few = [*self.best[:_FEW], self.outcome.of_role("upper"), self.reference]
        return lines if len(lines) <= _MANY else [line for line in lines if line in few]

    @cached_property
    def reference(self) -> Line | None:
        """What others are compared with over time: Vanilla, or the best."""
        return self.outcome.of_role("zero") or next(iter(self.best), None)
