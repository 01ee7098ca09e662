"""Synthetic logs with one hardship each, and known truth: what the suite `gauntlet` runs methods over.

All are of the world of `synthetic`, without its jump and season: rates that wander mildly, items that come and go,
delays of up to a week. Each log differs from it in one thing: see `HARDSHIPS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from tracecvr.base.config import DAY, HOUR, MINUTE, Seconds, option, refuse_unknown
from tracecvr.base.seeds import generator
from tracecvr.data.dataset import Dataset, RawLog
from tracecvr.data.encoder import Column, Encoder
from tracecvr.data.table import Schema
from tracecvr.datasets.synthetic import ACTIONS, CART, COLUMNS, FAVOURITE, HORIZONS, TRUTH, World

SPLIT, MIDDLE = 10 * DAY, 17 * DAY
"""Start and middle of the stream of most logs; they last 24 days."""

OUTAGE = (14 * DAY, 16 * DAY)
"""No conversion of this time is recorded. Clicks before its end have wrong labels: judge later ones."""

CAMPAIGN = 4
"""The segment that is new. It converts more than others."""

USUAL = World(season=0.0, walk=0.16, jump=(0.0, 0.0))
"""How far rates wander: labels that come a week late cost 0.9 to 1.4 % of NLL (`wait` and `oracle`, three draws); on
`criteo_search` 1.4 %. They have no period: labels that are one period old are right again, and waiting for them would
beat knowing them at once."""

Change = Callable[[pl.DataFrame, int], pl.DataFrame]


@dataclass(frozen=True)
class Hardship:
    """A log: its world, what is done to clicks that were drawn from it (with a seed), and how it is replayed."""

    about: str
    clicks: int = 60_000
    world: World = USUAL
    change: Change = lambda clicks, _: clicks
    actions: tuple[str, ...] = ACTIONS
    horizons: tuple[int, ...] = HORIZONS
    d_max: int = 7 * DAY
    split: int = SPLIT
    interval: int = 3 * HOUR
    window: int | None = None


def start_campaign(clicks: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Only clicks of the middle and later for the new segment, and half of the others, so that it matters."""
    kept = generator(seed, "campaign").random(len(clicks)) < 0.5
    new = pl.col("segment") == CAMPAIGN
    return clicks.filter((new & (pl.col("click_ts") >= MIDDLE)) | (~new & pl.Series(kept)))


def lose_conversions(clicks: pl.DataFrame, _: int) -> pl.DataFrame:
    """Without what happened in the outage."""
    lost = (pl.col(a).is_between(*OUTAGE, closed="left") for a in ACTIONS)
    return clicks.with_columns(pl.when(~gone).then(pl.col(a)) for a, gone in zip(ACTIONS, lost, strict=True))


def slow_down(clicks: pl.DataFrame, _: int) -> pl.DataFrame:
    """All that follows a click of the middle or later takes twice as long."""
    late, ts = pl.col("click_ts") >= MIDDLE, pl.col("click_ts")
    return clicks.with_columns(pl.when(late).then(2 * pl.col(a) - ts).otherwise(pl.col(a)).alias(a) for a in ACTIONS)


