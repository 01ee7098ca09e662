"""Raw text logs: read typed and fast, block by block, when they are sound; when they are not, the first wrong line is
looked up.

Nothing is quoted in these logs, so row i of the frame is line i of the file, and every message can name its line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from tracecvr.base.errors import UserError
from tracecvr.base.files import existing
from tracecvr.data.external_sort import Scratch

_BLOCK = 1 << 24
"""Bytes of text parsed at a time: below, each costs more; above, memory grows and nothing is won."""

_BOM = b"\xef\xbb\xbf"
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


def read_csv(path: Path, fields: Sequence[Field], separator: str = ",", header: bool = False) -> pl.DataFrame:
    """The fields of a text file as typed columns; with a header they are found by name and others are left out."""
    return pl.concat(read_blocks(path, fields, Scratch(), separator, header))


def read_blocks(
    path: Path, fields: Sequence[Field], scratch: Scratch, separator: str = ",", header: bool = False
) -> Iterator[pl.DataFrame]:
    """The same in blocks of rows, in the order of the file: for logs bigger than memory."""
    refuse_archive(path, head(path))
    text = _Text(path, tuple(fields), separator, 1)
    if header:
        text = _Text(path, _by_header(path, fields, separator), separator, 2)
    size, done, rows = path.stat().st_size, 0, 0
    for number, block in text.blocks():
        frame = text.parse(number, block).select(f.name for f in fields)
        check_rows(path, frame, fields, "line", number)
        done, rows = done + len(block), rows + len(frame)
        # As many rows as lines of this length would make; the mark of the byte order and the header do not matter.
        total = max(rows, rows * size // done)
        if rows == len(frame):
            scratch.expect(total)
        scratch.progress("read", rows, total)
        yield frame
    if not rows:
        yield pl.DataFrame(schema={f.name: f.dtype for f in fields})
    scratch.progress("read", rows, rows)


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
    if existing(path).is_dir():
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


@dataclass(frozen=True)
class _Text:
    """A text file with the columns it should have; rows begin on line `first`."""

    path: Path
    columns: tuple[Field, ...]
    separator: str
    first: int

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Blocks of whole lines, each with the number of its first line."""
        number = self.first
        with self.path.open("rb") as stream:
            if number == 1 and stream.read(3) != _BOM:
                stream.seek(0)
            for _ in range(1, number):
                stream.readline()
            while block := stream.read(_BLOCK):
                block += stream.readline()
                yield number, block
                number += block.count(b"\n")

    def is_ragged(self, block: bytes) -> bool:
        """Whether separators and lines do not add up: polars fills short lines with nulls and says nothing.

        A line too long can hide a line too short here, but a line too long makes polars fail.
        """
        codes = np.frombuffer(block, np.uint8)
        separators = np.count_nonzero(codes == ord(self.separator))
        lines = np.count_nonzero(codes == ord("\n")) + (not block.endswith(b"\n"))
        return bool(separators != lines * (len(self.columns) - 1))

    def parse(self, number: int, block: bytes) -> pl.DataFrame:
        """A block as a frame of all its columns; if it has a fault, the first line that has one is named."""
        reason = "lines differ in length"
        if not self.is_ragged(block):
            # No columns are left out before parsing: polars would then not notice lines that are too long.
            schema = {c.name: c.dtype for c in self.columns}
            try:
                return pl.read_csv(block, has_header=False, schema=schema, separator=self.separator, quote_char=None)
            except pl.exceptions.PolarsError as error:
                reason = str(error).partition("\n")[0]
        self._refuse_first_fault(number, block)
        raise UserError(f"{self.path}: line {number} or soon after: {reason}; correct the file")

    def _refuse_first_fault(self, number: int, block: bytes) -> None:
        """Name the first line of a block that is not text, has another number of cells or a wrong value in one."""
        rows: list[list[str]] = []
        for i, line in enumerate(block.removesuffix(b"\n").split(b"\n"), start=number):
            if fault_of_line := self._line_fault(line.removesuffix(b"\r"), rows):
                self._refuse_wrong_cell(number, rows)
                raise UserError(f"{self.path}: line {i}: {fault_of_line}")
        self._refuse_wrong_cell(number, rows)

    def _line_fault(self, line: bytes, rows: list[list[str]]) -> str | None:
        """Why a line cannot be cut into cells; its cells are added to the rows if it can."""
        try:
            cells = line.decode().split(self.separator) if line else []
        except UnicodeDecodeError as error:
            return f"not UTF-8 text ({error.reason}); convert the file"
        if len(cells) == len(self.columns):
            rows.append(cells)
            return None
        end = ", or fetch the file again if it ends here" if len(cells) < len(self.columns) else ""
        return (
            f"expected {len(self.columns)} columns separated by {_SEPARATORS[self.separator]}, found {len(cells)}; "
            f"correct or remove the line{end}"
        )

    def _refuse_wrong_cell(self, number: int, rows: list[list[str]]) -> None:
        """Refuse the first row with a cell that its column does not take, as polars reads it."""
        text = pl.DataFrame(rows, {c.name: pl.String for c in self.columns}, orient="row")
        wrong = [(self._first_wrong(text[c.name], c), place) for place, c in enumerate(self.columns)]
        if first := min(((row, place) for row, place in wrong if row is not None), default=None):
            row, place = first
            raise fault(self.path, f"line {number + row}", self.columns[place], rows[row][place])

    def _first_wrong(self, cells: pl.Series, field: Field) -> int | None:
        given = cells.set(cells == "", None)
        read = given.cast(field.dtype, strict=False)
        wrong = read.to_frame().select(field.bad()).to_series() | (read.is_null() & given.is_not_null())
        return wrong.arg_max() if wrong.any() else None
