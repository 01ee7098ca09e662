"""Oracle: the true label at the moment of the click, or at the moments of another method's schedule."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tracecvr.authoring.losses import cross_entropy
from tracecvr.authoring.method import Method
from tracecvr.base import registry
from tracecvr.base.config import option
from tracecvr.stream.reveal import After, LabelledReveals, On, Reveals, Schedule, Trigger


@dataclass
class Oracle(Method):
    """Trains on every click at once, with its final label. No live system can do this, so it is the upper reference.

    With `schedule_of` it shows the final label whenever another method would show the click: what that method would
    gain from true labels. This is no upper bound if labels that are shown often are memorised. All events of a click
    share a weight of 1, because a schedule may show conversions more often than other clicks.

    >>> Oracle().schedule()
    (After(seconds=0, seen=None),)
    """

    name = "oracle"
    title = "Oracle"
    reference = "the field's upper reference"
    status = "code"
    role = "upper"
    privileged = True

    schedule_of: str | None = option(None, "method at whose moments clicks are shown; at the click by default")

    def schedule(self) -> Schedule:
        if self.schedule_of is None:
            return (After(0),)
        other: Method = registry.get("method", self.schedule_of)(horizons=self.horizons)
        other.schema = self.schema  # all that a schedule depends on beside options: its nets are not needed
        return other.schedule()

    def uncertain(self, b: Reveals) -> Tensor:
        return torch.zeros_like(b.open)

    def loss(self, b: Reveals) -> Tensor:
        assert isinstance(b, LabelledReveals)  # it is privileged
        each = cross_entropy(self.logit(b.x), b.truth)
        if self.schedule_of is None:
            return each.mean()
        weight = 1 / self.times_shown(b)
        return (weight * each).sum() / weight.sum()

    def times_shown(self, b: LabelledReveals) -> Tensor:
        """How many events the click of each event has, in the end."""
        return torch.stack([self._fires(trigger, b).float() for trigger in self.schedule()]).sum(0)

    def _fires(self, trigger: Trigger, b: LabelledReveals) -> Tensor:
        """Whether a trigger ever fires for the click of each event."""
        if isinstance(trigger, On):
            delay = b.delay[:, trigger.action]
            return (delay > trigger.later_than) & (delay <= self.schema.d_max)
        if trigger.seen is None:
            return torch.ones(len(b), dtype=torch.bool)
        return (b.delay[:, 0] <= min(trigger.seconds, self.schema.d_max)) == trigger.seen
