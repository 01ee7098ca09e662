"""A small shop's log with text ids: clicks, sales and refunds as frames of polars, with planted defects."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache

import numpy as np
import polars as pl

from tracecvr.base.config import DAY

START = datetime(2026, 1, 1, tzinfo=UTC)
CLICKS, DAYS, COPIES, ORPHANS = 1500, 12, 7, 3


@dataclass(frozen=True)
class Shop:
    """`clicks` has 7 rows twice, `sales` 3 rows whose click is not there."""

    clicks: pl.DataFrame
    sales: pl.DataFrame
    refunds: pl.DataFrame

    @property
    def wide(self) -> pl.DataFrame:
        """One row per click, with the time of its sale."""
        sales = self.sales.rename({"ts": "sold_at"})
        return self.clicks.unique("click", maintain_order=True).join(
            sales, on="click", how="left", maintain_order="left"
        )


@cache
def shop() -> Shop:
    """Always the same."""
    rng = np.random.default_rng(7)
    seconds = np.sort(rng.integers(0, DAYS * DAY, CLICKS))
    campaign = rng.integers(0, 4, CLICKS)
    sold = rng.random(CLICKS) < 0.1 + 0.15 * campaign / 3
    delay = np.minimum(rng.exponential(DAY / 2, CLICKS).astype(int), 2 * DAY)
    ids = [f"c-{number:05d}" for number in range(CLICKS)]
    clicks = pl.DataFrame(
        {
            "click": ids,
            "ts": [START + timedelta(seconds=int(s)) for s in seconds],
            "campaign": [f"camp {c}" for c in campaign],
            "price": np.round(rng.gamma(2, 10, CLICKS), 2),
        }
    )
    rows = np.flatnonzero(sold)
    sales = pl.DataFrame(
        {"click": [ids[r] for r in rows], "ts": [START + timedelta(seconds=int(seconds[r] + delay[r])) for r in rows]}
    )
    refunds = sales.head(5).with_columns(pl.col("ts") + timedelta(hours=1))
    orphans = sales.head(ORPHANS).with_columns(pl.Series("click", [f"nobody-{n}" for n in range(ORPHANS)]))
    return Shop(pl.concat([clicks, clicks.head(COPIES)]), pl.concat([sales, orphans]), refunds)
