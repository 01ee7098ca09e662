"""Open clicks and what is known of them, in a database of SQLite whose file has no name: only its learner has it.

Clicks are in blocks that never change. A column of a block is an array, a row of `arrays` with a hash. Actions are a
table by click and by when they became known; those whose click has not come yet wait in another. Pages have checksums
(`page_checksums`): a page that is not as it was written is a `DamagedLedgerError`, before it is learnt from.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import numpy as np
import numpy.typing as npt

from tracecvr.base.errors import UserError
from tracecvr.base.files import not_written
from tracecvr.data.table import NEVER, TURNS, Ints
from tracecvr.online.ledger.payments import KnownAction, Payment
from tracecvr.online.log import page_checksums
from tracecvr.online.log.page_checksums import digest

Array = npt.NDArray[Any]

ROWS = 1 << 12
"""Clicks of a block at most. A block has clicks of one interval, or of the log that a store started from. To look one
click up, its block is read."""
_CACHED = 64 << 20
"""Bytes of arrays that are kept in memory after they were read. The clicks of an hour's conversions are in some 200
blocks, and the learner, alarms and forecasts read them one after the other. A cache that is too small for all of them
has none left for the next who asks."""
_DENSE = 8
"""If so many rows of a range are asked for, one in so many at least, actions of the whole range are read."""
_MOST_COLUMNS = 16

_SCHEMA = """
CREATE TABLE arrays(id INTEGER PRIMARY KEY, hash TEXT NOT NULL, data BLOB NOT NULL);
CREATE TABLE actions(row INTEGER, kind INTEGER, ts INTEGER NOT NULL, seen INTEGER NOT NULL, PRIMARY KEY(row, kind))
  WITHOUT ROWID;
