"""Rows split by a key or put in order of time: in memory while they are few, in temporary files beyond that.

These files have no name, so that the system takes their space back however the process ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import polars as pl

from tracecvr.base.files import not_written
from tracecvr.base.progress import Progress, no_progress

_SLICE = 1 << 18
"""Rows of a slice of sorted clicks, more or less."""

_EVERY = 16
"""Of so many clicks, the time of one tells where to cut a log into parts of equal size."""

_COPIES = 2
"""How often the clicks of a part are held while they are sorted."""

_MOST_PARTS = 256
"""Files that may be open at once, which systems limit; a log that needs more has larger parts."""


@dataclass
class Scratch(ExitStack):
    """Where rows go that do not fit in memory, and how many bytes do. It closes every file that it opened."""

    folder: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    progress: Progress = no_progress
    budget: int = 128 << 20

    def __post_init__(self) -> None:
        super().__init__()

    def file(self, path: Path | None = None) -> BinaryIO:
        """A new file to be written and read: one without a name, unless it is to stay."""
        try:
            file = path.open("w+b") if path else tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115
        except OSError as error:
            raise not_written(path or self.folder, error) from error
        self.callback(_close, file)
        return file


def _close(file: BinaryIO) -> None:
    # What still has to be written at this point belongs to work that was given up.
    with suppress(OSError):
        file.close()


def partition(frames: Iterable[pl.DataFrame], key: str, size: int, scratch: Scratch) -> Iterator[pl.DataFrame]:
    """The same rows in other frames: those of equal `key` lie in one, in their order. `size`: the bytes of all rows."""
    parts = min(-(-size // scratch.budget), _MOST_PARTS)
    if parts <= 1:
        yield pl.concat(frames)
    else:
        yield from _split(frames, pl.col(key).hash() % parts, parts, scratch, "group")


class ClickSorter:
    """Sorts clicks by (click_ts, click_id); those of the same second lie in the same slice."""

    def __init__(self, scratch: Scratch) -> None:
        self.scratch = scratch
        self.rows = 0
        self.pending: list[pl.DataFrame] = []
        self.pending_bytes = self.written_bytes = 0
        self.written: _Batches | None = None
        self.some_times: list[pl.Series] = []

    def add(self, clicks: pl.DataFrame) -> None:
        self.pending.append(clicks)
        self.pending_bytes += int(clicks.estimated_size())
        self.rows += len(clicks)
        if self.pending_bytes > self.scratch.budget:
            self._write()

    def slices(self) -> Iterator[pl.DataFrame]:
        for part in self._parts():
            ordered = part.sort("click_ts", "click_id")
            start = 0
            while start < len(ordered):
                end = min(start + _SLICE, len(ordered))
                end = ordered["click_ts"].search_sorted(ordered["click_ts"][end - 1], side="right")
                yield ordered.slice(start, end - start)
                start = end

    def _parts(self) -> Iterator[pl.DataFrame]:
        """Clicks of one time after the other, not sorted; each part fits in memory."""
        if self.written is None:
            yield from [pl.concat(self.pending)] if self.pending else []
            return
        self._write()
        parts = min(-(-_COPIES * self.written_bytes // self.scratch.budget), _MOST_PARTS)
        times = pl.concat(self.some_times).sort()
        cuts = times.gather([number * len(times) // parts for number in range(1, parts)])
        which = pl.lit(cuts).search_sorted(pl.col("click_ts"), side="right")
        yield from _split(self.written, which, parts, self.scratch, "sort")

    def _write(self) -> None:
        self.written = self.written or _Batches(self.scratch)
        for clicks in self.pending:
            self.written.append(clicks)
            self.some_times.append(clicks["click_ts"].gather_every(_EVERY))
        self.written_bytes += self.pending_bytes
        self.pending, self.pending_bytes = [], 0


def _split(
    frames: Iterable[pl.DataFrame], part: pl.Expr, parts: int, scratch: Scratch, stage: str
) -> Iterator[pl.DataFrame]:
    """Rows by the number of their part, one part at a time, each in the order in which its rows came."""
    files = [_Batches(scratch) for _ in range(parts)]
    for frame in frames:
        numbered = frame.with_columns(part.alias("part"))
        for (number,), rows in numbered.partition_by("part", as_dict=True, include_key=False).items():
            files[number].append(rows)
    done, total = 0, sum(file.rows for file in files)
    for file in files:
        scratch.progress(stage, done, total)
        if file.rows:
            yield pl.concat(file)
        done += file.rows
        file.file.close()
    scratch.progress(stage, total, total)


class _Batches:
    """Frames written to a file, to be read back one by one."""

    def __init__(self, scratch: Scratch) -> None:
        self.folder, self.file = scratch.folder, scratch.file()
        self.ends, self.rows = [0], 0

    def append(self, frame: pl.DataFrame) -> None:
        try:
            frame.write_ipc_stream(self.file, compression="lz4")
        except OSError as error:
            raise not_written(self.folder, error) from error
        self.ends.append(self.file.tell())
        self.rows += len(frame)

    def __iter__(self) -> Iterator[pl.DataFrame]:
        for start, end in pairwise(self.ends):
            self.file.seek(start)
            yield pl.read_ipc_stream(BytesIO(self.file.read(end - start)))
