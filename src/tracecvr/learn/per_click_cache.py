"""Answers: what a frozen net that sees features alone says of each click, asked once however often it is shown."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import mkstemp
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch import Tensor

from tracecvr.base.files import not_written
from tracecvr.stream.reveal import Reveals
from tracecvr.stream.source import Source

Compute = Callable[[Tensor], Tensor]
Answers = npt.NDArray[Any]

_OF_A_FILE = 64
"""Blocks that share a file: a process may not have very many open."""


class NamelessFile:
    """A file in a folder, open as long as anybody refers to it, and gone then."""

    def __init__(self, folder: Path) -> None:
        self.number, name = mkstemp(dir=folder, prefix=".answers.")
        self._closed = finalize(self, os.close, self.number)
        os.unlink(name)  # noqa: PTH108


class OnDisk(NamedTuple):
    """Answers in a file."""

    file: NamelessFile
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    hash: int

    def read(self) -> Answers | None:
        """None if they are not as they were written: a disk may damage them at any moment."""
        data = os.pread(self.file.number, int(np.prod(self.shape)) * self.dtype.itemsize, self.offset)
        whole = xxhash.xxh3_64_intdigest(data) == self.hash
        return np.frombuffer(data, self.dtype).reshape(self.shape) if whole else None


class Block(NamedTuple):
    """The answers about the clicks of an interval."""

    first: int
    """Row of its first click; the others follow."""
    answers: Answers | OnDisk


class PerClickCache:
    """One net's answers. It is asked about all clicks of an interval together: who recomputes them, after a restart or
    because they were dropped, asks about the same block and so gets the same bytes.

    With a folder, blocks are in files there, which have no name and are gone when nobody refers to them.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._blocks: dict[int, Block] = {}
        self._folder, self._written = folder, 0
        self._file: NamelessFile | None = None

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
        self._blocks = {start: block for start, block in self._blocks.items() if start >= before}

    def _block(self, source: Source, start: int, width: int, compute: Compute) -> tuple[int, Answers]:
        if start in self._blocks:
            first, kept = self._blocks[start]
            answers = kept.read() if isinstance(kept, OnDisk) else kept
            if answers is not None:
                return first, answers
        clicks = source.clicks(start, start + width)
        first, answers = int(clicks.row[0]), compute(clicks.x).numpy()
        self._blocks[start] = Block(first, answers if self._folder is None else self._write(self._folder, answers))
        return first, answers

    def _write(self, folder: Path, answers: Answers) -> OnDisk:
        data = answers.tobytes()
        try:
            if self._file is None or self._written % _OF_A_FILE == 0:
                self._file = NamelessFile(folder)
            offset = os.fstat(self._file.number).st_size
            os.pwrite(self._file.number, data, offset)  # what a full disk cuts off is noticed, and asked again
        except OSError as error:
            raise not_written(folder, error) from error
        self._written += 1
        return OnDisk(self._file, offset, answers.shape, answers.dtype, xxhash.xxh3_64_intdigest(data))
