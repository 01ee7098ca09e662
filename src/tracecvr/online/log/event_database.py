"""The database of an event log: its tables, its transactions, and whether it can still be read.

SQLite in WAL mode with synchronous=FULL: a transaction that has returned survives the loss of power. Any number of
processes may write and read; SQLite lets one write at a time.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import numpy.typing as npt

from tracecvr.base.errors import UserError
from tracecvr.base.files import make_private, refuse_other_format
from tracecvr.online.log import page_checksums
from tracecvr.online.log.page_checksums import digest

_SCHEMA = """
CREATE TABLE events(
  pos INTEGER PRIMARY KEY AUTOINCREMENT,  -- order of acceptance
  event TEXT NOT NULL UNIQUE,    -- what makes it the same event
  kind INTEGER NOT NULL,
  click INTEGER NOT NULL,
  ts INTEGER NOT NULL,           -- when it happened
  seen INTEGER NOT NULL,         -- when it became known: max(ts, end of the last closed interval)
  user TEXT,
  body TEXT,                     -- of a click: raw features, a JSON list; of an action: its amount, if given
  score REAL,                    -- of a click: the log-odds that it was answered with, if it was,
  version INTEGER,               -- and by which version
  model TEXT                     -- of which challenger; null: of the store's own model
);
CREATE INDEX events_click ON events(click);
CREATE INDEX events_seen ON events(seen);
-- The end of a long row has pages of its own. If one is lost or exchanged, its checksum is right; the index differs.
CREATE INDEX events_long ON events(kind, ts, body, score, version, model)
  WHERE octet_length(event) + coalesce(octet_length(user), 0) + coalesce(octet_length(body), 0) > 3000;
