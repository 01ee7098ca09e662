"""Five more logs as people have them, each with a reader of its own: what `inspect`, `prepare` and a live model count
must be what plain Python counts in the files.

Nothing here is written with this package, but for the clicks of `log_kinds`, which all of them have in common.
"""

from __future__ import annotations

import csv
import gzip
import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import polars as pl

from log_kinds import START, Click, clicks
from tracecvr.base.config import DAY


@dataclass
class Counted:
    """A click as plain Python reads it: times in seconds since 1970."""

    at: int
    bought: list[int]


Truth = dict[str, Counted]
"""By id, as events have to name it."""


@dataclass(frozen=True)
class Kind:
    """How a log is written, and how plain Python reads it."""

    write: Callable[[Path, int], list[Path]]
    count: Callable[[Path], Truth]


def _moment(at: int, hours: float = 0.0) -> datetime:
    return datetime.fromtimestamp(START + at, timezone(timedelta(hours=hours)))


def _seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def _by_day(made: Iterable[Click]) -> Iterator[tuple[str, list[Click]]]:
    days: dict[str, list[Click]] = {}
    for one in made:
        days.setdefault(f"{_moment(one.at):%Y-%m-%d}", []).append(one)
    yield from days.items()


def _join(clicked: Iterable[tuple[str, int]], bought: Iterable[tuple[str, int]]) -> Truth:
    truth = {key: Counted(at, []) for key, at in clicked}
    for key, at in bought:
        truth[key].bought.append(at)
    return truth


# A file of each day, packed, whose columns change their order; sales with the offset of another office.


def _write_daily(folder: Path, number: int) -> list[Path]:
    made = clicks(number, seed=11)
    (folder / "clicks").mkdir()
    for turn, (day, ours) in enumerate(_by_day(made)):
        names = ["click_id", "clicked_at", "campaign", "device", "placement"]
        names = names[turn % 5 :] + names[: turn % 5]
        with gzip.open(folder / "clicks" / f"{day}.csv.gz", "wt", newline="") as stream:
            rows = csv.DictWriter(stream, names, delimiter=";")
            rows.writeheader()
            for c in ours:
                at = _moment(c.at).isoformat()
                rows.writerow(
                    {"click_id": _zeros(c), "clicked_at": at, "campaign": c.campaign, "device": c.device}
                    | {"placement": c.placement}
                )
    with gzip.open(folder / "sales.csv.gz", "wt", newline="") as stream:
        sales = csv.writer(stream, delimiter=";")
        sales.writerow(["sold_at", "click_id", "value"])
        sales.writerows([_moment(c.bought, 5.5).isoformat(), _zeros(c), "9.50"] for c in made if c.bought is not None)
    return [folder / "clicks", folder / "sales.csv.gz"]


def _zeros(one: Click) -> str:
    """Ids with zeros in front, of which some differ by these alone."""
    return f"{one.id // 2:0{6 + one.id % 2}d}"


def _count_daily(folder: Path) -> Truth:
    def rows(path: Path) -> list[dict[str, str]]:
        with gzip.open(path, "rt", newline="") as stream:
            return list(csv.DictReader(stream, delimiter=";"))

    clicked = [row for path in sorted((folder / "clicks").iterdir()) for row in rows(path)]
    return _join(
        [(row["click_id"], _seconds(row["clicked_at"])) for row in clicked],
        [(row["click_id"], _seconds(row["sold_at"])) for row in rows(folder / "sales.csv.gz")],
    )


# Parquet with users as structs, UUIDs, microseconds since 1970 and the times of New York.


def _write_structs(folder: Path, number: int) -> list[Path]:
    made = clicks(number, seed=12)
    pl.DataFrame(
        {
            "click_id": [_uuid(c) for c in made],
            "click_ts": [(START + c.at) * 10**6 + c.id % 10**6 for c in made],
            "user": [{"id": f"u{c.id % 300}", "ad": {"campaign": c.campaign}, "device": c.device} for c in made],
            "placement": [c.placement for c in made],
        }
    ).write_parquet(folder / "clicks.parquet")
    bought = [c for c in made if c.bought is not None]
    at = pl.Series("ts", [_moment(c.bought or 0) for c in bought], pl.Datetime("us", "UTC"))
    pl.DataFrame({"click_id": [_uuid(c) for c in bought], "ts": at.dt.convert_time_zone("America/New_York")}).sample(
        fraction=1, shuffle=True, seed=1
    ).write_parquet(folder / "purchases.parquet")
    return [folder / "clicks.parquet", folder / "purchases.parquet"]


def _uuid(one: Click) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, str(one.id)))


