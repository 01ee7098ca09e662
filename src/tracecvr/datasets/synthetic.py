"""A synthetic log whose truth is known: the rate of every click, its delay law and its actions, exactly.

Clicks come evenly in time. A click has a segment, a device and an item; items go out of use and new ones appear all the
time. p(x, t) is logistic in these, drifts with the season of its segment, and jumps once inside the stream. Delays
follow the segment's law; cart and favourite depend on the outcome and are independent given it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from tracecvr.base.config import DAY, HOUR, MINUTE, Seconds, option
from tracecvr.base.seeds import generator
from tracecvr.data.dataset import Dataset, RawLog, usual
from tracecvr.data.encoder import Column, Hashed, Modulo

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SEGMENTS, DEVICES, ITEMS, NEW_ITEMS_A_DAY = 8, 3, 300, 12
JUMP_DAY = 16
"""When the rates of odd segments rise and those of even ones fall."""

ACTIONS = ("purchase", "cart", "favourite")
HORIZONS = (15 * MINUTE, HOUR, 6 * HOUR, DAY, 3 * DAY, 7 * DAY)
COLUMNS: tuple[Column, ...] = (Modulo("segment", SEGMENTS), Modulo("device", DEVICES), Hashed("item", 2048))
TRUTH = ("p", "segment")
"""Columns that learners do not see."""


@dataclass(frozen=True)
class Delay:
    """One component of a delay law: exponential and cut off at d_max, or `capped` there, or an atom at `mean`."""

    weight: float
    mean: float
    kind: str = "cut"

    def sample(self, u: Floats, d_max: int) -> Floats:
        """Delays from uniform numbers; rounding up keeps the cdf exact at whole seconds."""
        if self.kind == "atom":
            return np.full(len(u), min(self.mean, d_max))
        if self.kind == "cut":
            u = u * -np.expm1(-d_max / self.mean)
        return np.clip(np.ceil(-self.mean * np.log1p(-u)), 1, d_max)


LAWS: tuple[tuple[Delay, ...], ...] = (
    (Delay(1.0, 8 * HOUR),),
    (Delay(0.5, 10 * MINUTE), Delay(0.5, 2 * DAY)),
    (Delay(0.6, HOUR), Delay(0.4, 12 * HOUR, "atom")),
    (Delay(1.0, 3 * DAY, "capped"),),
)
"""Delay laws; segment s follows law s mod 4."""

Follow = tuple[Delay, float, float]
CART: Follow = (Delay(1.0, 30 * MINUTE), 0.10, 0.70)
FAVOURITE: Follow = (Delay(1.0, 6 * HOUR), 0.12, 0.40)
"""Delay, then the share of non-converting and of converting clicks that do it at all."""


@dataclass(frozen=True)
class World:
    """What clicks are drawn from. The defaults are those of `synthetic`; `hardships` has others."""

    days: int = 24
    d_max: int = 7 * DAY
    seed: int = 0
    mean: float = -1.6  # log-odds of an average click
    lowest: float = 0.02  # rate of any click, at least
    drift: float = 1.0  # factor of the season, of the walk and of the jump
    season: float = 0.5  # by how much log-odds of a segment rise and fall in `season_days`
    season_days: float = 9
    walk: float = 0.0
    """Standard deviation of a random walk of a segment's log-odds around their mean. After `walk_days`, its correlation
    with its earlier value is 0.37."""
    walk_days: float = 9
    jump: tuple[float, float] = (-0.6, 0.6)  # by how much log-odds of even and odd segments change at `jump_at`
    jump_at: int = JUMP_DAY * DAY
    new_items_a_day: int = NEW_ITEMS_A_DAY
    pace: float = 1.0  # factor of all delays
    cart: Follow = CART
    favourite: Follow = FAVOURITE

    def draw(self, n: int) -> pl.DataFrame:
        """So many clicks in order of time, their rates and the times of what followed, null where nothing did."""
        rng = generator(self.seed, "synthetic")
        click_ts = np.sort(rng.integers(0, self.days * DAY, n))
        segment, device = rng.integers(0, SEGMENTS, n), rng.integers(0, DEVICES, n)
        item = rng.integers(0, ITEMS, n) + click_ts * self.new_items_a_day // DAY
        p = self._rate(click_ts, segment, device, item)
        y = rng.random(n) < p
        delay = np.zeros(n)
        for s in range(SEGMENTS):
            mine = segment == s
            delay[mine] = self._delays(rng, LAWS[s % len(LAWS)], int(mine.sum()))
        columns: dict[str, npt.NDArray[np.generic]] = {"click_ts": click_ts}
        columns["purchase"] = np.where(y, click_ts + delay, -1).astype(np.int64)
        for name, (law, if_not, if_so) in (("cart", self.cart), ("favourite", self.favourite)):
            happens = rng.random(n) < np.where(y, if_so, if_not)
            columns[name] = np.where(happens, click_ts + self._delays(rng, (law,), n), -1).astype(np.int64)
        columns |= {"segment": segment, "device": device, "item": item, "p": p}
        return pl.DataFrame(columns).with_columns(pl.when(pl.col(a) >= 0).then(pl.col(a)) for a in ACTIONS)

    def _rate(self, click_ts: Ints, segment: Ints, device: Ints, item: Ints) -> Floats:
        rng = generator(self.seed, "rates")  # its own, so that a longer log is of the same world
        of_segment, of_device = rng.normal(0, 0.7, SEGMENTS), rng.normal(0, 0.3, DEVICES)
        of_item = rng.normal(0, 0.6, ITEMS + self.days * self.new_items_a_day + 1)
        phase = rng.uniform(0, 2 * np.pi, SEGMENTS)
        season = self.season * np.sin(2 * np.pi * (click_ts / DAY) / self.season_days + phase[segment])
        jump = np.where(click_ts >= self.jump_at, np.where(segment % 2, self.jump[1], self.jump[0]), 0.0)
        logit = self.mean + of_segment[segment] + of_device[device] + of_item[item]
        logit += self.drift * (season + self._walk(click_ts, segment) + jump)
        return np.clip(1 / (1 + np.exp(-logit)), self.lowest, 0.6)

    def _walk(self, click_ts: Ints, segment: Ints) -> Floats:
        """A stationary autoregression by the day, each segment's own, and a straight line between two days."""
        kept = np.exp(-1 / self.walk_days)
        at = generator(self.seed, "walk").normal(0, self.walk, (self.days + 2, SEGMENTS))
        for before, after in pairwise(at):
            after[:] = kept * before + np.sqrt(1 - kept**2) * after
        day, part = click_ts // DAY, click_ts % DAY / DAY
        walked: Floats = at[day, segment] * (1 - part) + at[day + 1, segment] * part
        return walked

    def _delays(self, rng: np.random.Generator, law: tuple[Delay, ...], n: int) -> Floats:
        which = rng.choice(len(law), size=n, p=[c.weight for c in law])
        u = rng.random(n)
        return np.choose(which, [replace(c, mean=c.mean * self.pace).sample(u, self.d_max) for c in law])


@dataclass
class Synthetic(Dataset):
    """A log with known truth: drift, a delay law per segment, three actions, ids unseen in warm-up.

    >>> table, encoder = Synthetic(clicks=2000).prepare(None)
    >>> table.schema.actions
    ('purchase', 'cart', 'favourite')
    """

    name = "synthetic"
    actions = ACTIONS
    needs_source = False

    horizons: tuple[Seconds, ...] = usual("horizons", HORIZONS)
    d_max: Seconds = usual("d_max", 7 * DAY)
    split: Seconds = usual("split", 10 * DAY)
    observed_until: Seconds = usual("observed_until", 365 * DAY)
    clicks: int = option(200_000, "number of clicks", low=1)
    days: int = option(24, "days over which they are spread", low=1)
    log_seed: int = option(0, "which log", low=0)
    drift: float = option(1.0, "size of the seasonal drift and of the jump; 0 for none", low=0)

    def columns(self) -> tuple[Column, ...]:
        return COLUMNS

    def read(self, source: Path | None) -> RawLog:
        world = World(days=self.days, d_max=self.d_max, seed=self.log_seed, drift=self.drift)
        return RawLog(world.draw(self.clicks), rows=self.clicks, truth=TRUTH)
