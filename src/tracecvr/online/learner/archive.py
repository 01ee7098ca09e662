"""Events that no horizon needs any more, moved from the database to Parquet; and the erasure of a user's events.

Whoever moves or deletes events holds the store (`hold_log`). Learners need not wait: a file is whole before its events
leave the database, in the transaction that lists it with its hash. Files that are not listed were left by a kill.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from io import BytesIO
from typing import NamedTuple, cast

import polars as pl

from tracecvr.base.errors import UserError
from tracecvr.base.files import locked, write_atomically
from tracecvr.data.table import NEVER
from tracecvr.online.ledger.ledger import first_held, memory_of
from tracecvr.online.log.event_log import Accepted, EventLog
from tracecvr.online.log.events import CLICK
from tracecvr.online.store.challenge import challengers, remove_dropped
from tracecvr.online.store.store import Store

_BLOCK = 1 << 18
"""Events of a file, about: some hundred megabytes while it is written."""
_TEXTS, _NUMBERS = {"event", "user", "body", "model"}, {"score"}
_SCHEMA = {
    name: pl.String if name in _TEXTS else pl.Float64 if name in _NUMBERS else pl.Int64 for name in Accepted._fields
}
_PATIENCE = 600.0
"""Seconds that a command waits for another one that moves or deletes events."""


class ArchiveFile(NamedTuple):
    """A file with the events of the intervals from `first` to before `last`."""

    name: str
    first: int
    last: int
    sha256: str


class WholeLog(EventLog):
    """An event log with its archive, as a model of a store reads it."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.folder / "events.db", store.grid)
        self.model, self.folder = store.model, store.folder / "archive"
        self._newest_read: tuple[ArchiveFile, pl.DataFrame] | None = None

    # Files.

    def files(self) -> list[ArchiveFile]:
        return [ArchiveFile(*row) for row in self._rows("SELECT * FROM archives ORDER BY first")]

    def read(self, file: ArchiveFile, start: int = 0, end: int = NEVER) -> pl.DataFrame:
        path = self.folder / file.name
        try:
            # A learner's start asks for one interval after the other: each file is read and checked once.
            if self._newest_read is None or self._newest_read[0] != file:
                self._newest_read = file, pl.read_parquet(self.check(file))
            return self._newest_read[1].filter((pl.col("seen") >= start) & (pl.col("seen") < end))
        except FileNotFoundError:
            for newer in self.files():  # an erasure has written it anew meanwhile
                if newer.first == file.first and newer != file:
                    return self.read(newer, start, end)
            raise UserError(f"{path} is missing: copy it from where the store is whole") from None

    def check(self, file: ArchiveFile) -> bytes:
        """The content of a file, if it is as it was written."""
        content = (self.folder / file.name).read_bytes()
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise UserError(f"{self.folder / file.name} is damaged: copy it from where the store is whole")
        return content

    def _write(self, first: int, last: int, frame: pl.DataFrame) -> ArchiveFile:
        """A new file. Its name tells it from one of the same intervals before an erasure."""
        name = f"{first:09d}-{last:09d}-{self.facts().get('erasures', 0)}.parquet"
        frame.write_parquet(content := BytesIO())
        file = ArchiveFile(name, first, last, hashlib.sha256(content.getvalue()).hexdigest())
        write_atomically(self.folder / name, lambda temporary: temporary.write_bytes(content.getvalue()))
        self.check(file)  # before its events leave the database
        return file

    def move(self, until: int) -> int:
        """Move what became known before a time, with which an interval starts, to a new file; how many events."""
        rows = self.before(until)
        first = self.grid.number(min((row.seen for row in rows), default=until))
        frame = pl.DataFrame(rows, schema=_SCHEMA, orient="row")
        file = self._write(first, self.grid.number(until), frame) if rows else None
        with self._transaction():
            self._change("erased", "archives")
            for table in ("events", "erased"):
                self._db.execute(f"DELETE FROM {table} WHERE seen < ?", (until,))
            if file is not None:
                self._db.execute("INSERT INTO archives VALUES(?, ?, ?, ?)", file)
        self._truncate()
        return len(rows)

    def erase_archived(self, user: str) -> tuple[int, int]:
        """Write files again without a user's events; returns how many clicks and actions were removed."""
        clicks = actions = 0
        for file in self.files():
            frame = self.read(file)
            theirs = frame.filter((pl.col("user") == user) & (pl.col("kind") == CLICK))["click"]
            gone = (pl.col("user") == user).fill_null(False) | pl.col("click").is_in(theirs.implode())
            left = frame.filter(~gone)
            if len(left) < len(frame):
                clicks += len(theirs)
                actions += len(frame) - len(left) - len(theirs)
                new = self._write(file.first, file.last, left)
                with self._transaction():
                    self._change("archives")
                    self._db.execute("DELETE FROM archives WHERE name = ?", (file.name,))
                    self._db.execute("INSERT INTO archives VALUES(?, ?, ?, ?)", new)
        self.remove_unlisted()
        return clicks, actions

    def remove_unlisted(self) -> None:
        """Remove files that were written anew, or that somebody who was killed has left."""
        listed = {file.name for file in self.files()}
        for path in self.folder.glob("*.parquet*"):  # half of one has a longer name
            if path.name not in listed:
                path.unlink()

    # Reading, of both.

    def between(self, start: int, end: int) -> list[Accepted]:
        kept, number = super().between(start, end), self.grid.number(start)
        files = [file for file in self.files() if file.first <= number < file.last]
        rows = [Accepted(*row) for file in files for row in self.read(file, start, end).rows()]
        if not files:
            self._newest_read = None  # the learner has come to the database: let memory be free
        return sorted(rows, key=lambda row: (row.kind > CLICK, row.seen, row.ts, row.click)) if rows else kept

    def next_known(self, time: int) -> int | None:
        kept = super().next_known(time)
        for file in self.files():  # in order of time, and before what is in the database
            over = self.grid.bounds(file.last)[0] <= time
            if not over and (first := self.read(file, time)["seen"].min()) is not None:
                return int(cast("int", first))
        return kept

    def arrivals(self, clicks: Sequence[int], start: int, end: int) -> dict[int, int]:
        came = super().arrivals(clicks, start, end)
        for file in self.files() if len(came) < len(clicks) else ():
            if self.grid.bounds(file.last)[0] > start:
                ours = (pl.col("kind") == CLICK) & pl.col("click").is_in(list(clicks))
                came |= dict(self.read(file, start, end).filter(ours).select("click", "seen").rows())
        return came


