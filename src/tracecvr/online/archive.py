"""Events that no horizon needs any more, moved from the database to Parquet; and the erasure of a user's events.

An archive is a long event log: a row per event, with its type, click, times and, of clicks, the raw features.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from tracecvr.files import write_parquet
from tracecvr.online.eventlog import Accepted, EventLog
from tracecvr.online.events import CLICK, body_of
from tracecvr.online.ledger import first_needed, memory_of
from tracecvr.online.store import Store
from tracecvr.online.versions import Versions

_FACTS = {
    "pos": pl.Int64,
    "event_id": pl.String,
    "type": pl.String,
    "click_id": pl.Int64,
    "ts": pl.Int64,
    "seen": pl.Int64,
    "user": pl.String,
    "score": pl.Float64,
    "version": pl.Int64,
}


def compact(store: Store, memory: int) -> int:
    """Archive what neither the learner, whose engine has that memory, nor a version that it could fall back to needs;
    returns how many events.

    The file is whole before anything is deleted, and named by its intervals: a compaction that is killed is repeated.
    """
    log, versions = store.log(), Versions(store.folder, store.settings.keep).listed()
    for path in _files(store):  # of a compaction that was killed before it deleted
        log.prune(store.grid.bounds(_intervals(path)[1])[0])
    oldest = min((manifest["intervals"] for manifest in versions), default=0)
    last = first_needed(store.grid, memory_of(store.grid, memory), oldest)
    if not last:
        return 0
    before = store.grid.bounds(last)[0]
    rows = log.before(before)
    if rows:
        first = min(store.grid.number(row.seen) for row in rows)
        write_parquet(store.folder / "archive" / f"{first:09d}-{last:09d}.parquet", _frame(store, rows))
    return log.prune(before)


def restore(store: Store, number: int) -> None:
    """Put archived events of the intervals from `number` on back into the log.

    They are in the log before a file is renamed, and a file has its new name before it is made smaller: killed
    anywhere, each event is in one place that counts.
    """
    start = store.grid.bounds(number)[0]
    log = store.log()
    for path in _files(store):
        first, last = _intervals(path)
        if last <= number:
            continue
        frame = pl.read_parquet(path)
        log.put_back(_rows(store, frame.filter(pl.col("seen") >= start)))
        if first >= number:
            path.unlink()
            continue
        shorter = path.with_name(f"{first:09d}-{number:09d}.parquet")
        path.rename(shorter)
        write_parquet(shorter, frame.filter(pl.col("seen") < start))
    log.close()


def erase(store: Store, user: str) -> tuple[int, int]:
    """Delete a user's events, in the log and in the archive; how many clicks and actions.

    What models have learnt from them stays in the models, and clicks of the base are known by no user.
    """
    clicks, actions = store.log().erase(user)
    for path in _files(store):
        frame = pl.read_parquet(path)
        theirs = frame.filter((pl.col("user") == user) & (pl.col("type") == "click"))["click_id"]
        gone = (pl.col("user") == user).fill_null(False) | pl.col("click_id").is_in(theirs.implode())
        left = frame.filter(~gone)
        if len(left) < len(frame):
            clicks += len(theirs)
            actions += len(frame) - len(left) - len(theirs)
            write_parquet(path, left)
    return clicks, actions


class WholeLog(EventLog):
    """An event log with its archive, for replays from the start."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.folder / "events.db", store.grid)
        self.store = store

    def between(self, start: int, end: int) -> list[tuple[Any, ...]]:
        number = self.grid.number(start)
        found: list[tuple[Any, ...]] = []
        for path in _files(self.store):
            first, last = _intervals(path)
            if first <= number < last:
                found += self._archived(path, start, end)
        return sorted(found, key=_order) if found else super().between(start, end)

    def next_known(self, time: int) -> int | None:
        for path in _files(self.store):  # in order of time, and before what is in the database
            if self.grid.bounds(_intervals(path)[1])[0] > time:
                seen = pl.scan_parquet(path).filter(pl.col("seen") >= time).select(pl.col("seen").min()).collect()
                if (first := seen.item()) is not None:
                    return int(first)
        return super().next_known(time)

    def _archived(self, path: Path, start: int, end: int) -> list[tuple[Any, ...]]:
        reader = self.store.reader
        frame = pl.read_parquet(path).filter((pl.col("seen") >= start) & (pl.col("seen") < end))
        rows = frame.select("type", "click_id", "ts", "seen", *_columns(store=self.store)).rows()
        return [
            (reader.kinds[kind], click, ts, seen, body_of(features) if kind == "click" else None)
            for kind, click, ts, seen, *features in rows
        ]


def _order(row: tuple[Any, ...]) -> tuple[bool, int, int, int]:
    kind, click, ts, seen, _ = row
    return kind > CLICK, seen, ts, click


def _files(store: Store) -> list[Path]:
    return sorted((store.folder / "archive").glob("*.parquet"))


def _intervals(path: Path) -> tuple[int, int]:
    """The first interval of a file, and the first after it."""
    first, last = path.stem.split("-")
    return int(first), int(last)


def _columns(store: Store) -> list[str]:
    return [f"feature.{name}" for name in store.reader.features]


def _frame(store: Store, rows: list[Accepted]) -> pl.DataFrame:
    names = {kind: name for name, kind in store.reader.kinds.items()}
    facts = [(r.pos, r.event, names[r.kind], r.click, r.ts, r.seen, r.user, r.score, r.version) for r in rows]
    features = store.reader.frame([store.reader.blank if row.body is None else row.body for row in rows])
    named = features.rename(lambda name: f"feature.{name}")
    return pl.concat([pl.DataFrame(facts, schema=_FACTS, orient="row"), named], how="horizontal")


def _rows(store: Store, frame: pl.DataFrame) -> list[Accepted]:
    """Archived events as the log had them."""
    features = frame.select(_columns(store)).rows()
    return [
        Accepted(
            fact["pos"],
            fact["event_id"],
            store.reader.kinds[fact["type"]],
            fact["click_id"],
            fact["ts"],
            fact["seen"],
            fact["user"],
            body_of(values) if fact["type"] == "click" else None,
            fact["score"],
            fact["version"],
        )
        for fact, values in zip(frame.select(list(_FACTS)).iter_rows(named=True), features, strict=True)
    ]
