"""Raw text logs, line by line: split into cells, read as what each column holds, and refused at the first wrong line.

Nothing is quoted in these logs, so row i of the frame is line i of the file, and every message can name its line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tracecvr.base.errors import UserError
from tracecvr.base.files import check_exists
from tracecvr.data.external_sort import Scratch

_BATCH = 1 << 17
"""Rows parsed at a time."""

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


def read_blocks(path: Path, fields: Sequence[Field], scratch: Scratch, separator: str = ",") -> Iterator[pl.DataFrame]:
    """A file without a header in blocks of rows, in its order, of any size; `click_id` is the number of each row."""
    refuse_archive(path, head(path))
    size, rows, seen, names = path.stat().st_size, 0, 0, [field.name for field in fields]
    empty = pl.DataFrame(schema={field.name: field.dtype for field in fields})
    yield empty.with_row_index("click_id")  # so that there is one
    line = pl.col("line")
    cells = line.str.strip_prefix("\ufeff").str.split(separator)
    count = pl.when(line == "").then(0).otherwise(cells.list.len())
    lines = pl.scan_lines(path, glob=False).select(
        cells.list.to_struct(fields=names), _count=count, _size=line.str.len_bytes() + 1
    )
    texts = lines.unnest("line").with_columns(pl.when(pl.col(names) != "").then(pl.col(names)))
    values = [pl.col(field.name).cast(field.dtype, strict=False).alias(f"_{field.name}") for field in fields]
    try:
        for block in texts.with_columns(values).collect_batches(chunk_size=_BATCH, maintain_order=True):
            frame = block.select(pl.col(f"_{name}").alias(name) for name in names)
            _refuse_wrong_lines(path, frame, block, fields, _SEPARATORS[separator], rows + 1)
            numbered = frame.with_row_index("click_id", rows)
            rows, seen = rows + len(block), seen + int(block["_size"].sum())
            scratch.progress("read", rows, max(rows, rows * size // max(seen, 1)))
            yield numbered
    except pl.exceptions.PolarsError as error:
        number = _find_line_of_bytes(path)
        reason = str(error).partition("\n")[0] if number is None else f"line {number}: not UTF-8 text"
        raise UserError(f"{path}: {reason}; convert the file") from None
    scratch.progress("read", rows, rows)


def _refuse_wrong_lines(
    path: Path, frame: pl.DataFrame, texts: pl.DataFrame, fields: Sequence[Field], separator: str, first: int
) -> None:
    """Refuse the first of some lines that has another number of cells or a wrong value in one."""
    count = texts["_count"]
    whole = count == len(fields)
    sound = len(frame) if whole.all() else int(whole.arg_min() or 0)
    check_rows(path, frame.head(sound), fields, "line", first, texts.head(sound))
    if sound < len(frame):
        end = ", or fetch the file again if it ends here" if count[sound] < len(fields) else ""
        raise UserError(
            f"{path}: line {first + sound}: expected {len(fields)} columns separated by {separator}, "
            f"found {count[sound]}; correct or remove the line{end}"
        )


def _find_line_of_bytes(path: Path) -> int | None:
    """The first line that is not UTF-8 text."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if "\ufffd" in line.decode(errors="replace"):
                return number
    return None


def check_rows(
    path: Path,
    frame: pl.DataFrame,
    fields: Sequence[Field],
    unit: str = "row",
    first: int = 1,
    texts: pl.DataFrame | None = None,
) -> None:
    """Refuse the first row with a value that its field does not allow; rows are numbered from `first`. `texts` has what
    was written, if values were read from text."""
    written = frame if texts is None else texts
    wrong = [field.bad() | (pl.col(field.name).is_null() & written[field.name].is_not_null()) for field in fields]
    where = frame.select(pl.arg_where(bad).first().alias(str(n)) for n, bad in enumerate(wrong)).row(0)
    faults = [(row, field) for row, field in zip(where, fields, strict=True) if row is not None]
    if not faults:
        return
    row, field = min(faults, key=lambda fault: fault[0])
    content = frame[field.name][row]
    content = written[field.name][row] if content is None else content
    value = "nothing" if content is None else repr(content)
    value = value if len(value) <= 40 else f"{value[:40]}..."
    hint = f"correct or remove the {unit}"
    if (unit, row + first) == ("line", 1):
        hint += " (the file must have no header)"
    raise UserError(
        f"{path}: {unit} {row + first}, column {field.name!r}: expected {field.expected}, found {value}; {hint}"
    )


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