CREATE INDEX events_user ON events(user) WHERE user IS NOT NULL;
CREATE TABLE closings(
  number INTEGER PRIMARY KEY,    -- the last of those that were closed at once: a run of empty ones is one row
  pos INTEGER NOT NULL
);
CREATE TABLE facts(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE sums(               -- hashes of small tables without an index: one whose last page was not written differs
  name TEXT PRIMARY KEY, hash TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE aside(
  number INTEGER PRIMARY KEY,    -- order in which they came
  reason TEXT NOT NULL,          -- one of `Reason`
  name TEXT NOT NULL,            -- of an event, what makes it the same one; of a message, its place at the broker
  click INTEGER,
  ts INTEGER,
  user TEXT,
  text TEXT NOT NULL,            -- the reason in words
  content BLOB NOT NULL,         -- the event, a JSON list; or the message as it came
  hash TEXT NOT NULL,            -- of all that: there may be too many of them for a hash of the table
  UNIQUE(reason, name)
);
CREATE TABLE ticks(  -- of the store's own model, whose name is empty, and of challengers
  model TEXT NOT NULL, number INTEGER NOT NULL, content TEXT NOT NULL, UNIQUE(model, number)
);
CREATE TABLE series(             -- what learners predicted of clicks before they learnt them, and what they counted
  name TEXT NOT NULL, first INTEGER NOT NULL, hash TEXT NOT NULL, data BLOB NOT NULL, UNIQUE(name, first)
);
CREATE TABLE archives(           -- files of the archive: those of intervals from `first` to before `last`
  name TEXT PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL, sha256 TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE erased(seen INTEGER NOT NULL, ts INTEGER NOT NULL, place INTEGER NOT NULL);
CREATE TABLE sources(
  source TEXT PRIMARY KEY,       -- a stream or topic that events are pulled from
  identity TEXT NOT NULL,        -- what makes it the same one: positions mean nothing in another; empty if unknown
  problem TEXT                   -- why it cannot be read at present
) WITHOUT ROWID;
CREATE TABLE positions(
  partition TEXT PRIMARY KEY,
  source TEXT NOT NULL,
  position INTEGER NOT NULL,     -- of its last message that was dealt with
  newest INTEGER,                -- the newest time in it, the future left out
  lag INTEGER NOT NULL DEFAULT 0,
  messages INTEGER NOT NULL DEFAULT 0,
  repeated INTEGER NOT NULL DEFAULT 0,
  set_aside INTEGER NOT NULL DEFAULT 0,
  unknown_columns INTEGER NOT NULL DEFAULT 0,
  lost INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE choice(row INTEGER PRIMARY KEY, content TEXT NOT NULL);  -- one row: see `store/choices.py`
"""

_FORMAT = 6
_SMALL = ("facts", "closings", "archives", "erased", "sources", "positions")
"""Tables that have a hash in `sums`."""
_HASH = 32
"""Characters of the hash that the content of a tick or a choice begins with."""
_TABLES = "SELECT count(*) FROM sqlite_master"


class EventDatabase:
    """One connection to the database of a store. Threads that share it take turns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._turn = threading.RLock()  # SQLite's wrapper refuses a second thread instead of letting it wait
        self._noted = page_checksums.read_position(path)
        self._changed = set[str]()
        with self._errors("be opened"):
            self._db = page_checksums.connect(path)
            for suffix in ("", "-wal", "-shm"):  # users' events are in them; new ones get the mode of the first
                make_private(path.with_name(path.name + suffix))
            self._db.set_busy_timeout(60_000)
            for pragma in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON"):
                self._db.execute(f"PRAGMA {pragma}")
            if not self._one(_TABLES):
                self._create()
            refuse_other_format({"format": self._one("PRAGMA user_version")}, _FORMAT, path)

    def _create(self) -> None:
        with self._transaction():
            if not self._one(_TABLES):  # another process may have been first
                self._db.execute(f"{_SCHEMA} PRAGMA user_version = {_FORMAT};")
                self._changed |= set(_SMALL)

    def close(self) -> None:
        self._db.close()

    def position(self, number: int | None = None) -> int:
        """How far the log has come: now, or when an interval was closed."""
        if number is None:
            return int(self._one("SELECT coalesce(max(seq), 0) FROM sqlite_sequence"))
        return int(self._one("SELECT pos FROM closings WHERE number >= ? ORDER BY number LIMIT 1", (number,)))

    # What came of learning. The store's own model has no name.

    def record(self, number: int, content: dict[str, Any], model: str | None = None) -> None:
        """What came of learning an interval; said again after a crash, it is the same."""
        text = json.dumps(content)
        with self._transaction():
            row = (model or "", number, digest(text.encode()) + text)
            self._db.execute("INSERT OR REPLACE INTO ticks VALUES(?, ?, ?)", row)

    def forget_model(self, model: str) -> None:
        """Forget what came of learning by a challenger. Which clicks it has answered stays in the log."""
        with self._transaction():
            self._db.execute("DELETE FROM ticks WHERE model = ?", (model,))
            self._db.execute("DELETE FROM series WHERE name = ?", (model,))

    def ticks(self, last: int = -1, model: str | None = None) -> list[tuple[int, dict[str, Any]]]:
        """What came of learning the last intervals, oldest first; of all by default."""
        query = "SELECT number, content FROM ticks WHERE model = ? ORDER BY number DESC LIMIT ?"
        return [(number, self._content(text)) for number, text in reversed(self._rows(query, (model or "", last)))]

    def recorded(self, model: str | None = None) -> int:
        """After how many intervals it is known what came of learning them."""
        newest = self._rows("SELECT number FROM ticks WHERE model = ? ORDER BY number DESC LIMIT 1", (model or "",))
        return newest[0][0] + 1 if newest and isinstance(newest[0][0], int) else 0

    def _content(self, text: Any) -> dict[str, Any]:
        if not isinstance(text, str) or text[:_HASH] != digest(text[_HASH:].encode()):  # pages were exchanged
            raise self._damaged("a tick or a choice")
        content: dict[str, Any] = json.loads(text[_HASH:])
        return content

    def models(self) -> list[str]:
        return [model for (model,) in self._rows("SELECT DISTINCT model FROM ticks WHERE model != ''")]

    def tick(self, number: int, model: str | None = None) -> dict[str, Any] | None:
        rows = self._rows("SELECT content FROM ticks WHERE model = ? AND number = ?", (model or "", number))
        return self._content(rows[0][0]) if rows else None

    def keep_series(self, name: str, first: int, data: bytes) -> None:
        """A block of values from number `first` on; said again after a crash, it is the same."""
        row = (name, first, digest(data, first), data)
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO series VALUES(?, ?, ?, ?)", row)

    def read_series(
        self, name: str, first: int, end: int, kind: npt.DTypeLike
    ) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Values from one number to another: runs of them, each with the number of its first."""
        after = "SELECT coalesce(max(first), 0) FROM series WHERE name = ?1 AND first <= ?2"
        where = f"name = ?1 AND first >= ({after}) AND first < ?3"
        query = f"SELECT first, hash, data FROM series WHERE {where} ORDER BY first"
        for start, recorded, data in self._rows(query, (name, first, end)):
            if recorded != digest(data, start):
                raise self._damaged("a series")
            yield max(first, start), np.frombuffer(data, kind)[max(0, first - start) : max(0, end - start)]

    def cut_series(self, name: str, first: int) -> None:
        with self._transaction():
            self._db.execute("DELETE FROM series WHERE name = ? AND first >= ?", (name, first))

    # What somebody has chosen.

    def choice(self) -> dict[str, Any] | None:
        rows = self._rows("SELECT content FROM choice")
        return self._content(rows[0][0]) if rows else None

    def keep_choice(self, content: dict[str, Any]) -> None:
        text = json.dumps(content)
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO choice VALUES(1, ?)", (digest(text.encode()) + text,))

    # What is set aside.

    def _set_aside(self, row: tuple[Any, ...]) -> None:
        """A row of `aside` from its reason to its content."""
        columns = "reason, name, click, ts, user, text, content, hash"
        query = f"INSERT OR REPLACE INTO aside({columns}) VALUES(?, ?, ?, ?, ?, ?, ?, ?)"
        self._db.execute(query, (*row, _hash_aside(row)))

    def _read_aside(self, condition: str = "ORDER BY number", values: tuple[Any, ...] = ()) -> list[Any]:
        """Rows of `aside`, if they are as they were written."""
        rows = self._rows(f"SELECT * FROM aside {condition}", values)
        if any(_hash_aside(row[1:-1]) != row[-1] for row in rows):
            raise self._damaged("what is set aside")
        return rows

    # Checking.

    def damage(self) -> list[str]:
        """What SQLite finds wrong with the whole database: pages, tables, indexes."""
        try:
            with self._turn:
                errors = [str(text) for (text,) in self._db.execute("PRAGMA integrity_check(10)") if text != "ok"]
            if not errors:
                with self._turn, self._db:  # as of one moment
                    sums = dict(self._db.execute("SELECT * FROM sums"))
                    old = [name for name in _SMALL if sums.get(name) != self._sum(name)]
                    errors = [f"table {name} is of another time" for name in old]
                self._read_aside()
                with self._turn:
                    blocks = self._db.execute("SELECT hash, data, first FROM series")
                    errors += ["a series is not as it was written" for hashed, *row in blocks if hashed != digest(*row)]
        except UserError:
            errors = ["what is set aside is not as it was written"]
        except page_checksums.ERRORS as error:
            errors = [page_checksums.reason(error)]
        return [*errors, f"events up to {self._readable()} can be read"] if errors else []

    def refuse_damage(self) -> None:
        """Stop before anything is learnt from exchanged pages: their checksums are right. Reads all of the database."""
        if damage := self.damage():
            raise UserError(f"{self.path} is damaged ({' '.join(damage[0].split())}); {self._advice}")

    def _readable(self) -> int:
        """The position of the last event before the first that cannot be read."""
        last = 0
        with suppress(*page_checksums.ERRORS), self._turn:
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
            self._changed = set()
            try:
                yield
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            position = self.position()
            sums = [(name, self._sum(name)) for name in sorted(self._changed)]
            self._db.executemany("INSERT OR REPLACE INTO sums VALUES(?, ?)", sums)
            self._db.execute("COMMIT")
        if position > self._noted:
            page_checksums.write_position(self.path, position)
            self._noted = position

    def _change(self, *tables: str) -> None:
        """Small tables are about to be changed: not if they are of another time, or their next hash would hide it."""
        for table in set(tables) - self._changed:
            if self._one("SELECT hash FROM sums WHERE name = ?", (table,)) != self._sum(table):
                raise self._damaged(f"table {table}")
            self._changed.add(table)

    def _sum(self, table: str) -> str:
        return digest(json.dumps(self._db.execute(f"SELECT * FROM {table}").fetchall()).encode())

    def _truncate(self) -> None:
        """What was deleted is overwritten in the database; empty its write-ahead log, too."""
        with self._turn, self._errors("be written"):
            self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def _damaged(self, what: str) -> UserError:
        return UserError(f"{self.path} is damaged: {what} is not as it was written; {self._advice}")

    @property
    def _advice(self) -> str:
        return f"`tracecvr verify {self.path.parent}` says where; restore the store from a copy"

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except page_checksums.ERRORS as error:
            advice = "free some space, or make it writable; what was accepted is safe, and sending again does no harm"
            if page_checksums.is_damage(error):
                advice = self._advice
            raise UserError(f"{self.path}: could not {what} ({page_checksums.reason(error)}); {advice}") from error


def _hash_aside(row: tuple[Any, ...]) -> str:
    return digest(repr(row).encode())
