"""The event log: append-only, on disk before it answers, each event once.

SQLite in WAL mode with synchronous=FULL: a transaction that has returned survives the loss of power. Any number of
processes may write and read; SQLite lets one write at a time.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from tracecvr.errors import UserError
from tracecvr.files import make_private
from tracecvr.online import pages
from tracecvr.online.events import CLICK, Event

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
  version INTEGER                -- and by which version
);
CREATE INDEX IF NOT EXISTS events_click ON events(click);
CREATE INDEX IF NOT EXISTS events_seen ON events(seen);
CREATE INDEX IF NOT EXISTS events_user ON events(user) WHERE user IS NOT NULL;
CREATE TABLE IF NOT EXISTS closings(number INTEGER PRIMARY KEY, pos INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS facts(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS aside(event TEXT NOT NULL, user TEXT, reason TEXT NOT NULL, content TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS ticks(number INTEGER PRIMARY KEY, content TEXT NOT NULL);
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

_INSERT = """INSERT OR IGNORE INTO events(event, kind, click, ts, user, body, score, version, seen)
  VALUES(?, ?, ?, ?, ?, ?, ?, ?, max(?4, ?9))"""
_ALL = "SELECT pos, event, kind, click, ts, seen, user, body, score, version FROM events"
_CLICKS_FIRST = "FROM events WHERE seen >= ? AND seen < ? ORDER BY kind > 0, seen, ts, click"
_BETWEEN = f"SELECT kind, click, ts, seen, body {_CLICKS_FIRST}"
_ANSWERS = """SELECT click, score, version FROM events
  WHERE seen >= ? AND seen < ? AND kind = 0 AND score IS NOT NULL AND version IS NOT NULL"""
_ERASED = "FROM erased WHERE seen >= ? AND seen < ? ORDER BY place"
_COUNT = "INSERT INTO facts VALUES(?, ?) ON CONFLICT(name) DO UPDATE SET value = value + excluded.value"
_RAISE = "INSERT INTO facts VALUES(?, ?) ON CONFLICT(name) DO UPDATE SET value = max(value, excluded.value)"


@dataclass(frozen=True)
class Grid:
    """How time is divided: intervals from the split on, and what counts as late or as the future."""

    split: int
    interval: int
    lateness: int
    d_max: int
    skew: int = 60
    """How far ahead of the clock an event may be dated before it is taken to be wrong about the time."""

    def bounds(self, number: int) -> tuple[int, int]:
        """Start and end of an interval."""
        start = self.split + number * self.interval
        return start, start + self.interval

    def closed(self, watermark: int) -> int:
        """How many intervals have ended by then."""
        return max(0, (watermark - self.split) // self.interval)


@dataclass
class Receipt:
    """What became of a batch. All of it is on disk; `duplicates` were there before."""

    accepted: int = 0
    duplicates: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    """Of the accepted: `late`, `future` and `out_of_window` ones, too."""
    answers: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Of clicks that were there before, by event: the score that they were answered with then, and its version."""


class Accepted(NamedTuple):
    """A row of the log as it is kept."""

    pos: int
    event: str
    kind: int
    click: int
    ts: int
    seen: int
    user: str | None
    body: str | None
    score: float | None
    version: int | None


