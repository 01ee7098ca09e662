"""Answers: what a frozen net that sees features alone says of each click, asked once however often it is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch import Tensor

from tracecvr.base.files import not_written
from tracecvr.stream.reveal import Reveals
from tracecvr.stream.source import Source

Compute = Callable[[Tensor], Tensor]


class Block(NamedTuple):
    """The answers about the clicks of an interval."""

    first: int
    """Row of its first click; the others follow."""
    answers: npt.NDArray[Any]
    hash: int


class PerClickCache:
    """One net's answers. It is asked about all clicks of an interval together: who recomputes them, after a restart or
    because they were dropped, asks about the same block and so gets the same bytes.

    With a folder, blocks are memory-mapped files there, which have no name and are gone with the process. They are
    checked each time: a disk may damage one at any moment.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._blocks: dict[int, Block] = {}
        self._folder = folder

    def of(self, events: Reveals, source: Source, start: int, end: int, compute: Compute) -> Tensor:
        """The answers about the clicks of events, in an interval that tells how long all intervals are."""
        width = end - start
        block = (events.arrival - start).div(width, rounding_mode="floor")
        numbers, inverse, counts = torch.unique(block, return_inverse=True, return_counts=True)
        order = torch.argsort(inverse, stable=True)
        parts: list[Tensor] = []
        for number, index in zip(numbers.tolist(), order.split(counts.tolist()), strict=True):
            first, answers, _ = self._block(source, start + number * width, width, compute)
            parts.append(torch.from_numpy(answers[(events.row[index] - first).numpy()]))
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return torch.cat(parts)[back]

    def drop(self, before: int) -> None:
        """Forget intervals that start before a time; whoever asks about them again pays again."""
        self._blocks = {start: block for start, block in self._blocks.items() if start >= before}

    def _block(self, source: Source, start: int, width: int, compute: Compute) -> Block:
        block = self._blocks.get(start)
        if block is None or (self._folder is not None and block.hash != _hash(block.answers)):
            clicks = source.clicks(start, start + width)
            answers = np.ascontiguousarray(compute(clicks.x).numpy())
            mapped = answers if self._folder is None else _map(self._folder, answers)
            block = self._blocks[start] = Block(int(clicks.row[0]), mapped, _hash(answers))
        return block


def _hash(answers: npt.NDArray[Any]) -> int:
    return xxhash.xxh3_64_intdigest(answers.data)


def _map(folder: Path, answers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same array in a file."""
    try:
        with TemporaryFile(dir=folder) as file:
            file.write(answers.data)
            file.flush()
            return np.memmap(file, answers.dtype, "r", shape=answers.shape)
    except OSError as error:
        raise not_written(folder, error) from error
