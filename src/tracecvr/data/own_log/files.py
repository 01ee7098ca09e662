"""Files of a log: Parquet, or text with columns. Read in batches, in their order, so that they may be of any size.

Columns of text files are text: what they mean is the schema's to say, never guessed on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tracecvr.base.config import nearest
from tracecvr.base.errors import UserError
from tracecvr.data.raw_csv import head, refuse_archive

_BATCH = 1 << 17
"""Rows read at a time."""

_HEAD = 1 << 16
"""Bytes from which the length of lines is estimated."""

SUFFIXES = (".parquet", ".csv", ".tsv", ".txt")


@dataclass(frozen=True)
class LogFile:
    """One file, known to be there and to be readable as what it seems."""

    path: Path
    parquet: bool
    separator: str = ","
    header: bool = True

    @property
    def scan(self) -> pl.LazyFrame:
        if self.parquet:
            return pl.scan_parquet(self.path, glob=False)
        frame = pl.scan_csv(self.path, has_header=self.header, separator=self.separator, infer_schema=False, glob=False)
        if self.header:
            return frame
        names = frame.collect_schema().names()
        return frame.rename({name: f"column_{i}" for i, name in enumerate(names, start=1)})

    def columns(self) -> dict[str, pl.DataType]:
        """Columns and their types."""
        try:
            return dict(self.scan.collect_schema())
        except (pl.exceptions.PolarsError, OSError) as error:
            raise self._unreadable(error) from None

    def batches(self, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Some columns of all rows, in the order of the file."""
        known = self.columns()
        missing = next((name for name in columns if name not in known), None)
        if missing is not None:
            there = ", ".join(known)
            raise UserError(
                f"{self.path}: column {missing!r} is missing{nearest(missing, known)}; there are: {there}; "
                "correct the schema"
            )
        scan = self.scan.select(columns)
        try:
            yield scan.head(0).collect()  # so that there is one
            yield from scan.collect_batches(chunk_size=_BATCH, maintain_order=True)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise self._unreadable(error) from None

    def rows(self) -> int:
        """How many rows there are: of a text file, about so many."""
        if self.parquet:
            return int(self.scan.select(pl.len()).collect().item())
        with self.path.open("rb") as stream:
            start = stream.read(_HEAD)
        return max(1, self.path.stat().st_size * max(start.count(b"\n"), 1) // len(start))

    def _unreadable(self, error: Exception) -> UserError:
        kind = "Parquet" if self.parquet else f"text with columns separated by {self.separator!r}"
        reason = str(error).partition("\n")[0]
        return UserError(f"{self.path}: not readable as {kind} ({reason}); correct the file")


def opened(path: Path, separator: str = ",", header: bool = True) -> LogFile:
    """A file that is what it seems to be: Parquet by its first bytes, else text."""
    start = head(path)
    if start == b"PAR1":
        return LogFile(path, parquet=True)
    if path.suffix == ".parquet":
        raise UserError(f"{path}: not a Parquet file: it does not start with PAR1; write it again, or name it .csv")
    refuse_archive(path, start)
    with path.open("rb") as stream:
        if b"\0" in stream.read(_HEAD):
            raise UserError(f"{path}: neither Parquet nor text: it holds zero bytes; give a Parquet or CSV file")
    return LogFile(path, False, separator, header)


def matching_files(given: str, beside: Path) -> list[Path]:
    """The files that a path, a folder or a pattern stands for, in order of their names."""
    path = beside / given
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES and not p.name.startswith("."))
        if not files:
            raise UserError(f"{path}: no log in this folder: no file ends with {', '.join(SUFFIXES)}")
        return files
    if path.exists() or not any(c in given for c in "*?["):
        return [path]
    pattern = Path(given)
    root = Path(pattern.anchor) if pattern.is_absolute() else beside
    files = sorted(root.glob(str(pattern.relative_to(pattern.anchor) if pattern.is_absolute() else pattern)))
    if not files:
        raise UserError(f"{path}: no file fits this pattern")
    return files
