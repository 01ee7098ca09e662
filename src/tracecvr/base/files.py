"""Writing files so that a crash or a full disk never leaves half of one; reading them with errors that name them."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
import tomllib
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import polars as pl
from safetensors import SafetensorError

from tracecvr.base.errors import HeldError, UserError, explain


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary neighbour, flush it to disk, then rename it to `path`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            write(temporary)
            sync(temporary)
            temporary.chmod(0o644)
            temporary.rename(path)
            sync(path.parent)
        except (OSError, pl.exceptions.PolarsError, SafetensorError) as error:
            raise not_written(path, error) from error
    finally:
        with suppress(OSError):  # of a disk that is read-only even that cannot be removed which is not there
            temporary.unlink(missing_ok=True)


class NotWrittenError(UserError):
    """A file could not be written: the fault of the disk, not of what was asked for."""


def not_written(path: Path, error: Exception) -> NotWrittenError:
    """The error for a file that could not be written: libraries' own seldom name it."""
    if isinstance(error, IsADirectoryError | PermissionError):
        return NotWrittenError(explain(error, path))
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return NotWrittenError(f"{path}: could not be written ({reason}); free some space, or write elsewhere")


class TemporaryFolder:
    """A new directory that is removed with this object."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="tracecvr-"))
        self._removed = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def make_private(path: Path) -> None:
    """Let only its owner read a file, if it is ours. A group that may write to it keeps its rights."""
    with suppress(OSError):  # there is no such file, or its owner decides
        mode = path.stat().st_mode & 0o777
        kept = mode & (0o770 if mode & 0o020 else 0o700)
        if kept != mode:
            path.chmod(kept)


def write_json(path: Path, content: Any) -> None:
    """Indented JSON, keys in the order given; NaN is refused because JSON has none."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_parquet(path: Path, frame: pl.DataFrame) -> None:
    """A frame as a Parquet file; the same frame gives the same bytes."""
    write_atomically(path, frame.write_parquet)


def read_json(path: Path) -> Any:
    """The content of a JSON file this package wrote."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:  # a folder of that name, say
        raise UserError(explain(error, path)) from None
    except (ValueError, RecursionError) as error:  # not JSON, not text, or numbers and depths that Python refuses
        raise UserError(f"{path}: not readable as JSON ({error}); the file is damaged") from None


def refuse_other_format(content: Any, expected: int, path: Path) -> None:
    """Refuse the content of a file that another version of this package wrote in another format."""
    if (other := content.get("format") if isinstance(content, dict) else None) != expected:
        raise UserError(f"{path}: format {other!r}, expected {expected}: another version of tracecvr wrote it")


def read_toml(path: Path, given_as: str) -> dict[str, Any]:
    """The content of a user's TOML file."""
    try:
        return tomllib.loads(check_exists(path, given_as).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, PermissionError) as error:
        raise UserError(f"{path}: not readable as TOML ({error})") from None


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(
    folder: Path,
    otherwise: str = "wait for it, or choose another --out",
    name: str = ".lock",
    patience: float = 0.0,
) -> Iterator[None]:
    """Hold a directory for one process; the kernel lets go of it however the process ends. `otherwise` is what to do if
    another has it for longer than `patience` seconds, `name` tells what it is held for."""
    deadline = time.monotonic() + patience
    with (folder / name).open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise HeldError(f"{folder} is in use by another process: {otherwise}") from None
                time.sleep(0.02)
        yield


def is_locked(folder: Path) -> bool:
    try:
        with (folder / ".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_exists(path: Path, given_as: str = "") -> Path:
    """`path` itself, once it is known to be a readable, non-empty file."""
    if not path.exists():
        raise UserError(f"{path}: no such file; check the path{given_as and f' given as {given_as}'}")
    if path.is_file() and path.stat().st_size == 0:
        raise UserError(f"{path}: the file is empty")
    return path
