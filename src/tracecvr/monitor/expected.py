"""How many conversions an interval should bring, by segment and by age of the click.

A click that was served the rate p brings p g(b) conversions at ages of bin b. The law g is what arrived at such ages in
the past, per rate served: so it contains both the delays and how far rates were off. It is the same for all segments,
times a factor for each segment and age, which is closer to 1 the fewer conversions a segment has. The hour of the day
has a factor, too. All of these are sums whose weights halve in `HALF_LIFE`. Clicks are kept as sums of rates by the
interval in which they came, old ones in larger blocks: nothing is kept of single clicks.

This needs no law of the method, so that every method can be watched. On criteo_search such a forecast has a smaller
error than the sum of posteriors (Bornhuetter-Ferguson .072, posteriors .075).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracecvr.base.config import DAY, HOUR
from tracecvr.base.metrics import Floats
from tracecvr.data.table import Ints

HALF_LIFE = 7 * DAY
_DOUBT = 10.0
"""Conversions at which a segment's own factor counts half."""
_WIDTHS = (1e9, 8, 3)
"""Bins of age from which on another bin tells nothing about a segment's factor, step by step: an octave is two bins."""
_HOUR_DOUBT = 50.0
_BLOCKS = 64
"""Blocks of old clicks in d_max."""


def age_edges(interval: int, d_max: int) -> Floats:
    """Edges of the bins of age: two per octave from a quarter of an interval to d_max.

    >>> age_edges(3600, 7200).round().tolist()
    [0.0, 900.0, 1273.0, 1800.0, 2546.0, 3600.0, 5091.0, 7200.0]
    """
    first = min(interval / 4, d_max)
    octaves = math.log2(d_max / first)
    return np.concatenate([[0.0], np.geomspace(first, d_max, math.ceil(2 * octaves) + 1)])


def covered(edges: Floats, age: Floats) -> Floats:
    """The share of each bin that is over at an age: (n, bins)."""
    return np.clip((age[:, None] - edges[:-1]) / np.diff(edges), 0.0, 1.0)


@dataclass
class Sums:
    """What arrived and what was expected, by column and age; by hour of the day, of all columns."""

    law: Floats  # (2, bins): arrivals, and rates that could have brought them
    columns: Floats  # (2, columns, bins): arrivals, and what the law of all would have brought
    hours: Floats  # (2, 24): arrivals, and what was expected without a factor for the hour

    def share(self) -> Floats:
        """g: arrivals per rate served, by bin of age."""
        share: Floats = self.law[0] / np.where(self.law[1] > 0, self.law[1], np.inf)
        return share

    def factor(self) -> Floats:
        """Of each column and age: first of all ages together, then of several octaves, then of one or two."""
        arrived, expected = self.columns
        distance = np.abs(np.subtract.outer(*2 * [np.arange(arrived.shape[1])]))
        factor: Floats = np.ones_like(arrived)
        for width in _WIDTHS:
            near = np.maximum(1 - distance / width, 0.0)
            factor = factor * (arrived @ near + _DOUBT) / ((factor * expected) @ near + _DOUBT)
        return factor


