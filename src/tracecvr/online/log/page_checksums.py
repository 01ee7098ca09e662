"""Checksums of the log's pages, by SQLite's own `cksumvfs`, which apsw's packages come with.

Each page of the database ends in a checksum of 8 bytes. It is written with the page and compared whenever the page is
read from the file or from the write-ahead log: a flipped bit is an error, never another content. What is lost from the
end of the log is another matter: see `Acknowledged`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

import apsw

from tracecvr.base.errors import UserError

_VFS = "cksmvfs"
_RESERVED = 8
"""Bytes at the end of each page that the checksum takes. The header of the file tells how many are reserved."""


@cache
def available() -> bool:
    """Whether this apsw has the checksums; loads them, once in a process."""
    try:
        from apsw import sqlite_extra
    except ImportError:  # an apsw that a distribution has built
        return False
    db = apsw.Connection(":memory:")
    try:
        sqlite_extra.load(db, "cksumvfs")
    except (apsw.Error, sqlite_extra.NotAvailable):
        return False
    finally:
        db.close()
    return _VFS in apsw.vfs_names()


def connected(path: Path) -> apsw.Connection:
    """A connection to a database. A new one gets checksums, if apsw has them; one without them stays as it is."""
    reserved = _reserved(path)
    if not available():
        if reserved == _RESERVED:
            raise UserError(f"{path} has checksums that this apsw cannot keep: install apsw 3.51 or later from PyPI")
        return apsw.Connection(str(path))
    db = apsw.Connection(str(path), vfs=_VFS)
    if reserved is None:
        db.reserve_bytes("main", _RESERVED)
    return db


def checked(path: Path) -> bool:
    """Whether a database has checksums."""
    return _reserved(path) == _RESERVED


def damaged(error: apsw.Error) -> bool:
    """Whether an error says that the file is not what was written."""
    return isinstance(error, apsw.CorruptError | apsw.NotADBError) or _is_checksum(error)


def reason(error: apsw.Error) -> str:
    """What went wrong, in words: SQLite has none of its own for a wrong checksum."""
    return "a page is not as it was written" if _is_checksum(error) else str(error)


def _is_checksum(error: apsw.Error) -> bool:
    return getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_DATA


def _reserved(path: Path) -> int | None:
    """How many bytes of each page are reserved; None of a database that is not there yet."""
    try:
        with path.open("rb") as file:
            header = file.read(21)
    except FileNotFoundError:
        return None
    except OSError:
        return 0  # whatever is wrong with it, SQLite will say it
    return header[20] if len(header) > 20 else None


class Acknowledged:
    """The last acknowledged position of the log: a number in a file beside it.

    It is written after each commit and not flushed, so it is never ahead of what was on disk. If the log is shorter,
    its end is lost: its write-ahead log was removed, say.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __int__(self) -> int:
        try:
            return int(self.path.read_bytes())
        except (FileNotFoundError, ValueError):  # a loss of power may leave an empty file
            return 0

    def note(self, position: int) -> None:
        """A disk that is full is no reason to refuse what has been accepted."""
        with suppress(OSError):
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(file, f"{position:020d}\n".encode(), 0)
            finally:
                os.close(file)
