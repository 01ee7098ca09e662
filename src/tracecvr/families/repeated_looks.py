"""Looks: a click is shown at rising ages, each time with what is new since it was shown before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tracecvr.authoring.method import Method
from tracecvr.base.config import Seconds, option
from tracecvr.base.seeds import uniform
from tracecvr.stream.reveal import After, LabelledReveals, On, Reveals, Schedule

_MOST_AGES = 12
"""How many ages there are by default at most."""

_LOOKS_PER_INTERVAL = 4
"""The first age is at least an interval divided by this, so that most clicks are shown when the interval in which they
came ends. Ages that fall in one interval are merged, so they cost little. NLL with 1, 4 and 8, one seed: updates once a
day .447, .437, .435; a jump of all rates .503, .500, .500; 60,000 stationary clicks .4248, .4246, .4247."""

_SAMPLED_FROM, _USUAL_SHARE = 1_000_000, 0.25
"""Clicks of warm-up from which on late looks are sampled, and the share then. A sample saves time but adds noise, which
matters where there are few clicks. Known truth, 48,000 warm-up clicks: the gap is .0251 with a quarter, .0208 with all.
On tuning days: NLL of cryptokitties with 405,000 is .3449 with a quarter, .3437 with all; of criteo_search with 319,000
.2756 and .2757 (two seeds), with 1.3 million .0001 higher with a quarter, for a third of the events."""


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
    at_once: bool = option(False, "show a conversion when it becomes known instead of at the next age")
    merge: bool = option(True, "show a click once per interval, with all that is new; the gradient stays the same")
    late_share: float | None = option(
        None,
        "share of clicks that are shown at a late age while they are open, each in place of several; by default 0.25 "
        "if warm-up has a million clicks, else 1",
        above=0,
        high=1,
    )
    late_after: Seconds | None = option(None, "ages after this one are late; by default, after the first", low=0)

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
        return super().resolve_options() | {"ages": list(self.looks), "late_share": self.share}

    @property
    def share(self) -> float:
        """The share of late looks that is taken: the option's, or what the size of warm-up calls for."""
        if self.late_share is not None:
            return self.late_share
        return _USUAL_SHARE if self.counts.get("warm_up_clicks", 0) >= _SAMPLED_FROM else 1.0

    def observe(self, b: Reveals) -> None:
        if isinstance(b, LabelledReveals):
            self.counts["warm_up_clicks"] = self.counts.get("warm_up_clicks", torch.zeros((), dtype=torch.int64)) + len(
                b
            )

    def schedule(self) -> Schedule:
        # A conversion that becomes known only after d_max has no look left, so it is shown then.
        late = On(0) if self.at_once else On(0, later_than=self.schema.d_max)
        return (*(After(age) for age in self.looks), late)

    def states(self, b: Reveals) -> tuple[Tensor, Tensor]:
        """The state before and after each event: (B,), (B,)."""
        return b.once(self._states)

    def _states(self, b: Reveals) -> tuple[Tensor, Tensor]:
        count, ages = len(self.looks), torch.tensor((-1, *self.looks))
        look = b.trigger.clamp_max(count - 1)
        start, end = ages[look], ages[look + 1]
        before, after = self._at(b, start, look), self._at(b, end, look + 1)
        if self.at_once:  # a conversion was shown when it became known
            before = torch.where((b.known <= end) & (b.refund > start), count + 1, before)
        on = b.trigger == count
        before = torch.where(on, (ages[1:] < b.elapsed[:, None]).sum(1), before)
        return before if b.previous_state is None else b.previous_state, torch.where(on, count + 1, after)

    def state_at_last_look(self, b: Reveals) -> Tensor:
        """The state that each click has been shown in by its clock: (B,)."""
        return b.once(self._state_at_last_look)

    def _state_at_last_look(self, b: Reveals) -> Tensor:
        ages = torch.tensor((-1, *self.looks))
        count = (ages[1:] <= b.elapsed[:, None]).sum(1)
        state = self._at(b, ages[count], count)
        if self.at_once:  # conversions, not refunds: these are shown at the next look
            state = torch.where((state == count) & (b.known <= b.elapsed), len(self.looks) + 1, state)
        return state

    def _at(self, b: Reveals, age: Tensor, looks: Tensor) -> Tensor:
        converted, refunded = len(self.looks) + 1, len(self.looks) + 2
        return torch.where(b.refund <= age, refunded, torch.where(b.known <= age, converted, looks))

    def condense(self, events: Reveals) -> Reveals:
        """The events that say something new, a sample of those at late ages, consecutive ones of a click in one."""
        before, after = self.states(events)
        kept, late = before != after, self._late(events, after)
        if self.share < 1:
            kept &= ~late | self._sample(events)
        index = kept.nonzero()[:, 0]
        if self.merge:  # what has the same weight
            index, before = _last_of_chains(events.row * 2 + late, before, after, index)
        else:
            before = before[index]
        return replace(events.take(index), previous_state=before)

    def _sample(self, b: Reveals) -> Tensor:
        """A share of all clicks, another one at each look: of any n consecutive clicks one, if the share is 1 / n."""
        size = round(1 / self.share)
        block = b.row.div(size, rounding_mode="floor") * len(self.schedule()) + b.trigger
        start = torch.from_numpy(uniform(block.numpy()))
        return (start + b.row % size / size) % 1 < self.share

    def weight(self, b: Reveals) -> Tensor:
        """How many clicks each event stands for."""
        return b.once(self._weight)

    def _weight(self, b: Reveals) -> Tensor:
        return torch.where(self._late(b, self.states(b)[1]), 1 / self.share, 1.0)

    def _late(self, b: Reveals, after: Tensor) -> Tensor:
        """Events that are sampled: of open clicks at a late age."""
        if self.share == 1:
            return torch.zeros(len(after), dtype=torch.bool)
        ages, late_after = torch.tensor((*self.looks, 0)), self.looks[0] if self.late_after is None else self.late_after
        return (ages[b.trigger] > late_after) & (after <= len(self.looks))


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
