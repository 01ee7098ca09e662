"""Events that no horizon needs any more, moved from the database to Parquet; and the erasure of a user's events.

An archive is a long event log: a row per event, with its type, click, times and, of clicks, the raw features. The
hash of `archive/NAME.parquet` is in `archive.sha256/NAME`; a file is without one while it is being written.

Whoever moves or deletes events holds the store (`hold_log`): one at a time. Learners need not wait for them. A file is
whole before its events leave the database, so whoever asks the database first and the archive then misses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

import polars as pl

from tracecvr.base.errors import UserError
from tracecvr.base.files import locked, sha256, write_parquet, write_text
from tracecvr.data.table import NEVER
from tracecvr.online.ledger.erasure import erase_at_rest, remove_at_rest
from tracecvr.online.ledger.ledger import first_held, memory_of
from tracecvr.online.log.event_log import Accepted, EventLog, answers_for
from tracecvr.online.log.events import CLICK, body_of
from tracecvr.online.store.challenge import FOLDER, challengers, named, names, remove_dropped
from tracecvr.online.store.store import Store
from tracecvr.online.store.versions import Versions

_BLOCK = 1 << 18
"""Events of a file, about: some hundred megabytes while it is written."""
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
    "model": pl.String,
}
_PATIENCE = 600.0
"""Seconds that a command waits for another one that moves or deletes events."""


def hold_log(store: Store) -> AbstractContextManager[None]:
    """Be the only one that moves or deletes events of a store. Whoever is at it is waited for."""
    return locked(store.folder, "it is compacted or erased from: try again later", ".upkeep.lock", _PATIENCE)


def compact(store: Store, memory: int) -> int:
    """Archive what neither the learner, whose engine has that memory, nor a version that it could fall back to needs;
    returns how many events.

    A file is whole before its events are deleted, and named by its intervals: a compaction that is killed is repeated.
    Each file has as many intervals as fit in memory.
    """
    with hold_log(store):
        return _compact(store, memory)


def _compact(store: Store, memory: int) -> int:
    log = store.log()
    for path in archived(store):  # if a compaction was killed before it deleted
        log.prune(store.grid.bounds(_intervals(path)[1])[0])
        if problem(path) is None:  # killed before it wrote the hash
            _record(path)
    last = min(
        [_first_needed(store, memory), *(_first_needed(other, other.engine().memory) for other in challengers(store))]
    )
    if not last:
        return 0
    end, count, until = store.grid.bounds(last)[0], 0, -1
    while until < end:
        until = log.portion(end, _BLOCK)
        if rows := log.before(until):
            first = min(store.grid.number(row.seen) for row in rows)
            name = f"{first:09d}-{store.grid.number(until):09d}.parquet"
            _write(store.folder / "archive" / name, _frame(store, rows))
        count += log.prune(until)
    return count


def _first_needed(store: Store, memory: int) -> int:
    """The interval from which on a model, or a version that it could fall back to, has open clicks. A ledger that is
    built anew also asks for actions that came before their clicks: it reads the archive, too."""
    versions = Versions(store.home, store.settings.keep).listed()
    oldest = min((manifest["intervals"] for manifest in versions), default=0)
    return first_held(store.grid, memory_of(store.grid, memory), oldest)


def restore(store: Store, number: int) -> None:
    """Put archived events of the intervals from `number` on back into the log.

    They are in the log before a file is renamed, and a file has its new name before it is made smaller: killed
    anywhere, each event is in one place that counts.
    """
    start = store.grid.bounds(number)[0]
    log = store.log()
    for path in archived(store):
        first, last = _intervals(path)
        if last <= number:
            continue
        frame = _read(path)
        log.put_back(_rows(store, frame.filter(pl.col("seen") >= start)))
        _hash_of(path).unlink(missing_ok=True)
        if first >= number:
            path.unlink()
            continue
        shorter = path.with_name(f"{first:09d}-{number:09d}.parquet")
        path.rename(shorter)
        _write(shorter, frame.filter(pl.col("seen") < start))
    log.close()


def erase(store: Store, user: str) -> tuple[int, int]:
    """Delete a user's events, in the log, in the archive and in ledgers; how many clicks and actions. A learner that is
    at work takes them out of its ledger before its next tick.

    What models have learnt from them stays in the models, and clicks of the base are known by no user.
    """
    with hold_log(store):
        return _erase(store, user)


def _erase(store: Store, user: str) -> tuple[int, int]:
    clicks, actions = store.log().erase(user)
    for path in archived(store):
        frame = _read(path)
        theirs = frame.filter((pl.col("user") == user) & (pl.col("type") == "click"))["click_id"]
        gone = (pl.col("user") == user).fill_null(False) | pl.col("click_id").is_in(theirs.implode())
        left = frame.filter(~gone)
        if len(left) < len(frame):
            clicks += len(theirs)
            actions += len(frame) - len(left) - len(theirs)
            _write(path, left)
    _erase_in_ledgers(store)
    return clicks, actions


def _erase_in_ledgers(store: Store) -> None:
    """Of the store's own model and of challengers. That of a challenger whose files are damaged is removed: the learner
    builds it anew from the log."""
    erase_at_rest(store, WholeLog(store))
    remove_dropped(store)
    for name in names(store):
        try:
            challenger = named(store, name)
        except UserError:
            remove_at_rest(store.folder / FOLDER / name)
        else:
            erase_at_rest(challenger, WholeLog(challenger))


def archived(store: Store) -> list[Path]:
    """The files of a store's archive, oldest first."""
    return sorted((store.folder / "archive").glob("*.parquet"))


