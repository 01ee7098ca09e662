"""Calls of nets by a method and its plugins: a net is computed once per batch, a frozen net of features once per click.

Authors of methods call nets as often as it suits their formulas. What is remembered, and for how long, is decided here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch import Tensor, nn

from tracecvr.authoring.part import Net, call_directly
from tracecvr.base.devices import array_of
from tracecvr.base.files import not_written
from tracecvr.nets.backbones import is_frozen
from tracecvr.stream.reveal import After, Reveals, Schedule
from tracecvr.stream.source import Source

BLOCK = 8192
"""Rows computed at once: fixed, because a net's last bits may depend on how many rows it is given."""


@dataclass
class ShownEvents:
    """The events of an interval, and the batch of them that is being learnt from."""

    events: Reveals
    source: Source
    start: int
    end: int
    x: Tensor | None = None
    index: Tensor | None = None

    def batch(self, b: Reveals, index: Tensor) -> Reveals:
        """Go on to a batch; `index` says which of the events it has."""
        self.x, self.index = b.x, index
        return b


class NetCalls:
    """Calls nets for the parts of an engine. A net that is called twice with the same inputs is computed once: a second
    forward would cost time, and count the batch twice in the net's statistics.

    Frozen nets that see features alone are computed for all clicks of an interval together, and kept for `memory`
    seconds, if the schedule shows every click more than once.
    """

    def __init__(self, schedule: Schedule, memory: int) -> None:
        self._memory = memory
        self._keeps_clicks = sum(isinstance(t, After) and t.seen is None for t in schedule) > 1
        self._results: dict[tuple[int, Net, bool], tuple[tuple[Tensor, ...], Tensor]] = {}
        self._clicks: dict[tuple[int, str], PerClickCache] = {}
        self._of_events: dict[tuple[int, str], Tensor] = {}
        self._shown: ShownEvents | None = None
        self._folder: Path | None = None

    def __call__(self, nets: nn.ModuleDict, net: Net, inputs: tuple[Tensor, ...]) -> Tensor:
        """The outputs of one of a part's nets, or of a function."""
        key = id(nets), net, torch.is_grad_enabled()
        if key not in self._results or not _same(self._results[key][0], inputs):
            self._results[key] = inputs, self._compute(nets, net, inputs)
        return self._results[key][1]

    def forget(self, net: Net | None = None) -> None:
        """Drop results of a net, or all, after weights or the mode of a net have changed."""
        self._results = {key: result for key, result in self._results.items() if net not in (None, key[1])}

    def forget_clicks(self) -> None:
        """Drop what frozen nets gave for clicks, after these nets have changed."""
        self._clicks.clear()

    def keep_clicks_in(self, folder: Path) -> None:
        """Keep what frozen nets give for clicks in files: of many clicks it takes much memory."""
        self._folder = folder
        self._clicks.clear()

    @contextmanager
    def showing(self, events: Reveals, source: Source, start: int, end: int) -> Iterator[ShownEvents]:
        """While it lasts, these events of an interval are learnt from."""
        self._shown = ShownEvents(events, source, start, end)
        try:
            yield self._shown
        finally:
            self._shown = None
            self._of_events.clear()

    def _compute(self, nets: nn.ModuleDict, net: Net, inputs: tuple[Tensor, ...]) -> Tensor:
        shown = self._shown if self._keeps_clicks else None
        if shown is not None and isinstance(net, str) and _same(inputs, (shown.x,)) and is_frozen(nets[net]):
            return self._per_click((id(nets), net), nets[net], shown)
        return call_directly(nets, net, inputs)

    def _per_click(self, key: tuple[int, str], net: nn.Module, shown: ShownEvents) -> Tensor:
        if key not in self._of_events:
            cache = self._clicks.setdefault(key, PerClickCache(self._folder))
            self._of_events[key] = cache.of(shown.events, shown.source, shown.start, shown.end, in_blocks(net))
            cache.drop(shown.start - self._memory)
        return self._of_events[key][shown.index]


def in_blocks(compute: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same function of rows, computed for a fixed number of rows at a time and without gradient."""

    @torch.no_grad()
    def computed(rows: Tensor) -> Tensor:
        return torch.cat([compute(block) for block in rows.split(BLOCK)])

    return computed


def _same(a: tuple[object, ...], b: tuple[object, ...]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


# What a frozen net that sees features alone says of each click, asked once however often it is shown.


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
            parts.append(torch.as_tensor(answers[array_of(events.row[index] - first)]))
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
        first, answers = int(clicks.row[0]), array_of(compute(clicks.x))
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
