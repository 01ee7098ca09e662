"""Telescoped likelihood: each time a click is shown, it teaches only what is new since it was shown before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tracecvr.chain import chain_loss, hazard_events, log_open, width
from tracecvr.config import Seconds, option
from tracecvr.method import Helper, Method
from tracecvr.reveal import After, On, Reveals, Schedule
from tracecvr.seeds import uniform

_CERTAIN = 30.0
"""Log-odds of an outcome that is known."""
_MOST_AGES = 12
"""How many ages there are by default at most."""


@dataclass
class Telescoped(Method):
    """Shows a click at rising ages until its outcome is known. The loss is the likelihood of what has been seen since
    the click was shown before, given all that had been seen by then. Its gradient is the change of the posterior.

    Over a click's life the gradients add up to y - p, which is Oracle's, whatever the law of delays and actions says.
    A wrong law moves learning in time, but not the rate that is learnt. Methods that show the whole trajectory each
    time have no such protection, and count a click as often as it is shown.

    Looks after the first are taken at a sample of the open clicks, each in place of several, and looks of one interval
    are merged. So a click is shown about three times. The posterior of an open click comes from the same law.

    >>> Telescoped(ages=(3600,)).late_share
    0.25
    """

    name = "telescoped"
    reference = "ours"
    status = "ours"
    per_click: ClassVar[tuple[str, ...]] = ("chain",)

    ages: tuple[Seconds, ...] | None = option(
        None,
        "ages at which a click is shown, the last of which is d_max whatever is given; by default d_max, a half, a "
        "quarter of it and so on, down to an interval",
        low=0,
    )
    at_once: bool = option(False, "show a conversion when it becomes known instead of at the next age")
    merge: bool = option(True, "show a click once per interval, with all that is new; the gradient stays the same")
    late_share: float = option(
        0.25,
        "share of clicks that are shown at a late age while they are open, each in place of several",
        above=0,
        high=1,
    )
    late_after: Seconds | None = option(None, "ages after this one are late; by default, after the first", low=0)
    refresh: Seconds | None = option(
        None, "train the law of delays and actions anew this often, on the last clicks; never by default", low=1
    )
    chain_epochs: int | None = option(
        None,
        "passes of the law over the warm-up part; by default 1 if it is large, else as held-back clicks want",
        low=1,
    )

    hazard_shift: float = option(0.0, "added to the logits of all hazards: a law that is wrong on purpose, to try that")

    @property
    def looks(self) -> tuple[int, ...]:
        """The ages in force."""
        d_max, interval = self.schema.d_max, self.schema.interval
        ages = self.ages
        if ages is None:
            ages = tuple(d_max >> half for half in range(1, _MOST_AGES) if d_max >> half >= interval)
        return (*sorted({age for age in ages if age < d_max}), d_max)

    def in_force(self) -> dict[str, Any]:
        return super().in_force() | {"ages": list(self.looks)}

    def schedule(self) -> Schedule:
        # A conversion that becomes known only after d_max has no look left, so it is shown then.
        late = On(0) if self.at_once else On(0, later_than=self.schema.d_max)
        return (*(After(age) for age in self.looks), late)

    # What an event is about: the state of the click when it was shown before, and its state now. A state is how many
    # looks the click has had while it was open; then there are two more, converted and refunded.

    def states(self, b: Reveals) -> tuple[Tensor, Tensor]:
        """The state before and after each event: (B,), (B,)."""
        count, ages = len(self.looks), torch.tensor((-1, *self.looks))
        look = b.trigger.clamp_max(count - 1)
        start, end = ages[look], ages[look + 1]
        before, after = self._at(b, start, look), self._at(b, end, look + 1)
        if self.at_once:  # a conversion was shown when it became known
            before = torch.where((b.known <= end) & (b.refund > start), count + 1, before)
        on = b.trigger == count
        looks_before = (ages[1:] < b.elapsed[:, None]).sum(1)
        return torch.where(on, looks_before, before), torch.where(on, count + 1, after)

    def _at(self, b: Reveals, age: Tensor, looks: Tensor) -> Tensor:
        converted, refunded = len(self.looks) + 1, len(self.looks) + 2
        return torch.where(b.refund <= age, refunded, torch.where(b.known <= age, converted, looks))

    def condensed(self, events: Reveals) -> Reveals:
        """The events that say something new, thinned at late ages, those of one click in one."""
        before, after = self.states(events)
        kept = before != after
        if self.late_share < 1:
            chance = uniform((events.row * len(self.schedule()) + events.trigger).numpy())
            kept &= ~self._late(events, after) | torch.from_numpy(chance < self.late_share)
        index = kept.nonzero()[:, 0]
        if self.merge:
            index, before = _last_of_chains(events.row, before, after, index)
        else:
            before = before[index]
        return replace(events.take(index), since=before)

    def _late(self, b: Reveals, after: Tensor) -> Tensor:
        """Events of open clicks at a late age."""
        ages, late_after = torch.tensor((*self.looks, 0)), self.looks[0] if self.late_after is None else self.late_after
        return (ages[b.trigger] > late_after) & (after <= len(self.looks))

    # The law of delays and actions.

    def helpers(self) -> dict[str, Helper]:
        outputs = width(len(self.looks), len(self.schema.actions))
        return {"chain": Helper(lambda: self.net(outputs), self.chain_epochs, self.refresh)}

    def helper_loss(self, name: str, b: Reveals) -> Tensor:
        return chain_loss(self.nets[name](b.x), b, self.looks)

    def base_rates(self, name: str, b: Reveals) -> tuple[tuple[Tensor, ...], Tensor] | None:
        return ((b.x,), hazard_events(b, self.looks)) if name == "chain" else super().base_rates(name, b)

    def warm_up_depends_on(self, name: str) -> dict[str, Any] | None:
        if name == "chain" and self.inherits(Telescoped, "helper_loss"):
            return {"ages": self.looks}
        return super().warm_up_depends_on(name)

    def log_psi(self, b: Reveals) -> Tensor:
        """log P(o_1..o_h, open | x, y) after no look and after each: (B, 2, H + 1)."""
        return log_open(self.of_click("chain", b), b.trajectory(self.looks)[0], self.hazard_shift)

    # Training.

    def loss(self, b: Reveals) -> Tensor:
        before, after = self.states(b)
        before = before if b.since is None else b.since
        likelihood = self.log_likelihood(b)
        new = likelihood.gather(1, after[:, None]) - likelihood.gather(1, before[:, None])
        weight = torch.where(self._late(b, after), 1 / self.late_share, 1.0)
        return -(weight * new[:, 0]).mean()

    def log_likelihood(self, b: Reveals) -> Tensor:
        """log P(all that was seen | x) in each state, up to terms without p: (B, H + 3)."""
        log_psi, logit = self.log_psi(b), self.logit(b.x)
        no, yes = F.logsigmoid(-logit)[:, None], F.logsigmoid(logit)[:, None]
        return torch.cat([torch.logaddexp(no + log_psi[:, 0], yes + log_psi[:, 1]), yes, no], dim=1)

    def posterior(self, b: Reveals) -> Tensor:
        log_psi = self.log_psi(b)
        seen = b.trajectory(self.looks)[1].sum(1, keepdim=True).long()
        evidence = (log_psi[:, 1] - log_psi[:, 0]).gather(1, seen)[:, 0]
        return torch.where(b.converted, _CERTAIN, (self.logit(b.x) + evidence).clamp(-_CERTAIN, _CERTAIN))


def _last_of_chains(row: Tensor, before: Tensor, after: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Of events of one click that follow on each other, the last, and the state before the first; in their order."""
    order = index[torch.argsort(row[index], stable=True)]  # events of a click stay in the order of time
    follows = torch.zeros(len(order), dtype=torch.bool)
    follows[1:] = (row[order[1:]] == row[order[:-1]]) & (before[order[1:]] == after[order[:-1]])
    first, last = order[~follows], order[~follows.roll(-1)]  # an event is the last unless the next one follows on it
    back = torch.argsort(last)
    return last[back], before[first[back]]
