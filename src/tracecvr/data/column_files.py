"""Columns of a table: appended block by block to .npy files, mapped, hashed.

Files are written and hashed through ordinary reads and writes: pages of a map would count as memory of the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from tracecvr.base.errors import UserError
from tracecvr.base.files import not_written
from tracecvr.data.external_sort import Scratch

Array = npt.NDArray[Any]

_BLOCK = 1 << 22
"""Bytes hashed at a time."""


class ColumnFiles:
    """Takes columns in blocks of rows, all with the same names, and keeps them in .npy files: those of a directory,
    where `map_column` finds them, or files without a name."""

    def __init__(self, scratch: Scratch, folder: Path | None = None) -> None:
        self.scratch, self.folder = scratch, folder
        self.files: dict[str, _NpyFile] = {}

    def append(self, block: dict[str, Array]) -> None:
        for name, values in block.items():
            if name not in self.files:
                path = self.folder / f"{name}.npy" if self.folder else None
                self.files[name] = _NpyFile(self.scratch.file(path), path or self.scratch.folder, values)
            self.files[name].append(values)

    def finish(self) -> dict[str, Array]:
        """The whole columns; nothing is appended any more."""
        return {name: file.finish() for name, file in self.files.items()}

    def contents(self, name: str) -> Iterator[bytes]:
        """The bytes of a finished column, in blocks."""
        file = self.files[name]
        file.file.seek(file.start)
        return _blocks(file.file)


class _NpyFile:
    def __init__(self, file: BinaryIO, path: Path, example: Array) -> None:
        self.file, self.path = file, path
        self.dtype, self.width, self.rows = example.dtype, example.shape[1:], 0
        self.start = self._write_header()

    def append(self, values: Array) -> None:
        self._write(np.ascontiguousarray(values).data)
        self.rows += len(values)

    def finish(self) -> Array:
        try:
            self.file.seek(0)
            self._write_header()
            self.file.flush()
        except OSError as error:
            raise not_written(self.path, error) from error
        return _plain(np.memmap(self.file, self.dtype, "r", self.start, (self.rows, *self.width)))

    def _write_header(self) -> int:
        """The .npy header. It leaves room for any number of rows, and so has the same size when they are known."""
        descr = np.lib.format.dtype_to_descr(self.dtype)
        shape = (self.rows, *self.width)
        header = BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
        self._write(header.getbuffer())
        return header.tell()

    def _write(self, content: Any) -> None:
        try:
            self.file.write(content)
        except OSError as error:
            raise not_written(self.path, error) from error


def map_column(path: Path) -> Array:
    """A column in a file, of which nothing is read before it is used."""
    try:
        column: np.memmap[Any, Any] = np.load(path, mmap_mode="r")
    except Exception as error:  # of a header that is damaged, NumPy raises almost anything
        raise UserError(f"{path}: column not readable ({error}); prepare the table again") from None
    size = path.stat().st_size - column.offset
    if column.dtype.kind not in "biuf" or not column.dtype.isnative or column.nbytes != size:
        raise UserError(f"{path}: not a column as it was written; prepare the table again")
    return _plain(column)


def _plain(column: np.memmap[Any, Any]) -> Array:
    """The same memory as an ordinary array: to slice a `memmap` takes several times as long."""
    return column.view(np.ndarray)


def contents(column: Array) -> Iterator[Any]:
    """The bytes of a column, in blocks: where they have to be copied, it is one block at a time."""
    rows = max(1, _BLOCK // max(1, column[:1].nbytes))
    for start in range(0, len(column), rows):
        yield np.ascontiguousarray(column[start : start + rows]).data


def contents_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        yield from _blocks(file)


def fingerprint(head: str, columns: Iterable[Iterable[Any]]) -> str:
    digest = xxhash.xxh3_128(head.encode())
    for blocks in columns:
        for block in blocks:
            digest.update(block)
    return digest.hexdigest()


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(_BLOCK):
        yield block
