"""Logs of our own making in which every defect is planted, so that the counts to be reported are known."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from tracecvr.base.config import DAY, HOUR, MINUTE

ZONE = "Europe/Berlin"
ORIGIN = int(datetime(2025, 10, 28, tzinfo=UTC).timestamp())
DAYS = 180
"""Clicks with nothing wrong lie between two changes of the clocks: on 26 October, two days before, and on 29 March."""

SKEW, D_MAX = 5 * MINUTE, 3 * DAY
"""What `inspect` proposes for these logs: defects lie on both sides of it."""

TWICE, SKIPPED = datetime(2025, 10, 26, 2, 30), datetime(2026, 3, 29, 2, 15)
"""Local times that clocks show twice, and never."""


@dataclass
class Click:
    """One click and what followed it, in seconds since 1970; local times where clocks were changed."""

    id: str | None
    at: int | None
    campaign: str | None
    price: float | None
    purchase: int | None = None
    cart: int | None = None
    refund: int | None = None
    local: datetime | None = None


@dataclass
class Log:
    """Clicks, and what was planted among them."""

    clicks: list[Click]
    copies: list[Click] = field(default_factory=list)
    planted: Counter[str] = field(default_factory=Counter)


def log(clicks: int = 4000, seed: int = 0) -> Log:
    """A log with every defect that both shapes can have."""
    rng = np.random.default_rng(seed)
    at = ORIGIN + rng.integers(0, 140 * DAY, clicks)
    made = Log([_click(rng, f"c{i:05}", int(t)) for i, t in enumerate(at)])
    free = iter(rng.permutation(clicks).tolist())

    def some(name: str, count: int) -> list[Click]:
        made.planted[name] += count
        return [made.clicks[next(free)] for _ in range(count)]

    for i, one in enumerate(some("clock_skew", 6)):
        one.purchase = _at(one) - (SKEW if i == 0 else 100)
    for i, one in enumerate(some("dropped_conversion_before_click", 5)):
        one.purchase = _at(one) - (SKEW + 1 if i == 0 else DAY)
    for i, one in enumerate(some("conversion_after_d_max", 9)):
        one.purchase = _at(one) + (D_MAX + 1 if i == 0 else 20 * DAY)
    for one in some("nothing", 2):
        one.purchase = _at(one) + D_MAX
    for i, one in enumerate(some("refund", 11)):
        one.purchase, one.refund = _at(one) + HOUR, _at(one) + (D_MAX if i == 0 else 3 * HOUR)
    for i, one in enumerate(some("refund_after_d_max", 4)):
        one.purchase, one.refund = _at(one) + HOUR, _at(one) + (D_MAX + 1 if i == 0 else 15 * DAY)
    for one in some("refund_without_conversion", 3):
        one.purchase, one.refund = None, _at(one) + DAY
    for one in some("refund_before_conversion", 2):
        one.purchase, one.refund = _at(one) + DAY, _at(one) + HOUR
    for one in some("ambiguous_time", 7):
        one.at, one.local, one.purchase, one.cart = None, TWICE, None, None
    for one in some("nonexistent_time", 5):
        one.at, one.local, one.purchase, one.cart = None, SKIPPED, None, None
    for one in some("null_feature", 13):
        one.campaign = None
    for one in some("null_feature", 4):
        one.price = None
    for one in some("dropped_null_click_id", 5):
        one.id, one.purchase, one.cart = None, None, None
    for one in some("dropped_null_click_time", 6):
        one.at, one.purchase, one.cart = None, None, None
    for one in some("dropped_duplicate_click", 8):
        made.copies.append(Click(**vars(one)))
    del made.planted["nothing"]
    gone = ("dropped_null_click_id", "dropped_null_click_time", "dropped_conversion_before_click")
    made.planted["clicks"] = clicks - sum(made.planted[name] for name in gone)
    return made


def _click(rng: np.random.Generator, name: str, at: int) -> Click:
    campaign = int(rng.integers(0, 12))
    one = Click(name, at, f"camp{campaign}", round(float(rng.lognormal(2, 1)), 2))
    if rng.random() < 0.15 + 0.03 * campaign:
        one.purchase = at + int(rng.integers(MINUTE, 3 * DAY))
    if rng.random() < 0.3:
        one.cart = at + int(rng.integers(1, HOUR))
    return one


def _at(one: Click) -> int:
    assert one.at is not None
    return one.at


def write_clicks(folder: Path, made: Log) -> tuple[Path, Counter[str]]:
    """A row per click, as CSV: times as text with one offset or another, a few without any; columns that leak."""
    planted = made.planted.copy()
    for i in range(7):  # a purchase, and nobody knows of which click
        made.clicks.append(Click(f"lost{i}", None, "camp1", 1.0, purchase=ORIGIN + 30 * DAY + i))
        planted["dropped_conversion_without_click"] += 1
    for one in made.copies[:3]:
        one.purchase = _at(one) + 2 * HOUR
    originals = {one.id: one for one in made.clicks}
    planted["duplicate_click_differs"] = sum(originals[one.id].purchase != one.purchase for one in made.copies)
    path = folder / "clicks.csv"
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(
            [
                "click_id",
                "clicked_at",
                "campaign",
                "price",
                "purchase_time",
                "cart_time",
                "refund_time",
                "sale",
                "amount",
            ]
        )
        for number, one in enumerate([*made.clicks, *made.copies]):
            naive = one.local is not None or (number % 50 == 0 and one.at is not None)
            planted["naive_time"] += naive
            sold = one.purchase is not None
            times = [_text(t, number % 3) for t in (one.purchase, one.cart, one.refund)]
            clicked = _local(one) if naive else _text(one.at, number % 3)
            writer.writerow(
                [one.id, clicked, one.campaign, one.price, *times, int(sold), f"{one.price},5" if sold else ""]
            )
    planted["rows"] = len(made.clicks) + len(made.copies)
    return path, planted


def _local(one: Click) -> str:
    local = one.local or datetime.fromtimestamp(_at(one), ZoneInfo(ZONE)).replace(tzinfo=None)
    return local.isoformat(sep=" ")


def _text(seconds: int | None, style: int) -> str:
    if seconds is None:
        return ""
    if style == 0:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    hours = (2, -5)[style - 1]
    local = datetime.fromtimestamp(seconds, UTC) + timedelta(hours=hours)
    return local.strftime("%Y-%m-%dT%H:%M:%S") + f".250{hours:+03}:00"


def write_events(folder: Path, made: Log) -> tuple[Path, Counter[str]]:
    """A row per event, as Parquet: date-times without a zone, rows in no order, events that mean nothing here."""
    planted, rows = made.planted.copy(), []
    for one in [*made.clicks, *made.copies]:
        local = one.local if one.at is None else _wall(one.at)
        rows.append((one.id, "click", local, one.campaign, one.price))
    for one in made.clicks:
        followed = [(word, getattr(one, word)) for word in ("purchase", "cart", "refund")]
        rows += [(one.id, word, _wall(t), None, None) for word, t in followed if t is not None]
    when = _wall(ORIGIN + 30 * DAY)
    for reason, word, count in (
        ("dropped_conversion_without_click", "purchase", 7),
        ("dropped_action_without_click", "cart", 3),
        ("dropped_refund_without_click", "refund", 2),
    ):
        rows += [(f"lost{i}", word, when, None, None) for i in range(count)]
        planted[reason] = count
    bought = [one for one in made.clicks if one.purchase and one.id and one.purchase > (one.at or 0) + DAY][:4]
    rows += [(one.id, "purchase", _wall((one.purchase or 0) + HOUR), None, None) for one in bought]
    planted["repeated_conversion"] = len(bought)
    rows += [(f"c{i:05}", "purchase", None, None, None) for i in range(2)]
    planted["dropped_null_action_time"] = 2
    planted["naive_time"] = sum(row[2] is not None for row in rows)
    rows += [("c00001", "heartbeat", when, None, None)] * 15
    planted["other_event"] = 15
    planted["rows"] = len(rows)
    columns: dict[str, type[pl.DataType] | pl.DataType] = {
        "click_id": pl.String,
        "event": pl.String,
        "event_time": pl.Datetime("us"),
        "campaign": pl.String,
        "price": pl.Float64,
    }
    frame = pl.DataFrame(rows, columns, orient="row").sample(fraction=1, shuffle=True, seed=1)
    path = folder / "events.parquet"
    frame.write_parquet(path)
    return path, planted


def _wall(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, ZoneInfo(ZONE)).replace(tzinfo=None)
