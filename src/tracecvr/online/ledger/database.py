"""The ledger's database: clicks in blocks that never change, what became known of them, and actions without a click.

SQLite keeps it whole: what an interval changes is one transaction. Pages have checksums (`page_checksums`). Columns of
clicks are arrays, a row of `arrays` for each column of a block, with a hash: SQLite's checksum of a page of zeros is
zero. Whatever is not as it was written is a `DamagedLedgerError`, before anybody learns from it.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import numpy as np
import numpy.typing as npt
import xxhash

from tracecvr.base.errors import UserError
from tracecvr.base.files import make_private, not_written
from tracecvr.data.table import NEVER, TURNS, Ints
from tracecvr.online.log import page_checksums

Array = npt.NDArray[Any]

LEDGER, DATABASE = "ledger", "ledger.db"
"""The folder of a store, or of a challenger, with its ledger; and the file in it."""
_FORMAT = 2
ROWS = 1 << 16
"""Clicks of a block at most. A block has clicks of one interval, or of the log that a store started from."""
_CACHED = 16 << 20
"""Bytes of arrays that are kept in memory after they were read."""
_DENSE = 8
"""If so many rows of a range are asked for, one in so many at least, actions of the whole range are read."""
_MOST_COLUMNS = 16

_SCHEMA = """
CREATE TABLE facts(content TEXT NOT NULL);
CREATE TABLE blocks(first INTEGER PRIMARY KEY, size INTEGER NOT NULL, since INTEGER NOT NULL, until INTEGER NOT NULL);
CREATE TABLE arrays(id INTEGER PRIMARY KEY, hash TEXT NOT NULL, data BLOB NOT NULL);
CREATE TABLE actions(row INTEGER, kind INTEGER, ts INTEGER NOT NULL, seen INTEGER NOT NULL, PRIMARY KEY(row, kind))
  WITHOUT ROWID;
