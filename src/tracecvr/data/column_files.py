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
    """Takes columns in blocks of rows and keeps them in .npy files: in a directory, or files without a name."""

    def __init__(self, scratch: Scratch, folder: Path | None = None) -> None:
        self.scratch, self.folder, self.rows = scratch, folder, 0
        self.files: dict[str, BinaryIO] = {}
        self.forms: dict[str, Array] = {}  # of each column, an array without rows

    def append(self, block: dict[str, Array]) -> None:
        for name, values in block.items():
            if name not in self.files:
                self.forms[name] = values[:0]
                self.files[name] = self.scratch.file(self._path(name) if self.folder else None)
                self._write(name, self._header(name))
            self._write(name, np.ascontiguousarray(values).data)
        self.rows += len(next(iter(block.values())))

    def finish(self) -> dict[str, Array]:
        """The whole columns; nothing is appended any more."""
        columns = {}
        for name, file in self.files.items():
            file.seek(0)
            self._write(name, header := self._header(name))
            form = self.forms[name]
            whole = np.memmap(file, form.dtype, "r", len(header), (self.rows, *form.shape[1:]))
            columns[name] = whole.view(np.ndarray)
        return columns

    def _header(self, name: str) -> bytes:
        """The .npy header. It leaves room for any number of rows, and so has the same size when they are known."""
        form, header = self.forms[name], BytesIO()
        descr, shape = np.lib.format.dtype_to_descr(form.dtype), (self.rows, *form.shape[1:])
        np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
        return header.getvalue()

    def _write(self, name: str, content: Any) -> None:
        try:
            self.files[name].write(content)
            self.files[name].flush()
        except OSError as error:
            raise not_written(self._path(name), error) from error

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.npy" if self.folder else self.scratch.folder


def map_column(path: Path) -> Array:
    """A column in a file, of which nothing is read before it is used."""
    try:
        column: np.memmap[Any, Any] = np.load(path, mmap_mode="r")
    except Exception as error:  # of a header that is damaged, NumPy raises almost anything
        raise UserError(f"{path}: column not readable ({error}); prepare the table again") from None
    size = path.stat().st_size - column.offset
    if column.dtype.kind not in "biuf" or not column.dtype.isnative or column.nbytes != size:
        raise UserError(f"{path}: not a column as it was written; prepare the table again")
    return column.view(np.ndarray)  # to slice a `memmap` takes several times as long


def contents(column: Array) -> Iterator[Any]:
    """The bytes of a column, in blocks: where they have to be copied, it is one block at a time."""
    rows = max(1, _BLOCK // max(1, column[:1].nbytes))
    for start in range(0, len(column), rows):
        yield np.ascontiguousarray(column[start : start + rows]).data


def read_contents(file: BinaryIO) -> Iterator[bytes]:
    """The bytes of a column in a file, in blocks."""
    file.seek(0)
    np.lib.format.read_magic(file)
    np.lib.format.read_array_header_1_0(file)
    while block := file.read(_BLOCK):
        yield block


def fingerprint(head: str, columns: Iterable[Iterable[Any]]) -> str:
    digest = xxhash.xxh3_128(head.encode())
    for blocks in columns:
        for block in blocks:
            digest.update(block)
    return digest.hexdigest()
