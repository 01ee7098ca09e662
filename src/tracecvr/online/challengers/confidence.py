"""Which of two models predicts better: an interval for their mean difference that is valid whenever one looks.

The difference of a click is the NLL of one model less that of the other. Differences of clicks of one hour depend on
each other, so an hour, or an interval if that is longer, is one *unit*, and units are what is counted.

The interval is an asymptotic confidence sequence: Robbins' normal mixture with an estimated long-run variance, with
Bartlett weights (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, 2024: "Time-uniform central limit theory and
asymptotic confidence sequences"). `docs/challengers.md` has the formula and its assumptions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from tracecvr.base.json_state import JsonState
from tracecvr.base.metrics import Floats

CLIP = 5.0
"""Nats: beyond this the difference of a click is cut off."""
FEWEST_UNITS = 48
LEVEL = 0.05
"""How often the interval may miss, at any of all looks."""
HOUR = 3600

_NARROWEST = 168
"""Units at which the interval is narrowest compared with others: a week of hours."""
_LAGS = 24
_MIXTURE = _NARROWEST / (-2 * math.log(LEVEL) + math.log(1 - 2 * math.log(LEVEL)))


@dataclass(frozen=True)
class Difference:
    """The mean difference per click so far, and the interval for it; None before there are enough units."""

    clicks: int
    units: int
    mean: float | None
    low: float | None
    high: float | None

    @property
    def verdict(self) -> str:
        """What is known of the first model, compared with the second: better has the lower NLL."""
        if self.low is None or self.high is None:
            return "too early"
        if self.high < 0:
            return "better"
        return "worse" if self.low > 0 else "undecided"


@dataclass
class PairedDifferences(JsonState):
    """Sums of differences by unit: all that the interval needs, of a size that does not grow."""

    units: int = 0
    clicks: int = 0
    total: float = 0.0
    products: Floats = field(default_factory=lambda: np.zeros((_LAGS + 1, 4)))
    """By lag k = i - j: sums of d_i d_j, d_i n_j, n_i d_j, n_i n_j; d is a unit's sum, n its number of clicks."""
    newest: list[tuple[float, float]] = field(default_factory=list)
    """(d, n) of the last units, newest first."""
    unit: int = -1
    """The unit that is being added to; -1 before the first."""
    open_total: float = 0.0
    open_clicks: int = 0

    def add(self, unit: int, difference: Floats) -> None:
        """Differences of clicks of a unit; units come in order. A unit counts once the next one has come."""
        if unit != self.unit:
            self._close()
            self.unit = unit
        self.open_total += float(np.clip(difference, -CLIP, CLIP).sum())
        self.open_clicks += len(difference)

    def _close(self) -> None:
        if not self.open_clicks:
            return
        d, n = self.open_total, float(self.open_clicks)
        self.newest = [(d, n), *self.newest[:_LAGS]]
        before = np.array(self.newest)
        self.products[: len(before)] += np.stack([d * before, n * before], axis=1).reshape(len(before), 4)
        self.units, self.clicks, self.total = self.units + 1, self.clicks + self.open_clicks, self.total + d
        self.open_total, self.open_clicks = 0.0, 0

    def difference(self) -> Difference:
        if not self.clicks:
            return Difference(0, 0, None, None, None)
        mean = self.total / self.clicks
        if self.units < FEWEST_UNITS:
            return Difference(self.clicks, self.units, mean, None, None)
        t = self.units + _MIXTURE
        spread = math.sqrt(self._variance(mean) * t * math.log(t / (_MIXTURE * LEVEL**2))) / self.clicks
        return Difference(self.clicks, self.units, mean, mean - spread, mean + spread)

    def _variance(self, mean: float) -> float:
        """The long-run variance of a unit's sum less its share of the mean; at least the variance without lags."""
        covariance = self.products @ np.array([1.0, -mean, -mean, mean * mean]) / (self.units - 1)
        lags = min(_LAGS, math.isqrt(self.units))
        weights = 1 - np.arange(1, lags + 1) / (lags + 1)
        variance = float(max(covariance[0], covariance[0] + 2 * weights @ covariance[1 : lags + 1]))
        freedom = 1.5 * self.units / lags  # of the estimate: with few units it may well be too small
        return variance * freedom / (freedom - 2)
