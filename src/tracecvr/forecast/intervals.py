"""Intervals of forecasts: conformal, from past forecasts of the same age and nearly the same size.

Of each past forecast two numbers are known by now: how many conversions it expected up to now, and how many came. The
variance of their difference has three parts, fitted to the past: one proportional to what is expected (chance), one to
its square (days and segments differ), one to its square over the segment's recent conversions (new segments). A
forecast takes the quantiles of the past differences nearest to it in size, in units of this spread. Unless conversions
are taken back, the lower end is not below what has come; the upper end then has all of the risk. All choices were made
on days 36 to 49 of criteo_search and 38 to 59 of cryptokitties.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from tracecvr.base.metrics import Floats
from tracecvr.forecast.cells import Cells
from tracecvr.forecast.estimators import FEWEST_CLICKS, PAST_DAYS, due_by, estimate, known_share

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
_LASTS, _LASTS_DAYS, _LASTS_AT_MOST = 0.7, 10, 0.9
"""The correlation of misses of one day with those of the next before anything is known of it, for how many days that
counts, and the highest one."""


@dataclass(frozen=True, eq=False)
class Misses:
    """Past forecasts of one age, as far as they can be judged by now, sorted by size."""

    expected: Floats
    came: Floats
    recent: Floats
    day: Floats

    @property
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

    def between(self, expected: Floats, recent: Floats, level: float, lowest: Floats) -> tuple[Floats, Floats]:
        """Lower and upper ends for what is still expected of cells; none is below `lowest`."""
        parts = self.parts
        spread = _spread(parts, expected, recent)
        if len(self.expected) < _FEW:
            z = np.full((3, len(expected)), 1.0) * chance(level)[:, None]
        else:
            miss = (self.came - self.expected) / _spread(parts, self.expected, self.recent)
            z = nearest_quantiles(self.expected, miss, expected, tails(miss, self.day, level))
        low = expected + z[0] * spread
        high = expected + np.where(low <= lowest, np.minimum(z[1], z[2]), z[1]) * spread
        low = np.maximum(low, lowest)
        return np.minimum(low, np.maximum(expected, lowest)), np.maximum(high, expected)


def misses(cells: Cells, age: int, estimator: str, now: int) -> Misses:
    """What past forecasts of an age have missed by a moment: `now` is the number of days that were over."""
    common = known_share(cells, np.array([now]), pooled=True)[0, 0]
    day = np.arange(max(0, now - 1 - age - PAST_DAYS), now - 1 - age)
    day = day[common[np.minimum(day + age, cells.lags)] >= _SEEN]
    ages = np.full(len(day), age)
    past, (due, came) = estimate(cells, day, ages), due_by(cells, day, ages, np.full(len(day), now))
    expected = (past.final[estimator] - past.so_far) * due
    good = (cells.clicks[:, day] >= FEWEST_CLICKS) & (due >= _DEVELOPED) & (expected != 0)
    by_model = good & (cells.scored[:, day] > 0)
    if cells.scored[:, now - 1 - age].any() and by_model.sum() >= _FEW:
        good = by_model  # before the model scored clicks, forecasts were worse
    order = np.argsort(expected[good], kind="stable")
    columns = (expected, came, past.recent, np.broadcast_to(day, good.shape))
    return Misses(*(one[good].astype(np.float64)[order] for one in columns))


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