class EventLog:
    """One connection to the log of a store. Threads that share it take turns."""

    def __init__(self, path: Path, grid: Grid, clock: Callable[[], float] = time.time) -> None:
        self.path, self.grid, self.clock = path, grid, clock
        self._turn = threading.RLock()  # SQLite's wrapper refuses a second thread instead of letting it wait
        self.acknowledged = pages.Acknowledged(path.with_suffix(".position"))
        self._noted = int(self.acknowledged)
        with self._errors("be opened"):
            self._db = pages.connected(path)
            for suffix in ("", "-wal", "-shm"):  # users' events are in them; new ones get the mode of the first
                make_private(path.with_name(path.name + suffix))
            self._db.set_busy_timeout(60_000)
            for pragma in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON"):
                self._db.execute(f"PRAGMA {pragma}")
            if not self._rows("SELECT 1 FROM sqlite_master WHERE name = 'unread'"):
                self._db.execute(_SCHEMA)

    def close(self) -> None:
        self._db.close()

    # Writing.

    def append(self, events: Sequence[Event]) -> Receipt:
        """Accept a batch, all of it or none: when this returns, it is on disk. Then close what is over."""
        return self.append_all([events])[0]

    def append_all(self, batches: Sequence[Sequence[Event]]) -> list[Receipt]:
        """Accept batches of several senders together: what takes time is to wait for the disk, and that is once."""
        with self._transaction():
            return self._append(batches)

    def _append(self, batches: Sequence[Sequence[Event]]) -> list[Receipt]:
        ahead = self._ahead()
        found = self._put(batches, ahead)
        newest = [event.ts for _, fresh in found for event in fresh if event.ts <= ahead]
        if newest:
            self._close(max(newest) - self.grid.lateness)
        return [receipt for receipt, _ in found]

    def _put(self, batches: Sequence[Sequence[Event]], ahead: int) -> list[tuple[Receipt, Sequence[Event]]]:
        """Batches put in and counted, inside a transaction: of each, its receipt and which of its events are new."""
        closed_until = self.grid.bounds(self.closed())[0]
        found = [self._accepted(batch, closed_until, ahead) for batch in batches]
        counts = sum((receipt.counts for receipt, _ in found), Counter[str]())
        self._count({"duplicates": sum(receipt.duplicates for receipt, _ in found), **counts})
        return found

    def _accepted(self, events: Sequence[Event], closed_until: int, ahead: int) -> tuple[Receipt, Sequence[Event]]:
        """A batch put in, and which of its events are new."""
        before, changes = self.position(), self._db.total_changes()
        self._db.executemany(_INSERT, [(*event, closed_until) for event in events])
        accepted = self._db.total_changes() - changes
        receipt, fresh = Receipt(accepted, len(events) - accepted), events
        if receipt.duplicates:
            fresh, receipt.answers = self._without_duplicates(events, before)
        receipt.counts = self._tallied(fresh, closed_until, ahead)
        return receipt, fresh

    def close_until(self, time: int) -> int:
        """Close every interval that ends by a time, whatever the watermark says; how many are closed now."""
        with self._transaction():
            self._close(time)
            return self.closed()

    def _close(self, watermark: int) -> None:
        self._db.execute(_RAISE, ("watermark", watermark))
        first, last = self.closed(), self.grid.closed(watermark)
        position = self.position()
        for number in range(first, last):
            self._db.execute("INSERT INTO closings(number, pos) VALUES(?, ?)", (number, position))

    def _ahead(self) -> int:
        """What is dated later is the future's, by a clock that never goes back: a wrong one must not turn into the
        future what was accepted already."""
        self._db.execute(_RAISE, ("clock", int(self.clock())))
        return int(self.facts()["clock"]) + self.grid.skew

    def _tallied(self, fresh: Sequence[Event], closed_until: int, ahead: int) -> Counter[str]:
        found: Counter[str] = Counter()
        for event in fresh:
            found["clicks" if event.kind == CLICK else "actions"] += 1
            found["late"] += event.ts < closed_until
            found["future"] += event.ts > ahead
            found["out_of_window"] += event.kind == CLICK and closed_until - event.ts > self.grid.d_max
        return found

    def _without_duplicates(
        self, events: Sequence[Event], before: int
    ) -> tuple[list[Event], dict[str, tuple[float, int]]]:
        """The events that were new, and what the others were answered when they were. Of these, those are set aside
        that contradict what is there."""
        fresh: dict[str, Event] = {}
        answers: dict[str, tuple[float, int]] = {}
        for event in events:
            row = self._accepted_rows("WHERE event = ?", (event.event,))[0]
            if row.pos > before and event.event not in fresh:
                fresh[event.event] = event
                continue
            if row.score is not None and row.version is not None:
                answers[event.event] = row.score, row.version
            if (row.kind, row.click, row.ts, row.user, row.body) != event[1:6]:  # whatever it was answered with
                reason = "another event of the same id was there before"
                kept = (event.event, event.user, reason, json.dumps(event[1:6]))
                self._db.execute("INSERT INTO aside VALUES(?, ?, ?, ?)", kept)
                self._count({"conflicts": 1})
        return list(fresh.values()), answers

    def _count(self, counts: dict[str, int]) -> None:
        self._db.executemany(_COUNT, [(name, n) for name, n in counts.items() if n])

    def record(self, number: int, content: dict[str, Any]) -> None:
        """What came of learning an interval; said again after a crash, it is the same."""
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO ticks VALUES(?, ?)", (number, json.dumps(content)))

    # Reading.

    def ticks(self, last: int = -1) -> list[tuple[int, dict[str, Any]]]:
        """What came of learning the last intervals, oldest first; of all by default."""
        found = self._rows("SELECT number, content FROM ticks ORDER BY number DESC LIMIT ?", (last,))
        return [(number, json.loads(content)) for number, content in reversed(found)]

    def closed(self) -> int:
        """How many intervals are closed."""
        return int(self._one("SELECT coalesce(max(number) + 1, 0) FROM closings"))

    def position(self, number: int | None = None) -> int:
        """How far the log has come: now, or when an interval was closed."""
        if number is None:
            return int(self._one("SELECT coalesce(max(seq), 0) FROM sqlite_sequence"))
        return int(self._one("SELECT pos FROM closings WHERE number = ?", (number,)))

    def between(self, start: int, end: int) -> list[tuple[Any, ...]]:
        """(kind, click, ts, seen, body) of what became known in an interval: clicks first, in their order. Of a click
        that was erased after its interval was closed, its place is left, without a body."""
        found = self._rows(_BETWEEN, (start, end))
        for seen, ts, place in self._rows(f"SELECT * {_ERASED}", (start, end)):
            found.insert(place, (CLICK, -1, ts, seen, None))
        return found

    def answers(self, start: int, end: int) -> list[tuple[int, float, int]]:
        """(click, log-odds, version) as they were answered, of clicks that became known in an interval and were."""
        return self._rows(_ANSWERS, (start, end))

    def since(self, position: int, count: int) -> list[Accepted]:
        """Accepted events after a position, in their order."""
        return self._accepted_rows("WHERE pos > ? ORDER BY pos LIMIT ?", (position, count))

    def of_click(self, click: int) -> list[Accepted]:
        """A click, if it has come, and its actions."""
        return self._accepted_rows("WHERE click = ? ORDER BY kind, seen, ts", (click,))

    # Forgetting.

    def before(self, time: int) -> list[Accepted]:
        """Accepted events that became known before a time."""
        return self._accepted_rows("WHERE seen < ? ORDER BY pos", (time,))

    def prune(self, time: int) -> int:
        """Delete what became known before a time: it is kept elsewhere. Returns how much that was."""
        with self._transaction():
            changes = self._db.total_changes()
            self._db.execute("DELETE FROM events WHERE seen < ?", (time,))
            gone = self._db.total_changes() - changes
            self._db.execute("DELETE FROM erased WHERE seen < ?", (time,))
        self._truncate()
        return gone

    def erase(self, user: str) -> tuple[int, int]:
        """Delete all events of a user and all actions of his clicks; how many clicks and actions."""
        with self._transaction():
            clicks = self._rows("SELECT pos, click, ts, seen FROM events WHERE user = ? AND kind = 0", (user,))
            closed_until = self.grid.bounds(self.closed())[0]
            for pos, _, ts, seen in clicks:
                if seen < closed_until:  # rows of the ledger are known by their number: this one's stays, empty
                    self._db.execute("INSERT INTO erased VALUES(?, ?, ?)", (seen, ts, self._place(pos, seen)))
                self._db.execute("DELETE FROM events WHERE pos = ?", (pos,))
            changes = self._db.total_changes()
            self._db.executemany("DELETE FROM events WHERE click = ?", [(click,) for _, click, *_ in clicks])
            self._db.execute("DELETE FROM events WHERE user = ?", (user,))
            actions = self._db.total_changes() - changes
            self._db.execute("DELETE FROM aside WHERE user = ?", (user,))
            for ascii_only in (True, False):  # whoever wrote the message may have escaped the name or not
                name = json.dumps(user, ensure_ascii=ascii_only).encode()
                self._db.execute("DELETE FROM unread WHERE instr(payload, ?)", (name,))
            self._count({"erased_clicks": len(clicks), "erased_actions": actions, "erasures": 1})
        self._truncate()
        return len(clicks), actions

    def _place(self, pos: int, seen: int) -> int:
        """Where a click is among those of its interval, places left by others included."""
        bounds = self.grid.bounds((seen - self.grid.split) // self.grid.interval)
        order = [found for (found,) in self._rows(f"SELECT pos {_CLICKS_FIRST}", bounds)]
        for (place,) in self._rows(f"SELECT place {_ERASED}", bounds):
            order.insert(place, -1)
        return order.index(pos)

    def _truncate(self) -> None:
        """What was deleted is overwritten in the database; empty its write-ahead log, too."""
        with self._turn, self._errors("be written"):
            self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def facts(self) -> dict[str, int]:
        """Counts of what was accepted, the watermark and the clock."""
        return dict(self._rows("SELECT name, value FROM facts"))

    # Checking.

    def damage(self) -> list[str]:
        """What SQLite finds wrong with the whole database: pages, tables, indexes."""
        try:
            with self._turn:
                found = [str(text) for (text,) in self._db.execute("PRAGMA integrity_check(10)") if text != "ok"]
        except apsw.Error as error:
            found = [pages.reason(error)]
        return [*found, f"events up to {self._readable()} can be read"] if found else []

    def _readable(self) -> int:
        """The position of the last event before the first that cannot be read."""
        last = 0
        with suppress(apsw.Error), self._turn:
            for row in self._db.execute(f"{_ALL} ORDER BY pos"):
                last = row[0]
        return last

    def add_checksums(self) -> bool:
        """Give the pages of an older log checksums; whether it has them now. Takes as long as to copy it."""
        if not pages.checked(self.path) and pages.available():
            with self._turn, self._errors("be written"):
                pages.add(self._db)
        return pages.checked(self.path)

    # Inside.

    def _one(self, query: str, values: tuple[Any, ...] = ()) -> Any:
        with self._turn, self._errors("be read"):
            return self._db.execute(query, values).get

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with self._turn, self._errors("be read"):
            return self._db.execute(query, values).fetchall()

    def _accepted_rows(self, condition: str, values: tuple[Any, ...]) -> list[Accepted]:
        return [Accepted(*row) for row in self._rows(f"{_ALL} {condition}", values)]

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

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except apsw.Error as error:
            if pages.damaged(error):
                advice = f"`tracecvr verify {self.path.parent}` says where; restore the store from a copy"
            else:
                advice = (
                    "free some space, or make it writable; what was accepted is safe, and sending again does no harm"
                )
            raise UserError(f"{self.path}: could not {what} ({pages.reason(error)}); {advice}") from error
