"""Tests for changes that may be looked at after every interval, for as long as one likes.

Each test has a null hypothesis, "the mean is at least (or at most) `null` times what was expected", and an alternative,
`changed` times. The likelihood ratio of the two has a mean of at most 1 as long as the null holds: it is an e-value.
Their product since a moment is an e-process, and the largest over all moments of a start, the CUSUM M = max(M, 1) L, is
an e-detector (Shin, Ramdas and Rinaldo 2023): if nothing changes, the mean time until it exceeds c is at least c
starts. With c = starts in a month times tests, there is at most one false alarm a month.

Stops and traffic are weighed by interval. Rates and delays are weighed by day, because intervals of one day miss in the
same direction: evidence can start at the beginning of each day. Counts are negative binomial: their variance m + t m^2
exceeds Poisson's. t is estimated from past misses, of intervals or of days; on a day on which all others miss by more
than their own t allows, that of a segment is larger as well. A model that is persistently off by less than `null`
allows is no change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracecvr.base.config import DAY
from tracecvr.base.metrics import Floats
from tracecvr.monitor.expected import HALF_LIFE

FAMILIES = ("stop", "level", "traffic")
_COUNTED = (  # which family, which count (all conversions, clicks, young conversions), null, changed
    ("stop", 0, 0.6, 0.03),
    ("traffic", 1, 0.35, 0.05),
    ("traffic", 1, 3.0, 8.0),
    ("level", 2, 0.9, 0.7),
    ("level", 2, 0.9, 0.3),
    ("level", 2, 1.1, 1.35),
    ("level", 2, 1.1, 2.2),
)
PACES = (1 / 1.6, 1.6)
"""Two more tests of level compare ages of conversions: delays so many times as long, against the usual ones."""
_FAMILY = np.array([FAMILIES.index(family) for family, *_ in _COUNTED] + [FAMILIES.index("level")] * len(PACES))
_OF = np.array([of for _, of, _, _ in _COUNTED])
_NULL, _CHANGED = np.array([factors for _, _, *factors in _COUNTED]).T[:, :, None]
_DAILY = np.array([[FAMILIES[family] == "level"] for family in _FAMILY])

_STATE = ("evidence", "before", "onset", "newest", "today", "variance")

MONTH = 30 * DAY
_BY_DAY = 2
"""Of what is counted, young conversions and then paces are weighed by day, and those before them by interval."""
_KINDS = (2, 1 + len(PACES))
_USUAL, _PRIOR = (np.repeat(each, _KINDS)[:, None] for each in ((0.02, 0.1), (20.0, 3.0)))
"""Excess variance before anything is known of it, and for how many intervals or days that counts. What days differ by
in a segment is first taken from all segments."""
_LEAST = 0.002
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


class Detectors:
    """All tests of all series, one step per interval. Arrays are (counts, series) or (tests, series)."""

    def __init__(self, series: int, interval: int) -> None:
        self.interval, self.day = interval, max(interval, DAY)
        self.tested = np.ones((len(_FAMILY), series), bool)
        self.tested[FAMILIES.index("traffic") == _FAMILY, 1:] = False  # of a segment it is often wanted
        starts = np.maximum(MONTH / np.where(_DAILY, self.day, interval), 1.0)
        self.threshold = np.log(starts * self.tested.sum())  # (tests, 1)
        # Evidence, now and at the start of the day; when it began, and the end of the last interval in which it grew.
        self.evidence, self.before, self.onset, self.newest = np.zeros((4, *self.tested.shape))
        self.today = np.zeros((2 + 3 * len(PACES), series))  # young: count, mean; of paces: see `log_age_ratio`
        self.variance = np.zeros((3, sum(_KINDS), series))  # sums: excess squares, squared means, intervals or days

    def excess(self) -> Floats:
        """Of each count and pace, and of each series: t in the variance m + t m^2."""
        squares, means, number = self.variance
        one = _TYPICAL**-2  # the most that a day of a segment weighs
        pooled = (squares[:, 1:].sum(1, keepdims=True) + one * _USUAL) / (means[:, 1:].sum(1, keepdims=True) + one)
        usual = np.repeat(_USUAL, means.shape[1], 1)
        usual[_BY_DAY:, 1:] = np.maximum(pooled, _LEAST)[_BY_DAY:]
        weight, known = _PRIOR * means / np.maximum(number, 1e-9), means > 0
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
        excess[_BY_DAY:, 1:] *= self._strangeness(excess[_BY_DAY, 0])
        count, mean = (np.concatenate([a[:_BY_DAY], b[:1]]) for a, b in ((count, came), (mean, expected)))
        counted = log_ratio(count[_OF], mean[_OF], excess[_OF], _NULL, _CHANGED)
        # Ages vary more than chance lets them, and clicks from before a change do not show it. So what is tested is
        # that log L exceeds its mean: by several of the standard deviations that days have.
        variance = expected[1:]
        off = (came[1:] - variance) / np.sqrt(variance + excess[_BY_DAY + 1 :] * variance**2 + 0.25)
        return np.concatenate([counted, _FAR * np.minimum(off, _FARTHEST) - _FAR**2 / 2])

    def _strangeness(self, excess: float) -> Floats:
        """Of each segment: how many times its variance all others have missed by today, in square. On a day that is
        strange for all, each differs more than on others."""
        count, mean = np.maximum(self.today[:2, :1] - self.today[:2, 1:], 0.0)
        strange: Floats = np.maximum((count - mean) ** 2 / (mean + excess * mean**2 + 0.25), 1.0)
        return strange

    def _today(self) -> tuple[Floats, Floats]:
        """Of the day so far, young conversions and log L of paces: what came, and the mean if all is as usual, which is
        also the variance without excess: log L is shifted for that. What is expected of a segment follows what came of
        all others: that a day is good or bad for everybody is no change of a segment."""
        count, mean = self.today[:2].copy()
        others = np.maximum(self.today[:2, :1] - self.today[:2, 1:], 0.0) + 1 / self.excess()[_BY_DAY, 0]
        mean[1:] *= others[0] / others[1]
        log_l, usual, variance = self.today[2:].reshape(len(PACES), 3, -1).swapaxes(0, 1)
        return np.vstack([count, log_l - usual + variance]), np.vstack([mean, variance])

    def learn(self, start: int, count: Floats, mean: Floats, used: Floats) -> None:
        """Take an interval's misses into the excess variance, and at its end those of a day."""
        spans = [(count[:_BY_DAY], mean[:_BY_DAY], slice(0, _BY_DAY), self.interval / HALF_LIFE)]
        if (start + self.interval) % self.day < self.interval:
            spans.append((*self._today(), slice(_BY_DAY, None), self.day / HALF_LIFE / 2))
        for came, expected, kinds, faded in spans:
            weight, variance = used / (1 + _TYPICAL * expected) ** 2, self.variance[:, kinds]
            most = _EXTREME * (expected + self.excess()[kinds] * expected**2)
            square = np.minimum((came - expected) ** 2, most)
            variance *= 0.5**faded
            variance += [weight * (square - expected), weight * expected**2, np.broadcast_to(used, came.shape)]

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
        """Restart all tests but that of a stop of everything, which explains what the others would see."""
        stop = self.evidence[0, 0] * but_stop
        for sums in (self.evidence, self.before, self.today):
            sums[:] = 0.0
        self.evidence[0, 0] = stop

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name).tolist() for name in _STATE}

    def load(self, state: dict[str, Any]) -> None:
        vars(self).update({name: np.array(values, np.float64) for name, values in state.items()})
