"""Logs of five kinds that people have, each with defects planted, so that every count to be reported is known.

The clicks are of the same kind in all of them. The rate depends on a campaign, a device and both together, so that a
net can learn more than a logistic regression. Half of the conversions come within about six hours.
"""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tracecvr.base.config import DAY, HOUR, MINUTE

START = int(datetime(2026, 1, 5, tzinfo=UTC).timestamp())
DAYS = 60
CAMPAIGNS, DEVICES, PLACEMENTS = 12, 3, 40


@dataclass
class Click:
    """A click and what followed, in seconds since the start of the log."""

    id: int
    at: int
    campaign: str | None
    device: str
    placement: int
    price: float
    bought: int | None = None


@dataclass(frozen=True)
class Planted:
    """The files of a log and what was planted in it."""

    files: tuple[Path, ...]
    counts: Counter[str]


def clicks(number: int, seed: int = 0) -> list[Click]:
    """Clicks in the order of time, with nothing wrong."""
    rng = np.random.default_rng(seed)
    rate = (
        rng.normal(-1.2, 0.6, (CAMPAIGNS, 1)) + rng.normal(0, 0.5, DEVICES) + rng.normal(0, 1.0, (CAMPAIGNS, DEVICES))
    )
    made = []
    for i, at in enumerate(np.sort(rng.choice(DAYS * DAY, number, replace=False)).tolist()):
        campaign, device = int(rng.integers(CAMPAIGNS)), int(rng.integers(DEVICES))
        one = Click(
            i,
            at,
            f"camp{campaign}",
            ("phone", "desktop", "tablet")[device],
            int(rng.integers(PLACEMENTS)),
            round(float(rng.lognormal(2, 1)), 2),
        )
        if rng.random() < 1 / (1 + np.exp(-rate[campaign, device])):
            one.bought = at + int(min(MINUTE + rng.exponential(9 * HOUR), 2 * DAY))
        made.append(one)
    return made


def refunds_in_one_file(folder: Path, number: int = 3000) -> Planted:
    """Clicks in one file; purchases and refunds together in another, `event` says which. Some rows are there twice."""
    made, counts = clicks(number), Counter[str]()
    with_purchase = [one for one in made if one.bought is not None and one.bought < one.at + DAY]
    rows: list[tuple[int, str, int]] = [(one.id, "purchase", one.bought) for one in made if one.bought is not None]
    for one in with_purchase[:40]:
        assert one.bought is not None
        rows.append((one.id, "refund", one.bought + HOUR))
    rows += [row for row in rows if row[1] == "purchase" and row[0] in {one.id for one in with_purchase[:5]}]
    rows.append((with_purchase[7].id, "refund", (with_purchase[7].bought or 0) + HOUR))
    rows += [(10**6 + i, "purchase", 20 * DAY + i) for i in range(6)]
    rows += [(10**6 + i, "refund", 21 * DAY + i) for i in range(2)]
    counts.update(refund=40, duplicate_conversion=5, duplicate_refund=1)
    counts.update(dropped_conversion_without_click=6, dropped_refund_without_click=2)
    again, other = made[10:17], made[20:23]
    first = [(one.id, START + one.at, *_features(one)) for one in [*made, *again]]
    first += [(one.id, START + one.at, "camp99", *_features(one)[1:]) for one in other]
    counts.update(dropped_duplicate_click=len(again) + len(other), duplicate_click_differs=len(other))
    header = ("click_id", "click_ts", *_NAMES)
    _csv(folder / "clicks.csv", header, first)
    _csv(
        folder / "outcomes.csv",
        ("click_id", "event", "event_ts", "amount"),
        ((a, b, START + t, 9.5) for a, b, t in rows),
    )
    counts.update(rows=len(first) + len(rows), clicks=number)
    return Planted((folder / "clicks.csv", folder / "outcomes.csv"), counts)


def wide_parquet(folder: Path, number: int = 3000) -> Planted:
    """A row per click as pandas writes it: milliseconds, NaN where nothing happened, categories, a column of the index.
    One click is of 2036, one of 1971, and ten conversions are of 2036."""
    made, counts = clicks(number, 1), Counter[str]()
    some = np.random.default_rng(5).permutation(number).tolist()
    for i in some[:9]:
        made[i].campaign = None
    counts["null_feature"] = 9
    times = {one.id: START + one.at for one in made}
    bought = {one.id: None if one.bought is None else START + one.bought for one in made}
    far, early = _split([i for i in some[9:] if bought[i] is None], 12, 7)
    times[far[0]], times[far[1]] = int(datetime(2036, 5, 1, tzinfo=UTC).timestamp()), 400 * DAY
    for i in far[2:12]:
        bought[i] = int(datetime(2036, 7, 1, tzinfo=UTC).timestamp()) + i
    counts.update(dropped_click_out_of_range=2, dropped_conversion_out_of_range=10)
    for i in early:
        bought[i] = times[i] - 100
    counts["clock_skew"] = 7
    frame = pl.DataFrame(
        {
            "click_id": [one.id for one in made],
            "click_time": [times[one.id] * 1000 + one.id % 1000 for one in made],
            "campaign": pl.Series([one.campaign for one in made], dtype=pl.Categorical),
            "device": pl.Series([one.device for one in made], dtype=pl.Categorical),
            "placement": [float(one.placement) for one in made],
            "price": [one.price for one in made],
            "conversion_time": [float("nan") if (t := bought[one.id]) is None else t * 1000.0 for one in made],
            "__index_level_0__": list(range(number)),
        }
    )
    path = folder / "wide.parquet"
    frame.sample(fraction=1, shuffle=True, seed=3).write_parquet(path)
    counts.update(rows=number, clicks=number - 12)
    return Planted((path,), counts)


