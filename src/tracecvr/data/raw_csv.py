"""Raw text logs: read typed and fast, in batches, when they are sound; else the first wrong line is looked up.

Nothing is quoted in these logs, so row i of the frame is line i of the file, and every message can name its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import polars as pl

from tracecvr.base.errors import UserError
from tracecvr.base.files import check_exists
from tracecvr.data.external_sort import Scratch

_BATCH = 1 << 17
"""Rows parsed at a time."""

_BLOCK = 1 << 24
"""Bytes counted at a time."""

ARCHIVES = {b"\x1f\x8b": "gzip", b"PK": "zip", b"\x28\xb5": "zstd", b"BZ": "bzip2", b"\xfd7": "xz"}
"""Kinds of archives by their first two bytes."""

_SEPARATORS = {"\t": "tabs", ",": "commas"}


@dataclass(frozen=True)
class Field:
    """A column of a raw file and the values it may hold; only `optional` ones may be left empty."""

    name: str
    dtype: pl.DataType | type[pl.DataType] = pl.Int64
    optional: bool = False
    low: int | None = None
    high: int | None = None

    @property
    def expected(self) -> str:
        """What belongs here, in words."""
        words = "text"
        if isinstance(self.dtype, pl.Enum):
            words = "one of " + ", ".join(self.dtype.categories)
        elif self.dtype.is_float():
            words = "a number"
        elif self.dtype.is_integer():
            words = "a whole number"
        if self.low is not None:
            words += f" from {self.low} to {self.high}" if self.high is not None else f" of at least {self.low}"
        return words + (" or nothing" if self.optional else "")

    def bad(self) -> pl.Expr:
        """Which values of a parsed column do not belong there."""
        value = pl.col(self.name)
        bad = pl.lit(False) if self.optional else value.is_null()
        if self.low is not None:
            bad |= (value < self.low).fill_null(False)
        if self.high is not None:
            bad |= (value > self.high).fill_null(False)
        if self.dtype.is_float():
            bad |= (~value.is_finite()).fill_null(False)
        return bad

    def takes(self, cell: str) -> bool:
        """Whether a cell, as it is written, belongs here."""
        if not cell or self.dtype == pl.String:
            return bool(cell) or self.optional
        if isinstance(self.dtype, pl.Enum):
            return cell in self.dtype.categories
        if not re.fullmatch(r"[+-]?\d+" if self.dtype.is_integer() else r"[-+.\deE]+", cell):
            return False
        try:
            value = float(cell) if self.dtype.is_float() else int(cell)
        except ValueError:
            return False
        low, high = -(2**63) if self.low is None else self.low, 2**63 - 1 if self.high is None else self.high
        return isfinite(value) and (self.dtype.is_float() or low <= value <= high)


def read_csv(path: Path, fields: Sequence[Field], separator: str = ",", header: bool = False) -> pl.DataFrame:
    return pl.concat(read_blocks(path, fields, Scratch(), separator, header))


def read_blocks(
    path: Path, fields: Sequence[Field], scratch: Scratch, separator: str = ",", header: bool = False
) -> Iterator[pl.DataFrame]:
    """The same in blocks of rows, in the order of the file: for logs bigger than memory."""
    refuse_archive(path, head(path))
    columns, first = (_by_header(path, fields, separator), 2) if header else (tuple(fields), 1)
    lines, separators = _count(path, separator)
    total, rows = lines + 1 - first, 0
    if separators != lines * (len(columns) - 1):  # polars fills short lines with nulls and says nothing
        _refuse_first_fault(path, columns, separator, first)
    # No columns are left out before parsing: polars would then not notice lines that are too long.
    schema = {column.name: column.dtype for column in columns}
    scan = pl.scan_csv(path, has_header=header, schema=schema, separator=separator, quote_char=None, glob=False)
    yield pl.DataFrame(schema=schema).select(f.name for f in fields)  # so that there is one
    try:
        for frame in scan.collect_batches(chunk_size=_BATCH, maintain_order=True):
            check_rows(path, frame, columns, "line", first + rows)
            rows += len(frame)
            scratch.progress("read", rows, total)
            yield frame.select(f.name for f in fields)
    except pl.exceptions.PolarsError as error:
        _refuse_first_fault(path, columns, separator, first)
        raise UserError(f"{path}: {str(error).partition(chr(10))[0]}; correct the file") from None


def _count(path: Path, separator: str) -> tuple[int, int]:
    lines, separators, block = 0, 0, b"\n"
    with path.open("rb") as stream:
        while more := stream.read(_BLOCK):
            block = more
            lines, separators = lines + block.count(b"\n"), separators + block.count(separator.encode())
    return lines + (not block.endswith(b"\n")), separators


def number_rows(frames: Iterable[pl.DataFrame], name: str = "click_id") -> Iterator[pl.DataFrame]:
    """Frames of one file with the number of each row in it, from 0."""
    rows = 0
    for frame in frames:
        yield frame.with_row_index(name, rows)
        rows += len(frame)


def check_rows(path: Path, frame: pl.DataFrame, fields: Sequence[Field], unit: str = "row", first: int = 1) -> None:
    """Refuse the first row with a value that its field does not allow; rows are numbered from `first`."""
    where = frame.select(pl.arg_where(f.bad()).first().alias(f.name) for f in fields).row(0, named=True)
    faults = [(row, name) for name, row in where.items() if row is not None]
    if faults:
        row, name = min(faults, key=lambda fault: fault[0])
        field = next(f for f in fields if f.name == name)
        raise fault(path, f"{unit} {row + first}", field, frame[name][row])


def fault(path: Path, place: str, field: Field, content: object) -> UserError:
    """The error for one value in one place."""
    value = "nothing" if content in (None, "") else repr(content)
    value = value if len(value) <= 40 else f"{value[:40]}..."
    unit = place.partition(" ")[0]
    hint = f"correct or remove the {unit}"
    if place == "line 1":
        hint += " (the file must have no header)"
    return UserError(f"{path}: {place}, column {field.name!r}: expected {field.expected}, found {value}; {hint}")


def head(path: Path) -> bytes:
    """The first four bytes of a file, which tell what it is; an error if there is no such file or it is empty."""
    if check_exists(path).is_dir():
        raise UserError(f"{path}: is a directory; give the file inside it")
    try:
        with path.open("rb") as stream:
            return stream.read(4)
    except OSError as error:
        raise UserError(f"{path}: not readable ({error.strerror}); check its permissions") from None


def refuse_archive(path: Path, start: bytes) -> None:
    """Refuse a file whose first bytes are those of an archive."""
    packed = ARCHIVES.get(start[:2])
    if packed:
        raise UserError(f"{path}: is a {packed} archive, expected plain text; unpack it first")


def _by_header(path: Path, fields: Sequence[Field], separator: str) -> tuple[Field, ...]:
    """The columns of the file in its order; those nobody asked for are text."""
    with path.open(encoding="utf-8-sig", errors="replace") as stream:
        names = stream.readline().rstrip("\n").split(separator)
    wanted = {f.name: f for f in fields}
    missing = [name for name in wanted if name not in names]
    if missing:
        raise UserError(
            f"{path}: line 1: column {missing[0]!r} is missing; expected a header with {separator.join(wanted)}"
        )
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"{path}: line 1: column {twice[0]!r} is given twice; rename or remove one")
    return tuple(wanted.get(name) or Field(name, pl.String, optional=True) for name in names)


def _refuse_first_fault(path: Path, columns: Sequence[Field], separator: str, first: int) -> None:
    """Name the first line that is not text, has another number of cells or a wrong value in one."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if number < first:
                continue
            try:
                text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise UserError(f"{path}: line {number}: not UTF-8 text ({error.reason}); convert the file") from None
            cells = text.split(separator) if text else []
            if len(cells) != len(columns):
                end = ", or fetch the file again if it ends here" if len(cells) < len(columns) else ""
                raise UserError(
                    f"{path}: line {number}: expected {len(columns)} columns separated by {_SEPARATORS[separator]}, "
                    f"found {len(cells)}; correct or remove the line{end}"
                )
            for cell, column in zip(cells, columns, strict=True):
                if not column.takes(cell):
                    raise fault(path, f"line {number}", column, cell)