class Expectations:
    """Expected and actual arrivals of each interval. Columns are segments; the last one is for all other clicks."""

    def __init__(self, columns: int, interval: int, d_max: int) -> None:
        self.columns, self.interval, self.d_max = columns, interval, d_max
        self.edges = age_edges(interval, d_max)
        bins = len(self.edges) - 1
        self.sums = Sums(np.zeros((2, bins)), np.zeros((2, columns, bins)), np.zeros((2, 24)))
        self.bounds = np.zeros((0, 2))  # (cohorts, 2): when their clicks came
        self.mass = np.zeros((0, columns))  # (cohorts, columns): sums of their rates
        self._slowing: dict[float, Floats] = {}

    def add_clicks(self, start: int, column: Ints, rate: Floats) -> None:
        """Clicks of the interval that begins at `start`, and the rates that they were served."""
        mass = np.bincount(column, rate, self.columns)
        self.bounds = np.concatenate([self.bounds, [[start, start + self.interval]]])
        self.mass = np.concatenate([self.mass, mass[None]])
        self._merge(start)

    def expect(self, start: int) -> tuple[Floats, Floats]:
        """Of an interval whose clicks were added: rates that can bring conversions at each age, and what share of them
        does, without the factor of the hour: (columns, bins) each."""
        exposed = self.mass.T @ self._exposure(start, start + self.interval)
        return exposed, self.sums.share() * self.sums.factor()

    def slow_down(self, shares: Floats, pace: float) -> Floats:
        """Shares by age, if all delays were so many times as long."""
        if pace not in self._slowing:
            ends = np.eye(len(self.edges))
            between = np.stack([np.interp(self.edges / pace, self.edges, end) for end in ends])
            self._slowing[pace] = np.diff(np.cumsum(np.eye(len(ends) - 1), 1) @ between[1:], axis=1)
        return shares @ self._slowing[pace]

    def of_hour(self, start: int) -> float:
        """The factor of an interval's hour of the day; 1 if it is as long as a day."""
        arrived, expected = self.sums.hours[:, start % DAY // HOUR] + _HOUR_DOUBT
        return float(arrived / expected) if self.interval < DAY else 1.0

    def count(self, column: Ints, age: Ints) -> Floats:
        """Arrivals by column and bin of age: (columns, bins)."""
        bins = len(self.edges) - 1
        where = np.clip(np.searchsorted(self.edges, age, side="left") - 1, 0, bins - 1)
        return (
            np.bincount(column * bins + where, minlength=self.columns * bins).reshape(self.columns, bins).astype(float)
        )

    def learn(self, start: int, exposed: Floats, expected: Floats, arrived: Floats, used: Floats) -> None:
        """Take an interval into the sums; only columns that are `used`, as 0 or 1."""
        keep = 0.5 ** (self.interval / HALF_LIFE)
        used, sums = used[:, None], self.sums
        share = sums.share()
        for faded in (sums.law, sums.columns, sums.hours):
            faded *= keep
        sums.law += (arrived * used).sum(0), (exposed * used).sum(0)
        sums.columns += np.stack([arrived, exposed * share]) * used + (1 - keep) / keep * sums.columns * (1 - used)
        sums.hours[:, start % DAY // HOUR] += (arrived * used).sum(), (expected * used).sum()

    def since(self, onset: int, end: int, pace: float = 1.0) -> Floats:
        """What clicks that came since `onset` should have brought by `end`: (columns, bins). With a pace of 2, if all
        delays were twice as long."""
        new = self.bounds[:, 0] >= onset
        shares = self.slow_down(self.sums.share() * self.sums.factor(), pace)
        return (self.mass[new].T @ covered(self.edges, end - self.bounds[new].mean(1))) * shares

    def state(self) -> dict[str, Any]:
        arrays = {"bounds": self.bounds, "mass": self.mass, **vars(self.sums)}
        return {name: array.tolist() for name, array in arrays.items()}

    def load(self, state: dict[str, Any]) -> None:
        arrays = {name: np.array(values, np.float64) for name, values in state.items()}
        self.bounds, self.mass = arrays["bounds"].reshape(-1, 2), arrays["mass"].reshape(-1, self.columns)
        self.sums = Sums(arrays["law"], arrays["columns"], arrays["hours"])

    def _exposure(self, start: int, end: int) -> Floats:
        """Of each cohort and bin of age, the share of its conversions that comes in [start, end), if its clicks came
        evenly: (cohorts, bins)."""
        first, last = self.bounds.T
        lag = [self._passed(end - first), self._passed(end - last), self._passed(start - first)]
        return (lag[0] - lag[1] - lag[2] + self._passed(start - last)) / (last - first)[:, None]

    def _passed(self, age: Floats) -> Floats:
        """The integral of `covered` from 0 to an age."""
        low, width = self.edges[:-1], np.diff(self.edges)
        inside = np.clip(age[:, None] - low, 0.0, width)
        return inside**2 / (2 * width) + np.maximum(age[:, None] - low - width, 0.0)

    def _merge(self, now: int) -> None:
        """Drop what is over, and merge old cohorts into blocks: in them an interval matters little."""
        block = max(self.interval, self.d_max // _BLOCKS)
        kept = self.bounds[:, 1] > now - self.d_max
        bounds, mass = self.bounds[kept], self.mass[kept]
        old = bounds[:, 1] <= now // block * block - 4 * block
        number = np.where(
            old, bounds[:, 0] // block, -1 - np.arange(len(bounds))
        )  # a block of its own for each new one
        first = np.flatnonzero(np.diff(number, prepend=np.nan) != 0)
        if len(first) < len(bounds):
            ends = np.append(first[1:], len(bounds)) - 1
            bounds, mass = np.stack([bounds[first, 0], bounds[ends, 1]], 1), np.add.reduceat(mass, first)
        self.bounds, self.mass = bounds, mass
