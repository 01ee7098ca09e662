"""An index on disk: pairs of a key and a row number, in runs that are sorted by key, a file each.

Each interval adds a run. Eight runs of a level are merged into one of the next, so that there are few of them and each
pair is written a few times in its life. How much is merged at a time depends on what an interval adds, not on how much
there is: no tick waits for a merge of a month. A file never changes; it is removed when nothing names it any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from tracecvr.base.errors import UserError
from tracecvr.base.files import make_private, not_written, sync
from tracecvr.data.table import Ints

_TOGETHER = 8
"""Runs of a level that become one of the next."""
_CHEAP = 1 << 20
"""Pairs that are merged in a few hundredths of a second, so that it does not matter when."""
_ADDS = 64
"""How many times as many pairs as were just added may be merged, if that is more."""
_CHUNK = 1 << 18
"""Pairs that are merged at a time, about: merging takes no memory that grows with the runs."""
_SAMPLED = 1 << 12
PINNED = 99
"""The level of a run that is not merged any more."""


@dataclass(frozen=True, eq=False)
class Run:
    """Pairs of rows `first` to `end`, sorted by key and then by row."""

    path: Path | None
    level: int
    first: int
    end: int
    digest: str
    pairs: Ints  # (2, n): keys, and the numbers of rows

    @property
    def keys(self) -> Ints:
        keys: Ints = self.pairs[0]
        return keys

    @property
    def rows(self) -> Ints:
        rows: Ints = self.pairs[1]
        return rows

    def facts(self) -> dict[str, Any]:
        name = "" if self.path is None else self.path.name
        return {"name": name, "level": self.level, "first": self.first, "end": self.end, "hash": self.digest}


class SortedRuns:
    """Which rows have a key. Without a folder, runs are in memory."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self.folder, self.name = folder, name
        self._runs: list[Run] = []
        self._made = 0
        self._synced: set[Path] = set()

    # Asking.

    def find(self, keys: Ints, before: int | None = None) -> tuple[Ints, Ints]:
        """All pairs of some keys: which of the keys it is, and the row. Only of runs that start before a row, if one
        is given."""
        order = np.argsort(keys, kind="stable")
        needles = keys[order]
        which, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for run in self._runs:
            if before is not None and run.first >= before:
                continue
            low, high = np.searchsorted(run.keys, needles, "left"), np.searchsorted(run.keys, needles, "right")
            hits = np.flatnonzero(high > low)
            for extra in range(int((high - low).max(initial=0))):
                some = hits[low[hits] + extra < high[hits]]
                which.append(order[some])
                rows.append(run.rows[low[some] + extra])
        return np.concatenate(which), np.concatenate(rows)

    def newest(self, keys: Ints, before: int | None = None) -> Ints:
        """The last row of each key, -1 if there is none. Runs are asked from the newest on, and older ones only for
        keys that are still missing: most actions follow their click soon."""
        result = np.full(len(keys), -1, np.int64)
        missing = np.argsort(keys, kind="stable")  # neighbours in a run are asked for one after the other
        for run in reversed(self._runs):
            if not len(missing):
                break
            if not len(run.keys) or (before is not None and run.first >= before):
                continue
            after = np.searchsorted(run.keys, keys[missing], "right")
            hit = (after > 0) & (run.keys[np.maximum(after, 1) - 1] == keys[missing])
            result[missing[hit]] = run.rows[after[hit] - 1]
            missing = missing[~hit]
        return result

    def between(self, low: int, high: int) -> Ints:
        """Rows whose key is in [low, high)."""
        parts = [run.rows[slice(*np.searchsorted(run.keys, (low, high)))] for run in self._runs]
        return np.concatenate([np.empty(0, np.int64), *parts])

    # Changing.

    def add(self, keys: Ints, rows: Ints, level: int = 0) -> None:
        """Pairs of rows that come after all others."""
        if not len(keys):
            return
        order = np.argsort(keys, kind="stable")
        first, end = int(rows.min()), int(rows.max()) + 1
        self._runs.append(self._write(level, first, end, iter([(keys[order], rows[order])]), len(keys)))
        if level < PINNED:
            self._merge(max(_CHEAP, _ADDS * len(keys)))

    def _merge(self, most: int) -> None:
        """Merge runs of equal levels, at most so many pairs of each level. Runs that are too large for that stay as
        they are from now on, and so do all before them: runs are in the order of their rows."""
        level = 0
        while len(equal := [run for run in self._runs if run.level == level][:_TOGETHER]) == _TOGETHER:
            large = [run for run in equal if len(run.keys) * _TOGETHER > most]
            if large:
                end = large[-1].end
                self._runs = [replace(run, level=PINNED) if run.end <= end else run for run in self._runs]
            else:
                self._replace(equal, level + 1)
            level += 1

    def remove(self, rows: Ints) -> None:
        """Leave nothing of some rows."""
        for run in list(self._runs):
            inside = rows[(rows >= run.first) & (rows < run.end)]
            if len(inside) and np.isin(run.rows, inside).any():
                self._replace([run], run.level, inside)

    def truncate(self, end: int) -> None:
        """Take back the rows from `end` on."""
        self._runs = [run for run in self._runs if run.first < end]
        for run in [run for run in self._runs if run.end > end]:
            self._replace([run], run.level, np.arange(end, run.end))

    def drop(self, first: int) -> None:
        """Forget runs whose rows are all before a number."""
        self._runs = [run for run in self._runs if run.end > first]

    def _replace(self, old: Sequence[Run], level: int, without: Ints | None = None) -> None:
        """One run in place of some, in order of rows."""
        most = sum(len(run.keys) for run in old)
        first, end = old[0].first, old[-1].end
        merged = self._write(level, first, end, _merged(old, without), most)
        at = self._runs.index(old[0])
        self._runs = [run for run in self._runs if run not in old]
        self._runs.insert(at, merged)

    def _write(self, level: int, first: int, end: int, blocks: Iterator[tuple[Ints, Ints]], most: int) -> Run:
        """A run of pairs that come in order, at most so many."""
        if self.folder is None:
            held = list(blocks)
            pairs = np.array([np.concatenate([block[part] for block in held]) for part in (0, 1)])
            return Run(None, level, first, end, "", pairs)
        self._made += 1
        path = self.folder / f"{self.name}.{first:012d}-{end:012d}.{self._made}"
        while path.exists():
            self._made += 1
            path = path.with_suffix(f".{self._made}")
        try:
            return self._in_file(path, level, first, end, blocks, most)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise not_written(path, error) from error

    @staticmethod
    def _in_file(path: Path, level: int, first: int, end: int, blocks: Iterator[tuple[Ints, Ints]], most: int) -> Run:
        """Keys are written from the start of the file, rows from where the keys may end; then these are moved up."""
        size = 0
        with path.open("wb+") as file:
            make_private(path)
            for keys, rows in blocks:
                file.seek(8 * size)
                file.write(keys.tobytes())
                file.seek(8 * (most + size))
                file.write(rows.tobytes())
                size += len(keys)
            for at in range(0, size if size < most else 0, _CHUNK):
                count = min(_CHUNK, size - at)
                file.seek(8 * (most + at))
                moved = file.read(8 * count)
                file.seek(8 * (size + at))
                file.write(moved)
            file.truncate(16 * size)
        return Run(path, level, first, end, _digest(path), _map_file(path))

    # On disk.

    def sync(self) -> None:
        """Let what was added be on disk. Runs that were merged meanwhile need not be."""
        for path in self.files() - self._synced:
            sync(path)
        self._synced = self.files()

    def state(self) -> list[dict[str, Any]]:
        return [run.facts() for run in self._runs]

    def load(self, state: Sequence[Mapping[str, Any]]) -> None:
        assert self.folder is not None
        self._runs = []
        for facts in state:
            path = self.folder / facts["name"]
            if not path.is_file():
                raise UserError(f"{path} is missing")
            self._runs.append(
                Run(path, facts["level"], facts["first"], facts["end"], facts["hash"], _map_file(path)),
            )
        self._synced = self.files()

    def wrong(self) -> list[Path | None]:
        """Files that are not what was written. Reads everything."""
        return [run.path for run in self._runs if run.path is not None and _digest(run.path) != run.digest]

    def files(self) -> set[Path]:
        return {run.path for run in self._runs if run.path is not None}


def _merged(runs: Sequence[Run], without: Ints | None) -> Iterator[tuple[Ints, Ints]]:
    """Their pairs in order, in blocks. Keys that divide them into blocks are taken from a sample."""
    step = max(1, _CHUNK // _SAMPLED)
    sample = np.sort(np.concatenate([np.asarray(run.keys[::step]) for run in runs]))
    cuts = np.unique(sample[:: max(1, _CHUNK // step)][1:])
    ends = [[0, *np.searchsorted(run.keys, cuts).tolist(), len(run.keys)] for run in runs]
    for block in range(len(cuts) + 1):
        keys, rows = (
            np.concatenate([pairs[end[block] : end[block + 1]] for pairs, end in zip(parts, ends, strict=True)])
            for parts in ([run.keys for run in runs], [run.rows for run in runs])
        )
        if without is not None:
            kept = ~np.isin(rows, without)
            keys, rows = keys[kept], rows[kept]
        order = np.argsort(keys, kind="stable")
        yield keys[order], rows[order]


def _map_file(path: Path) -> Ints:
    if not path.stat().st_size:
        return np.empty((2, 0), np.int64)
    return np.memmap(path, np.int64, "r").reshape(2, -1)


def _digest(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