def forget_hours(clicks: pl.DataFrame, _: int) -> pl.DataFrame:
    """Clicks at midnight of their day; what follows keeps its time."""
    return clicks.with_columns(pl.col("click_ts") // DAY * DAY)


def make_chain(clicks: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Application, then approval, then payment, which alone counts. Who does not pay may still get to the others."""
    rng, n = generator(seed, "chain"), len(clicks)
    paid, ts = clicks["purchase"].is_not_null().to_numpy(), clicks["click_ts"].to_numpy()
    delay = clicks["purchase"].fill_null(0).to_numpy() - ts
    first, second = np.sort(rng.random((2, n)), axis=0)
    applied, approved = rng.random(n) < 0.25, rng.random(n) < 0.4
    to_application, to_approval = rng.exponential(20 * DAY, n), rng.exponential(40 * DAY, n)
    application = np.where(paid, first * delay, to_application)
    approval = np.where(paid, second * delay, to_application + to_approval)
    times = {
        "payment": (paid, delay),
        "approval": (paid | (applied & approved), approval),
        "application": (paid | applied, application),
    }
    return clicks.with_columns(
        pl.when(pl.Series(happens)).then(pl.Series(ts + after.astype(np.int64))).alias(name)
        for name, (happens, after) in times.items()
    )


HARDSHIPS = {
    "stationary": Hardship(
        "nothing changes: no drift, no new items", world=replace(USUAL, walk=0.0, new_items_a_day=0)
    ),
    "tiny": Hardship("3,000 clicks in all", clicks=3_000),
    "new_campaign": Hardship(
        "a campaign, a fifth of the traffic, starts in the middle of the stream", clicks=100_000, change=start_campaign
    ),
    "jump": Hardship(
        "all rates jump up in the middle of the stream", world=replace(USUAL, jump=(0.8, 0.8), jump_at=MIDDLE)
    ),
    "season": Hardship(
        "rates of segments swing with a period of nine days, which is about d_max",
        world=replace(USUAL, season=0.5, walk=0.0),
    ),
    "drift": Hardship("rates wander two and a half times as far", world=replace(USUAL, walk=0.35)),
    "outage": Hardship("for two days nothing that follows a click is recorded", change=lose_conversions),
    "slower": Hardship(
        "all delays double in the middle of the stream", world=replace(USUAL, d_max=7 * DAY // 2), change=slow_down
    ),
    "year": Hardship(
        "delays of up to a year, with three actions in order",
        clicks=40_000,
        world=replace(USUAL, days=1_100, d_max=365 * DAY, walk_days=9 * 52, new_items_a_day=1, pace=52),
        change=make_chain,
        actions=("payment", "approval", "application"),
        horizons=(7 * DAY, 30 * DAY, 90 * DAY, 180 * DAY, 365 * DAY),
        d_max=365 * DAY,
        split=500 * DAY,
        interval=7 * DAY,
        window=7 * DAY,
    ),
    "telling": Hardship(
        "other actions tell much about the conversion",
        world=replace(USUAL, cart=(CART[0], 0.03, 0.95), favourite=(FAVOURITE[0], 0.05, 0.80)),
    ),
    "noise": Hardship(
        "other actions tell nothing about the conversion",
        world=replace(USUAL, cart=(CART[0], 0.30, 0.30), favourite=(FAVOURITE[0], 0.20, 0.20)),
    ),
    "rare": Hardship("one click in 200 converts", clicks=100_000, world=replace(USUAL, mean=-5.5, lowest=0.0005)),
    "dense": Hardship(
        "11,000 clicks an hour",
        clicks=264_000,
        world=replace(USUAL, days=1, d_max=6 * HOUR, pace=1 / 28),
        horizons=(MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR),
        d_max=6 * HOUR,
        split=10 * HOUR,
        interval=HOUR // 2,
        window=5 * MINUTE,
    ),
    "young": Hardship("warm-up is shorter than d_max: no label is final when the stream starts", split=6 * DAY),
    "daily": Hardship("the model is updated once a day", interval=DAY),
    "by_day": Hardship("of clicks, only the day is known", world=replace(USUAL, d_max=6 * DAY), change=forget_hours),
}
"""In this order they are run and shown."""


@dataclass
class Hardships(Dataset):
    """A log with known truth and one hardship, as `hardship` names it; other options are the hardship's by default.

    >>> table, encoder = Hardships(hardship="year", clicks=2000).prepare(None)
    >>> table.schema.actions
    ('payment', 'approval', 'application')
    """

    name = "hardships"
    needs_source = False

    hardship: str = option("", f"which log: {', '.join(HARDSHIPS)}")
    clicks: int = option(0, "number of clicks that are drawn; the hardship's by default", low=0)
    log_seed: int = option(0, "which draw of it", low=0)
    horizons: tuple[Seconds, ...] = option((), "ends of the observation windows; the hardship's by default")
    d_max: Seconds = option(0, "attribution limit; the hardship's by default", low=0)
    split: Seconds = option(0, "end of the warm-up part; the hardship's by default", low=0)
    interval: Seconds = option(0, "length of an interval of the stream; the hardship's by default", low=0)
    observed_until: Seconds = option(3_650 * DAY, "where labels end: by default after all that happens", above=0)

    def __post_init__(self) -> None:
        if self.hardship:  # a prepared table is opened without options
            for name in ("clicks", "horizons", "d_max", "split", "interval"):
                setattr(self, name, getattr(self, name) or getattr(self.described, name))

    @property
    def described(self) -> Hardship:
        """The hardship that was chosen."""
        refuse_unknown([self.hardship], HARDSHIPS, "--data-set hardship", "hardship")
        return HARDSHIPS[self.hardship]

    def columns(self) -> tuple[Column, ...]:
        return COLUMNS

    def table_schema(self, encoder: Encoder, notes: tuple[str, ...] = ()) -> Schema:
        described = self.described
        return replace(super().table_schema(encoder, notes), actions=described.actions, window=described.window)

    def read(self, source: Path | None) -> RawLog:
        described = self.described
        drawn = replace(described.world, seed=self.log_seed).draw(self.clicks)
        clicks = described.change(drawn, self.log_seed)
        return RawLog(clicks, rows=len(clicks), notes=(described.about,), truth=TRUTH)
