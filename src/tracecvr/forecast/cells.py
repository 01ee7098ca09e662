"""Cells: clicks and conversions by segment, day of the click and age, as they were known at one moment.

A day is 24 hours, and the last one ends at that moment. So at midnight days are calendar days (UTC), and at any other
time every day has the same age as the same day of the past: whole days. Once clicks are counted, they are not needed
any more: memory is bounded by segments x days x ages.

What becomes known in a span of time is first counted as `records`, whole numbers by segment, score, day and age. A
`Tally` adds them up, those of a whole log at once or interval by interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracecvr.base.config import DAY
from tracecvr.base.metrics import probability
from tracecvr.data.table import NEVER, ClickTable, Ints

Counts = npt.NDArray[np.float32]

KEPT_DAYS = 90
"""Days that are kept after their labels are final."""
_EDGES = np.arange(-10.0, 4.01, 0.25)
BINS = len(_EDGES) + 2
"""Bins of scores, log-odds, a quarter wide; the first is for clicks that were not scored."""
_KEY = {"segment": np.int64, "bin": np.int16, "day": np.int32, "age": np.int16}
_SUMS = {"count": np.float32, "scored": np.float32, "predicted": np.float32}
RECORD = np.dtype(list((_KEY | _SUMS).items()))
"""So many clicks (`age` is -1) or conversions of a segment, a bin of scores and a day; at an age in days. Of clicks:
how many were scored, and the sum of their probabilities. Conversions that are taken back count -1."""
Records = npt.NDArray[Any]


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


def outcomes_of(
    table: ClickTable, segment: Ints, log_odds: npt.NDArray[np.float32], rows: Ints | slice | None = None
) -> Outcomes:
    """The outcomes of clicks of a table: of some rows, or of the first, as many as segments are given."""
    rows = slice(0, len(segment)) if rows is None else rows
    click, action, d_max = np.asarray(table.click_ts[rows]), np.asarray(table.action_ts[rows])[:, 0], table.schema.d_max
    within = (action != NEVER) & (action - click <= d_max)
    known = np.where(within, np.asarray(table.known_ts[rows])[:, 0], NEVER)
    turns, before = [], known
    if table.refund_ts is not None:
        for turn in np.asarray(table.refund_ts[rows]).T:
            before = np.where((before != NEVER) & (turn <= click + d_max), np.maximum(turn, before), NEVER)
            turns.append(before)
    return Outcomes(
        segment, click, np.asarray(table.arrival_ts[rows]), known, log_odds[: len(click)], d_max, tuple(turns)
    )


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


def records_of(outcomes: Outcomes, start: int, end: int, shift: int = 0) -> Records:
    """What became known in [start, end). Days begin when time plus `shift` is a multiple of a day."""
    o = outcomes
    day, scored = (o.click_ts + shift) // DAY, ~np.isnan(o.log_odds)
    bins = np.where(scored, np.searchsorted(_EDGES, o.log_odds) + 1, 0)
    parts = [_frame(o, np.flatnonzero((o.arrival_ts >= start) & (o.arrival_ts < end)), day, bins, None, 1.0)]
    for turn, when in enumerate((o.known_ts, *o.turns)):  # converts, taken back, regained, taken back again
        when = np.where(when == NEVER, NEVER, np.maximum(when, o.arrival_ts))
        rows = np.flatnonzero((when >= start) & (when < end))
        age = np.maximum((when[rows] + shift) // DAY - day[rows], 0)
        inside = age <= _lags(o.d_max)  # what becomes known after labels are final is left out
        parts.append(_frame(o, rows[inside], day, bins, age[inside], -1.0 if turn % 2 else 1.0))
    comes = (pl.col("count") > 0).alias("comes")  # what comes and what is taken back do not cancel out
    summed = pl.concat(parts).group_by(*_KEY, comes).agg(pl.col(*_SUMS).sum()).sort(*_KEY, "comes")
    made = np.empty(len(summed), RECORD)
    for name in RECORD.names or ():
        made[name] = summed[name].to_numpy()
    return made


def _frame(o: Outcomes, rows: Ints, day: Ints, bins: Ints, age: Ints | None, count: float) -> pl.DataFrame:
    scored = bins[rows] > 0 if age is None else np.zeros(len(rows), bool)
    predicted = np.zeros(len(rows))
    predicted[scored] = probability(o.log_odds[rows][scored])
    key = {"segment": o.segment[rows], "bin": bins[rows], "day": day[rows]}
    age = np.full(len(rows), -1) if age is None else age
    return pl.DataFrame(
        key | {"age": age, "count": np.full(len(rows), count), "scored": scored * 1.0, "predicted": predicted}
    )


class Tally:
    """Cells that grow: by series, day and age. Days that no forecast looks back on are dropped."""

    def __init__(self, d_max: int, series: int = 0, shift: int = 0) -> None:
        self.shift, self.ages = shift, _lags(d_max) + 1
        self.most = self.ages + KEPT_DAYS  # one more than asked for: the day that is not over
        self.first, self.takes_back = 0, False
        self.sums = np.zeros((3, series, 0), np.float32)  # clicks, scored, predicted
        self.arrivals = np.zeros((series, 0, self.ages), np.float32)

    def add(self, series: Ints, records: Records) -> None:
        """Count records, each for a series."""
        if not len(records):
            return
        self._make_room(int(series.max()) + 1, records["day"])
        inside = records["day"] >= self.first
        series, records = series[inside], records[inside]
        day, clicks = records["day"] - self.first, records["age"] < 0
        for sums, name in zip(self.sums, _SUMS, strict=True):
            np.add.at(sums, (series[clicks], day[clicks]), records[name][clicks])
        later = records[~clicks]
        np.add.at(self.arrivals, (series[~clicks], day[~clicks], later["age"]), later["count"])
        self.takes_back |= bool((later["count"] < 0).any())

    def cells(self, at: int) -> Cells:
        """As known at a moment at which a day ends. Late clicks of that day that were added since count, too."""
        ends = (at + self.shift) // DAY
        if self.arrivals.shape[1]:
            self._make_room(0, np.array([ends - 1]))  # also if the last days had no clicks
        last = max(ends - self.first, 0)
        days = slice(max(last - self.most + 1, 0), last)
        clicks, scored, predicted = self.sums[:, :, days]
        return Cells(at, clicks, self.arrivals[:, days].cumsum(2, dtype=np.float32), scored, predicted, self.takes_back)

    def _make_room(self, series: int, day: Ints) -> None:
        have, days = self.arrivals.shape[:2]
        first = self.first if days else int(day.min())
        newest = max(first + days - 1, int(day.max()))
        kept = max(first, newest - self.most + 1)
        wider, longer, dropped = max(series - have, 0), newest - first + 1 - days, kept - first
        if wider:
            wider = max(wider, have // 4)  # seldom, when segments come one by one
        if wider or longer:
            self.sums = np.pad(self.sums, ((0, 0), (0, wider), (0, longer)))[:, :, dropped:]
            self.arrivals = np.pad(self.arrivals, ((0, wider), (0, longer), (0, 0)))[:, dropped:]
        self.first = kept


def count(outcomes: Outcomes, segments: int, at: int) -> Cells:
    """Cells as known at a moment: nothing that became known at it or later is counted."""
    tally = Tally(outcomes.d_max, segments, -at % DAY)
    records = records_of(outcomes, np.iinfo(np.int64).min, at, tally.shift)
    tally.add(records["segment"], records)
    return tally.cells(at)


def _lags(d_max: int) -> int:
    return -(-d_max // DAY)
