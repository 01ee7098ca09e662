"""Tests for changes that may be looked at after every interval, for as long as one likes.

Each test has a null hypothesis, "the mean is at least (or at most) `null` times what was expected", and an alternative,
`changed` times. An interval's likelihood ratio of the two has a mean of at most 1 as long as the null holds: it is an
e-value. Their product since a moment is an e-process, and the largest over all moments of a start, the CUSUM
M = max(M, 1) L, is an e-detector (Shin, Ramdas and Rinaldo 2023): if nothing changes, the mean time until it exceeds c
is at least c intervals. With c = intervals of a month times tests, there is at most one false alarm a month.

Counts are negative binomial: their variance m + t m^2 exceeds Poisson's, because models and hours are never quite
right. t is estimated from past misses. A model that is persistently off by less than `null` allows is no change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracecvr.base.config import DAY
from tracecvr.base.metrics import Floats
from tracecvr.monitor.expected import HALF_LIFE

MONTH = 30 * DAY
_USUAL, _LEAST = 0.02, 0.002
"""Excess variance before anything is known of it, and at least."""
_PRIOR = 20.0
"""Intervals that the former counts for."""
_EXTREME = 9.0
"""How many variances the square of a miss counts at most: a fault must not hide itself."""
_LITTLE = 0.25
"""The share of the threshold below which evidence is little."""
_BEYOND = 2.0
"""Nats above the threshold that are remembered: so an alarm ends soon after its cause."""


@dataclass(frozen=True)
class Test:
    """What is counted (`of`), and by which factors the null and the alternative differ from what was expected."""

    family: str
    of: str
    null: float
    changed: float


TESTS = (
    Test("stop", "all", 0.6, 0.03),
    Test("level", "young", 0.9, 0.7),
    Test("level", "young", 0.9, 0.3),
    Test("level", "young", 1.1, 1.35),
    Test("level", "young", 1.1, 2.2),
    Test("traffic", "clicks", 0.35, 0.05),
    Test("traffic", "clicks", 3.0, 8.0),
    Test("level", "ages", 1 / 1.1, 1 / 1.6),
    Test("level", "ages", 1.1, 1.6),
)
"""`ages` compares delays: null and alternative say how many times as long they are."""
FAMILIES = ("stop", "level", "traffic")
COUNTS = ("all", "young", "clicks")
_COUNTED = tuple(test for test in TESTS if test.of in COUNTS)
PACES = tuple((test.null, test.changed) for test in TESTS if test.of == "ages")
_OF = np.array([COUNTS.index(test.of) for test in _COUNTED])
_FAMILY = np.array([FAMILIES.index(test.family) for test in TESTS])
_NULL, _CHANGED = (np.array([[getattr(test, name)] for test in _COUNTED]) for name in ("null", "changed"))
_TEMPER = 0.5
"""Power of the likelihood ratio of ages: hours and segments move ages more than chance does. It stays an e-value."""


def log_ratio(count: Floats, mean: Floats, excess: Floats, null: Floats, changed: Floats) -> Floats:
    """log L of negative binomial counts: means `changed * mean` against `null * mean`.

    >>> log_ratio(np.array(0.0), np.array(10.0), np.array(1e-9), np.array(0.6), np.array(0.1)).round(3)
    np.float64(5.0)
    """
    shape = 1 / excess
    scale = np.log((shape + changed * mean) / (shape + null * mean))
    ratio: Floats = count * (np.log(changed / null) - scale) - shape * scale
    return ratio


def log_age_ratio(count: Floats, null: Floats, changed: Floats) -> Floats:
    """log L of the ages of arrivals (series, bins) given their number, for two sets of means; of each series.

    >>> law = np.array([[3.0, 1.0]]), np.array([[1.0, 1.0]])
    >>> log_age_ratio(np.array([[1.0, 0.0]]), *law).round(3) == np.round(0.5 * np.log(0.5 / 0.75), 3)
    array([ True])
    """
    totals = [np.maximum(means.sum(1, keepdims=True), 1e-9) for means in (null, changed)]
    shares = [np.maximum(means, 1e-9) / total for means, total in zip((null, changed), totals, strict=True)]
    ratio: Floats = _TEMPER * (count * np.log(shares[1] / shares[0])).sum(1)
    return ratio


class Detectors:
    """All tests of all series, one step per interval. Arrays are (counts, series) or (tests, series)."""

    def __init__(self, series: int, interval: int) -> None:
        self.interval = interval
        traffic = FAMILIES.index("traffic") == _FAMILY
        self.tested = np.ones((len(TESTS), series), bool)
        self.tested[traffic, 1:] = False  # that a segment has more or less traffic is often wanted
        self.threshold = math.log(max(MONTH / interval, 1.0) * int(self.tested.sum()))
        self.evidence = np.zeros((len(TESTS), series))
        self.onset = np.zeros((len(TESTS), series))  # when the evidence began
        self.newest = np.zeros((len(TESTS), series))  # the end of the last interval in which it grew
        self.variance = np.zeros((3, len(COUNTS), series))  # sums: excess squares, squared means, intervals

    def excess(self) -> Floats:
        """Of each count and series: t in the variance m + t m^2."""
        squares, means, intervals = self.variance
        usual = _PRIOR * means / np.maximum(intervals, 1e-9)
        known = means > 0
        return np.maximum(
            np.where(known, (squares + usual * _USUAL) / np.where(known, means + usual, 1.0), _USUAL), _LEAST
        )

    def step(self, start: int, count: Floats, mean: Floats, ages: Sequence[Floats] = ()) -> None:
        """Weigh the evidence of an interval that begins at `start`; `ages` are the ratios of tests of ages."""
        fresh = self.evidence <= 0
        self.onset = np.where(fresh, start, self.onset)
        ratio = log_ratio(count[_OF], mean[_OF], self.excess()[_OF], _NULL, _CHANGED)
        ratio = np.where(self.tested, np.concatenate([ratio, *(one[None] for one in ages)]), 0.0)
        self.evidence = np.clip(np.maximum(self.evidence, 0.0) + ratio, 0.0, self.threshold + _BEYOND)
        self.newest = np.where(ratio > 0, start + self.interval, self.newest)

    def learn(self, count: Floats, mean: Floats, used: Floats) -> None:
        """Take an interval's misses into the excess variance."""
        excess = self.excess()
        expected = mean + excess * mean**2
        weight = used / (1 + excess * mean) ** 2
        miss = np.minimum((count - mean) ** 2, _EXTREME * expected)
        self.variance *= 0.5 ** (self.interval / HALF_LIFE)
        self.variance += np.stack([weight * (miss - mean), weight * mean**2, np.broadcast_to(used, mean.shape)])

    def sound(self) -> Floats:
        """Families of tests (rows) of each series that have crossed the threshold: as 0 or 1."""
        over = self.evidence >= self.threshold
        return np.stack([over[family == _FAMILY].any(0) for family in range(len(FAMILIES))])

    def silent(self) -> Floats:
        """Families of each series without evidence left: of a stop none, of others little. Where days differ much, all
        of their tests are never without any."""
        none = self.evidence <= np.where(FAMILIES.index("stop") == _FAMILY, 0.0, _LITTLE * self.threshold)[:, None]
        return np.stack([none[family == _FAMILY].all(0) for family in range(len(FAMILIES))])

    def since(self, family: int, series: int) -> tuple[int, int]:
        """When the evidence of a family's strongest test began, and when that of any last grew."""
        tests = np.flatnonzero(family == _FAMILY)
        strongest = tests[np.argmax(self.evidence[tests, series])]
        return int(self.onset[strongest, series]), int(self.newest[tests, series].max())

    def forget(self) -> None:
        """Begin all tests anew, but that of a stop of everything: it explains what the others would find."""
        stop = self.evidence[0, 0]
        self.evidence[:] = 0.0
        self.evidence[0, 0] = stop

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name).tolist() for name in ("evidence", "onset", "newest", "variance")}

    def load(self, state: dict[str, Any]) -> None:
        for name, values in state.items():
            setattr(self, name, np.array(values, np.float64))
