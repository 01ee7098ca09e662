"""Forecasts as frames: by segment and day, what has come and what is expected in the end, with an interval.

Intervals are conformal, from past forecasts of the same age and nearly the same size.

Of each past forecast two numbers are known by now: how many conversions it expected up to now, and how many came. The
variance of their difference has three parts, fitted to the past: one proportional to what is expected (chance), one to
its square (days and segments differ), one to its square over the segment's recent conversions (new segments). A
forecast takes the quantiles of the past differences nearest to it in size, in units of this spread. Unless conversions
are taken back, the lower end is not below what has come; the upper end then has all of the risk.

Where days become stormier or delays change, past misses understate those to come. So intervals are adaptive (Gibbs and
Candes 2021): each day of which too many were outside makes those of that size wider, until few enough are. They never
become narrower than past misses say. All choices were made on days 36 to 49 of criteo_search, 38 to 59 of cryptokitties
and simulated counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracecvr.base.config import DAY
from tracecvr.base.errors import UserError
from tracecvr.base.metrics import Floats
from tracecvr.data.table import Ints
from tracecvr.forecast.cells import Cells, Counts
from tracecvr.forecast.estimators import (
    DEFAULT,
    FEWEST_CLICKS,
    LEARNT_FROM,
    PAST_DAYS,
    Estimates,
    due_by,
    estimate,
    known_share,
)

LEVEL = 0.9
"""Of intervals, by default."""
BESIDE = ("ladder", "bf")
"""Other estimates that are shown for comparison."""

_NEAREST = 200
"""Past forecasts by which the quantiles of one are taken."""
_FEW = 30
"""With fewer past forecasts than this, spread is that of chance with a wide margin."""
_DEVELOPED = 0.5
"""A past forecast is used once this share of what it expected is due."""
_SEEN = 0.98
"""A past forecast is used only if, when it was made, clicks had been seen up to an age at which this share of
conversions is known."""
_UNKNOWN = np.array([1.5, 0.1, 1.0])
"""The parts of the variance before anything is known of it."""
_STEP, _SIZES = 0.3, np.arange(-2.0, 12.0)
"""How fast widths adapt, and the sizes (logs of expected conversions) at which they do."""
_LASTS, _LASTS_DAYS, _LASTS_AT_MOST = 0.7, 10, 0.9
"""The correlation of misses of one day with those of the next before anything is known of it, for how many days that
counts, and the highest one."""


def forecast(
    cells: Cells,
    names: Mapping[int, Any],
    level: float = LEVEL,
    origin: int | None = None,
    days: int | None = None,
) -> pl.DataFrame:
    """Of each segment and day that is still open: clicks, conversions so far, expected final conversions, their rate
    and an interval. `names` has segments by number, `days` how many of the last days are asked for."""
    if not 0 < level < 1:
        raise UserError(f"level = {level:g}: give a share between 0 and 1, such as 0.9")
    day = np.arange(max(0, cells.days - min(cells.lags, days or cells.lags)), cells.days)
    age = cells.days - 1 - day
    estimates = estimate(cells, day, age)
    final = estimates.final[DEFAULT].astype(np.float64)
    low, high = between(cells, day, age, estimates, level)
    segment, place = np.nonzero(cells.clicks[:, day] > 0)
    columns: dict[str, Any] = {
        "segment": [names.get(int(one), str(one)) for one in segment],
        "day": day_starts(cells, day[place], origin),
        "age_days": age[place],
        "clicks": cells.clicks[:, day][segment, place].astype(np.int64),
        "conversions": estimates.so_far[segment, place].astype(np.int64),
        "expected": final[segment, place],
        "low": low[segment, place],
        "high": high[segment, place],
    }
    columns |= {name: estimates.final[name][segment, place].astype(np.float64) for name in BESIDE}
    frame = pl.DataFrame(columns)
    rate = (pl.col("expected") / pl.col("clicks")).alias("rate")
    return frame.select(*frame.columns[:6], rate, *frame.columns[6:]).sort("day", "segment", descending=[True, False])


def between(
    cells: Cells, day: Ints, age: Ints, estimates: Estimates, level: float = LEVEL, estimator: str = DEFAULT
) -> tuple[Floats, Floats]:
    """(S, P) ends of the intervals of estimates, one for each day at its age."""
    final, so_far, recent = (
        a.astype(np.float64) for a in (estimates.final[estimator], estimates.so_far, estimates.recent)
    )
    low, high, some = np.empty_like(final), np.empty_like(final), cells.some(LEARNT_FROM)
    histories = {one: History(some, one, estimator, day[age == one]) for one in np.unique(age).tolist()}
    for place, (today, one) in enumerate(zip(day.tolist(), age.tolist(), strict=True)):
        had = so_far[:, place]
        lowest = -had if cells.takes_back else np.zeros_like(had)
        expected, history = final[:, place] - had, histories[one]
        width = history.widening(today, expected, level)
        ends = history.misses(today).between(expected, recent[:, place], level, lowest, width)
        low[:, place], high[:, place] = (had + end for end in ends)
    return low, high


def day_starts(cells: Cells, day: Ints, origin: int | None) -> pl.Series:
    """When days begin: dates, or seconds of a log without."""
    start = pl.Series(cells.at - (cells.days - day) * DAY)
    return start if origin is None else pl.from_epoch(start + origin).dt.replace_time_zone("UTC")


@dataclass(frozen=True, eq=False)
class Misses:
    """Past forecasts of one age, as far as they can be judged by now, sorted by size."""

    expected: Floats
    came: Floats
    recent: Floats
    day: Floats

    @cached_property
    def parts(self) -> Floats:
        """Parts of the variance: in proportion, squared, squared over what was known of the segment."""
        if len(self.expected) < _FEW:
            return _UNKNOWN
        from scipy.optimize import nnls  # half a second to import

        e = np.abs(self.expected)
        weight = 1 / (e + 0.02 * e**2 + 0.1)
        most = 25 * (e + 0.05 * e**2 + 0.5)  # one strange day is not the rule
        square = np.minimum((self.came - self.expected) ** 2, most)
        fitted, _ = nnls(_terms(e, self.recent) * weight[:, None], square * weight)
        return np.asarray(np.maximum(fitted, [0.3, 0, 0]))

    def between(
        self, expected: Floats, recent: Floats, level: float, lowest: Floats, width: Floats
    ) -> tuple[Floats, Floats]:
        """Lower and upper ends for what is still expected of cells, `width` times as wide as past misses say; none is
        below `lowest`."""
        parts = self.parts
        spread = width * _spread(parts, expected, recent)
        if len(self.expected) < _FEW:
            z = np.full((3, len(expected)), 1.0) * chance(level)[:, None]
        else:
            miss = (self.came - self.expected) / _spread(parts, self.expected, self.recent)
            z = nearest_quantiles(self.expected, miss, expected, tails(miss, self.day, level))
        low = expected + z[0] * spread
        high = expected + np.where(low <= lowest, np.minimum(z[1], z[2]), z[1]) * spread
        low = np.maximum(low, lowest)
        return np.minimum(low, np.maximum(expected, lowest)), np.maximum(high, expected)


class History:
    """Forecasts of one age, of days before some days, and what became of them."""

    def __init__(self, cells: Cells, age: int, estimator: str, days: Ints) -> None:
        self.cells, self.age = cells, age
        self.first = max(0, int(days.min()) - 2 * PAST_DAYS)
        day = np.arange(self.first, int(days.max()))
        made = estimate(cells, day, np.full(len(day), age))
        self.expected, self.recent = (a.astype(np.float64) for a in (made.final[estimator] - made.so_far, made.recent))
        self.misses = cache(self._look_back)

    def widening(self, today: int, asked: Floats, level: float) -> Floats:
        """How many times as wide as past misses say intervals of a day are, of cells that expect so many."""
        log_width = np.zeros(len(_SIZES))
        for day, good, expected, came, recent in zip(*self._until(today), strict=True):
            then, size = self.misses(int(day)), _size(self.expected[good, day - self.first])
            if len(then.expected) < _FEW:
                continue
            lowest = np.full(len(size), -np.inf if self.cells.takes_back else 0.0)
            width = np.exp(np.interp(size, _SIZES, log_width))
            low, high = then.between(expected[good], recent[good], level, lowest, width)
            outside = (came[good] < low) | (came[good] > high)
            near = np.exp(-np.abs(size - _SIZES[:, None]))
            log_width = np.maximum(log_width + _STEP * near @ (outside + level - 1) / np.maximum(near.sum(1), 1), 0)
        return np.exp(np.interp(_size(asked), _SIZES, log_width))

    def _until(self, today: int) -> tuple[Ints, npt.NDArray[np.bool_], Floats, Counts, Floats]:
        """Of earlier days, (days, S) each: whether forecasts can be judged when that of the day is made, what they
        expected by then, what had come, and recent conversions."""
        cells, day = self.cells, np.arange(max(self.first, today - PAST_DAYS), today)
        due, came = due_by(cells, day, np.full(len(day), self.age), np.full(len(day), today + 1 + self.age))
        good = (due >= _DEVELOPED) & (cells.clicks[:, day] >= FEWEST_CLICKS)
        here = day - self.first
        return day, good.T, (self.expected[:, here] * due).T, came.T, self.recent[:, here].T

    def _look_back(self, today: int) -> Misses:
        """What earlier forecasts had missed when that of a day was made."""
        cells, (day, good, expected, came, recent) = self.cells, self._until(today)
        common = known_share(cells, np.array([today + 1 + self.age]), pooled=True)[0, 0]
        seen = common[np.minimum(day + self.age, cells.lags)] >= _SEEN
        good &= seen[:, None] & (expected != 0)
        by_model = good & (cells.scored.T[day] > 0)
        if cells.scored[:, today].any() and by_model.sum() >= _FEW:
            good = by_model  # before the model scored clicks, forecasts were worse
        order = np.argsort(expected[good], kind="stable")
        columns = (expected, came, recent, np.broadcast_to(day[:, None], good.shape))
        return Misses(*(one[good].astype(np.float64)[order] for one in columns))


def _size(expected: Floats) -> Floats:
    return np.log(np.maximum(np.abs(expected), 0.1))


def _terms(expected: Floats, recent: Floats) -> Floats:
    expected = np.abs(expected)
    return np.stack([expected, expected**2, expected**2 / (recent + 1)], axis=1)


def _spread(parts: Floats, expected: Floats, recent: Floats) -> Floats:
    return np.asarray(np.sqrt(_terms(expected, recent) @ parts + 0.05))


def chance(level: float) -> Floats:
    """Quantiles of the normal law for the ends and for one end alone."""
    return np.array([NormalDist().inv_cdf(q) for q in ((1 - level) / 2, (1 + level) / 2, level)])


def tails(miss: Floats, day: Floats, level: float, most: int = _NEAREST) -> Floats:
    """Quantiles of past misses for both ends of an interval and for an upper end alone, which leave the right share of
    new misses outside in the mean. These are farther out the fewer past misses there are. Misses of one day are alike,
    and where a level moves, so are those of days that follow each other: they count for less."""
    days, which, per_day = np.unique(day, return_inverse=True, return_counts=True)
    means = np.bincount(which, miss) / per_day
    within = ((miss - means[which]) ** 2).sum() / max(len(miss) - len(days), 1)
    apart = means - miss.mean()
    variance = max(float((apart**2).mean()), 1e-9)
    between = max(variance - (within / per_day).mean(), 0.0)
    alike, count = between / max(between + within, 1e-9), min(most, len(miss))
    follows = np.diff(days) == 1
    together = float((apart[1:] * apart[:-1])[follows].sum()) / variance
    lasts = (together + _LASTS_DAYS * _LASTS) / (follows.sum() + _LASTS_DAYS)
    lasts = min(max(lasts, 0.0), _LASTS_AT_MOST)
    independent = max(len(days) * (1 - lasts) / (1 + lasts), 1.0)
    number = count / (1 + max(count / independent - 1, 0.0) * alike)
    outside = np.array([(1 - level) / 2, (1 - level) / 2, 1 - level])
    outside = np.maximum((outside * (number + 1) - 1) / max(number - 1, 1.0), 0.0)
    return np.array([outside[0], 1 - outside[1], 1 - outside[2]])


def nearest_quantiles(size: Floats, miss: Floats, asked: Floats, q: Floats, most: int = _NEAREST) -> Floats:
    """(len(q), n) quantiles of the misses that are nearest in size; `size` rises."""
    count = min(most, len(size))
    first = np.clip(np.searchsorted(size, asked) - count // 2, 0, len(size) - count)
    starts, which = np.unique(first, return_inverse=True)
    windows = np.lib.stride_tricks.sliding_window_view(miss, count)[starts]
    return np.quantile(windows, q, axis=1)[:, which]
