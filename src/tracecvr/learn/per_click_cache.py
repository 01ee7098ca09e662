"""Answers: what a frozen net that sees features alone says of each click, asked once however often it is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch import Tensor

from tracecvr.base.files import make_private, not_written
from tracecvr.stream.reveal import Reveals
from tracecvr.stream.source import Source

Compute = Callable[[Tensor], Tensor]

_TAIL = 2
"""Numbers after the array of a file: the first row, and a hash of that and of the answers."""


class Block(NamedTuple):
    """The answers about the clicks of an interval."""

    first: int
    """Row of its first click; the others follow."""
    answers: npt.NDArray[Any]


class PerClickCache:
    """One net's answers. It is asked about all clicks of an interval together: who recomputes them, after a restart or
    because they were dropped, asks about the same block and so gets the same bytes.

    With a folder, blocks are memory-mapped files there, which outlive the process. The folder is of one net with its
    weights: answers of others have other folders.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._blocks: dict[int, Block] = {}
        self.folder = folder
        if folder is not None:
            folder.mkdir(mode=0o700, exist_ok=True)
            for left in folder.glob(".*.tmp"):  # of a process that was killed while it wrote
                left.unlink()

    def of(self, events: Reveals, source: Source, start: int, end: int, compute: Compute) -> Tensor:
        """The answers about the clicks of events, in an interval that tells how long all intervals are."""
        width = end - start
        block = (events.arrival - start).div(width, rounding_mode="floor")
        numbers, inverse, counts = torch.unique(block, return_inverse=True, return_counts=True)
        order = torch.argsort(inverse, stable=True)
        parts: list[Tensor] = []
        for number, index in zip(numbers.tolist(), order.split(counts.tolist()), strict=True):
            first, answers = self._block(source, start + number * width, width, compute)
            parts.append(torch.from_numpy(answers[(events.row[index] - first).numpy()]))
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return torch.cat(parts)[back]

    def drop(self, before: int) -> None:
        """Forget intervals that start before a time; whoever asks about them again pays again."""
        self.forget(lambda start: start < before)

    def forget(self, gone: Callable[[int], bool]) -> None:
        """Forget some intervals, which their start tells."""
        names = [] if self.folder is None else [path.name for path in self.folder.iterdir()]
        kept = {int(name) for name in names if name.isdecimal()} | set(self._blocks)
        for start in filter(gone, kept):
            self._blocks.pop(start, None)
            if self.folder is not None:
                self._path(start).unlink(missing_ok=True)

    def _block(self, source: Source, start: int, width: int, compute: Compute) -> Block:
        if start not in self._blocks:
            self._blocks[start] = self._kept(start) or self._ask(source, start, width, compute)
        return self._blocks[start]

    def _ask(self, source: Source, start: int, width: int, compute: Compute) -> Block:
        clicks = source.clicks(start, start + width)
        block = Block(int(clicks.row[0]), compute(clicks.x).numpy())
        if self.folder is None:
            return block
        self._write(start, block)
        return self._kept(start) or block

    def _write(self, start: int, block: Block) -> None:
        """Not flushed to disk: a block that is not whole is computed again."""
        path, answers = self._path(start), np.ascontiguousarray(block.answers)
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            with temporary.open("wb") as file:
                make_private(temporary)
                np.lib.format.write_array(file, answers)
                file.write(np.array([block.first, _hash(start, block.first, answers)], np.int64).tobytes())
            temporary.rename(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise not_written(path, error) from error

    def _kept(self, start: int) -> Block | None:
        """A block that is in a file, if it is whole."""
        if self.folder is None or not self._path(start).is_file():
            return None
        try:
            answers = np.lib.format.open_memmap(self._path(start), mode="r")
            place = self._path(start).stat().st_size - 8 * _TAIL
            first, digest = np.fromfile(self._path(start), np.int64, _TAIL, offset=place).tolist()
        except (OSError, ValueError, EOFError):
            return None
        return Block(first, answers) if digest == _hash(start, first, answers) else None

    def _path(self, start: int) -> Path:
        assert self.folder is not None
        return self.folder / str(start)


def _hash(start: int, first: int, answers: npt.NDArray[Any]) -> int:
    """Of a block and its place: a whole block under the name of another is damage, too."""
    digest = xxhash.xxh3_64(f"{start} {first} {answers.shape}".encode())
    digest.update(answers.data)
    return digest.intdigest() >> 1
