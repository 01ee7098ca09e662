"""Statistics of a bench: spread over seeds, paired differences, and where a method stands between two references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, inf, sqrt
from statistics import fmean, stdev

import numpy as np
import numpy.typing as npt

from tracecvr.base.config import DAY
from tracecvr.base.seeds import generator

LOWER_IS_BETTER = ("nll", "ne", "ece", "ece_gdfm", "mce")
HIGHER_IS_BETTER = ("auc", "pr_auc", "ap")

ENOUGH_DAYS = 5
"""Fewer cannot stand for the days to come."""

_DRAWS = 2000
"""Samples of the bootstrap."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (n - 1) over seeds; one seed has no deviation."""

    mean: float
    sd: float | None
    n: int

    def interval(self) -> tuple[float | None, float | None]:
        """The confidence interval of the mean by Student's t; none for one seed."""
        if self.sd is None:
            return None, None
        reach = quantile(self.n - 1) * (self.sd / sqrt(self.n))
        return self.mean - reach, self.mean + reach


@dataclass(frozen=True)
class Difference:
    """A mean paired difference with its confidence interval and two-sided p-value, None where there are too few pairs.

    `over` says what was paired: seeds (Student's t), or days or intervals of the stream (bootstrap), which say nothing
    about seeds, or both.
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None
    n: int
    over: str = "seeds"

    @property
    def clear(self) -> bool:
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def widen(difference: Difference, mean: float, reach: float) -> Difference:
    """A difference over days, around its mean over seeds, with an interval that covers other seeds, too, which move it
    by so much.

    >>> wider = widen(Difference(1.0, 0.7, 1.3, 0.01, 9, "days"), 1.0, 0.4)
    >>> round(wider.low, 3), round(wider.high, 3), wider.over
    (0.5, 1.5, 'days and seeds')
    """
    if not reach or difference.low is None or difference.high is None:
        return difference
    low, high = (hypot(difference.mean - end, reach) for end in (difference.low, difference.high))
    return replace(difference, mean=mean, low=mean - low, high=mean + high, p=None, over=f"{difference.over} and seeds")


def quantile(freedom: int) -> float:
    """How many standard errors a 95 % interval reaches to either side, by Student's t."""
    from scipy.special import stdtrit  # half a second to import: only when there is something to test

    return float(stdtrit(freedom, 0.975))


def spread(values: Sequence[float]) -> Spread:
    """Of one figure per seed.

    >>> spread([1.0, 2.0, 3.0])
    Spread(mean=2.0, sd=1.0, n=3)
    """
    return Spread(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


def compare_pairs(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """Ours minus theirs over the seeds that both have; None if they share none."""
    seeds = sorted(set(ours) & set(theirs))
    if not seeds:
        return None
    gap = spread([ours[seed] - theirs[seed] for seed in seeds])
    if gap.sd is None:
        return Difference(gap.mean, None, None, None, gap.n)
    from scipy.special import stdtr

    error = gap.sd / sqrt(gap.n)
    t = -abs(gap.mean) / error if error else (-inf if gap.mean else 0.0)
    return Difference(gap.mean, *gap.interval(), float(2 * stdtr(gap.n - 1, t)), gap.n)


def over_days(
    start: npt.NDArray[np.int64], clicks: Floats, ours: Floats, theirs: Floats, block: int = DAY
) -> Difference | None:
    """The difference of two interval metrics of one seed, weighted by clicks, with a bootstrap over days of the stream,
    or over blocks of so many seconds; None for fewer than five of these.

    Intervals that leave a metric undefined (NaN) are skipped, as in the mean itself.
    """
    defined = ~(np.isnan(ours) | np.isnan(theirs))
    start, clicks, gap = start[defined], clicks[defined], (ours - theirs)[defined]
    days, which = np.unique((start - start.min(initial=0)) // block, return_inverse=True)
    if len(days) < ENOUGH_DAYS:
        return None
    gaps, weights = (np.bincount(which, weights=one) for one in (clicks * gap, clicks))
    drawn = generator(0, "bootstrap").integers(0, len(days), (_DRAWS, len(days)))
    sums = weights[drawn].sum(1)
    means = gaps[drawn].sum(1)[sums != 0] / sums[sums != 0]
    low, high = np.quantile(means, [0.025, 0.975])
    beyond = min((means <= 0).mean(), (means >= 0).mean())
    p = float(min(1.0, 2 * max(beyond, 1 / _DRAWS)))
    over = "days" if block == DAY else "intervals"
    return Difference(float(gaps.sum() / weights.sum()), float(low), float(high), p, len(days), over)


def improvement(value: float, zero: float, one: float) -> float | None:
    """RI: where a value stands on the way from `zero` to `one`. With Pretrain as zero, the RI of MISS, DFSN and FTP;
    with Vanilla as zero, the R- of ES-DFM, which is the share of the Vanilla-to-Oracle gap that is closed.

    >>> improvement(0.5, 0.0, 2.0)
    0.25
    """
    return (value - zero) / (one - zero) if one != zero else None