def label_with_delay(folder: Path, number: int = 3000) -> Planted:
    """A row per click with a 0/1 label and the hours until the conversion."""
    made, counts = clicks(number, 2), Counter[str]()
    rows: list[list[Any]] = [
        [one.id, _iso(one.at), *_features(one), int(one.bought is not None), _hours(one)] for one in made
    ]
    yes, no = ([i for i, row in enumerate(rows) if row[-2] == label] for label in (1, 0))
    for i in yes[50:58]:
        rows[i][-1] = ""
    for i in no[100:104]:
        rows[i][-1] = 1.5
    for i in no[200:203]:
        rows[i][1] = ""
    counts.update(dropped_label_without_time=8, time_without_label=4, dropped_null_click_time=3)
    path = folder / "labels.csv"
    _csv(path, ("id", "clicked_at", *_NAMES, "converted", "hours_to_conversion"), rows)
    counts.update(rows=number, clicks=number - 11)
    return Planted((path,), counts)


def dates_with_slashes(folder: Path, number: int = 3000) -> Planted:
    """Times as dd/mm/yyyy without an offset, semicolons, packed by gzip."""
    made, counts = clicks(number, 3), Counter[str]()
    rows: list[list[Any]] = [
        [f"k{one.id}", _slashes(one.at), *_features(one), "" if one.bought is None else _slashes(one.bought)]
        for one in made
    ]
    for row in rows[30:36]:
        row[0] = ""
    for one, row in zip(made[50:54], rows[50:54], strict=True):
        row[-1] = _slashes(one.at - DAY)
    rows += [list(row) for row in rows[60:65]]
    counts.update(dropped_null_click_id=6, dropped_conversion_before_click=4, dropped_duplicate_click=5)
    counts["naive_time"] = sum(cell != "" for row in rows for cell in (row[1], row[-1]))
    path = folder / "log.csv.gz"
    with gzip.open(path, "wt", newline="") as stream:
        csv.writer(stream, delimiter=";").writerows([("click_id", "click_date", *_NAMES, "purchase_date"), *rows])
    counts.update(rows=len(rows), clicks=number - 10)
    return Planted((path,), counts)


def seconds_since_start(folder: Path, number: int = 3000) -> Planted:
    """Times as seconds since the log began, -1 where nothing happened, tabs."""
    made, counts = clicks(number, 4), Counter[str]()
    rows = [[one.id, one.at, *_features(one), -1 if one.bought is None else one.bought] for one in made]
    for row in rows[40:44]:
        row[-1] = row[1] + 40 * DAY if row[1] < 10 * DAY else row[-1]
    counts["conversion_after_d_max"] = 4
    path = folder / "log.tsv"
    _csv(path, ("click_id", "click_seconds", *_NAMES, "conversion_seconds"), rows, "\t")
    counts.update(rows=number, clicks=number)
    return Planted((path,), counts)


KINDS: dict[str, Callable[..., Planted]] = {
    "refunds_in_one_file": refunds_in_one_file,
    "wide_parquet": wide_parquet,
    "label_with_delay": label_with_delay,
    "dates_with_slashes": dates_with_slashes,
    "seconds_since_start": seconds_since_start,
}

_NAMES = ("campaign", "device", "placement", "price")


def _split(items: list[int], first: int, second: int) -> tuple[list[int], list[int]]:
    return items[:first], items[first : first + second]


def _features(one: Click) -> tuple[Any, ...]:
    return one.campaign, one.device, one.placement, one.price


def _hours(one: Click) -> object:
    return "" if one.bought is None else round((one.bought - one.at) / HOUR, 4)


def _iso(at: int) -> str:
    return datetime.fromtimestamp(START + at, UTC).isoformat()


def _slashes(at: int) -> str:
    return datetime.fromtimestamp(START + at, UTC).strftime("%d/%m/%Y %H:%M:%S")


def _csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]], separator: str = ",") -> None:
    with path.open("w", newline="") as stream:
        csv.writer(stream, delimiter=separator).writerows([header, *rows])


def plain_clicks(folder: Path, number: int = 12_000) -> Path:
    """`clicks.csv`, a row per click, with nothing wrong: local times as text, empty where nothing happened."""
    rows = [
        (f"c{one.id}", _iso(one.at)[:19], *_features(one), "" if one.bought is None else _iso(one.bought)[:19])
        for one in clicks(number, 7)
    ]
    _csv(folder / "clicks.csv", ("click_id", "click_time", *_NAMES, "purchase_time"), rows)
    return folder / "clicks.csv"
