"""Looks: a click is shown at rising ages, each time with what is new since it was shown before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tracecvr.authoring.method import Method
from tracecvr.base.config import Seconds, option
from tracecvr.base.devices import array_of, double
from tracecvr.base.seeds import uniform
from tracecvr.stream.reveal import After, LabelledReveals, On, Reveals, Schedule

_MOST_AGES = 12
"""How many ages there are by default at most."""

_LOOKS_PER_INTERVAL = 4
"""The first age is at least an interval divided by this, so that most clicks are shown when the interval in which they
came ends. Ages that fall in one interval are merged, so they cost little. NLL with 1, 4 and 8, one seed: updates once a
day .447, .437, .435; a jump of all rates .503, .500, .500; 60,000 stationary clicks .4248, .4246, .4247."""

_SAMPLED_FROM, _USUAL_NOISE = 120_000, 0.15
"""Clicks of warm-up from which on late looks are sampled, and the noise that this may add then. It saves time: 2 events
per click instead of 9 on 2 million clicks with a rate of .22. NLL with 0, .05, .1 and .2, one seed, on tuning days of
large logs: cryptokitties .3437, .3441, .3438, .3438; criteo_search .2712 (.02), .2716, .2716, .2718. Small logs take no
long time, and lose more: `noise` of the gauntlet, another draw, .4134, .4136, .4138, .4149."""

_LEAST_SHARE = 0.01


@dataclass
class RepeatedLooks(Method):
    """A method that looks at a click at rising ages until its outcome is known.

    An event leads from the state of the click when it was shown before to its state now. A state is the number of looks
    that a click has had while it was open; two more stand for converted and refunded. Whatever is late, a click's
    events lead from no look to its final state, without a gap and without going back.
    """

    ages: tuple[Seconds, ...] | None = option(
        None,
        "ages at which a click is shown, the last of which is d_max whatever is given; by default d_max, a half, a "
        "quarter of it and so on, down to a quarter of an interval",
        low=0,
    )
    merge: bool = option(True, "show a click once per interval, with all that is new; the gradient stays the same")
    added_noise: float | None = option(
        None,
        "by what share the variance of gradients may grow, roughly, because only a sample of clicks is shown at ages "
        "after the first at which nothing has happened; 0 for all clicks; by default 0.15 if warm-up has more than "
        "120,000 clicks, else 0",
        low=0,
    )

    @property
    def looks(self) -> tuple[int, ...]:
        """The ages in force."""
        return _looks(self.ages, self.schema.d_max, self.schema.interval)

    @property
    def windows(self) -> tuple[int, ...]:
        """Ends of windows for a law of what happens after a click: the looks, and the horizons, where posteriors are
        asked for."""
        return _windows(self.looks, self.ends)

    def resolve_options(self) -> dict[str, Any]:
        return super().resolve_options() | {"ages": list(self.looks), "shares": self.shares.tolist()}

    @property
    def shares(self) -> Tensor:
        """The share of clicks that is shown at each look if nothing has happened since the look before.

        A look at which few clicks convert changes the posterior of the others little. A sample of n of them, each with
        a weight, adds a variance of about q² / n per click, where q is the share of clicks that convert between the
        two looks. With shares in proportion to q, all looks together add `added_noise` times the variance of y.
        """
        if not self._noise:
            return torch.ones(len(self.looks))
        converted, shown = double(self.counts["looks"])
        shares: Tensor = (converted / shown / self._noise).clamp(_LEAST_SHARE, 1.0)
        shares[0] = 1.0
        reached = int((shown > 0).sum())
        shares[reached:] = shares[max(reached - 1, 0)]  # warm-up was too short for these: as at the last that it saw
        return shares.float()

    @property
    def _noise(self) -> float:
        if "looks" not in self.counts:  # before warm-up
            return 0.0
        if self.added_noise is not None:
            return self.added_noise
        return _USUAL_NOISE if self.counts["looks"][1].max() > _SAMPLED_FROM else 0.0

    def observe(self, b: Reveals) -> None:
        """Count the clicks of warm-up that have reached each look, and those that converted since the look before."""
        if isinstance(b, LabelledReveals):
            ages = torch.tensor(self.looks)
            shown = ages <= b.elapsed[:, None]
            converted = shown & (b.known[:, None] <= ages)
            converted[:, 1:] &= b.known[:, None] > ages[:-1]
            counts = torch.stack([converted.sum(0), shown.sum(0)])
            self.counts["looks"] = self.counts.get("looks", torch.zeros_like(counts)) + counts

    def schedule(self) -> Schedule:
        # A conversion that becomes known only after d_max has no look left, so it is shown then.
        return (*(After(age) for age in self.looks), On(0, later_than=self.schema.d_max))

    def states(self, b: Reveals) -> tuple[Tensor, Tensor]:
        """The state before and after each event: (B,), (B,)."""
        return b.once(self._states)

    def _states(self, b: Reveals) -> tuple[Tensor, Tensor]:
        count, ages = len(self.looks), torch.tensor((-1, *self.looks))
        look = b.trigger.clamp_max(count - 1)
        before, after = self._at(b, ages[look], look), self._at(b, ages[look + 1], look + 1)
        on = b.trigger == count
        before = torch.where(on, (ages[1:] < b.elapsed[:, None]).sum(1), before)
        return before if b.previous_state is None else b.previous_state, torch.where(on, count + 1, after)

    def state_at_last_look(self, b: Reveals) -> Tensor:
        """The state that each click has been shown in by its clock: (B,)."""
        return b.once(self._state_at_last_look)

    def _state_at_last_look(self, b: Reveals) -> Tensor:
        ages = torch.tensor((-1, *self.looks))
        count = (ages[1:] <= b.elapsed[:, None]).sum(1)
        return self._at(b, ages[count], count)

    def _at(self, b: Reveals, age: Tensor, looks: Tensor) -> Tensor:
        converted, refunded = len(self.looks) + 1, len(self.looks) + 2
        return torch.where(b.refund <= age, refunded, torch.where(b.known <= age, converted, looks))

    def condense(self, events: Reveals) -> Reveals:
        """The events that say something new, a sample of those at late ages, consecutive ones of a click in one."""
        before, after = self.states(events)
        kept, share = before != after, self._share(events)
        sampled = share < 1
        if sampled.any():
            kept &= ~sampled | self._sample(events, share)
        index = kept.nonzero()[:, 0]
        if self.merge:  # what has the same weight
            group = events.row * len(self.schedule()) + torch.where(sampled, events.trigger, 0)
            index, before = _last_of_chains(group, before, after, index)
        else:
            before = before[index]
        return replace(events.take(index), previous_state=before)

    def _sample(self, b: Reveals, share: Tensor) -> Tensor:
        """A share of all clicks, another one at each look: of any n consecutive clicks one, if the share is 1 / n."""
        size = (1 / share).round().long()
        block = b.row.div(size, rounding_mode="floor") * len(self.schedule()) + b.trigger
        return torch.as_tensor((uniform(array_of(block)) + array_of(b.row % size / size)) % 1 < array_of(share))

    def weight(self, b: Reveals) -> Tensor:
        """How many clicks each event stands for."""
        return b.once(self._weight)

    def _weight(self, b: Reveals) -> Tensor:
        return 1 / self._share(b)

    def _share(self, b: Reveals) -> Tensor:
        """The share of clicks that is shown as each event shows one: all of those to which something has happened."""
        if not self._noise:
            return torch.ones(len(b))
        count, ages = len(self.looks), torch.tensor((-1, *self.looks))
        look = b.trigger.clamp_max(count - 1)
        others = b.age[:, 1:]
        acted = ((others > ages[look, None]) & (others <= ages[look + 1, None])).any(1)
        always = acted | (self.states(b)[1] > count) | (b.trigger == count)
        return torch.where(always, 1.0, self.shares[look])


@cache  # these two are asked for many times in each batch
def _looks(ages: tuple[int, ...] | None, d_max: int, interval: int) -> tuple[int, ...]:
    """Ages in rising order up to d_max; those by default if none are given."""
    if ages is None:
        shortest = interval / _LOOKS_PER_INTERVAL
        ages = tuple(d_max >> half for half in range(1, _MOST_AGES) if d_max >> half >= shortest)
    return (*sorted({age for age in ages if age < d_max}), d_max)


@cache
def _windows(looks: tuple[int, ...], ends: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted({*looks, *(end for end in ends if end < looks[-1])}))


def _last_of_chains(group: Tensor, before: Tensor, after: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Of events of one group that follow on each other, the last, and the state before the first; in their order."""
    order = index[torch.argsort(group[index], stable=True)]  # events of a click stay in the order of time
    follows = torch.zeros(len(order), dtype=torch.bool)
    follows[1:] = (group[order[1:]] == group[order[:-1]]) & (before[order[1:]] == after[order[:-1]])
    first, last = order[~follows], order[~follows.roll(-1)]  # an event is the last unless the next one follows on it
    back = torch.argsort(last)
    return last[back], before[first[back]]
