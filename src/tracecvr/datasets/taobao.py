"""Taobao UserBehavior: the raw CSV without a header, made into a log of clicks by the recipe of GDFM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tracecvr.base.config import DAY, HOUR, MINUTE, Seconds, option
from tracecvr.base.files import check_exists
from tracecvr.data.dataset import Dataset, RawLog, usual
from tracecvr.data.encoder import Column, Modulo
from tracecvr.data.external_sort import Scratch, partition
from tracecvr.data.raw_csv import Field, read_blocks

START, END = 1_511_539_200, 1_512_316_800
"""First second of 25 November 2017 and of 4 December, Beijing time: clicks outside are corrupt."""

MIN_ROWS = 10
"""Users with fewer rows are left out."""

SLOTS = 5
PAD, PAY, CART, OTHER = range(4)
"""Earlier clicks of the user that a click is shown with, and what became of each."""

USERS, ITEMS, CATEGORIES = 1_000, 10_000, 1_000
TRIPLE = ("user", "item", "category")
FIELDS = (
    *(Field(name, pl.Int32, low=0, high=2**31 - 1) for name in TRIPLE),
    Field("behaviour", pl.Enum(["pv", "cart", "fav", "buy"])),
    Field("ts", low=-(2**31), high=2**31 - 1),
)


@dataclass
class Taobao(Dataset):
    """Clicks of nine days with the purchase, cart and favourite of the same user and item, whose delays the recipe
    stretches: purchases come after 1 to 72 hours, with atoms at 12 and 72. A click is shown with the user's last five.

    >>> [c.raw for c in Taobao().columns()][:6]
    ['user', 'item', 'category', 'item_1', 'category_1', 'type_1']

    H. Zhu et al., "Learning tree-based deep model for recommender systems", KDD 2018 (log); J. Yang and D.-C. Zhan,
    "Generalized delayed feedback model with post-click information in recommender systems", NeurIPS 2022 (recipe).
    """

    name = "taobao"
    actions = ("purchase", "cart", "favourite")
    embedding_dim = 32
    estimator_hidden = (256, 256, 256)
    window = 12 * HOUR
    windows = (2 * HOUR, 12 * HOUR, DAY, 2 * DAY, 3 * DAY)

    horizons: tuple[Seconds, ...] = usual("horizons", (2 * MINUTE, 10 * MINUTE, 2 * HOUR, DAY, 3 * DAY))
    d_max: Seconds = usual("d_max", 3 * DAY)
    split: Seconds = usual("split", 2 * DAY)
    interval: Seconds = usual("interval", 20 * MINUTE)
    observed_until: Seconds = usual("observed_until", 12 * DAY)

    history: str = option(
        "causal",
        "type of an earlier click: as known at this click (causal), or as it turned out in the end (reference: the "
        "published code, which tells the future)",
        choices=("causal", "reference"),
    )

    def origin(self) -> int | None:
        return START

    def columns(self) -> tuple[Column, ...]:
        slots = [
            column
            for i in range(1, SLOTS + 1)
            for column in (
                Modulo(f"item_{i}", ITEMS, table="item"),
                Modulo(f"category_{i}", CATEGORIES, table="category"),
                Modulo(f"type_{i}", 4, one_hot=True),
            )
        ]
        return Modulo("user", USERS), Modulo("item", ITEMS), Modulo("category", CATEGORIES), *slots

    def parts(self, source: Path | None, scratch: Scratch) -> Iterator[RawLog]:
        assert source is not None
        # Every step of the recipe stays with one user, so that any number of users can be taken at a time.
        rows = read_blocks(source, FIELDS, scratch)
        for raw in partition(rows, "user", check_exists(source).stat().st_size, scratch):
            yield self._clicks(raw)

    def _clicks(self, raw: pl.DataFrame) -> RawLog:
        """The recipe, on all rows of some users."""
        first = raw.filter(raw.select(*TRIPLE, "behaviour").hash_rows().is_first_distinct())
        active = first.filter(pl.len().over("user") >= MIN_ROWS)
        # The published file has 38 negative times, so they are counted instead of refused.
        timed = active.filter(pl.col("ts") >= 0)
        views = timed.filter(pl.col("behaviour") == "pv")
        clicks = views.filter(pl.col("ts").is_between(START, END, closed="left"))
        counts = {
            "repeated_rows": len(raw) - len(first),
            "rows_of_users_below_10": len(first) - len(active),
            "clicks_outside_nine_days": len(views) - len(clicks),
        }
        frame = self._with_history(_with_actions(clicks, timed))
        note = (
            "labels of the last days are thinner, because the raw log ends on day 9; observed_until=9d scores "
            "only clicks whose three days lie inside it"
        )
        dropped = {"negative_time": len(active) - len(timed)}
        return RawLog(frame, len(raw), dropped, counts, notes=(note,))

    def _with_history(self, clicks: pl.DataFrame) -> pl.DataFrame:
        """Add the user's last five clicks, oldest first. Users lie together, so that a slot is a shift."""
        clicks = clicks.sort("user", "click_ts", "click_id")
        return clicks.with_columns(e for i in range(1, SLOTS + 1) for e in self._slot(i))

    def _slot(self, i: int) -> list[pl.Expr]:
        def earlier(name: str) -> pl.Expr:
            return pl.col(name).shift(SLOTS + 1 - i)

        def happened(action: str) -> pl.Expr:
            return earlier(action) <= pl.col("click_ts") if self.history == "causal" else earlier(action).is_not_null()

        kind = pl.when(happened("purchase")).then(PAY).when(happened("cart")).then(CART).otherwise(OTHER)
        values = {"item": earlier("item"), "category": earlier("category"), "type": kind.cast(pl.UInt8)}
        same = earlier("user") == pl.col("user")
        return [pl.when(same).then(value).otherwise(PAD).alias(f"{name}_{i}") for name, value in values.items()]


def _with_actions(clicks: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Join the buy, cart and fav of the same user, item and category, of which there is at most one each."""
    clicks = clicks.drop("behaviour").rename({"ts": "click_ts"})
    for behaviour, action in (("buy", "purchase"), ("cart", "cart"), ("fav", "favourite")):
        done = rows.filter(pl.col("behaviour") == behaviour).select(*TRIPLE, pl.col("ts").alias(action))
        clicks = clicks.join(done, on=TRIPLE, how="left", maintain_order="left")
    click = pl.col("click_ts") - START
    return clicks.with_columns(
        click,
        (click + _purchase_delay(pl.col("purchase") - pl.col("click_ts"))).alias("purchase"),
        (click + _delay(pl.col("cart") - pl.col("click_ts"), 10 * MINUTE)).alias("cart"),
        (click + _delay(pl.col("favourite") - pl.col("click_ts"), 2 * MINUTE)).alias("favourite"),
    )


def _purchase_delay(delay: pl.Expr) -> pl.Expr:
    """The recipe: at once or before the click becomes 2 h; then everything is stretched six times, up to 3 d."""
    delay = pl.when(delay <= 10 * MINUTE).then(2 * HOUR).otherwise(delay)
    return (6 * delay).clip(upper_bound=3 * DAY)


def _delay(delay: pl.Expr, if_before: int) -> pl.Expr:
    return pl.when(delay < 0).then(if_before).otherwise(delay)
