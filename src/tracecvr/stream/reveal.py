"""When a click is shown to the learner, and what it is shown: triggers, schedules and reveals.

`reveal` is the one function that turns stored times into what was known at a clock: every label, age and window mask in
the project comes from here, so there is one place where the future could leak, and it is this short.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tracecvr.data.table import NEVER, Ids, Ints, is_taken_back

T = TypeVar("T")


@dataclass(frozen=True)
class After:
    """A trigger that shows a click at a fixed age.

    Parameters
    ----------
    seconds
        How long after the click.
    seen
        True: only if the conversion is known by then. False: only if it is not. None: in both cases.
    """

    seconds: int
    seen: bool | None = None


@dataclass(frozen=True)
class On:
    """A trigger that shows a click when one of its actions, within d_max, becomes known.

    Parameters
    ----------
    action
        Position of the action in the log's `actions`; 0 is the conversion.
    later_than
        Only if it becomes known more than so many seconds after the click. By default, always.

    Examples
    --------
    A conversion after the first hour:

    >>> On(0, later_than=3600)
    On(action=0, later_than=3600)
    """

    action: int = 0
    later_than: int = -1


Trigger = After | On
Schedule = tuple[Trigger, ...]


@dataclass(frozen=True, eq=False)
class Reveals:
    """Events of a batch, an interval or a history. An event shows a click at a moment, its clock, with only what was
    known of the click by then. Methods get events as `b`. Each column is a tensor with a row for each event.

    `label`, `open` and `trajectory` follow from the columns. `rng` is the batch's own generator, for losses that draw
    random numbers.

    Examples
    --------
    Two clicks, shown after an hour. One has converted after 60 s, the other converts after two hours:

    >>> from tracecvr.data.table import NEVER
    >>> start, action_ts = np.zeros(2, np.int64), np.array([[60], [7200]])
    >>> b = reveal(np.zeros((2, 1), np.int32), start, action_ts, action_ts, start + 3600, 86400, np.arange(2))
    >>> b.label, b.open
    (tensor([1., 0.]), tensor([False,  True]))
    >>> b.age[:, 0].tolist() == [60, NEVER]
    True
    """

    row: Tensor  # (B,) position of the click in its source
    x: Tensor  # (B, F) feature ids
    arrival: Tensor  # (B,) when the click became known: in a table, its time
    lateness: Tensor  # (B,) seconds from click to when it became known: 0 unless the log was kept live
    elapsed: Tensor  # (B,) seconds from click to clock
    trigger: Tensor  # (B,) position in the schedule
    age: Tensor  # (B, K) delay of each action known by the clock, else NEVER
    converted: Tensor  # (B,) conversion within d_max known by the clock
    mature: Tensor  # (B,) d_max has passed: the label is final
    known: Tensor  # (B,) seconds from click to when a conversion within d_max became known, if by the clock, else NEVER
    refund: Tensor  # (B,) seconds from click to when it was taken back, if by the clock, else NEVER
    previous_state: Tensor | None = None  # (B,) what the method knew of the click before, if it merged events
    logged: Tensor | None = None  # (B, J) what the method recorded when the click was served, NaN if it did not
    rng: np.random.Generator | None = None

    def __len__(self) -> int:
        return len(self.row)

    @cached_property
    def label(self) -> Tensor:
        """1 where the conversion is known by the clock, else 0."""
        return self.converted.float()

    @cached_property
    def open(self) -> Tensor:
        """Clicks whose outcome is still unknown."""
        return ~(self.converted | self.mature)

    def trajectory(self, horizons: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Cumulative action states (B, H, K) and visibility (B, H): a window is visible once its end has passed."""
        return self.once(_trajectory, horizons)

    def once(self, function: Callable[..., T], *given: Hashable) -> T:
        """What a function makes of these events, and of values that are given beside them. It is computed once: a blend
        asks for the loss of a batch twice. So it must not depend on the outputs of a net that is learning."""
        if (function, given) not in self.computed:
            self.computed[function, given] = function(self, *given)
        value: T = self.computed[function, given]
        return value

    @cached_property
    def computed(self) -> dict[tuple[Hashable, ...], Any]:
        """What was computed of these events, by function and what it was given."""
        return {}

    def take(self, index: Tensor | slice, rng: np.random.Generator | None = None) -> Self:
        """The events at `index`, in that order."""
        picked = {f.name: column[index] for f in fields(self) if isinstance(column := getattr(self, f.name), Tensor)}
        return replace(self, **picked, rng=rng)

    def to(self, device: str) -> Self:
        """The events on a device."""
        moved = {f.name: column.to(device) for f in fields(self) if isinstance(column := getattr(self, f.name), Tensor)}
        return replace(self, **moved, rng=self.rng)