def problem(path: Path) -> str | None:
    """What is wrong with a file of an archive: nothing, or None if that is not known."""
    recorded = _hash_of(path)
    if not recorded.is_file():
        return None
    return "" if recorded.read_text(encoding="utf-8").split()[:1] == [sha256(path)] else f"{path} is damaged"


def _read(path: Path) -> pl.DataFrame:
    """A file as it was written: what is damaged is not written anew."""
    _refuse_damaged(path)
    return pl.read_parquet(path)


def _refuse_damaged(path: Path) -> None:
    if problem(path):
        raise UserError(f"{path} is damaged: copy it from where the store is whole")


def _record(path: Path) -> None:
    """Write the hash of a file as it is now, in the form of `sha256sum`."""
    _hash_of(path).parent.mkdir(exist_ok=True)
    write_text(_hash_of(path), f"{sha256(path)}  {path.name}\n")


def _write(path: Path, frame: pl.DataFrame) -> None:
    _hash_of(path).unlink(missing_ok=True)  # killed before the new one is written, the file has none
    write_parquet(path, frame)
    _record(path)


def _hash_of(path: Path) -> Path:
    """Not beside it, so that the directory can be read as one table."""
    return path.parent.with_name("archive.sha256") / path.stem


class WholeLog(EventLog):
    """An event log with its archive, for replays from the start."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.folder / "events.db", store.grid)
        self.store = store
        self._checked: set[Path] = set()

    def between(self, start: int, end: int) -> list[tuple[Any, ...]]:
        number, kept = self.grid.number(start), super().between(start, end)
        rows: list[tuple[Any, ...]] = []
        for path in archived(self.store):
            first, last = _intervals(path)
            if first <= number < last:
                rows += self._read_archived(path, start, end)
        return sorted(rows, key=_order) if rows else kept

    def next_known(self, time: int) -> int | None:
        kept = super().next_known(time)
        for path in archived(self.store):  # in order of time, and before what is in the database
            over = self.grid.bounds(_intervals(path)[1])[0] <= time
            if not over and (first := self._read(path, time, NEVER)["seen"].min()) is not None:
                return int(cast("int", first))
        return kept

    def answers(self, start: int, end: int, model: str | None = None) -> list[tuple[int, float, int]]:
        number, model = self.grid.number(start), model or self.store.model
        answered = pl.col("score").is_not_null() & pl.col("version").is_not_null() & (pl.col("type") == "click")
        rows = super().answers(start, end, model)
        for path in archived(self.store):
            first, last = _intervals(path)
            if first <= number < last:
                kept = self._read(path, start, end).filter(answered)
                rows += answers_for(model, kept.select("click_id", "score", "version", "model").rows())
        return rows

    def arrivals(self, clicks: Sequence[int], start: int, end: int) -> dict[int, int]:
        came = super().arrivals(clicks, start, end)
        for path in archived(self.store) if len(came) < len(clicks) else ():
            if self.grid.bounds(_intervals(path)[1])[0] > start:
                ours = (pl.col("type") == "click") & pl.col("click_id").is_in(list(clicks))
                came |= dict(self._read(path, start, end).filter(ours).select("click_id", "seen").rows())
        return came

    def _read_archived(self, path: Path, start: int, end: int) -> list[tuple[Any, ...]]:
        reader, frame = self.store.reader, self._read(path, start, end)
        rows = frame.select("type", "click_id", "ts", "seen", *_columns(store=self.store)).rows()
        return [
            (reader.kinds[kind], click, ts, seen, body_of(features) if kind == "click" else None)
            for kind, click, ts, seen, *features in rows
        ]

    def _read(self, path: Path, start: int, end: int) -> pl.DataFrame:
        """Archived events that became known in an interval."""
        if path not in self._checked:
            _refuse_damaged(path)
        self._checked.add(path)
        return pl.read_parquet(path).filter((pl.col("seen") >= start) & (pl.col("seen") < end))


def _order(row: tuple[Any, ...]) -> tuple[bool, int, int, int]:
    kind, click, ts, seen, _ = row
    return kind > CLICK, seen, ts, click


def _intervals(path: Path) -> tuple[int, int]:
    """The first interval of a file, and the first after it."""
    first, last = path.stem.split("-")
    return int(first), int(last)


def _columns(store: Store) -> list[str]:
    return [f"feature.{name}" for name in store.reader.features]


def _frame(store: Store, rows: list[Accepted]) -> pl.DataFrame:
    names = {kind: name for name, kind in store.reader.kinds.items()}
    facts = [(r.pos, r.event, names[r.kind], r.click, r.ts, r.seen, r.user, r.score, r.version, r.model) for r in rows]
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
            fact["model"],
        )
        for fact, values in zip(frame.select(list(_FACTS)).iter_rows(named=True), features, strict=True)
    ]