# Commands.


@contextmanager
def hold_log(store: Store) -> Iterator[WholeLog]:
    """Be the only one that moves or deletes events of a store. Wait for another process that does."""
    otherwise = "it is compacted or erased from: try again later"
    with locked(store.folder, otherwise, ".upkeep.lock", _PATIENCE), closing(WholeLog(store)) as log:
        log.refuse_damage()  # a wrong page would hide events, or files of the archive
        log.remove_unlisted()
        yield log


def compact(store: Store) -> int:
    """Archive what no learner or version needs; how many events. Killed, it is repeated."""
    with hold_log(store) as log:
        needed = min(_first_needed(model) for model in (store, *challengers(store)))
        end, count, until = store.grid.bounds(needed)[0], 0, -1
        while until < end:
            until = log.portion(end, _BLOCK)
            count += log.move(until)
        return count


def _first_needed(store: Store) -> int:
    """The interval from which on a model, or a version that it could fall back to, has open clicks."""
    oldest = min((manifest["intervals"] for manifest in store.versions.manifests()), default=0)
    return first_held(store.grid, memory_of(store.grid, store.engine().memory), oldest)


def erase(store: Store, user: str) -> tuple[int, int]:
    """Delete a user's events, in the log and in the archive; how many clicks and actions. Learners at work follow."""
    with hold_log(store) as log:
        in_log, in_archive = log.erase(user), log.erase_archived(user)
        remove_dropped(store)
        return in_log[0] + in_archive[0], in_log[1] + in_archive[1]
