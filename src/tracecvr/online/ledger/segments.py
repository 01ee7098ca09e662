"""Tables that grow at one end and are forgotten at the other, in memory-mapped files: what is open takes no memory.

Rows are numbered from the start of the table. They lie in segments, a file each, in which columns follow one another;
each new segment is as large as all before it, up to a bound. A segment is dropped as a whole. Of each segment a sum of
hashes of its rows is kept: it changes with the rows that change, and shows whether a file is what was written.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracecvr.base.errors import UserError
from tracecvr.base.files import not_written
from tracecvr.data.table import Ints

Array = npt.NDArray[Any]
Layout = Mapping[str, tuple[str, int]]
"""Of each column its type and how many values a row has; 0 for one that is not an array of them. The widest types come
first, so that all are aligned."""

SMALLEST, LARGEST = 1 << 10, 1 << 20
"""Rows of the first segment, and of the largest."""
_AT_ONCE = 1 << 16
"""Rows that are hashed together: what is in between stays in the processor's cache."""
_ODD = np.uint64(0x9E3779B97F4A7C15)
_PAGE = mmap.ALLOCATIONGRANULARITY


class SegmentFacts(NamedTuple):
    """What is recorded of a segment."""

    first: int
    room: int
    total: int
    """The sum of the hashes of its rows."""


class Segment:
    """Rows `first` to `first + room` of a table. Without a path, they are in memory."""

    def __init__(self, path: Path | None, layout: Layout, first: int, room: int) -> None:
        self.path, self.first, self.room, self.total = path, first, room, 0
        self.changed_since: int | None = None
        """The interval since which rows that it had were changed and may not be on disk as they are."""
        self.appended: slice | None = None
        """Rows that were appended, or taken back, and may not be on disk."""
        size = room * _row_bytes(layout)
        self._map = None if path is None else _map_file(path, size)
        held: Any = np.zeros(size, np.uint8) if self._map is None else self._map
        self.columns: dict[str, Array] = {}
        start = 0
        for name, (kind, width) in layout.items():
            column = np.frombuffer(held, kind, room * max(1, width), start)
            self.columns[name] = column.reshape(room, width) if width else column
            start += column.nbytes

    def sync(self) -> None:
        """Let everything be on disk that was written."""
        if self._map is not None:
            self._flush(self._map, 0, len(self._map))
        self.changed_since = self.appended = None

    def sync_appended(self) -> None:
        """Let the rows be on disk that were appended. Pages of other rows that were changed are not written for it:
        actions are scattered over them, and most pages will change again soon."""
        if self._map is None or self.appended is None:
            return
        start = 0
        for column in self.columns.values():
            row = column.nbytes // self.room
            first = (start + self.appended.start * row) // _PAGE * _PAGE
            self._flush(self._map, first, start + self.appended.stop * row - first)
            start += column.nbytes
        self.appended = None

    def _flush(self, mapped: mmap.mmap, first: int, size: int) -> None:
        try:
            mapped.flush(first, size)
        except OSError as error:
            raise not_written(Path(str(self.path)), error) from error

    def extend(self, at: slice) -> None:
        """Note that rows at its end were appended or taken back."""
        old = self.appended or at
        self.appended = slice(min(old.start, at.start), max(old.stop, at.stop))

    def change(self, interval: int) -> None:
        """Note that rows were changed in an interval."""
        self.changed_since = interval if self.changed_since is None else min(interval, self.changed_since)

    def facts(self) -> SegmentFacts:
        return SegmentFacts(self.first, self.room, self.total)

    def hashes(self, at: slice | Ints) -> npt.NDArray[np.uint64]:
        """A hash of each of some rows, in which its number counts, too."""
        place = np.arange(at.start, at.stop) if isinstance(at, slice) else at
        value = (place + (self.first + 1)).astype(np.uint64) * _ODD
        for column in self.columns.values():
            words = np.ascontiguousarray(column[at]).view(f"u{column.dtype.itemsize}").astype(np.uint64, copy=False)
            for word in words.reshape(len(value), -1).T if len(value) else ():
                value ^= word
                value *= _ODD
                value ^= value >> np.uint64(29)
        return value

    def sum_of(self, at: slice | Ints) -> int:
        return int(self.hashes(at).sum(dtype=np.uint64))