CREATE INDEX actions_seen ON actions(seen);
CREATE TABLE late(ts INTEGER, row INTEGER, PRIMARY KEY(ts, row)) WITHOUT ROWID;
CREATE TABLE waiting(  -- actions that came without their click
  seen INTEGER NOT NULL, ts INTEGER NOT NULL, kind INTEGER NOT NULL, click INTEGER NOT NULL,
  joined INTEGER         -- the start of the interval in which it came
);
CREATE INDEX waiting_click ON waiting(click);
CREATE INDEX waiting_seen ON waiting(seen);
"""


class DamagedLedgerError(UserError):
    """The ledger is not as it was written. It can be built anew from the log."""


class Block(NamedTuple):
    """Clicks `first` to `first + size`, and when the first and the last of them became known."""

    first: int
    size: int
    since: int
    until: int


class Known(NamedTuple):
    """What is known of some clicks."""

    action_ts: Ints
    known_ts: Ints
    refund_ts: Ints


class LedgerDatabase:
    """Without a folder it is in memory. If it is temporary, nobody opens it again: nothing waits for the disk."""

    def __init__(self, folder: Path | None, features: int, actions: int, temporary: bool = False) -> None:
        self.folder, self.actions, self._temporary = folder, actions, temporary
        self.layout: dict[str, tuple[str, int]] = {
            "arrival_ts": ("i8", 0),
            "click_ts": ("i8", 0),
            "click_id": ("i8", 0),
            "version": ("i8", 0),
            "x": ("i4", features),
            "score": ("f4", 0),
            "erased": ("?", 0),
        }
        if folder is not None:
            folder.mkdir(mode=0o700, exist_ok=True)
            make_private(folder)
        self._db: apsw.Connection | None = None
        self._forget()

    @property
    def path(self) -> Path | None:
        return None if self.folder is None else self.folder / DATABASE

    # On disk.

    def clear(self) -> None:
        """Begin anew."""
        self.close()
        if self.folder is not None:
            for path in self.folder.iterdir():
                path.unlink()
        with self._errors():
            self._db = self._connect()
            self._db.execute(_SCHEMA)
            self._db.execute("BEGIN")

    def read(self) -> dict[str, Any] | None:
        """Open what was committed last, and say what it is; None if there is nothing that could be read."""
        self.close()
        if self.path is None or not self.path.is_file():
            return None
        try:
            with self._errors():
                return self._read()
        except (DamagedLedgerError, ValueError, KeyError, TypeError):
            self.close()
            return None

    def _read(self) -> dict[str, Any] | None:
        assert self.path is not None
        if page_checksums.available() and not page_checksums.checked(self.path):
            return None
        log = self.path.with_name(f"{DATABASE}-wal")
        left = log.is_file() and log.stat().st_size > 0
        self._db = self._connect()
        # A transaction is moved to the database as soon as it is whole. If there is one that is not, the power may have
        # gone while it was moved, and the rest of it is lost.
        if left and not self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)[0]:
            return None
        self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        content: dict[str, Any] = json.loads(self._db.execute("SELECT content FROM facts").get or "{}")
        if content.pop("format", None) != _FORMAT:
            return None
        blocks = [Block(*row) for row in self._db.execute("SELECT * FROM blocks ORDER BY first")]
        if content.pop("blocks") != _digest(json.dumps(blocks).encode()):
            return None
        self._set_blocks(blocks)
        self._db.execute("BEGIN")
        return content

    def commit(self, facts: Mapping[str, Any]) -> None:
        """Let this be the ledger that is opened next."""
        with self._errors():
            content = {**facts, "format": _FORMAT, "blocks": _digest(json.dumps(self.blocks).encode())}
            self._run("DELETE FROM facts")
            self._run("INSERT INTO facts VALUES(?)", (json.dumps(content),))
            self.flush()

    def flush(self) -> None:
        """Let memory be free of what was written. Without facts, it is not opened again."""
        with self._errors():
            self._run("COMMIT")
            if self.folder is not None and not self._temporary:
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self._run("BEGIN")

    def close(self) -> None:
        """What was not committed is gone."""
        if self._db is not None:
            with suppress(apsw.Error):  # of one that is damaged
                self._db.close(force=True)
        self._db = None
        self._forget()

    def _connect(self) -> apsw.Connection:
        if self.path is None:
            return apsw.Connection(":memory:")
        db = page_checksums.connected(self.path)
        make_private(self.path)
        pragmas = ["locking_mode = EXCLUSIVE", "secure_delete = ON", "cache_spill = OFF"]
        durable = ["journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 0"]
        for pragma in [*pragmas, *(["journal_mode = OFF", "synchronous = OFF"] if self._temporary else durable)]:
            db.execute(f"PRAGMA {pragma}")
        return db

    def _forget(self) -> None:
        self._set_blocks([])
        self._cache: OrderedDict[int, Array] = OrderedDict()
        self._cached = 0
        self._asked: tuple[Ints, Known] | None = None

    def wrong(self) -> list[str]:
        """What is not as it was written. Reads everything."""
        try:
            with self._errors():
                texts = [" ".join(text.split()) for (text,) in self._run("PRAGMA integrity_check(3)") if text != "ok"]
                found = [f"{self.path} is damaged ({text})" for text in texts]
                for block in self.blocks if not found else ():
                    for name in self.layout:
                        self._load(block, name)
        except DamagedLedgerError as error:
            return [str(error)]
        return found

    @property
    def _connection(self) -> apsw.Connection:
        if self._db is None:
            raise DamagedLedgerError(f"{self.path} is not open")
        return self._db

    def _run(self, query: str, values: tuple[Any, ...] = ()) -> Any:
        return self._connection.execute(query, values)

    def _rows(self, query: str, values: tuple[Any, ...], columns: int) -> Ints:
        """What a query finds, an array for each column."""
        with self._errors():
            rows = self._run(query, values).fetchall()
        return np.array(rows, np.int64).reshape(len(rows), columns).T

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except apsw.FullError as error:
            raise not_written(Path(str(self.path)), error) from error
        except apsw.Error as error:
            if isinstance(error, apsw.IOError | apsw.ReadOnlyError | apsw.CantOpenError) and not page_checksums.damaged(
                error
            ):
                raise not_written(Path(str(self.path)), error) from error
            raise DamagedLedgerError(f"{self.path} is damaged ({page_checksums.reason(error)})") from error

    # Clicks.

    def _set_blocks(self, blocks: list[Block]) -> None:
        self.blocks = blocks
        self.first = blocks[0].first if blocks else 0
        self.end = blocks[-1].first + blocks[-1].size if blocks else 0
        self._firsts = np.array([block.first for block in blocks], np.int64)
        self._untils = np.array([block.until for block in blocks], np.int64)

    def __len__(self) -> int:
        return self.end - self.first

    def column(self, name: str) -> Column:
        """A column, by position: the first row that is held has position 0."""
        return Column(self, name)

    def append(self, columns: Mapping[str, Array]) -> Ints:
        """Clicks after all others; their numbers."""
        end, size, blocks = self.end, len(columns["arrival_ts"]), list(self.blocks)
        with self._errors():
            for at in range(0, size, ROWS):
                part = {name: values[at : at + ROWS] for name, values in columns.items()}
                arrival = part["arrival_ts"]
                block = Block(end + at, len(arrival), int(arrival[0]), int(arrival[-1]))
                self._run("INSERT INTO blocks VALUES(?, ?, ?, ?)", block)
                self._store(block, part)
                blocks.append(block)
        self._set_blocks(blocks)
        return np.arange(end, end + size, dtype=np.int64)

    def _store(self, block: Block, columns: Mapping[str, Array]) -> None:
        for name, values in columns.items():
            number, data = self._number(block, name), np.ascontiguousarray(values, self.layout[name][0]).tobytes()
            self._uncache(number)
            self._run("INSERT OR REPLACE INTO arrays VALUES(?, ?, ?)", (number, _digest(data, number), data))

    def _number(self, block: Block, name: str) -> int:
        return block.first * _MOST_COLUMNS + list(self.layout).index(name)

    def _uncache(self, number: int) -> None:
        if (old := self._cache.pop(number, None)) is not None:
            self._cached -= old.nbytes

    def array(self, block: Block, name: str) -> Array:
        """A column of a block."""
        number = self._number(block, name)
        if (held := self._cache.get(number)) is not None:
            self._cache.move_to_end(number)
            return held
        values = self._load(block, name)
        self._cache[number] = values
        self._cached += values.nbytes
        while self._cached > _CACHED and len(self._cache) > 1:
            self._uncache(next(iter(self._cache)))
        return values

    def _load(self, block: Block, name: str) -> Array:
        number, (kind, width) = self._number(block, name), self.layout[name]
        with self._errors():
            row = self._run("SELECT hash, data FROM arrays WHERE id = ?", (number,)).fetchone()
        if row is None or row[0] != _digest(row[1], number):
            raise DamagedLedgerError(f"{self.path} is damaged ({name} of clicks {block.first} and after)")
        values = np.frombuffer(row[1], kind)
        return values.reshape(block.size, width) if width else values

    def change(self, number: Ints, values: Mapping[str, Array]) -> None:
        """Write other values to some clicks."""
        for block, which in self._parts(number):
            changed = {name: self.array(block, name).copy() for name in values}
            for name, value in values.items():
                changed[name][number[which] - block.first] = value[which]
            with self._errors():
                self._store(block, changed)

    def gather(self, name: str, number: Ints) -> Array:
        """Values of clicks, in any order."""
        kind, width = self.layout[name]
        values = np.empty((len(number), width) if width else len(number), kind)
        for block, which in self._parts(number):
            values[which] = self.array(block, name)[number[which] - block.first]
        return values

    def part(self, name: str, first: int, end: int) -> Array:
        """Values of the clicks from one number to another."""
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
                found = np.full(len(keys), -1)
                found[np.searchsorted(keys, ids[hits])] = block.first + hits
                number[asked] = np.maximum(number[asked], found[place])
        return number

    def truncate(self, time: int) -> None:
        """Take back what became known since a time, with which an interval starts."""
        end = self.search(time)
        with self._errors():
            self._delete([block for block in self.blocks if block.first >= end])
            self._run("DELETE FROM actions WHERE seen >= ?", (time,))
            self._run("DELETE FROM late WHERE row >= ?", (end,))
            self._run("DELETE FROM waiting WHERE seen >= ?", (time,))
            self._run("UPDATE waiting SET joined = NULL WHERE joined >= ?", (time,))
        self._asked = None

    def drop(self, before: int, waiting: int) -> None:
        """Forget clicks that became known before a time, and actions that waited since before another. The last block
        stays: numbers go on from it."""
        over = [block for block in self.blocks[:-1] if block.until < before]
        with self._errors():
            self._delete(over)
            if over:
                end = over[-1].first + over[-1].size
                self._run("DELETE FROM actions WHERE row < ?", (end,))
                self._run("DELETE FROM late WHERE row < ?", (end,))
            self._run("DELETE FROM waiting WHERE seen < ?", (waiting,))

    def _delete(self, blocks: list[Block]) -> None:
        for block in blocks:
            numbers = [self._number(block, name) for name in self.layout]
            for number in numbers:
                self._uncache(number)
            self._run("DELETE FROM arrays WHERE id BETWEEN ? AND ?", (numbers[0], numbers[-1]))
            self._run("DELETE FROM blocks WHERE first = ?", (block.first,))
        if blocks:
            self._set_blocks([block for block in self.blocks if block not in set(blocks)])

    def _parts(self, number: Ints) -> Iterator[tuple[Block, Ints]]:
        """Blocks that clicks are in, and which of the clicks."""
        where = np.searchsorted(self._firsts, number, side="right") - 1
        order = np.argsort(where, kind="stable")
        ends = np.flatnonzero(np.diff(where[order])) + 1
        for which in np.split(order, ends) if len(order) else ():
            yield self.blocks[where[which[0]]], which

    # Actions.

    def note(self, row: Ints, kind: Ints, ts: Ints, seen: Ints) -> None:
        """Actions that became known of clicks: kinds from 1 on, then one for each of `TURNS`. The first of each counts."""
        facts = zip(row.tolist(), kind.tolist(), ts.tolist(), seen.tolist(), strict=True)
        with self._errors():
            self._connection.executemany("INSERT OR IGNORE INTO actions VALUES(?, ?, ?, ?)", sorted(facts))
        self._asked = None

    def known(self, number: Ints) -> Known:
        """What is known of clicks."""
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
            found = self._rows(query, (int(rows[0]), int(rows[-1])), 4)
            return found[:, np.isin(found[0], rows, assume_unique=False)]
        query = "SELECT * FROM actions WHERE row IN (SELECT value FROM json_each(?))"
        return self._rows(query, (json.dumps(rows.tolist()),), 4)

    def seen_between(self, kind: int, start: int, end: int) -> Ints:
        """Clicks of which an action of a kind became known in a range of time, in the order in which it did."""
        query = "SELECT row FROM actions WHERE seen >= ? AND seen < ? AND kind = ? ORDER BY seen, row"
        rows: Ints = self._rows(query, (start, end, kind), 1)[0]
        return rows

    def forget_actions(self, rows: Iterable[int]) -> None:
        """Leave nothing of what is known of clicks."""
        with self._errors():
            self._connection.executemany("DELETE FROM actions WHERE row = ?", [(row,) for row in rows])
        self._asked = None

    # Clicks that came late.

    def note_late(self, ts: Ints, row: Ints) -> None:
        with self._errors():
            pairs = zip(ts.tolist(), row.tolist(), strict=True)
            self._connection.executemany("INSERT INTO late VALUES(?, ?)", list(pairs))

    def late_between(self, start: int, end: int) -> Ints:
        """Late clicks that happened in a range of time."""
        rows: Ints = self._rows("SELECT row FROM late WHERE ts >= ? AND ts < ?", (start, end), 1)[0]
        return rows

    # Actions that wait for their click.

    def wait(self, actions: Iterable[tuple[int, int, int, int]]) -> None:
        """Keep actions, as (seen, ts, kind, click), until their click comes."""
        with self._errors():
            self._connection.executemany("INSERT INTO waiting VALUES(?, ?, ?, ?, NULL)", list(actions))

    def join_waiting(self, clicks: Ints, since: int, start: int) -> list[tuple[int, int, int, int]]:
        """Actions that have waited since a time, or less long, for clicks that came in an interval."""
        condition = "joined IS NULL AND seen >= ? AND click IN (SELECT value FROM json_each(?))"
        values = since, json.dumps(clicks.tolist())
        if not self.still_waiting(since, NEVER):
            return []
        with self._errors():
            found = self._run(f"SELECT seen, ts, kind, click FROM waiting WHERE {condition} ORDER BY rowid", values)
            rows: list[tuple[int, int, int, int]] = found.fetchall()
            self._run(f"UPDATE waiting SET joined = ? WHERE {condition}", (start, *values))
        return rows

    def still_waiting(self, since: int, until: int) -> int:
        """How many became known in a range of time and have no click yet."""
        query = "SELECT count(*) FROM waiting WHERE seen >= ? AND seen < ? AND joined IS NULL"
        with self._errors():
            return int(self._run(query, (since, until)).get)

    def waiting(self) -> list[tuple[int, int, int, int, int]]:
        """All that waited: (number, seen, ts, kind, click)."""
        with self._errors():
            rows: list[tuple[int, int, int, int, int]] = self._run(
                "SELECT rowid, seen, ts, kind, click FROM waiting ORDER BY rowid"
            ).fetchall()
        return rows

    def forget_waiting(self, numbers: Iterable[int]) -> None:
        with self._errors():
            self._connection.executemany("DELETE FROM waiting WHERE rowid = ?", [(number,) for number in numbers])


class Column:
    """A column of the clicks, read as an array is: by position, slice or array of positions. Columns that are not in
    blocks are what is known of clicks."""

    def __init__(self, database: LedgerDatabase, name: str) -> None:
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


def _digest(data: bytes, seed: int = 0) -> str:
    return xxhash.xxh3_128_hexdigest(data, seed)
