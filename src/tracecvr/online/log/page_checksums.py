"""Checksums of the log's pages, by SQLite's own `cksumvfs`, which apsw's packages come with.

A checksum is compared whenever its page is read from the file: a flipped bit is an error, never another content. The
write-ahead log has checksums of SQLite's own. What is lost from its end is noticed by `read_position`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

import apsw
import xxhash

from tracecvr.base.errors import UserError

_RESERVED = 8
"""Bytes at the end of each page that the checksum takes. The header of the file tells how many are reserved."""


@cache
def _load_vfs() -> str:
    db = apsw.Connection(":memory:")
    try:
        from apsw import sqlite_extra

        sqlite_extra.load(db, "cksumvfs")
    except Exception:  # whatever it is: an apsw that a distribution has built may lack the module, too
        raise UserError("this apsw has no checksums of pages: install apsw 3.51 or later from PyPI") from None
    finally:
        db.close()
    return "cksmvfs"


def connect(path: Path) -> apsw.Connection:
    """Open a database. A new one gets checksums; one without them is not as it was written."""
    vfs, reserved = _load_vfs(), _read_reserved(path)
    if reserved is not None and reserved != _RESERVED:
        raise apsw.CorruptError("its pages have no checksums")
    db = apsw.Connection(str(path), vfs=vfs)
    if reserved is None:
        db.reserve_bytes("main", _RESERVED)
    return db


ERRORS = (apsw.Error, UnicodeDecodeError)
"""What reading a database raises: the second of a text that is none, on an exchanged page."""


def is_damage(error: Exception) -> bool:
    """Whether an error says that the file is not what was written."""
    return isinstance(error, apsw.CorruptError | apsw.NotADBError) or _is_other_page(error)


def reason(error: Exception) -> str:
    """What went wrong, in words: SQLite has none of its own for a wrong checksum."""
    return "a page is not as it was written" if _is_other_page(error) else str(error)


def _is_other_page(error: Exception) -> bool:
    checksum = getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_DATA
    return checksum or isinstance(error, UnicodeDecodeError)


def _read_reserved(path: Path) -> int | None:
    """How many bytes of each page are reserved; None of a database that is not there yet."""
    try:
        with path.open("rb") as file:
            header = file.read(21)
    except FileNotFoundError:
        return None
    except OSError:
        return _RESERVED  # whatever is wrong with it, SQLite will say it
    return header[20] if len(header) > 20 else None


def digest(data: bytes, seed: int = 0) -> str:
    """A hash of an array: SQLite's checksum of a page of zeros is zero, so it does not notice one that was lost."""
    return xxhash.xxh3_128_hexdigest(data, seed)


def read_position(log: Path) -> int:
    """The last acknowledged position, from a file beside the log that is written after each commit and not flushed: if
    the log is shorter, its end is lost."""
    try:
        return int(log.with_suffix(".position").read_bytes().partition(b"\n")[0])
    except (FileNotFoundError, ValueError):  # a loss of power may leave an empty file
        return 0


def write_position(log: Path, position: int) -> None:
    """A disk that is full is no reason to refuse what has been accepted."""
    with suppress(OSError):
        file = os.open(log.with_suffix(".position"), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(file, f"{position:020d}\n".encode(), 0)
        finally:
            os.close(file)
