"""Births of CryptoKitties, as a log of clicks: real, public (CC0 1.0), with three actions. It is not an ad log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tracecvr.base.config import DAY, HOUR, Seconds, option
from tracecvr.base.errors import UserError
from tracecvr.data.dataset import Dataset, RawLog, usual
from tracecvr.data.encoder import Binned, Column, Hashed
from tracecvr.data.own_log.files import open_file

START, END = 1_511_395_200, 1_521_502_349
"""First second of 23 November 2017 (UTC), and the second after the last birth that was recorded."""

NUMBERS = ("gen", "matron_gen", "sire_gen", "matron_age", "sire_age", "matron_prev", "sire_prev")
TRAITS = tuple(f"p{n}" for n in range(1, 13))


@dataclass
class CryptoKitties(Dataset):
    """Births of kitties in a game on a block chain: not an ad log, but one with several actions, exact delays and rates
    that change a lot. A "click" is a birth. The conversion is the second litter as a mother; the other actions are the
    first litter and the first child as a father. Features are generation, parents' age and earlier children, traits.

    >>> len(CryptoKitties().columns())
    19
    """

    name = "cryptokitties"
    actions = ("second_litter_ts", "first_litter_ts", "first_sired_ts")

    horizons: tuple[Seconds, ...] = usual("horizons", (HOUR, 6 * HOUR, DAY, 3 * DAY, 7 * DAY))
    d_max: Seconds = usual("d_max", 7 * DAY)
    split: Seconds = usual("split", 30 * DAY)
    observed_until: Seconds = usual("observed_until", END - START)
    every: int = option(1, "only every so many-th birth is read", low=1)

    def origin(self) -> int | None:
        return START

    def columns(self) -> tuple[Column, ...]:
        return *(Binned(name, 32, scale="log") for name in NUMBERS), *(Hashed(name, 64) for name in TRAITS)

    def read(self, source: Path | None) -> RawLog:
        assert source is not None
        names = ["kitty_id", "born_ts", *self.actions, *NUMBERS, *TRAITS]
        file = open_file(source)
        if not file.parquet:
            raise UserError(f"{source}: expected a Parquet file with {', '.join(names[:5])} and features")
        clicks = (
            pl.concat(file.batches(names))
            .gather_every(self.every)
            .rename({"kitty_id": "click_id", "born_ts": "click_ts"})
            .with_columns(pl.col("click_ts", *self.actions) - START)
        )
        return RawLog(clicks, len(clicks), notes=("births of CryptoKitties: not an ad log",))
