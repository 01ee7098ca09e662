"""Telescoped likelihood: each time a click is shown, it teaches only what is new since it was last shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tracecvr.chain import NOTHING, chain_loss, log_open, width
from tracecvr.config import DAY, Seconds, option
from tracecvr.errors import UserError
from tracecvr.method import Helper, Method
from tracecvr.reveal import After, On, Reveals, Schedule

_CERTAIN = 30.0
"""Log-odds of what is known."""


@dataclass
class Telescoped(Method):
    """Shows a click while it is open at rising ages, and when it converts. The loss is the likelihood of what was seen
    since the click was last shown, given what had been seen before. Its gradient is the change of the posterior.

    Over a click's life the gradients add up to y - p, which is Oracle's, whatever the law of delays and actions says.
    So a wrong law moves learning in time, but not the rate that is learnt.

    >>> Telescoped(ages=(3600, 86400)).looks(86400)
    (3600, 86400)
    """

    name = "telescoped"
    reference = "ours"
    status = "ours"
    per_click: ClassVar[tuple[str, ...]] = ("chain",)

    ages: tuple[Seconds, ...] | None = option(
        None, "ages at which open clicks are shown, d_max added if it is missing; the horizons by default", low=1
    )
    at_once: bool = option(True, "show a conversion when it becomes known; else when its window ends")
    merge: bool = option(True, "show a click once per interval, with all that is new; the gradient is the same")
    late_share: float = option(
        1.0, "share of open clicks that are shown at a late age, with more weight", above=0, high=1
    )
    late_after: Seconds = option(DAY, "ages from which on `late_share` applies", low=0)
    refresh: Seconds | None = option(
        None, "train the law of delays and actions anew every so often; never by default", low=1
    )
    chain_epochs: int = option(1, "passes of the law of delays and actions over the warm-up part", low=1)
    normaliser: str = option("events", "", choices=("events", "clicks", "constant"))

    def looks(self, d_max: int) -> tuple[int, ...]:
        """The ages at which open clicks are shown."""
        ages = self.ends if self.ages is None else self.ages
        return (*(age for age in ages if age < d_max), d_max)

    @property
    def _ages(self) -> tuple[int, ...]:
        return self.looks(self.schema.d_max)

    def schedule(self) -> Schedule:
        looks = tuple(After(age, seen=False) for age in self._ages)
        if self.at_once:
            return (*looks, On(0))
        return looks + tuple(After(age, seen=True) for age in self._ages)

    # What a showing is about: the looks before it and the looks up to it.

    def _links(self, b: Reveals) -> tuple[Tensor, Tensor]:
        """How many looks each event's click had before, and after, it: H + 1 stands for converted."""
        count = len(self._ages)
        look = b.trigger % count
        converted = b.trigger >= count
        if self.at_once:  # looks that fired before: a click that came late has had none until then
            ages = torch.tensor(self._ages)
            look_before = (torch.maximum(ages, b.lateness[:, None]) < b.elapsed[:, None]).sum(1)
            before = torch.where(converted, look_before, look)
        else:
            before = look
        return before, torch.where(converted, count + 1, look + 1)

    def condensed(self, events: Reveals) -> Reveals:
        before, after = self._links(events)
        keep = self._sampled(events)
        if not self.at_once:  # seen at an earlier look already
            ages = torch.tensor((0, *self._ages))
            keep &= ~((events.trigger >= len(self._ages)) & (events.age[:, 0] <= ages[before]) & (before > 0))
        if not bool(keep.all()):
            events, before, after = events.take(keep), before[keep], after[keep]
        return self._merged(events, before, after) if self.merge else events

    def _sampled(self, events: Reveals) -> Tensor:
        keep = torch.ones(len(events), dtype=torch.bool)
        if self.late_share < 1:
            late = self._late(events)
            key = (events.row * 7919 + events.trigger * 104729 + 12345) * 2654435761 % 2**32
            key = (key ^ (key >> 15)) * 2246822519 % 2**32
            keep = ~late | (key.double() / 2**32 < self.late_share)
        return keep

    def _late(self, events: Reveals) -> Tensor:
        ages = torch.tensor((*self._ages, 0))
        return (events.trigger < len(self._ages)) & (ages[events.trigger.clamp_max(len(self._ages))] > self.late_after)

    def _merged(self, events: Reveals, before: Tensor, after: Tensor) -> Reveals:
        order = torch.argsort(events.row * (len(self._ages) + 2) + after, stable=True)
        row, first, last = events.row[order], before[order], after[order]
        follows = torch.zeros(len(order), dtype=torch.bool)
        follows[1:] = (row[1:] == row[:-1]) & (first[1:] == last[:-1])
        chain = (~follows).cumsum(0) - 1
        ends = torch.ones(len(order), dtype=torch.bool)
        ends[:-1] = ~follows[1:]
        starts = first[~follows]
        kept = order[ends]
        back = torch.argsort(kept)
        from dataclasses import replace

        return replace(events.take(kept[back]), since=starts[chain[ends]][back])

    # The law of the chain.

    def helpers(self) -> dict[str, Helper]:
        outputs = width(len(self._ages), len(self.schema.actions))
        return {"chain": Helper(lambda: self.net(outputs), self.chain_epochs, self.refresh)}

    def helper_loss(self, name: str, b: Reveals) -> Tensor:
        return chain_loss(self.nets[name](b.x), b, self._ages)

    def warm_up_depends_on(self, name: str) -> dict[str, Any] | None:
        if name == "chain" and self.inherits(Telescoped, "helper_loss"):
            return {"ages": self._ages}
        return super().warm_up_depends_on(name)

    def log_psi(self, b: Reveals) -> Tensor:
        """log P(o_1..o_h, open | x, y) after each look: (B, 2, H + 1)."""
        return log_open(self.of_click("chain", b), b.trajectory(self._ages)[0])

    # Training.

    def posterior(self, b: Reveals) -> Tensor:
        log_psi = self.log_psi(b)
        seen = b.trajectory(self._ages)[1].sum(1).long()
        evidence = (log_psi[:, 1] - log_psi[:, 0]).gather(1, seen[:, None])[:, 0]
        known = torch.where(b.converted, _CERTAIN, (self.logit(b.x) + evidence).clamp(-_CERTAIN, _CERTAIN))
        return known

    def loss(self, b: Reveals) -> Tensor:
        before, after = self._links(b)
        if b.since is not None:
            before = b.since
        logit, log_psi = self.logit(b.x), self.log_psi(b)
        looks = torch.logaddexp(
            F.logsigmoid(-logit)[:, None] + log_psi[:, 0], F.logsigmoid(logit)[:, None] + log_psi[:, 1]
        )
        states = torch.cat([looks, F.logsigmoid(logit)[:, None]], dim=1)  # (B, H + 2)
        link = (states.gather(1, after[:, None]) - states.gather(1, before[:, None]))[:, 0]
        if self.late_share < 1:
            link = torch.where(self._late(b), link / self.late_share, link)
        return -link.mean()

    def fixed_point(self, p: float, delayed: float) -> float:
        return p
