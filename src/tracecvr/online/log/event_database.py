"""The database of an event log: its tables, its transactions, and whether it can still be read.

SQLite in WAL mode with synchronous=FULL: a transaction that has returned survives the loss of power. Any number of
processes may write and read; SQLite lets one write at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw

from tracecvr.base.errors import UserError
from tracecvr.base.files import make_private, refuse_other_format
from tracecvr.online.log import page_checksums

_SCHEMA = """
CREATE TABLE IF NOT EXISTS events(
  pos INTEGER PRIMARY KEY AUTOINCREMENT,  -- order of acceptance
  event TEXT NOT NULL UNIQUE,    -- what makes it the same event
  kind INTEGER NOT NULL,
  click INTEGER NOT NULL,
  ts INTEGER NOT NULL,           -- when it happened
  seen INTEGER NOT NULL,         -- when it became known: max(ts, end of the last closed interval)
  user TEXT,
  body TEXT,                     -- of a click: raw features, a JSON list
  score REAL,                    -- of a click: the log-odds that it was answered with, if it was,
  version INTEGER,               -- and by which version
  model TEXT                     -- of which challenger; null: of the store's own model
);
CREATE INDEX IF NOT EXISTS events_click ON events(click);
CREATE INDEX IF NOT EXISTS events_seen ON events(seen);
CREATE INDEX IF NOT EXISTS events_user ON events(user) WHERE user IS NOT NULL;
CREATE TABLE IF NOT EXISTS closings(
  number INTEGER PRIMARY KEY,    -- the last of those that were closed at once: a run of empty ones is one row
  pos INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS facts(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS aside(event TEXT NOT NULL, user TEXT, reason TEXT NOT NULL, content TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS ahead(
  number INTEGER PRIMARY KEY,    -- order in which they came
  event TEXT NOT NULL UNIQUE,
  click INTEGER NOT NULL,
  ts INTEGER NOT NULL,
  user TEXT,
  due INTEGER,                   -- when it may be accepted without being asked; null: never
  content TEXT NOT NULL          -- the event, a JSON list
);
CREATE INDEX IF NOT EXISTS ahead_due ON ahead(due) WHERE due IS NOT NULL;
CREATE TABLE IF NOT EXISTS reopenings(
  at INTEGER NOT NULL,           -- Unix time
  number INTEGER NOT NULL,       -- the first interval that was reopened
  closed INTEGER NOT NULL,       -- how many were closed before,
  pos INTEGER NOT NULL,          -- and how far the log had come
  moved INTEGER NOT NULL,        -- events that became known earlier by it
  set_aside INTEGER NOT NULL     -- events that were dated too far ahead
);
CREATE TABLE IF NOT EXISTS ticks(number INTEGER PRIMARY KEY, content TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS challenger_ticks(
  model TEXT NOT NULL, number INTEGER NOT NULL, content TEXT NOT NULL, PRIMARY KEY(model, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS erased(seen INTEGER NOT NULL, ts INTEGER NOT NULL, place INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS sources(
  source TEXT PRIMARY KEY,       -- a stream or topic that events are pulled from
  identity TEXT NOT NULL,        -- what makes it the same one: positions mean nothing in another; empty if unknown
  problem TEXT                   -- why it cannot be read at present
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS positions(
  partition TEXT PRIMARY KEY,
  position INTEGER NOT NULL,     -- of its last message that was dealt with
  newest INTEGER,                -- the newest time in it, the future left out
  lag INTEGER NOT NULL DEFAULT 0,
  messages INTEGER NOT NULL DEFAULT 0,
  repeated INTEGER NOT NULL DEFAULT 0,
  set_aside INTEGER NOT NULL DEFAULT 0,
  unknown_columns INTEGER NOT NULL DEFAULT 0,
  lost INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS unread(
  partition TEXT NOT NULL,
  position INTEGER NOT NULL,
  payload BLOB NOT NULL,
  reason TEXT NOT NULL,
  at INTEGER NOT NULL,
  PRIMARY KEY(partition, position)
);
"""

_FORMAT = 1
_FORMAT_AND_TABLES = "SELECT user_version, (SELECT count(*) FROM sqlite_master) FROM pragma_user_version"


class EventDatabase:
    """One connection to the database of a store. Threads that share it take turns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._turn = threading.RLock()  # SQLite's wrapper refuses a second thread instead of letting it wait
        self.acknowledged = page_checksums.Acknowledged(path.with_suffix(".position"))
        self._noted = int(self.acknowledged)
        with self._errors("be opened"):
            self._db = page_checksums.connected(path)
            for suffix in ("", "-wal", "-shm"):  # users' events are in them; new ones get the mode of the first
                make_private(path.with_name(path.name + suffix))
            self._db.set_busy_timeout(60_000)
            for pragma in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON"):
                self._db.execute(f"PRAGMA {pragma}")
            version, tables = self._one(_FORMAT_AND_TABLES)
            if not tables:
                self._create()
            elif version != _FORMAT:
                refuse_other_format({"format": version}, _FORMAT, path)

    def _create(self) -> None:
        with self._transaction():
            self._db.execute(f"{_SCHEMA} PRAGMA user_version = {_FORMAT};")

    def close(self) -> None:
        self._db.close()

    def position(self, number: int | None = None) -> int:
        """How far the log has come: now, or when an interval was closed."""
        if number is None:
            return int(self._one("SELECT coalesce(max(seq), 0) FROM sqlite_sequence"))
        return int(self._one("SELECT pos FROM closings WHERE number >= ? ORDER BY number LIMIT 1", (number,)))

    # Checking.

    def damage(self) -> list[str]:
        """What SQLite finds wrong with the whole database: pages, tables, indexes."""
        try:
            with self._turn:
                errors = [str(text) for (text,) in self._db.execute("PRAGMA integrity_check(10)") if text != "ok"]
        except apsw.Error as error:
            errors = [page_checksums.reason(error)]
        return [*errors, f"events up to {self._readable()} can be read"] if errors else []

    def _readable(self) -> int:
        """The position of the last event before the first that cannot be read."""
        last = 0
        with suppress(apsw.Error), self._turn:
            for row in self._db.execute("SELECT * FROM events ORDER BY pos"):
                last = row[0]
        return last

    # Inside.

    def _one(self, query: str, values: tuple[Any, ...] = ()) -> Any:
        with self._turn, self._errors("be read"):
            return self._db.execute(query, values).get

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with self._turn, self._errors("be read"):
            return self._db.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._turn, self._errors("be written"):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            position = self.position()
            self._db.execute("COMMIT")
        if position > self._noted:
            self.acknowledged.note(position)
            self._noted = position

    def _truncate(self) -> None:
        """What was deleted is overwritten in the database; empty its write-ahead log, too."""
        with self._turn, self._errors("be written"):
            self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except apsw.Error as error:
            if page_checksums.damaged(error):
                advice = f"`tracecvr verify {self.path.parent}` says where; restore the store from a copy"
            else:
                advice = (
                    "free some space, or make it writable; what was accepted is safe, and sending again does no harm"
                )
            raise UserError(f"{self.path}: could not {what} ({page_checksums.reason(error)}); {advice}") from error
