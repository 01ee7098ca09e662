"""Work on logs bigger than memory: rows split by a key or put in order of time, in memory while they are few and in
temporary files beyond that.

These files have no name, so that the system takes their space back however the process ends.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import polars as pl

from tracecvr.base.errors import UserError
from tracecvr.base.files import not_written
from tracecvr.base.progress import Progress, no_progress

_BATCH = 1 << 16
"""Rows written to a file at a time, and so the least that is read back."""

_BATCHES = 4
"""Batches to a slice of sorted clicks, more or less."""

_MOST_PARTS = 256
"""Files that may be open at once, which systems limit; a log that needs more has larger parts."""


@dataclass
class Scratch:
    """Where rows go that do not fit in memory, how many bytes of them do, and who is told how far the work is.

    `row_bytes` is the size of a row of the table to be made. As a context manager it closes every file it opened.
    """

    folder: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    progress: Progress = no_progress
    budget: int = 128 << 20
    row_bytes: int = 0

    def __post_init__(self) -> None:
        self.opened = ExitStack()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *error: object) -> None:
        self.opened.close()

    def file(self, path: Path | None = None) -> BinaryIO:
        """A new file to be written and read: one without a name, unless it is to stay."""
        try:
            file = path.open("w+b") if path else tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115
        except OSError as error:
            raise not_written(path or self.folder, error) from error
        self.opened.callback(_close, file)
        return file

    def expect(self, rows: int) -> None:
        """Refuse the work before it begins if the disk has no room for so many rows: once sorted, once as a table."""
        needed, free = 2 * rows * self.row_bytes, shutil.disk_usage(self.folder).free
        if needed > 2 * self.budget and needed > free:
            raise UserError(
                f"{self.folder}: about {rows:,} rows need {needed / 1e9:.1f} GB of disk, {free / 1e9:.1f} GB are free; "
                "free some space, or choose another directory (--out of prepare, TMPDIR for a run)"
            )


def _close(file: BinaryIO) -> None:
    # What still has to be written at this point belongs to work that was given up.
    with suppress(OSError):
        file.close()


def partition(frames: Iterable[pl.DataFrame], key: str, size: int, scratch: Scratch) -> Iterator[pl.DataFrame]:
    """The same rows in other frames: those of equal `key` lie in one frame, in the order in which they came. There are
    as many frames as there are budgets in `size`, the bytes of all rows, if that is not too many files."""
    parts = min(-(-size // scratch.budget), _MOST_PARTS)
    if parts <= 1:
        yield pl.concat(frames)
        return
    files = [_Batches(scratch) for _ in range(parts)]
    for frame in frames:
        numbered = frame.with_columns((pl.col(key).hash() % parts).alias("part"))
        for (part,), rows in numbered.partition_by("part", as_dict=True, include_key=False).items():
            files[part].append(rows)
    done, total = 0, sum(file.rows for file in files)
    for file in files:
        scratch.progress("group", done, total)
        if file.rows:
            yield pl.concat(file)
        done += file.rows
        file.close()
    scratch.progress("group", total, total)


class ClickSorter:
    """Takes clicks in any order and gives them back in that of (click_ts, click_id), a slice at a time. Clicks of the
    same second lie in the same slice."""

    def __init__(self, scratch: Scratch) -> None:
        self.scratch = scratch
        self.rows = 0
        self.pending: list[pl.DataFrame] = []
        self.pending_bytes = 0
        self.runs: list[_Batches] = []
        self.ends: list[int] = []

    def add(self, clicks: pl.DataFrame) -> None:
        self.pending.append(clicks)
        self.pending_bytes += int(clicks.estimated_size())
        self.rows += len(clicks)
        if self.pending_bytes > self.scratch.budget:
            self._write_run()

    def slices(self) -> Iterator[pl.DataFrame]:
        """All clicks, once."""
        runs: list[Iterable[pl.DataFrame]] = []
        if self.runs:
            self._write_run()
            runs += self.runs
        elif self.pending:
            runs.append(self._sort_batches())
        cuts = [end + 1 for end in sorted(self.ends)[_BATCHES - 1 :: _BATCHES]]
        yield from _merge(runs, list(dict.fromkeys(cuts)))

    def _write_run(self) -> None:
        if self.pending:
            run = _Batches(self.scratch)
            for batch in self._sort_batches():
                run.append(batch)
            self.runs.append(run)

    def _sort_batches(self) -> list[pl.DataFrame]:
        """What is pending, in order."""
        order = pl.concat(self.pending).select(pl.arg_sort_by("click_ts", "click_id")).to_series()
        frames = [frame.get_columns() for frame in self.pending]
        self.pending, self.pending_bytes = [], 0
        # One column after the other, each forgotten once it is sorted, so that they are not all held twice.
        columns = [
            pl.concat([columns.pop(0) for columns in frames], rechunk=True).gather(order) for _ in range(len(frames[0]))
        ]
        batches = list(pl.DataFrame(columns).iter_slices(_BATCH))
        self.ends += [int(batch["click_ts"][-1]) for batch in batches]
        return batches


class _Batches:
    """Frames written to a file, to be read back one by one."""

    def __init__(self, scratch: Scratch) -> None:
        self.folder, self.file = scratch.folder, scratch.file()
        self.ends, self.rows = [0], 0

    def append(self, frame: pl.DataFrame) -> None:
        batch = BytesIO()
        frame.write_ipc_stream(batch, compression="lz4")
        try:
            self.file.write(batch.getbuffer())
        except OSError as error:
            raise not_written(self.folder, error) from error
        self.ends.append(self.ends[-1] + batch.tell())
        self.rows += len(frame)

    def __iter__(self) -> Iterator[pl.DataFrame]:
        for start, end in pairwise(self.ends):
            self.file.seek(start)
            yield pl.read_ipc_stream(BytesIO(self.file.read(end - start)))

    def close(self) -> None:
        """Give the space back."""
        self.file.close()


def _merge(runs: Iterable[Iterable[pl.DataFrame]], cuts: list[int]) -> Iterator[pl.DataFrame]:
    """Sorted runs of batches as sorted slices, of which each ends before the next cut of the time."""
    batches = [iter(run) for run in runs]
    rest = [next(run, None) for run in batches]
    for cut in [*cuts, None]:
        parts: list[list[pl.DataFrame]] = []
        for i, run in enumerate(batches):
            ready, rest[i] = _before(cut, rest[i], run)
            if ready:
                parts.append(ready)
        if parts:
            rows = pl.concat([rows for ready in parts for rows in ready], rechunk=True)
            yield rows if len(parts) == 1 else rows.sort("click_ts", "click_id")


def _before(
    cut: int | None, batch: pl.DataFrame | None, run: Iterator[pl.DataFrame]
) -> tuple[list[pl.DataFrame], pl.DataFrame | None]:
    """The rows of a run before a cut, and the rest of the batch that it went through."""
    ready = []
    while batch is not None:
        rows = len(batch) if cut is None else int(batch["click_ts"].search_sorted(cut))
        if rows:
            ready.append(batch.head(rows))
        if rows < len(batch):
            return ready, batch.slice(rows)
        batch = next(run, None)
    return ready, None