CREATE INDEX actions_seen ON actions(seen);
CREATE TABLE late(ts INTEGER, row INTEGER, PRIMARY KEY(ts, row)) WITHOUT ROWID;
CREATE TABLE waiting(  -- actions that came without their click
  seen INTEGER NOT NULL, ts INTEGER NOT NULL, kind INTEGER NOT NULL, click INTEGER NOT NULL, amount REAL NOT NULL
);
CREATE TABLE payments(  -- conversions and refunds of clicks
  row INTEGER, seen INTEGER, ts INTEGER, refund INTEGER, amount REAL, PRIMARY KEY(row, seen, ts, refund, amount)
) WITHOUT ROWID;
CREATE INDEX waiting_click ON waiting(click);
CREATE INDEX waiting_seen ON waiting(seen);
"""


class DamagedLedgerError(UserError):
    """The ledger is not as it was written. It can be built again from the log."""


class Block(NamedTuple):
    """Clicks `first` to `first + size`, and when the first and the last of them became known."""

    first: int
    size: int
    since: int
    until: int


class Known(NamedTuple):
    action_ts: Ints
    known_ts: Ints
    refund_ts: Ints


class OpenClicks:
    """Open clicks of a log. Their file takes room in a folder; without one it is temporary and has no checksums."""

    def __init__(self, folder: Path | None, features: int, actions: int) -> None:
        self.actions = actions
        self.layout: dict[str, tuple[str, int]] = {
            "arrival_ts": ("i8", 0),
            "click_ts": ("i8", 0),
            "click_id": ("i8", 0),
            "x": ("i4", features),
            "score": ("f4", 0),
            "erased": ("?", 0),
        }
        self.folder = folder
        self._db: apsw.Connection | None = None
        self._forget()

    # The database.

    def clear(self) -> None:
        self.close()
        path = None if self.folder is None else self.folder / f".ledger.{os.getpid()}.tmp"
        if path is not None:
            path.unlink(missing_ok=True)
        with self._errors():
            self._db = apsw.Connection("") if path is None else page_checksums.connect(path)
            for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = OFF", "synchronous = OFF"):
                self._run(f"PRAGMA {pragma}")
            self._run(_SCHEMA)
            if path is not None:
                path.unlink()
            self._run("BEGIN")

    def flush(self) -> None:
        """Let memory be free of what was written."""
        with self._errors():
            self._run("COMMIT")
            self._run("BEGIN")

    def close(self) -> None:
        if self._db is not None:
            with suppress(apsw.Error):  # of one that is damaged
                self._db.close(force=True)
        self._db = None
        self._forget()

    @property
    def _connection(self) -> apsw.Connection:
        if self._db is None:
            raise DamagedLedgerError("the ledger is not open")
        return self._db

    def _run(self, query: str, values: tuple[Any, ...] = ()) -> Any:
        return self._connection.execute(query, values)

    def _insert(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._errors():
            self._connection.executemany(query, rows)

    def _rows(self, query: str, values: tuple[Any, ...], columns: int) -> Ints:
        with self._errors():
            rows = self._run(query, values).fetchall()
        return np.array(rows, np.int64).reshape(len(rows), columns).T

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except page_checksums.ERRORS as error:
            disk = apsw.FullError | apsw.IOError | apsw.ReadOnlyError | apsw.CantOpenError
            if isinstance(error, disk) and not page_checksums.is_damage(error):
                raise not_written(self.folder or Path("the ledger"), error) from error
            raise DamagedLedgerError(f"the ledger is damaged ({page_checksums.reason(error)})") from error

    def _forget(self) -> None:
        self._cache: OrderedDict[int, Array] = OrderedDict()
        self._cached = 0
        self._asked: tuple[Ints, Known] | None = None
        self._set_blocks([])

    def _set_blocks(self, blocks: Sequence[Block]) -> None:
        self.blocks = blocks
        self.first = blocks[0].first if blocks else 0
        self.end = blocks[-1].first + blocks[-1].size if blocks else 0
        self._firsts = np.array([block.first for block in blocks], np.int64)
        self._untils = np.array([block.until for block in blocks], np.int64)

    # Clicks.

    def __len__(self) -> int:
        return self.end - self.first

    def column(self, name: str) -> Column:
        """A column, by position: the first row that is held has position 0."""
        return Column(self, name)

    def append(self, columns: Mapping[str, Array]) -> Ints:
        end, size, blocks = self.end, len(columns["arrival_ts"]), list(self.blocks)
        with self._errors():
            for at in range(0, size, ROWS):
                part = {name: values[at : at + ROWS] for name, values in columns.items()}
                arrival = part["arrival_ts"]
                block = Block(end + at, len(arrival), int(arrival[0]), int(arrival[-1]))
                for name, values in part.items():
                    number = self._number(block, name)
                    data = np.ascontiguousarray(values, self.layout[name][0]).tobytes()
                    self._run("INSERT INTO arrays VALUES(?, ?, ?)", (number, digest(data, number), data))
                blocks.append(block)
        self._set_blocks(blocks)
        return np.arange(end, end + size, dtype=np.int64)

    def _number(self, block: Block, name: str) -> int:
        return block.first * _MOST_COLUMNS + list(self.layout).index(name)

    def array(self, block: Block, name: str) -> Array:
        number = self._number(block, name)
        if number not in self._cache:
            self._cache[number] = self._load(block, name)
            self._cached += self._cache[number].nbytes
            while self._cached > _CACHED and len(self._cache) > 1:
                self._cached -= self._cache.popitem(last=False)[1].nbytes
        self._cache.move_to_end(number)
        return self._cache[number]

    def _load(self, block: Block, name: str) -> Array:
        number, (kind, width) = self._number(block, name), self.layout[name]
        with self._errors():
            row = self._run("SELECT hash, data FROM arrays WHERE id = ?", (number,)).fetchone()
        if row is None or row[0] != digest(row[1], number):
            raise DamagedLedgerError(f"the ledger is damaged ({name} of clicks {block.first} and after)")
        values = np.frombuffer(row[1], kind)
        return values.reshape(block.size, width) if width else values

    def gather(self, name: str, number: Ints) -> Array:
        kind, width = self.layout[name]
        values = np.empty((len(number), width) if width else len(number), kind)
        for block, which in self._parts(number):
            values[which] = self.array(block, name)[number[which] - block.first]
        return values

    def part(self, name: str, first: int, end: int) -> Array:
        start = max(0, bisect_right(self._firsts, first) - 1)
        parts = []
        for block in self.blocks[start : bisect_left(self._firsts, end)]:
            parts.append(self.array(block, name)[max(0, first - block.first) : end - block.first])
        return np.concatenate(parts) if len(parts) != 1 else parts[0]

    def search(self, time: int, right: bool = False) -> int:
        """The number of the first click that became known at a time or later; later, if `right`."""
        find = bisect_right if right else bisect_left
        which = find(self.blocks, time, key=lambda block: block.until)
        if which == len(self.blocks):
            return self.end
        block = self.blocks[which]
        arrival = self.array(block, "arrival_ts")
        return block.first + int(np.searchsorted(arrival, time, "right" if right else "left"))

    def find(self, click: Ints, arrival: Ints) -> Ints:
        """The numbers of clicks that became known at given times; -1 of those that are not there."""
        number, which = np.full(len(click), -1), np.searchsorted(self._untils, arrival)
        for at in np.unique(which):
            asked, last = np.flatnonzero(which == at), arrival[which == at].max()
            for block in self.blocks[at:]:  # an interval has several if it has many clicks
                if block.since > last:
                    break
                keys, place = np.unique(click[asked], return_inverse=True)
                ids = self.array(block, "click_id")
                hits = np.flatnonzero(np.isin(ids, keys))
                rows = np.full(len(keys), -1)
                rows[np.searchsorted(keys, ids[hits])] = block.first + hits
                number[asked] = np.maximum(number[asked], rows[place])
        return number

    def drop(self, before: int) -> None:
        """Forget clicks that became known before a time. The last block stays: numbers go on from it."""
        over = [block for block in self.blocks[:-1] if block.until < before]
        if not over:
            return
        end = over[-1].first + over[-1].size
        with self._errors():
            self._run("DELETE FROM arrays WHERE id < ?", (end * _MOST_COLUMNS,))
            for table in ("actions", "payments", "late"):
                self._run(f"DELETE FROM {table} WHERE row < ?", (end,))
        for number in [number for number in self._cache if number < end * _MOST_COLUMNS]:
            self._cached -= self._cache.pop(number).nbytes
        self._set_blocks([block for block in self.blocks if block.first >= end])

    def _parts(self, number: Ints) -> Iterator[tuple[Block, Ints]]:
        """Blocks that clicks are in, and which of the clicks."""
        where = np.searchsorted(self._firsts, number, side="right") - 1
        order = np.argsort(where, kind="stable")
        ends = np.flatnonzero(np.diff(where[order])) + 1
        for which in np.split(order, ends) if len(order) else ():
            yield self.blocks[where[which[0]]], which

    # Actions.

    def note(self, row: Ints, kind: Ints, ts: Ints, seen: Ints) -> None:
        """Actions that became known of clicks: kinds from 1 on, then one for each of `TURNS`. The first one counts."""
        facts = zip(row.tolist(), kind.tolist(), ts.tolist(), seen.tolist(), strict=True)
        self._insert("INSERT OR IGNORE INTO actions VALUES(?, ?, ?, ?)", sorted(facts))
        self._asked = None

    def known(self, number: Ints) -> Known:
        if self._asked is not None and np.array_equal(self._asked[0], number):
            return self._asked[1]
        rows, place = np.unique(number, return_inverse=True)
        never = np.full((len(rows), self.actions), NEVER)
        known = Known(never, never.copy(), np.full((len(rows), len(TURNS)), NEVER))
        row, kind, ts, seen = self._actions_of(rows)
        at, turn = np.searchsorted(rows, row), kind > self.actions
        known.action_ts[at[~turn], kind[~turn] - 1] = ts[~turn]
        known.known_ts[at[~turn], kind[~turn] - 1] = seen[~turn]
        known.refund_ts[at[turn], kind[turn] - self.actions - 1] = seen[turn]
        self._asked = number, Known(*(values[place] for values in known))
        return self._asked[1]

    def _actions_of(self, rows: Ints) -> Ints:
        if len(rows) and _DENSE * len(rows) >= rows[-1] - rows[0]:
            query = "SELECT * FROM actions WHERE row BETWEEN ? AND ?"
            actions = self._rows(query, (int(rows[0]), int(rows[-1])), 4)
            return actions[:, np.isin(actions[0], rows)]
        query = "SELECT * FROM actions WHERE row IN (SELECT value FROM json_each(?))"
        return self._rows(query, (json.dumps(rows.tolist()),), 4)

    def seen_between(self, kind: int, start: int, end: int) -> Ints:
        """Clicks of which an action of a kind became known in a range of time, in the order in which it did."""
        query = "SELECT row FROM actions WHERE seen >= ? AND seen < ? AND kind = ? ORDER BY seen, row"
        rows: Ints = self._rows(query, (start, end, kind), 1)[0]
        return rows

    def pay(self, payments: Iterable[tuple[int, Payment]]) -> None:
        rows = sorted((row, *payment) for row, payment in payments)
        self._insert("INSERT OR IGNORE INTO payments VALUES(?, ?, ?, ?, ?)", rows)

    def payments(self, rows: Iterable[int]) -> dict[int, list[Payment]]:
        query = "SELECT * FROM payments WHERE row IN (SELECT value FROM json_each(?)) ORDER BY row"
        with self._errors():
            known = self._run(query, (json.dumps(list(rows)),)).fetchall()
        return {row: [Payment(*p[1:]) for p in ours] for row, ours in groupby(known, itemgetter(0))}

    # Clicks that came late.

    def note_late(self, ts: Ints, row: Ints) -> None:
        self._insert("INSERT INTO late VALUES(?, ?)", zip(ts.tolist(), row.tolist(), strict=True))

    def late_between(self, start: int, end: int) -> Ints:
        rows: Ints = self._rows("SELECT row FROM late WHERE ts >= ? AND ts < ?", (start, end), 1)[0]
        return rows

    # Actions that wait for their click.

    def wait(self, actions: Iterable[KnownAction]) -> None:
        self._insert("INSERT INTO waiting VALUES(?, ?, ?, ?, ?)", actions)

    def take_waiting(self, clicks: Ints) -> list[KnownAction]:
        if not self.has_waiting():
            return []
        query = """DELETE FROM waiting WHERE click IN (SELECT value FROM json_each(?))
          RETURNING seen, ts, kind, click, amount"""
        with self._errors():
            return [KnownAction(*row) for row in self._run(query, (json.dumps(clicks.tolist()),))]

    def give_up(self, before: int) -> int:
        """Forget those that became known before a time; how many there were."""
        with self._errors():
            return len(self._run("DELETE FROM waiting WHERE seen < ? RETURNING 1", (before,)).fetchall())

    def has_waiting(self) -> bool:
        with self._errors():
            return bool(self._run("SELECT EXISTS(SELECT 1 FROM waiting)").get)


class Column:
    """A column of the clicks, read as an array is: by position, slice or array of positions."""

    def __init__(self, database: OpenClicks, name: str) -> None:
        self._database, self._name = database, name

    def __len__(self) -> int:
        return len(self._database)

    def __getitem__(self, key: Any) -> Any:
        key, *column = key if isinstance(key, tuple) else (key,)
        values = self._values(key)
        if isinstance(key, int | np.integer):
            values = values[0]
            return values[column[0]] if column else values
        return values[(slice(None), *column)] if column else values

    def _values(self, key: Any) -> Array:
        database, first = self._database, self._database.first
        if isinstance(key, slice):
            start, end, step = key.indices(len(self))
            if self._name in database.layout and end > start:
                return database.part(self._name, first + start, first + end)[::step]
            rows = np.arange(start, end, step)
        else:
            rows = np.atleast_1d(np.asarray(key))
            rows = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        if self._name in database.layout:
            return database.gather(self._name, rows + first)
        values: Array = getattr(database.known(rows + first), self._name)
        return values

    def searchsorted(self, value: Any, side: str = "left", sorter: None = None) -> Any:
        """As of an array, of which `np.searchsorted` is asked; of when clicks became known."""
        first = self._database.first
        positions = [self._database.search(int(v), side == "right") - first for v in np.ravel(value)]
        return np.array(positions, np.int64) if np.ndim(value) else np.int64(positions[0])
