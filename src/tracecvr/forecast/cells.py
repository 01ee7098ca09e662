"""Cells: clicks and conversions by segment, day of the click and age, as they were known at one moment.

A day is 24 hours, and the last one ends at that moment. So at midnight days are calendar days (UTC), and at any other
time every day has the same age as the same day of the past: whole days. Once clicks are counted, they are not needed
any more: memory is bounded by segments x days x ages.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tracecvr.base.config import DAY
from tracecvr.base.metrics import Floats, probability
from tracecvr.data.table import NEVER, ClickTable, Ints

Counts = npt.NDArray[np.float32]

KEPT_DAYS = 90
"""Days that are kept after their labels are final."""


@dataclass(frozen=True, eq=False)
class Outcomes:
    """What is known of clicks, one row each. Times are in seconds since the origin of the log."""

    segment: Ints
    """From 0, without gaps."""
    click_ts: Ints
    arrival_ts: Ints
    """When the click became known."""
    known_ts: Ints
    """When its conversion became known; NEVER without one within d_max."""
    log_odds: npt.NDArray[np.float32]
    """What the model predicted at the click; NaN where it did not."""
    d_max: int
    turns: tuple[Ints, ...] = ()
    """When the conversion was taken back, regained and taken back again, if within d_max; else NEVER."""


def outcomes_of(table: ClickTable, segment: Ints, log_odds: npt.NDArray[np.float32]) -> Outcomes:
    """The outcomes of the first clicks of a table: as many as segments are given."""
    rows = slice(0, len(segment))
    click, action, d_max = np.asarray(table.click_ts[rows]), np.asarray(table.action_ts[rows, 0]), table.schema.d_max
    within = (action != NEVER) & (action - click <= d_max)
    known = np.where(within, table.known_ts[rows, 0], NEVER)
    turns, before = [], known
    if table.refund_ts is not None:
        for turn in table.refund_ts[rows].reshape(len(click), -1).T:
            before = np.where((before != NEVER) & (turn <= click + d_max), np.maximum(turn, before), NEVER)
            turns.append(before)
    return Outcomes(segment, click, np.asarray(table.arrival_ts[rows]), known, log_odds[rows], d_max, tuple(turns))


@dataclass(frozen=True, eq=False)
class Cells:
    """Sums by segment (S), day (D) and age (A = days of d_max, and one more).

    Parameters
    ----------
    at
        The moment: the end of the last day.
    clicks
        (S, D) clicks.
    conversions
        (S, D, A) conversions known at the end of the day, a day later and so on. After `at` nothing changes: only ages
        up to `age` say something.
    scored, predicted
        (S, D) clicks that the model scored, and the sum of their probabilities.
    takes_back
        Whether conversions were taken back.
    """

    at: int
    clicks: Counts
    conversions: Counts
    scored: Counts
    predicted: Counts
    takes_back: bool = False

    @property
    def days(self) -> int:
        return int(self.clicks.shape[1])

    @property
    def lags(self) -> int:
        """Days until labels are final."""
        return int(self.conversions.shape[2]) - 1

    @property
    def age(self) -> Ints:
        """(D,) days since the end of each day, at most those until labels are final."""
        return np.minimum(np.arange(self.days)[::-1], self.lags)

    @property
    def so_far(self) -> Counts:
        """(S, D) conversions known at `at`."""
        return self.conversions[:, np.arange(self.days), self.age]

    def start(self, day: Ints | int) -> Ints | int:
        """When a day begins."""
        return self.at - (self.days - day) * DAY

    @cached_property
    def first_days(self) -> Counts:
        """(S, D + 1, A) conversions of the first 0, 1, ... D days at each age."""
        sums = np.zeros((len(self.clicks), self.days + 1, self.lags + 1), np.float32)
        np.cumsum(self.conversions, axis=1, out=sums[:, 1:])
        return sums

    def some(self, most: int) -> Cells:
        """The cells of at most so many segments: small and large ones."""
        if len(self.clicks) <= most:
            return self
        by_size = np.argsort(self.clicks.sum(1), kind="stable")
        chosen = np.sort(by_size[np.linspace(0, len(by_size) - 1, most).round().astype(np.int64)])
        c, n, scored, predicted = (a[chosen] for a in (self.conversions, self.clicks, self.scored, self.predicted))
        return Cells(self.at, n, c, scored, predicted, self.takes_back)


def count(outcomes: Outcomes, segments: int, at: int) -> Cells:
    """Cells as known at a moment: nothing that became known at it or later is counted."""
    o = outcomes
    known = o.arrival_ts < at
    if not known.any():
        nothing = np.zeros((segments, 0), np.float32)
        return Cells(at, nothing, np.zeros((segments, 0, _lags(o.d_max) + 1), np.float32), nothing, nothing)
    days = min(-(-(at - int(o.click_ts[known].min())) // DAY), _lags(o.d_max) + KEPT_DAYS)
    known &= o.click_ts >= at - days * DAY
    day = days - 1 - (at - 1 - o.click_ts) // DAY
    shape, flat = (segments, days), o.segment * days + day
    conversions = _arrivals(o.known_ts, o, day, days, segments, at, known)
    turns = [_arrivals(turn, o, day, days, segments, at, known) for turn in o.turns]
    scored = known & ~np.isnan(o.log_odds)
    sums = [
        np.bincount(flat[rows], weights, segments * days).reshape(shape).astype(np.float32)
        for rows, weights in ((known, None), (scored, None), (scored, probability(o.log_odds[scored])))
    ]
    for number, turn in enumerate(turns):  # taken back, regained, taken back again
        conversions += turn if number % 2 else -turn
    standing = conversions.cumsum(2, dtype=np.float32)
    return Cells(at, sums[0], standing, sums[1], sums[2], any(turn.any() for turn in turns))


def _lags(d_max: int) -> int:
    return -(-d_max // DAY)


def _arrivals(
    when: Ints, o: Outcomes, day: Ints, days: int, segments: int, at: int, known: npt.NDArray[np.bool_]
) -> Floats:
    """(S, D, A) how many times fall at each age. What became known after labels are final is left out."""
    ages = _lags(o.d_max) + 1
    rows = np.flatnonzero(known & (when < at))
    end = at - (days - 1 - day[rows]) * DAY
    age = np.maximum((when[rows] - end) // DAY + 1, 0)
    inside = age < ages
    place = (o.segment[rows] * days + day[rows])[inside] * ages + age[inside]
    counts = np.bincount(place, minlength=segments * days * ages).reshape(segments, days, ages)
    return counts.astype(np.float64)
