"""Files of a log: Parquet, text with columns, or a JSON object per line, plain or packed by gzip or zstd. Read in
batches, in their order, so that they may be of any size.

Columns of text files are text: what they mean is the schema's to say, never guessed on the way.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote
from uuid import UUID

import polars as pl
import polars.selectors as cs

from tracecvr.base.config import refuse_missing
from tracecvr.base.errors import UserError
from tracecvr.data.raw_csv import ARCHIVES, head, refuse_archive

_BATCH = 1 << 17
"""Rows read at a time."""

_HEAD = 1 << 16
"""Bytes from which the length of lines is estimated."""

_LOOKED_AT = 50
"""Lines that tell whether a file is text."""

_UNPACKED = ("gzip", "zstd")
"""Kinds of packed text that are read as they are."""

SUFFIXES = (
    ".parquet",
    *(text + end for text in (".csv", ".tsv", ".txt", ".ndjson", ".jsonl", ".json") for end in ("", ".gz", ".zst")),
)


@dataclass(frozen=True)
class LogFile:
    """One file, known to be there and to be readable as what it seems."""

    path: Path
    parquet: bool
    separator: str = ","
    header: bool = True
    packed: bool = False
    json: bool = False  # one JSON object per line
    keys: tuple[tuple[str, pl.DataType], ...] = ()
    """Of JSON: columns that other files of the same table have. No line of a file may have them."""

    @property
    def is_text(self) -> bool:
        return not self.parquet and not self.json

    @property
    def scan(self) -> pl.LazyFrame:
        frame = self._inside()
        beside = self.folder_columns
        own = frame.collect_schema() if beside else {}
        return frame.with_columns(pl.lit(value).alias(name) for name, value in beside.items() if name not in own)

    def _inside(self) -> pl.LazyFrame:
        if self.parquet:
            frame = _flat(pl.scan_parquet(self.path, glob=False, hive_partitioning=False))
            return frame.with_columns(cs.by_dtype(pl.Binary).map_elements(_text_of, pl.String))
        if self.json:
            frame = _flat(pl.scan_ndjson(self.path, infer_schema_length=None))
            own = frame.collect_schema() if self.keys else {}
            return frame.with_columns(pl.lit(None, kind).alias(name) for name, kind in self.keys if name not in own)
        frame = pl.scan_csv(self.path, has_header=self.header, separator=self.separator, infer_schema=False, glob=False)
        if self.header:
            return frame
        names = frame.collect_schema().names()
        return frame.rename({name: f"column_{i}" for i, name in enumerate(names, start=1)})

    @property
    def folder_columns(self) -> dict[str, str]:
        """Columns that the names of folders tell, as Hive and Spark write them: `year=2026/month=01`."""
        return dict(column for part in self.path.parent.parts if (column := folder_column(part)) is not None)

    def columns(self) -> dict[str, pl.DataType]:
        with self._explain():
            return dict(self.scan.collect_schema())

    def refuse_missing(self, columns: Sequence[str]) -> None:
        refuse_missing(columns, self.columns(), str(self.path))

    def batches(self, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Some columns of all rows, in the order of the file; categories are text."""
        self.refuse_missing(columns)
        scan = self.scan.select(columns).with_columns(cs.by_dtype(pl.Categorical, pl.Enum).cast(pl.String))
        with self._explain():
            yield scan.head(0).collect()  # so that there is one
            yield from scan.collect_batches(chunk_size=_BATCH, maintain_order=True)

    def rows(self) -> int:
        """How many rows there are: of a plain text file, about so many."""
        if self.parquet or self.packed:
            with self._explain():
                return int(self.scan.select(pl.len()).collect().item())
        with self.path.open("rb") as stream:
            start = stream.read(_HEAD)
        return max(1, self.path.stat().st_size * max(start.count(b"\n"), 1) // len(start))

    def first_lines(self, count: int) -> list[str]:
        """The first lines of a text file, as they are written."""
        if not self.packed:
            with self.path.open("rb") as stream:
                return stream.read(_HEAD).decode("utf-8-sig", errors="replace").splitlines()[:count]
        lines = pl.scan_lines(self.path, glob=False).head(count).select(pl.col("line").str.strip_prefix("\ufeff"))
        with self._explain():
            return lines.collect().to_series().to_list()

    @contextmanager
    def _explain(self) -> Iterator[None]:
        """Say of what polars cannot read which file it is, and what was expected."""
        try:
            yield
        except (pl.exceptions.PolarsError, OSError) as error:
            text = "one JSON object per line" if self.json else f"text with columns separated by {self.separator!r}"
            kind, reason = "Parquet" if self.parquet else text, str(error).partition("\n")[0]
            raise UserError(f"{self.path}: not readable as {kind} ({reason}); correct the file") from None


def open_file(path: Path, separator: str = ",", header: bool = True) -> LogFile:
    """A file that is what it seems to be: Parquet by its first bytes, else text."""
    start = head(path)
    if start == b"PAR1":
        return LogFile(path, parquet=True)
    if path.suffix == ".parquet":
        raise UserError(f"{path}: not a Parquet file: it does not start with PAR1; write it again, or name it .csv")
    packed = ARCHIVES.get(start[:2]) in _UNPACKED
    if not packed:
        refuse_archive(path, start)
    file = LogFile(path, False, separator, header, packed)
    lines = file.first_lines(_LOOKED_AT)
    if any("\0" in line for line in lines):
        raise UserError(f"{path}: neither Parquet nor text: it holds zero bytes; give a Parquet or CSV file")
    begin = next((line.lstrip() for line in lines if line.strip()), "")
    if begin.startswith("["):
        raise UserError(f"{path}: a JSON list; write one JSON object per line (NDJSON), or Parquet or CSV")
    return replace(file, json=True) if begin.startswith("{") else file


def share_keys(group: Sequence[LogFile]) -> list[LogFile]:
    """The files of one table: a key that no line of a file of JSON has is missing there, as it may be in any line."""
    known: dict[str, pl.DataType] = {}
    for file in group if len(group) > 1 else ():
        known |= {name: kind for name, kind in file.columns().items() if file.json and kind != pl.Null}
    return [replace(file, keys=tuple(known.items())) if file.json else file for file in group]


def _flat(frame: pl.LazyFrame) -> pl.LazyFrame:
    """The columns of a frame, those of structs one by one: `a.b`."""
    while structs := [name for name, kind in frame.collect_schema().items() if isinstance(kind, pl.Struct)]:
        frame = frame.unnest(structs, separator=".")
    return frame


def _text_of(value: bytes) -> str:
    """Bytes as they are if they can be printed, else as a UUID if there are 16, else as hexadecimal digits.

    >>> _text_of(b"c17"), _text_of(bytes([0, 255])), _text_of(bytes(range(16)))
    ('c17', '00ff', '00010203-0405-0607-0809-0a0b0c0d0e0f')
    """
    with suppress(UnicodeDecodeError):
        if (text := value.decode()).isprintable():
            return text
    return str(UUID(bytes=value)) if len(value) == 16 else value.hex()


def matching_files(given: str, beside: Path) -> list[Path]:
    """The files that a path, a folder or a pattern stands for, in order of their names, without empty ones."""
    path = Path(os.path.normpath(beside / given))  # `beside` need not be there yet: `inspect` is about to make it
    matches = [path]
    if not path.exists() and any(c in given for c in "*?["):
        pattern = Path(given)
        root = Path(pattern.anchor) if pattern.is_absolute() else beside
        matches = sorted(root.glob(str(pattern.relative_to(pattern.anchor) if pattern.is_absolute() else pattern)))
        if not matches:
            raise UserError(f"{path}: no file fits this pattern")
    logs = [file for match in matches for file in (_logs_inside(match) if match.is_dir() else [match])]
    return [path for path in logs if not is_empty(path)] or logs


def is_empty(path: Path) -> bool:
    """Whether a file has no byte, or unpacks to none."""
    if path.suffix == ".gz" and path.is_file():
        with suppress(OSError, EOFError), gzip.open(path) as stream:
            return not stream.read(1)
    return path.is_file() and not path.stat().st_size


def _logs_inside(folder: Path) -> list[Path]:
    """The logs of a folder; if there are none, those of the folders in it."""
    direct = sorted(path for path in folder.iterdir() if _is_log(path.relative_to(folder)))
    logs = direct or sorted(path for path in folder.rglob("*") if _is_log(path.relative_to(folder)))
    if not logs:
        others = sorted({path.name for path in folder.iterdir() if path.is_file()})[:3]
        there = f"; it has {', '.join(others)}" if others else ""
        raise UserError(f"{folder}: no log in this folder: no file ends with {', '.join(SUFFIXES)}{there}")
    return logs


def _is_log(path: Path) -> bool:
    """Whether a path is named like a log; names that begin with a dot or an underscore are not logs."""
    return path.name.endswith(SUFFIXES) and not any(part.startswith((".", "_")) for part in path.parts)


def folder_column(name: str) -> tuple[str, str] | None:
    """The column and the value that the name of a folder tells, if it does.

    >>> folder_column("month=01"), folder_column("clicks")
    (('month', '01'), None)
    """
    key, mark, value = name.partition("=")
    return (key, unquote(value)) if mark and key.isidentifier() else None
