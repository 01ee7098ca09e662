"""Raw text logs: read typed and fast when they are sound, line by line to name the first fault when they are not.

Nothing is quoted in these logs, so row i of the frame is line i of the file, and every message can name its line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import polars as pl

from tracecvr.errors import UserError
from tracecvr.files import existing

_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,40}")
_CHUNK = 1 << 20
_PACKED = {b"\x1f\x8b": "gzip", b"PK": "zip", b"\x28\xb5": "zstd", b"BZ": "bzip2", b"\xfd7": "xz"}
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

    def refuses(self, cell: str) -> bool:
        """Whether the text of one cell does not belong here: the slow twin of parsing and `bad`."""
        if not cell:
            return not self.optional
        if isinstance(self.dtype, pl.Enum):
            return cell not in self.dtype.categories
        if self.dtype.is_float():
            return not _is_number(cell)
        if self.dtype.is_integer():
            return _WHOLE.fullmatch(cell) is None or not self._fits(int(cell))
        return False

    def _fits(self, value: int) -> bool:
        low = -(2**63) if self.low is None else self.low
        high = 2**63 - 1 if self.high is None else self.high
        return low <= value <= high


def read_csv(path: Path, fields: Sequence[Field], separator: str = ",", header: bool = False) -> pl.DataFrame:
    """The fields of a text file as typed columns; with a header they are found by name and others are left out."""
    _check_text(path)
    columns = _by_header(path, fields, separator) if header else list(fields)
    first = 2 if header else 1
    if _is_ragged(path, len(columns), separator):
        _raise_first_fault(path, columns, separator, first, "lines differ in their number of columns")
    schema = {c.name: c.dtype for c in columns}
    # No columns are left out before parsing: polars would then not notice lines that are too long.
    scan = pl.scan_csv(path, has_header=header, separator=separator, schema=schema, quote_char=None, glob=False)
    try:
        frame = scan.collect(engine="streaming").select(f.name for f in fields)
    except pl.exceptions.PolarsError as error:
        _raise_first_fault(path, columns, separator, first, str(error).partition("\n")[0])
    check_rows(path, frame, fields, "line", first)
    return frame


def check_rows(path: Path, frame: pl.DataFrame, fields: Sequence[Field], unit: str = "row", first: int = 1) -> None:
    """Refuse the first row with a value that its field does not allow; rows are numbered from `first`."""
    where = frame.select(pl.arg_where(f.bad()).first().alias(f.name) for f in fields).row(0, named=True)
    faults = [(row, name) for name, row in where.items() if row is not None]
    if faults:
        row, name = min(faults, key=lambda fault: fault[0])
        field = next(f for f in fields if f.name == name)
        raise fault(path, f"{unit} {row + first}", field, frame[name][row])


def fault(path: Path, place: str, field: Field, found: object) -> UserError:
    """The error for one value in one place."""
    value = "nothing" if found in (None, "") else repr(found)
    value = value if len(value) <= 40 else f"{value[:40]}..."
    unit = place.partition(" ")[0]
    hint = f"correct or remove the {unit}"
    if place == "line 1":
        hint += " (the file must have no header)"
    return UserError(f"{path}: {place}, column {field.name!r}: expected {field.expected}, found {value}; {hint}")


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell)) and "_" not in cell and not cell[-1].isspace()
    except ValueError:
        return False


def _check_text(path: Path) -> None:
    if existing(path).is_dir():
        raise UserError(f"{path}: is a directory; give the file inside it as --source")
    try:
        with path.open("rb") as stream:
            start = stream.read(2)
    except OSError as error:
        raise UserError(f"{path}: not readable ({error.strerror}); check its permissions") from None
    if start in _PACKED:
        raise UserError(f"{path}: is a {_PACKED[start]} archive, expected plain text; unpack it first")


def _by_header(path: Path, fields: Sequence[Field], separator: str) -> list[Field]:
    """The columns of the file in its order; those nobody asked for are text."""
    names = next(_lines(path))[1].split(separator)
    wanted = {f.name: f for f in fields}
    missing = [name for name in wanted if name not in names]
    if missing:
        raise UserError(
            f"{path}: line 1: column {missing[0]!r} is missing; expected a header with {separator.join(wanted)}"
        )
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"{path}: line 1: column {twice[0]!r} is given twice; rename or remove one")
    return [wanted.get(name) or Field(name, pl.String, optional=True) for name in names]


def _is_ragged(path: Path, columns: int, separator: str) -> bool:
    """Whether separators and lines do not add up: polars fills short lines with nulls and says nothing.

    A line too long can hide a line too short here, but a line too long makes polars fail.
    """
    separators = lines = 0
    end = b""
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            codes = np.frombuffer(chunk, np.uint8)
            separators += int(np.count_nonzero(codes == ord(separator)))
            lines += int(np.count_nonzero(codes == ord("\n")))
            end = chunk[-1:]
    lines += end != b"\n"
    return separators != lines * (columns - 1)


def _raise_first_fault(path: Path, columns: Sequence[Field], separator: str, first: int, reason: str) -> NoReturn:
    """Look at every line until one is wrong. Slow, but only a broken file comes here."""
    for number, line in _lines(path):
        if number < first:
            continue
        cells = line.split(separator)
        if len(cells) != len(columns):
            raise _wrong_width(path, number, len(cells), len(columns), _SEPARATORS[separator])
        for field, cell in zip(columns, cells, strict=True):
            if field.refuses(cell):
                raise fault(path, f"line {number}", field, cell)
    raise UserError(f"{path}: not readable as a table ({reason}); compare it with the published format")


def _wrong_width(path: Path, number: int, found: int, expected: int, separators: str) -> UserError:
    hint = "correct or remove the line"
    if found < expected and number == sum(1 for _ in _lines(path)):
        hint = "the file ends too early: copy or download it again"
    return UserError(
        f"{path}: line {number}: expected {expected} columns separated by {separators}, found {found}; {hint}"
    )


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines without their ends."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise UserError(f"{path}: line {number}: not UTF-8 text ({error.reason}); convert the file") from None
            yield number, text.removesuffix("\n").removesuffix("\r")
