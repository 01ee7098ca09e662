"""The ledger's database: one file of SQLite, opened by one learner at a time.

What an interval changes is one transaction. Pages have checksums (`page_checksums`). Whatever is not as it was written
is a `DamagedLedgerError`, before anybody learns from it. What is in it: `open_clicks`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import numpy as np

from tracecvr.base.errors import UserError
from tracecvr.base.files import make_private, not_written
from tracecvr.data.table import Ints
from tracecvr.online.log import page_checksums

LEDGER, DATABASE = "ledger", "ledger.db"
"""The folder of a store, or of a challenger, with its ledger; and the file in it."""
_FORMAT = 5

_SCHEMA = """
CREATE TABLE facts(content TEXT NOT NULL);
CREATE TABLE blocks(first INTEGER PRIMARY KEY, size INTEGER NOT NULL, since INTEGER NOT NULL, until INTEGER NOT NULL);
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


_ROWS = {
    "blocks": "{0}.first * 31 + {0}.size, {0}.since * 17 + {0}.until",
    "actions": "{0}.row * 31 + {0}.kind, {0}.ts * 17 + {0}.seen",
    "payments": "{0}.row * 31 + {0}.refund, {0}.ts * 17 + {0}.seen + CAST({0}.amount AS INTEGER) % 1000003",
    "late": "{0}.row, {0}.ts",
    "waiting": "{0}.click % 1000003 * 31 + {0}.kind, {0}.ts * 17 + {0}.seen + CAST({0}.amount AS INTEGER) % 1000003",
}
"""Tables whose rows have no hash of their own: two numbers of each row that are made one."""


def _number(table: str, row: str) -> str:
    """A row as a number, in SQL. What is multiplied does not overflow."""
    one, other = _ROWS[table].format(row).split(", ")
    return f"((({one}) % 1000003 + 7) * (({other}) % 2147483647) % 2147483629)"


_SUMS = "CREATE TABLE sums(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;" + "".join(
    f"""INSERT INTO sums VALUES('{table}', 0);
    CREATE TRIGGER {table}_come AFTER INSERT ON {table} BEGIN
      UPDATE sums SET value = value + {_number(table, "NEW")} WHERE name = '{table}'; END;
    CREATE TRIGGER {table}_go AFTER DELETE ON {table} BEGIN
      UPDATE sums SET value = value - {_number(table, "OLD")} WHERE name = '{table}'; END;"""
    for table in _ROWS
)
"""What the rows of each table add up to, by what was put in and taken out, never by what is there: a page that the disk
has lost the last content of has the right checksum, and so has an exchanged one."""


class DamagedLedgerError(UserError):
    """The ledger is not as it was written. It can be built anew from the log."""


class LedgerDatabase:
    """Without a folder it is temporary: in memory and, what does not fit there, in a file that nobody sees."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        if folder is not None:
            if folder.exists() and not folder.is_dir():
                raise UserError(f"{folder} is no folder: remove it, and the learner builds it anew from the log")
            folder.mkdir(mode=0o700, exist_ok=True)
            make_private(folder)
        self._db: apsw.Connection | None = None

    @property
    def path(self) -> Path | None:
        return None if self.folder is None else self.folder / DATABASE

    def clear(self) -> None:
        """Begin anew."""
        self.close()
        if self.folder is not None:
            for path in self.folder.iterdir():
                path.unlink()
        with self._errors():
            self._db = self._connect()
            self._db.execute("BEGIN;" + (_SCHEMA if self.folder is None else _SCHEMA + _SUMS))

    def read(self) -> dict[str, Any] | None:
        """Open what was committed last, and say what it is: nothing if its writer was killed before it was whole, and
        None if it cannot be read."""
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
        log = self.path.with_name(f"{DATABASE}-wal")
        left = log.is_file() and log.stat().st_size > 0
        self._db = self._connect()
        # A transaction is moved to the database as soon as it is whole. If there is one that is not, the power may have
        # gone while it was moved, and the rest of it is lost.
        if left and not self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)[0]:
            return {}
        self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        has_tables = self._db.execute("SELECT count(*) FROM sqlite_master").get
        text = self._db.execute("SELECT content FROM facts").get if has_tables else None
        if text is None:
            return {}
        # A page's checksum does not say which page it is, nor whether it is the newest.
        checks = (self._db.execute(f"PRAGMA integrity_check({table})").get for table in _ROWS)
        if any(check != "ok" for check in checks):
            return None
        content: dict[str, Any] = json.loads(text)
        if content.pop("format", None) != _FORMAT:
            return None
        queries = (f"SELECT '{name}', coalesce(sum({_number(name, name)}), 0) FROM {name}" for name in _ROWS)
        if not content.pop("sums") == self._sums() == dict(self._run(" UNION ALL ".join(queries))):
            return None
        self._db.execute("BEGIN")
        return content

    def commit(self, facts: Mapping[str, Any]) -> None:
        """Let this be the ledger that is opened next."""
        with self._errors():
            self._run("DELETE FROM facts")
            sums = {} if self.folder is None else {"sums": self._sums()}
            self._run("INSERT INTO facts VALUES(?)", (json.dumps({**facts, **sums, "format": _FORMAT}),))
            self.flush()

    def _sums(self) -> dict[str, int]:
        return dict(self._run("SELECT * FROM sums"))

    def flush(self) -> None:
        """Let memory be free of what was written. Without facts, it is not opened again."""
        with self._errors():
            self._run("COMMIT")
            if self.folder is not None:
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self._run("BEGIN")

    def close(self) -> None:
        """What was not committed is gone."""
        if self._db is not None:
            with suppress(apsw.Error):  # of one that is damaged
                self._db.close(force=True)
        self._db = None

    def _connect(self) -> apsw.Connection:
        if self.path is None:
            db, pragmas = apsw.Connection(""), ["journal_mode = OFF", "synchronous = OFF"]
        else:
            db = page_checksums.connect(self.path)
            make_private(self.path)
            pragmas = ["locking_mode = EXCLUSIVE", "secure_delete = ON", "cache_spill = OFF"]
            pragmas += ["journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 0"]
        for pragma in pragmas:
            db.execute(f"PRAGMA {pragma}")
        return db

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
        except apsw.Error as error:
            disk = apsw.FullError | apsw.IOError | apsw.ReadOnlyError | apsw.CantOpenError
            if isinstance(error, disk) and not page_checksums.is_damage(error):
                raise not_written(Path(str(self.path)), error) from error
            raise DamagedLedgerError(f"{self.path} is damaged ({page_checksums.reason(error)})") from error
