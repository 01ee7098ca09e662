"""Tests for changes that may be looked at after every interval, for as long as one likes.

Each test has a null hypothesis, "the mean is at least (or at most) `null` times what was expected", and an alternative,
`changed` times. The likelihood ratio of the two has a mean of at most 1 as long as the null holds: it is an e-value.
Their product since a moment is an e-process, and the largest over all moments of a start, the CUSUM M = max(M, 1) L, is
an e-detector (Shin, Ramdas and Rinaldo 2023): if nothing changes, the mean time until it exceeds c is at least c
starts. With c = starts in a month times tests, there is at most one false alarm a month.

Stops and traffic are weighed by interval. Rates and delays are weighed by day: days differ, and intervals of one day
miss in the same direction. So counts of a day share a factor, and evidence can start at the beginning of each day.
Counts are negative binomial: their variance m + t m^2 exceeds Poisson's. t is estimated from past misses, of intervals
or of days. A model that is persistently off by less than `null` allows is no change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracecvr.base.config import DAY
from tracecvr.base.metrics import Floats
from tracecvr.monitor.expected import HALF_LIFE

MONTH = 30 * DAY
_USUAL, _LEAST = {"interval": 0.02, "day": 0.1}, 0.002
"""Excess variance before anything is known of it, and at least."""
_PRIOR = {"interval": 20.0, "day": 3.0}
"""How many of them the former counts for. What days differ by in a segment is first taken from all segments."""
_FADE = {"interval": HALF_LIFE, "day": 2 * HALF_LIFE}
"""In this time the weight of past misses halves."""
_TYPICAL = 0.1
"""Excess variance by which misses are weighed: by the estimated one, small estimates would last."""
_EXTREME = 9.0
"""How many variances the square of a miss counts at most: a fault must not hide itself."""
_MIXED = 0.1
"""The share of the other law in each of two that are compared: one old click must not decide."""
_FAR, _FARTHEST = 4.0, 5.0
"""Standard deviations by which ages of a day are off after a change, and those that count."""
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
    Test("traffic", "clicks", 0.35, 0.05),
    Test("traffic", "clicks", 3.0, 8.0),
    Test("level", "young", 0.9, 0.7),
    Test("level", "young", 0.9, 0.3),
    Test("level", "young", 1.1, 1.35),
    Test("level", "young", 1.1, 2.2),
    Test("level", "ages", 1.0, 1 / 1.6),
    Test("level", "ages", 1.0, 1.6),
)
"""`ages` compares delays: null and alternative say how many times as long they are."""
FAMILIES = ("stop", "level", "traffic")
COUNTS = ("all", "clicks", "young")
_COUNTED = tuple(test for test in TESTS if test.of in COUNTS)
PACES = tuple(test.changed for test in TESTS if test.of == "ages")
_OF = np.array([COUNTS.index(test.of) for test in _COUNTED])
_FAMILY = np.array([FAMILIES.index(test.family) for test in TESTS])
_NULL, _CHANGED = (np.array([[getattr(test, name)] for test in _COUNTED]) for name in ("null", "changed"))
_DAILY = np.array([[test.family == "level"] for test in TESTS])
_BY_DAY = COUNTS.index("young")
"""The first count that is weighed by day; those before it are weighed by interval."""


def log_ratio(count: Floats, mean: Floats, excess: Floats, null: Floats, changed: Floats) -> Floats:
    """log L of negative binomial counts: means `changed * mean` against `null * mean`.

    >>> log_ratio(np.array(0.0), np.array(10.0), np.array(1e-9), np.array(0.6), np.array(0.1)).round(3)
    np.float64(5.0)
    """
    shape = 1 / excess
    scale = np.log((shape + changed * mean) / (shape + null * mean))
    ratio: Floats = count * (np.log(changed / null) - scale) - shape * scale
    return ratio


def log_age_ratio(count: Floats, usual: Floats, changed: Floats) -> Floats:
    """log L of the ages of arrivals (series, bins) given their number, for changed means against the usual ones; with
    its mean and variance as long as ages are as usual: (3, series).

    >>> log_age_ratio(np.array([[1.0, 0.0]]), np.array([[3.0, 1.0]]), np.array([[1.0, 1.0]])).round(2).T.tolist()
    [[-0.32, -0.11, 0.14]]
    """
    usual, changed = (np.maximum(m, 1e-9) / np.maximum(m.sum(1, keepdims=True), 1e-9) for m in (usual, changed))
    mixed = [(1 - _MIXED) * one + _MIXED * other for one, other in ((changed, usual), (usual, changed))]
    ratio, number = np.log(mixed[0] / mixed[1]), count.sum(1)
    mean, square = (usual * ratio).sum(1), (usual * ratio**2).sum(1)
    return np.stack([(count * ratio).sum(1), number * mean, number * (square - mean**2)])


_STATE = ("evidence", "before", "onset", "newest", "today", "variance")


class Detectors:
    """All tests of all series, one step per interval. Arrays are (counts, series) or (tests, series)."""

    def __init__(self, series: int, interval: int) -> None:
        self.interval, self.day = interval, max(interval, DAY)
        self.tested = np.ones((len(TESTS), series), bool)
        self.tested[FAMILIES.index("traffic") == _FAMILY, 1:] = False  # of a segment it is often wanted
        starts = np.where(_DAILY, MONTH / self.day, MONTH / interval)
        self.threshold = np.log(np.maximum(starts, 1.0) * int(self.tested.sum()))  # (tests, 1)
        self.evidence = np.zeros((len(TESTS), series))
        self.before = np.zeros((len(TESTS), series))  # at the start of the day
        self.onset = np.zeros((len(TESTS), series))  # when the evidence began
        self.newest = np.zeros((len(TESTS), series))  # the end of the last interval in which it grew
        self.today = np.zeros((2 + 3 * len(PACES), series))  # young: count, mean; of paces: see `log_age_ratio`
        kinds = len(COUNTS) + len(PACES)
        self.variance = np.zeros((3, kinds, series))  # sums: excess squares, squared means, intervals or days

    def excess(self) -> Floats:
        """Of each count and pace, and of each series: t in the variance m + t m^2."""
        squares, means, number = self.variance
        by_day = np.arange(len(means))[:, None] >= _BY_DAY
        usual, prior = (np.where(by_day, of["day"], of["interval"]) for of in (_USUAL, _PRIOR))
        one = _TYPICAL**-2  # the most that a day of a segment weighs
        pooled = (squares[:, 1:].sum(1, keepdims=True) + one * usual) / (means[:, 1:].sum(1, keepdims=True) + one)
        usual = np.where(by_day & (np.arange(means.shape[1]) > 0), np.maximum(pooled, _LEAST), usual)
        weight, known = prior * means / np.maximum(number, 1e-9), means > 0
        t = np.where(known, (squares + weight * usual) / np.where(known, means + weight, 1.0), usual)
        return np.maximum(t, _LEAST)

    def step(self, start: int, count: Floats, mean: Floats, ages: Sequence[Floats]) -> None:
        """Weigh the evidence of an interval that begins at `start`. `ages` has what `log_age_ratio` says of paces."""
        if start % self.day < self.interval:
            self.before, self.today = self.evidence.copy(), np.zeros_like(self.today)
        self.today += np.concatenate([count[_BY_DAY:], mean[_BY_DAY:], *ages])
        begun = np.where(_DAILY, self.before, self.evidence)
        self.onset = np.where(begun > 0, self.onset, np.where(_DAILY, start // self.day * self.day, start))
        grown = begun + np.where(self.tested, self._weigh(count, mean), 0.0)
        self.newest = np.where(grown > self.evidence, start + self.interval, self.newest)
        self.evidence = np.clip(grown, 0.0, self.threshold + _BEYOND)

    def _weigh(self, count: Floats, mean: Floats) -> Floats:
        """log L of all tests: of an interval, or of the day so far."""
        excess, (came, expected) = self.excess(), self._today()
        count, mean = (np.concatenate([a[:_BY_DAY], b[:1]]) for a, b in ((count, came), (mean, expected)))
        counted = log_ratio(count[_OF], mean[_OF], excess[_OF], _NULL, _CHANGED)
        # Ages vary more than chance lets them, and clicks from before a change do not show it. So what is tested is
        # that log L exceeds its mean: by several of the standard deviations that days have.
        variance = expected[1:]
        off = (came[1:] - variance) / np.sqrt(variance + excess[len(COUNTS) :] * variance**2 + 0.25)
        return np.concatenate([counted, _FAR * np.minimum(off, _FARTHEST) - _FAR**2 / 2])

    def _today(self) -> tuple[Floats, Floats]:
        """Of the day so far, young conversions and log L of paces: what came, and the mean if all is as usual, which is
        also the variance without excess. What is expected of a segment follows what came of all others: that a day is
        good or bad for everybody is no change of a segment. log L is shifted so that its mean is its variance."""
        count, mean = self.today[:2].copy()
        others = np.maximum(self.today[:2, :1] - self.today[:2, 1:], 0.0) + 1 / self.excess()[_BY_DAY, 0]
        mean[1:] *= others[0] / others[1]
        log_l, usual, variance = self.today[2:].reshape(len(PACES), 3, -1).swapaxes(0, 1)
        return np.vstack([count, log_l - usual + variance]), np.vstack([mean, variance])

    def learn(self, start: int, count: Floats, mean: Floats, used: Floats) -> None:
        """Take an interval's misses into the excess variance, and at its end those of a day."""
        self._learn("interval", slice(0, _BY_DAY), count[:_BY_DAY], mean[:_BY_DAY], used)
        if (start + self.interval) % self.day < self.interval:
            self._learn("day", slice(_BY_DAY, None), *self._today(), used)

    def _learn(self, per: str, which: slice, count: Floats, mean: Floats, used: Floats) -> None:
        excess, variance = self.excess()[which], self.variance[:, which]
        weight = used / (1 + _TYPICAL * mean) ** 2
        square = np.minimum((count - mean) ** 2, _EXTREME * (mean + excess * mean**2))
        variance *= 0.5 ** ((self.interval if per == "interval" else self.day) / _FADE[per])
        variance += np.stack([weight * (square - mean), weight * mean**2, np.broadcast_to(used, mean.shape)])

    def sound(self) -> Floats:
        """Families of tests (rows) of each series that have crossed the threshold: as 0 or 1."""
        over = self.evidence >= self.threshold
        return np.stack([over[family == _FAMILY].any(0) for family in range(len(FAMILIES))])

    def silent(self) -> Floats:
        """Families of each series without evidence left: of a stop none, of others little. Where days differ much, all
        of their tests are never without any."""
        none = self.evidence <= np.where(FAMILIES.index("stop") == _FAMILY, 0.0, _LITTLE)[:, None] * self.threshold
        return np.stack([none[family == _FAMILY].all(0) for family in range(len(FAMILIES))])

    def since(self, family: int, series: int) -> tuple[int, int]:
        """When the evidence of a family's strongest test began, and when that of any last grew."""
        tests = np.flatnonzero(family == _FAMILY)
        strongest = tests[np.argmax(self.evidence[tests, series])]
        return int(self.onset[strongest, series]), int(self.newest[tests, series].max())

    def forget(self, but_stop: bool = True) -> None:
        """Begin all tests anew, but that of a stop of everything: it explains what the others would find."""
        stop = self.evidence[0, 0] * but_stop
        for sums in (self.evidence, self.before, self.today):
            sums[:] = 0.0
        self.evidence[0, 0] = stop

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name).tolist() for name in _STATE}

    def load(self, state: dict[str, Any]) -> None:
        for name, values in state.items():
            setattr(self, name, np.array(values, np.float64))