class SegmentedTable:
    """A table of rows `first` to `end`. Columns are read by `column`; whoever writes keeps the sums right."""

    def __init__(self, folder: Path | None, name: str, layout: Layout) -> None:
        self.folder, self.name, self.layout = folder, name, layout
        self.first = self.end = 0
        self._segments: list[Segment] = []

    def __len__(self) -> int:
        return self.end - self.first

    def column(self, name: str) -> Column:
        """A column, by position: the first row that is held has position 0."""
        return Column(self, name)

    # Writing.

    def append(self, block: Mapping[str, Array]) -> Ints:
        """Rows after all others; their numbers."""
        start, size = self.end, len(next(iter(block.values())))
        while self.end < start + size:
            segment = self._with_room()
            done = self.end - start
            count = min(size - done, segment.first + segment.room - self.end)
            at = slice(self.end - segment.first, self.end - segment.first + count)
            for name, values in block.items():
                segment.columns[name][at] = values[done : done + count]
            segment.total = (segment.total + segment.sum_of(at)) % (1 << 64)
            segment.extend(at)
            self.end += count
        return np.arange(start, self.end, dtype=np.int64)

    def write(self, number: Ints, values: Mapping[str, Array], interval: int) -> None:
        """Change rows, each of which is given once."""
        for segment, which in self._parts(number):
            at = number[which] - segment.first
            segment.total = (segment.total - segment.sum_of(at)) % (1 << 64)
            for name, value in values.items():
                segment.columns[name][at] = value[which]
            segment.total = (segment.total + segment.sum_of(at)) % (1 << 64)
            segment.change(interval)

    def put(self, number: Ints, values: Mapping[str, Array], interval: int) -> None:
        """Write what the sums count already: a row may be given more than once."""
        for segment, which in self._parts(number):
            for name, value in values.items():
                segment.columns[name][number[which] - segment.first] = value[which]
            segment.change(interval)

    def truncate(self, end: int) -> None:
        """Take back the rows from `end` on, and leave nothing of them."""
        for segment in [s for s in self._segments if s.first >= end]:
            self._segments.remove(segment)
            if segment.path is not None:
                segment.path.unlink(missing_ok=True)
        if self._segments and end < self.end:
            last = self._segments[-1]
            at = slice(end - last.first, min(self.end - last.first, last.room))
            last.total = (last.total - last.sum_of(at)) % (1 << 64)
            last.extend(at)
            for column in last.columns.values():
                column[at] = 0
        self.end = max(self.first, end)

    def drop(self, number: int) -> None:
        """Forget segments of which all rows are before a number. Their files stay until they are no longer named."""
        while len(self._segments) > 1 and self._segments[1].first <= number:
            self.first = self._segments[1].first
            del self._segments[0]

    def _with_room(self) -> Segment:
        if self._segments and self.end < self._segments[-1].first + self._segments[-1].room:
            return self._segments[-1]
        path = self._path(self.end)
        if path is not None:
            path.unlink(missing_ok=True)  # of somebody who was killed before he said that there is one
        room = min(max(SMALLEST, len(self)), LARGEST)
        self._segments.append(Segment(path, self.layout, self.end, room))
        return self._segments[-1]

    def _parts(self, number: Ints) -> Iterator[tuple[Segment, Ints]]:
        """Segments that rows are in, and which of the rows."""
        where = np.searchsorted([s.first for s in self._segments], number, side="right") - 1
        order = np.argsort(where, kind="stable")
        ends = np.flatnonzero(np.diff(where[order])) + 1
        for which in np.split(order, ends) if len(order) else ():
            yield self._segments[where[which[0]]], which

    # On disk.

    def sync(self) -> None:
        """Let what was written be on disk."""
        for segment in self._segments:
            if segment.appended is not None or segment.changed_since is not None:
                segment.sync()

    def sync_due(self, now: int, within: int) -> None:
        """Let what was appended be on disk, and what was changed within so many intervals. A segment is written once in
        half of them at most, and few segments at a time, however many there are."""
        for segment in self._segments:
            segment.sync_appended()
        due = [s for s in self._segments if s.changed_since is not None and s.changed_since <= now - within // 2]
        for segment in sorted(due, key=lambda s: s.changed_since or 0)[: -(-2 * len(self._segments) // within)]:
            segment.sync()

    def changed_since(self, now: int) -> int:
        """The first interval whose changes of rows may not be on disk."""
        return min((s.changed_since for s in self._segments if s.changed_since is not None), default=now)

    def state(self) -> dict[str, Any]:
        return {"first": self.first, "end": self.end, "segments": [list(s.facts()) for s in self._segments]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Become the table that `state` was taken from. What was appended later is left where it is: see
        `adopt` and `blank`."""
        self.first, self.end, self._segments = state["first"], state["end"], []
        for facts in map(SegmentFacts._make, state["segments"]):
            path = self._path(facts.first)
            if path is None or not path.is_file():
                raise UserError(f"{path} is missing")
            segment = Segment(path, self.layout, facts.first, facts.room)
            segment.total = facts.total
            self._segments.append(segment)

    def adopt(self, name: str) -> None:
        """Take in rows that were appended after the state was taken: a column that is never 0 tells them."""
        while True:
            if not self._segments or self.end == self._segments[-1].first + self._segments[-1].room:
                path = self._path(self.end)
                if path is None or not path.is_file():
                    return
                room = path.stat().st_size // _row_bytes(self.layout)
                self._segments.append(Segment(path, self.layout, self.end, room))
            last = self._segments[-1]
            written = last.columns[name][self.end - last.first :] != 0
            count = len(written) if written.all() else int(np.argmin(written))
            at = slice(self.end - last.first, self.end - last.first + count)
            last.total = (last.total + last.sum_of(at)) % (1 << 64)
            last.extend(at)
            self.end += count
            if self.end < last.first + last.room:
                return

    def blank(self, name: str) -> None:
        """Leave nothing of rows that were appended after the state was taken; they have a column that is not 0."""
        if self._segments:
            last = self._segments[-1]
            left = np.flatnonzero(last.columns[name][self.end - last.first :])
            at = slice(self.end - last.first, self.end - last.first + (int(left[-1]) + 1 if len(left) else 0))
            for column in last.columns.values():
                column[at] = 0

    def wrong(self) -> list[Path | None]:
        """Segments whose rows are not those that were written. Reads everything."""
        return [segment.path for segment in self._segments if self._total(segment) != segment.total]

    def _total(self, segment: Segment) -> int:
        last = min(self.end - segment.first, segment.room)
        parts = (slice(at, min(at + _AT_ONCE, last)) for at in range(0, last, _AT_ONCE))
        return sum(segment.sum_of(part) for part in parts) % (1 << 64)

    def files(self) -> set[Path]:
        return {segment.path for segment in self._segments if segment.path is not None}

    def _path(self, first: int) -> Path | None:
        return None if self.folder is None else self.folder / f"{self.name}.{first:012d}"

    def segments_between(self, first: int, end: int) -> Iterator[tuple[Segment, slice]]:
        """The segments of a range of rows, and where in each they are."""
        start = bisect_right(self._segments, first, key=lambda s: s.first) - 1
        for segment in self._segments[max(0, start) :]:
            if segment.first >= end:
                break
            yield segment, slice(max(0, first - segment.first), min(end - segment.first, segment.room))

    def gather(self, name: str, number: Ints, column: int | None = None) -> Array:
        """Values of rows, in any order."""
        kind, width = self.layout[name]
        shape = (len(number), width) if width and column is None else (len(number),)
        values = np.empty(shape, kind)
        for segment, which in self._parts(number):
            held = segment.columns[name] if column is None else segment.columns[name][:, column]
            values[which] = held[number[which] - segment.first]
        return values

    def search(self, name: str, value: int, right: bool = False) -> int:
        """Where a value would be put in a column that is sorted, as a position."""
        if not len(self):
            return 0

        def last(segment: Segment) -> int:
            return int(segment.columns[name][min(segment.room, self.end - segment.first) - 1])

        find = bisect_right if right else bisect_left
        which = find(self._segments, value, key=last)
        if which == len(self._segments):
            return len(self)
        segment = self._segments[which]
        values = segment.columns[name][: min(segment.room, self.end - segment.first)]
        return segment.first - self.first + int(np.searchsorted(values, value, "right" if right else "left"))


class Column:
    """A column of a segmented table, read as an array is: by position, slice or array of positions."""

    def __init__(self, table: SegmentedTable, name: str) -> None:
        self._table, self._name = table, name

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, key: Any) -> Any:
        key, *column = key if isinstance(key, tuple) else (key,)
        if isinstance(key, slice):
            values = self._slice(key)
            return values[(slice(None), *column)] if column else values
        if isinstance(key, int | np.integer):
            values = self._table.gather(self._name, np.array([key + self._table.first], np.int64))[0]
            return values[column[0]] if column else values
        rows = np.asarray(key)
        number = (np.flatnonzero(rows) if rows.dtype == np.bool_ else rows) + self._table.first
        return self._table.gather(self._name, number, *column)

    def searchsorted(self, value: Any, side: str = "left", sorter: None = None) -> Any:
        """As of an array, of which `np.searchsorted` is asked."""
        positions = [self._table.search(self._name, int(v), side == "right") for v in np.ravel(value)]
        return np.array(positions, np.int64) if np.ndim(value) else np.int64(positions[0])

    def _slice(self, key: slice) -> Array:
        first, end, step = key.indices(len(self))
        shift = self._table.first
        parts = [s.columns[self._name][at] for s, at in self._table.segments_between(first + shift, end + shift)]
        if not parts or end <= first:
            kind, width = self._table.layout[self._name]
            return np.empty((0, width) if width else 0, kind)
        values = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return values[::step]


def _row_bytes(layout: Layout) -> int:
    return sum(np.dtype(kind).itemsize * max(1, width) for kind, width in layout.values())


def _map_file(path: Path, size: int) -> mmap.mmap:
    """A file of a size in memory, made if it is not there. Its blocks are reserved: to write to a map that the disk has
    no room for would end the process."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(handle).st_size != size:
                os.posix_fallocate(handle, 0, size)
            mapped = mmap.mmap(handle, size)
        finally:
            os.close(handle)
        return mapped
    except (OSError, ValueError) as error:
        if isinstance(error, OSError):
            raise not_written(path, error) from error
        raise UserError(f"{path}: not a segment of {size} bytes") from None