def _count_structs(folder: Path) -> Truth:
    clicked = pl.read_parquet(folder / "clicks.parquet").rows(named=True)
    bought = pl.read_parquet(folder / "purchases.parquet").rows(named=True)
    return _join(
        [(row["click_id"], row["click_ts"] // 10**6) for row in clicked],
        [(row["click_id"], int(row["ts"].timestamp())) for row in bought],
    )


# One stream of events in some files: impressions without an id, clicks, carts, purchases; microseconds.


def _write_stream(folder: Path, number: int) -> list[Path]:
    made = clicks(number, seed=13)
    rows: list[tuple[int, dict[str, Any]]] = []
    for c in made:
        user = {"device": c.device, "campaign": c.campaign}
        rows += [(c.at - gap, {"type": "impression", "click_id": None, "user": user}) for gap in (9, 40, 200)]
        rows.append((c.at, {"type": "click", "click_id": f"k-{c.id}", "user": user, "placement": c.placement}))
        if c.bought is not None:
            rows.append((c.bought, {"type": "purchase", "click_id": f"k-{c.id}", "amount": 9.5}))
        if c.bought is not None or c.id % 5 == 0:
            rows.append((c.at + 30, {"type": "add_to_cart", "click_id": f"k-{c.id}"}))
    parts: dict[int, list[str]] = {}
    for at, row in sorted(rows, key=lambda row: row[0]):
        line = json.dumps({"t": (START + at) * 10**6 + at % 10**6, **row})
        parts.setdefault(at // (20 * DAY) if at <= made[-1].at else 9, []).append(line + "\n")
    for part, lines in parts.items():  # the last file has purchases alone: no line of it has the keys of a click
        (folder / f"events-{part:04d}.ndjson").write_text("".join(lines))
    return [folder]


def _count_stream(folder: Path) -> Truth:
    rows = [json.loads(line) for path in sorted(folder.glob("*.ndjson")) for line in path.read_text().splitlines()]
    of = {kind: [(r["click_id"], r["t"] // 10**6) for r in rows if r["type"] == kind] for kind in ("click", "purchase")}
    return _join(of["click"], of["purchase"])


# Folders of months; an id is a shop and a number with zeros in front; conversions in a file of their own.


def _write_months(folder: Path, number: int) -> list[Path]:
    made = clicks(number, seed=14)
    months: dict[str, list[Click]] = {}
    for c in made:
        months.setdefault(f"{_moment(c.at):year=%Y/month=%m}", []).append(c)
    for month, ours in months.items():
        path = folder / "clicks" / month / "part-00000.csv"
        path.parent.mkdir(parents=True)
        with path.open("w", newline="") as stream:
            rows = csv.writer(stream)
            rows.writerow(["shop_id", "click_no", "click_time", "campaign", "device"])
            rows.writerows([*_shop(c), f"{_moment(c.at):%Y-%m-%dT%H:%M:%SZ}", c.campaign, c.device] for c in ours)
    with (folder / "conversions.csv").open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["shop_id", "click_no", "conversion_time"])
        bought = [c for c in made if c.bought is not None]
        rows.writerows([*_shop(c), f"{_moment(c.bought or 0):%Y-%m-%dT%H:%M:%SZ}"] for c in bought)
    return [folder / "clicks", folder / "conversions.csv"]


def _shop(one: Click) -> tuple[str, str]:
    """Each shop counts from 1."""
    return f"shop{one.id % 4}", f"{one.id // 4 + 1:05d}"


def _count_months(folder: Path) -> Truth:
    def rows(path: Path, time: str) -> list[tuple[str, int]]:
        with path.open(newline="") as stream:
            return [(f"{r['shop_id']}|{r['click_no']}", _seconds(r[time])) for r in csv.DictReader(stream)]

    clicked = [row for path in sorted((folder / "clicks").rglob("*.csv")) for row in rows(path, "click_time")]
    return _join(clicked, rows(folder / "conversions.csv", "conversion_time"))


# A table that Excel has exported in America: a byte order mark, CRLF, AM and PM, commas between thousands.


_EXCEL = "%m/%d/%Y %I:%M:%S %p"


def _write_excel(folder: Path, number: int) -> list[Path]:
    made = clicks(number, seed=15)
    with (folder / "Export.csv").open("w", newline="", encoding="utf-8-sig") as stream:
        rows = csv.writer(stream)
        rows.writerow(["Click ID", "Click Time", "Campaign", "Device", "Bid ($)", "Audience", "Order Time"])
        for c in made:
            bought = "" if c.bought is None else f"{_moment(c.bought):{_EXCEL}}"
            money, people = f"{c.price * 100:,.2f}", f"{c.placement * 1037:,}"
            rows.writerow([f"AC-{c.id:,}", f"{_moment(c.at):{_EXCEL}}", c.campaign, c.device, money, people, bought])
    return [folder / "Export.csv"]


def _count_excel(folder: Path) -> Truth:
    def seconds(text: str) -> int:
        return int(datetime.strptime(text, _EXCEL).replace(tzinfo=UTC).timestamp())

    with (folder / "Export.csv").open(newline="", encoding="utf-8-sig") as stream:
        rows = list(csv.DictReader(stream))
    bought = [(row["Click ID"], seconds(row["Order Time"])) for row in rows if row["Order Time"]]
    return _join([(row["Click ID"], seconds(row["Click Time"])) for row in rows], bought)


MORE_LOGS: dict[str, Kind] = {
    "packed_days_whose_columns_move": Kind(_write_daily, _count_daily),
    "structs_and_uuids": Kind(_write_structs, _count_structs),
    "stream_with_impressions": Kind(_write_stream, _count_stream),
    "months_and_an_id_of_two_columns": Kind(_write_months, _count_months),
    "excel_in_america": Kind(_write_excel, _count_excel),
}
