"""Five more logs as shops and apps keep them, with ids, numbers, times and files of other kinds than `log_kinds`, and
what `inspect` and `prepare` have to count in them.

In each of them, some conversions are taken back, in part or whole, and some come again after that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import polars as pl

from log_kinds import START, Click, clicks
from tracecvr.base.config import DAY, HOUR


@dataclass
class Kept:
    """The files of a log, the ids of its clicks in order of time, and its counts."""

    files: list[Path]
    ids: list[Any]
    counts: dict[str, int]
    converted: int
    """Clicks whose conversion stands in the end."""


@dataclass
class Story:
    """What happened after a click: (seconds since the start of the log, what, how much)."""

    click: Click
    followed: list[tuple[int, str, float]] = field(default_factory=list)


def stories(number: int) -> tuple[list[Story], dict[str, int], int]:
    """Every conversion is of 40. Of each ten, one is taken back in part, one in two parts, one whole and bought again,
    one bought twice and taken back at once."""
    made, ways = [Story(one) for one in clicks(number, seed=5)], 0
    for story in made:
        at = story.click.bought
        if at is None:
            continue
        story.followed.append((at, "order", 40.0))
        way, ways = ways % 10, ways + 1
        if at > story.click.at + DAY:
            continue
        more: dict[int, list[tuple[int, str, float]]] = {
            0: [(at + HOUR, "refund", 12.5)],
            1: [(at + HOUR, "refund", 12.5), (at + 2 * HOUR, "refund", 27.5)],
            2: [(at + HOUR, "refund", 40.0), (at + 3 * HOUR, "order", 25.0)],
            3: [(at + HOUR, "order", 25.0), (at + 2 * HOUR, "refund", 65.0)],
        }
        story.followed += more.get(way, [])
    counts = _counts(made)
    return made, counts, sum(bool(story.followed) for story in made) - counts["refund"]


def _counts(made: list[Story]) -> dict[str, int]:
    """By hand: amounts are exact in binary."""
    counts = dict.fromkeys(("refund", "refund_partial", "conversion_after_refund", "repeated_conversion"), 0)
    for story in made:
        left, gone = 0.0, False
        for place, (_, what, amount) in enumerate(story.followed):
            left += amount if what == "order" else -amount
            counts["repeated_conversion"] += what == "order" and place > 0
            counts["conversion_after_refund"] += what == "order" and gone
            counts["refund_partial"] += what == "refund" and left > 0
            gone = left == 0
        counts["refund"] += bool(story.followed) and gone
    return counts


def european_tables(folder: Path, number: int) -> Kept:
    """Three tables of a spreadsheet: semicolons, days before months, local times of Berlin."""
    made, counts, converted = stories(number)
    ids = [f"K{story.click.id:06d}/26" for story in made]

    def written(at: int) -> str:
        return datetime.fromtimestamp(START + at, timezone(timedelta(hours=1))).strftime("%d.%m.%Y %H:%M:%S")

    click_rows = [
        (key, written(s.click.at), s.click.campaign, s.click.device, f"{s.click.price:.2f}")
        for key, s in zip(ids, made, strict=True)
    ]
    pl.DataFrame(click_rows, ["clickno", "clicked", "campaign", "device", "bid_eur"], orient="row").write_csv(
        folder / "clicks.csv", separator=";"
    )
    for name, what in (("orders", "order"), ("refunds", "refund")):
        rows = [
            (key, written(at), f"{amount:.2f}" if what == "order" else f"-{amount:.2f}")
            for key, story in zip(ids, made, strict=True)
            for at, kind, amount in story.followed
            if kind == what
        ]
        pl.DataFrame(rows, ["clickno", "booked", "value"], orient="row").write_csv(
            folder / f"{name}.csv", separator=";"
        )
    return Kept([folder / f"{name}.csv" for name in ("clicks", "orders", "refunds")], ids, counts, converted)


def data_lake(folder: Path, number: int) -> Kept:
    """Folders of days of Parquet files, clicks and what followed apart; snowflake ids, pieces in place of money."""
    made, counts, converted = stories(number)
    ids = [(START + story.click.at << 22) + story.click.id % 4096 for story in made]
    clicked = pl.DataFrame(
        {
            "click_id": ids,
            "clicked_at": [datetime.fromtimestamp(START + s.click.at, UTC) for s in made],
            "device": pl.Series([s.click.device for s in made], dtype=pl.Categorical),
            "campaign": [s.click.campaign for s in made],
            "placement": [s.click.placement for s in made],
        }
    )
    followed = pl.DataFrame(
        [
            (key, datetime.fromtimestamp(START + at, UTC), "returned" if what == "refund" else "paid", int(4 * amount))
            for key, story in zip(ids, made, strict=True)
            for at, what, amount in story.followed
        ],
        ["click_id", "at", "status", "qty"],
        orient="row",
    )
    for name, rows, at in (("clicks", clicked, "clicked_at"), ("orders", followed, "at")):
        for (day,), part in rows.group_by(pl.col(at).dt.date(), maintain_order=True):
            path = folder / name / f"day={day}" / "part-0.parquet"
            path.parent.mkdir(parents=True)
            part.write_parquet(path)
    return Kept([folder / "clicks", folder / "orders"], ids, counts, converted)


def sessions(folder: Path, number: int) -> Kept:
    """Events without a click id: a visit is a user and a number; ISO times with the offsets of two offices."""
    made, counts, converted = stories(number)
    keys = [(f"u{story.click.id * 7919 % 300}", story.click.id) for story in made]
    rows: list[tuple[Any, ...]] = []
    for (user, visit), story in zip(keys, made, strict=True):
        one = story.click
        rows.append((_offset(one.at), "visit", user, visit, one.campaign, one.device, None))
        for at, what, amount in story.followed:
            rows.append((_offset(at), "order" if what == "order" else "order_cancelled", user, visit, "", "", amount))
    names = ["when", "action", "user_id", "visit_id", "campaign", "device", "total"]
    frame = pl.DataFrame(sorted(rows, key=lambda row: datetime.fromisoformat(row[0])), names, orient="row")
    frame.write_csv(folder / "tracking.tsv", separator="\t")
    return Kept([folder / "tracking.tsv"], [visit for _, visit in keys], counts, converted)


def _offset(at: int) -> str:
    zone = timezone(timedelta(hours=1 if at % 2 else -8))
    return datetime.fromtimestamp(START + at, zone).isoformat()


def one_row_per_click(folder: Path, number: int) -> Kept:
    """A table of a warehouse, monthly files: the last order, its value and what was refunded of it, in columns."""
    made, *_ = stories(number)
    ids = [f"{story.click.id:x}-{story.click.at:x}" for story in made]
    rows, counts = [], dict.fromkeys(("refund", "refund_partial"), 0)
    for key, story in zip(ids, made, strict=True):
        one, back = story.click, [(at, amount) for at, what, amount in story.followed if what == "refund"][:1]
        bought = story.followed[0] if story.followed else (None, "", None)
        if back:
            counts["refund" if back[0][1] >= 40 else "refund_partial"] += 1
        refund = back[0] if back else (None, None)
        rows.append((key, one.at, bought[0], bought[2], refund[0], refund[1], one.campaign, one.device, one.price))
    names = ["clid", "click_time", "order_time", "order_value", "refund_time", "refund_value"]
    frame = pl.DataFrame(rows, [*names, "campaign", "device", "cpc"], orient="row", infer_schema_length=None)
    stamps = pl.col("click_time", "order_time", "refund_time")
    frame = frame.with_columns(pl.from_epoch(stamps + START, "s").dt.replace_time_zone("UTC"))
    for (month,), part in frame.group_by(pl.col("click_time").dt.strftime("%b%Y"), maintain_order=True):
        part.write_parquet(folder / f"export_{month}.parquet")
    converted = sum(bool(story.followed) for story in made) - counts["refund"]
    return Kept([folder], ids, counts, converted)


OTHER_LOGS: dict[str, Callable[[Path, int], Kept]] = {
    maker.__name__: maker for maker in (european_tables, data_lake, sessions, one_row_per_click)
}
