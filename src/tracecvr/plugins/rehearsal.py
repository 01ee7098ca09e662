"""Rehearsal: every event of a method once more, later, with what was known at its first firing."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tracecvr.authoring.method import Method, Plugin
from tracecvr.base.config import Seconds, option
from tracecvr.stream.reveal import After, Again, Reveals, Schedule


@dataclass
class Rehearsal(Plugin):
    """Shows each event of any method again after given delays, unchanged. The method learns nothing new of a click, it
    only sees it more often: a control for comparisons with methods that show clicks often. Every event is repeated
    equally often, so the rate that a method converges to stays the same.

    By default a click without a conversion is shown about as often as by TRACE, and repeats come as long after an event
    as TRACE's later horizons after its first.

    >>> Rehearsal(after=(3600, 86400)).repeats((After(0), After(60)))
    ((0, 3600), (1, 3600), (0, 86400), (1, 86400))
    """

    name = "rehearsal"
    reference = "ours: a control for methods that show clicks more than once"

    after: tuple[Seconds, ...] | None = option(
        None, "when each event is repeated; by default so that clicks are shown as often as by TRACE", low=1
    )
    weight: float = field(default=0.0, init=False, repr=False, compare=False)  # it has no loss of its own

    gaps: tuple[int, ...] = field(default=(), init=False, repr=False, compare=False)

    def attach(self, method: Method) -> None:
        self.gaps = self._gaps(method.ends, events_per_idle_click(method.schedule()))

    def repeats(self, schedule: Schedule) -> tuple[tuple[int, int], ...]:
        gaps = self.gaps if self.after is None else self.after
        return tuple((position, gap) for gap in gaps for position in range(len(schedule)))

    def loss(self, method: Method, b: Reveals) -> Tensor:
        return torch.zeros(())

    def _gaps(self, ends: tuple[int, ...], shown: int) -> tuple[int, ...]:
        """Gaps between the first horizon and later ones, thinned evenly to as many as are needed, the last kept."""
        count = round(len(ends) / shown) - 1 if shown else 0
        later = [end - ends[0] for end in ends[1:]]
        return tuple(later[(i + 1) * len(later) // count - 1] for i in range(count))


def events_per_idle_click(schedule: Schedule) -> int:
    """How often a schedule shows a click that does nothing: a number that needs no log.

    >>> events_per_idle_click((After(60), After(60, seen=True), After(90, seen=False)))
    2
    """
    first = [t.trigger if isinstance(t, Again) else t for t in schedule]
    return sum(isinstance(t, After) and t.seen is not True for t in first)
