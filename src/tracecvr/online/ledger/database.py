"""The ledger's database: a file of SQLite that has no name any more, so that only its learner has it.

It is built from the event log when a learner starts, and is gone when that ends. Pages have checksums
(`page_checksums`): whatever is not as it was written is a `DamagedLedgerError`, before anybody learns from it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import numpy as np

from tracecvr.base.errors import UserError
from tracecvr.base.files import not_written
from tracecvr.data.table import Ints
from tracecvr.online.log import page_checksums

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
    """The ledger is not as it was written. It can be built anew from the log."""


class LedgerDatabase:
    """Its file takes room in a folder; without one, where SQLite keeps temporary files, and has no checksums."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._db: apsw.Connection | None = None

    def clear(self) -> None:
        """Begin anew."""
        self.close()
        path = None if self.folder is None else self.folder / f".ledger.{os.getpid()}.tmp"
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
                raise not_written(self.folder or Path("the ledger"), error) from error
            raise DamagedLedgerError(f"the ledger is damaged ({page_checksums.reason(error)})") from error
