"""Calls of nets by a method and its plugins: a net is computed once per batch, a frozen net of features once per click.

Authors of methods call nets as often as it suits their formulas. What is remembered, and for how long, is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor, nn

from tracecvr.authoring.part import Net, call_directly
from tracecvr.base.devices import array_of
from tracecvr.nets.backbones import is_frozen
from tracecvr.stream.reveal import After, Reveals, Schedule
from tracecvr.stream.source import TableSource

BLOCK = 8192
"""Rows computed at once: fixed, because a net's last bits may depend on how many rows it is given."""
MOST_BYTES = 1 << 30
"""What the answers of one net may take. Above that, the oldest are forgotten, and asked again at each of the click's
later looks: some 20 million clicks for the paper's TRACE with six windows."""

Compute = Callable[[Tensor], Tensor]


@dataclass
class ShownEvents:
    """The events of an interval, and the batch of them that is being learnt from."""

    events: Reveals
    source: TableSource
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

    @contextmanager
    def showing(self, events: Reveals, source: TableSource, start: int, end: int) -> Iterator[ShownEvents]:
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
            cache = self._clicks.setdefault(key, PerClickCache())
            self._of_events[key] = cache.of(shown.events, shown.source, shown.start, shown.end, in_blocks(net))
            cache.drop(shown.start - self._memory)
        return self._of_events[key][shown.index]


def in_blocks(compute: Compute) -> Compute:
    """The same function of rows, computed for a fixed number of rows at a time and without gradient."""

    @torch.no_grad()
    def computed(rows: Tensor) -> Tensor:
        return torch.cat([compute(block) for block in rows.split(BLOCK)])

    return computed


def _same(a: tuple[object, ...], b: tuple[object, ...]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


class Block(NamedTuple):
    """The answers about the clicks of an interval."""

    first: int
    """Row of its first click; the others follow."""
    answers: npt.NDArray[Any]


class PerClickCache:
    """What a frozen net that sees features alone says of clicks. It is asked about all clicks of an interval together.
    Answers that are computed again, after a restart or because they were dropped, are of the same block and so have the
    same bytes."""

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}
        self._bytes = 0

    def of(self, events: Reveals, source: TableSource, start: int, end: int, compute: Compute) -> Tensor:
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
        """Forget intervals that start before a time, and the oldest if all take too much. They are computed again when
        they are needed."""
        for start in sorted(self._blocks):
            if start >= before and self._bytes <= MOST_BYTES:
                break
            self._bytes -= self._blocks.pop(start).answers.nbytes

    def _block(self, source: TableSource, start: int, width: int, compute: Compute) -> Block:
        if start not in self._blocks:
            clicks = source.clicks(start, start + width)
            self._blocks[start] = Block(int(clicks.row[0]), array_of(compute(clicks.x)))
            self._bytes += self._blocks[start].answers.nbytes
        return self._blocks[start]
