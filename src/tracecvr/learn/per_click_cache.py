"""Answers: what a frozen net that sees features alone says of each click, asked once however often it is shown."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
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

_HASH = 8
"""Bytes at the start of a file: a hash of what follows, the first row and the array."""


class Block(NamedTuple):
    """The answers about the clicks of an interval."""

    first: int
    """Row of its first click; the others follow."""
    answers: npt.NDArray[Any]


class PerClickCache:
    """One net's answers. It is asked about all clicks of an interval together: who recomputes them, after a restart or
    because they were dropped, asks about the same block and so gets the same bytes.

    With a folder, blocks are files there, which outlive the process. They are read and checked each time: one may be
    damaged at any moment. The folder is of one net with its weights: answers of others have other folders.
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
        block = self._blocks.get(start) or self._kept(start)
        if block is None:
            clicks = source.clicks(start, start + width)
            block = Block(int(clicks.row[0]), compute(clicks.x).numpy())
            if self.folder is None:
                self._blocks[start] = block
            else:
                self._write(start, block)
        return block

    def _write(self, start: int, block: Block) -> None:
        """Not flushed to disk: a block that is not whole is computed again."""
        path, content = self._path(start), BytesIO()
        np.lib.format.write_array(content, block.answers)
        body = block.first.to_bytes(8, "little") + content.getvalue()
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            with temporary.open("wb") as file:
                make_private(temporary)
                file.write(self._hash(start, body) + body)
            temporary.rename(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise not_written(path, error) from error

    def _kept(self, start: int) -> Block | None:
        """A block that is in a file, if it is whole."""
        if self.folder is None or not self._path(start).is_file():
            return None
        content = self._path(start).read_bytes()
        body = content[_HASH:]
        if content[:_HASH] != self._hash(start, body):
            return None
        return Block(int.from_bytes(body[:8], "little"), np.lib.format.read_array(BytesIO(body[8:])))

    def _hash(self, start: int, body: bytes) -> bytes:
        """Of a block and its place: a whole block under the name of another, or of another net, is damage, too."""
        assert self.folder is not None
        return xxhash.xxh3_64_digest(f"{self.folder.name} {start} ".encode() + body)

    def _path(self, start: int) -> Path:
        assert self.folder is not None
        return self.folder / str(start)