def _trajectory(b: Reveals, horizons: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    ends = torch.tensor(horizons)
    visible = ends <= b.elapsed[:, None]
    state = (b.age[:, None, :] <= ends[None, :, None]) & visible[:, :, None]
    return state.float(), visible.float()


@dataclass(frozen=True, eq=False)
class LabelledReveals(Reveals):
    """Events with the final outcome of their clicks: `truth`, `delay` and `span`. Warm-up losses get them, and the
    stream of a privileged method has them."""

    truth: Tensor = field(kw_only=True)  # (B,) final label, as float
    delay: Tensor = field(kw_only=True)  # (B, K) final delays
    span: Tensor = field(kw_only=True)  # (B,) seconds from click to the end of the history; in a stream, to the clock


def reveal(
    x: Ids,
    click_ts: Ints,
    action_ts: Ints,
    known_ts: Ints,
    clock: Ints,
    d_max: int,
    row: Ints,
    trigger: npt.NDArray[np.int64] | None = None,
    refund_ts: Ints | None = None,
    arrival_ts: Ints | None = None,
) -> Reveals:
    """What was known of each click at its clock. A conversion that is taken back is not shown from then on,
    unless another one came after that."""
    known = known_ts <= clock[:, None]
    delay = _delays(action_ts, click_ts)
    known_after = np.where(known[:, 0] & (delay[:, 0] <= d_max), known_ts[:, 0] - click_ts, NEVER)
    refund = np.full_like(click_ts, NEVER)
    if refund_ts is not None:
        gone = is_refunded(refund_ts, click_ts, clock, d_max)
        known[:, 0] &= ~gone
        by = np.minimum(clock, click_ts + d_max)
        latest = np.where(refund_ts <= by[:, None], refund_ts, -1).max(axis=1, initial=-1)
        refund = np.where(gone, latest - click_ts, NEVER)
    age = np.where(known, delay, NEVER)
    elapsed = clock - click_ts
    came = click_ts if arrival_ts is None else arrival_ts
    return Reveals(
        row=torch.as_tensor(row),
        x=torch.as_tensor(np.ascontiguousarray(x)),
        arrival=torch.as_tensor(came),
        lateness=torch.as_tensor(came - click_ts),
        elapsed=torch.as_tensor(elapsed),
        trigger=torch.as_tensor(np.zeros_like(row) if trigger is None else trigger),
        age=torch.as_tensor(age),
        converted=torch.as_tensor(age[:, 0] <= d_max),
        mature=torch.as_tensor(elapsed >= d_max),
        known=torch.as_tensor(known_after),
        refund=torch.as_tensor(refund),
    )


def add_outcomes(
    events: Reveals,
    click_ts: Ints,
    action_ts: Ints,
    d_max: int,
    refund_ts: Ints | None = None,
    span: Tensor | None = None,
) -> LabelledReveals:
    """Events with the final outcome of their clicks. A conversion that was taken back within d_max does not count, but
    it has happened: its delay stays. `span` is how long each click has been looked at, up to its clock by default."""
    delay = _delays(action_ts, click_ts)
    final = delay[:, 0] <= d_max
    if refund_ts is not None:
        final &= ~is_refunded(refund_ts, click_ts, click_ts + d_max, d_max)
    return LabelledReveals(
        **{f.name: getattr(events, f.name) for f in fields(events)},
        truth=torch.as_tensor(final.astype(np.float32)),
        delay=torch.as_tensor(delay),
        span=events.elapsed if span is None else span,
    )


def _delays(action_ts: Ints, click_ts: Ints) -> Ints:
    return np.where(action_ts == NEVER, NEVER, action_ts - click_ts[:, None])


def is_refunded(refund_ts: Ints, click_ts: Ints, clock: Ints, d_max: int) -> npt.NDArray[np.bool_]:
    """Whether each conversion has been taken back by a clock: in its own second it is. Labels are final after d_max, so
    that later than that nothing is taken back."""
    return is_taken_back(refund_ts, np.minimum(clock, click_ts + d_max))
