"""Outputs of a frozen net that sees features alone: computed once per click, however often the click is shown."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tracecvr.stream.reveal import Reveals
from tracecvr.stream.source import Source

Compute = Callable[[Tensor], Tensor]


class PerClickCache:
    """Outputs of one net. They are computed for all clicks of an interval together. So whoever computes them again,
    after a restart or because they were dropped, computes the same block and gets the same bytes."""

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[int, Tensor]] = {}

    def of(self, events: Reveals, source: Source, start: int, end: int, compute: Compute) -> Tensor:
        """The outputs for the clicks of events, in an interval that tells how long all intervals are."""
        width = end - start
        block = (events.arrival - start).div(width, rounding_mode="floor")
        numbers, inverse, counts = torch.unique(block, return_inverse=True, return_counts=True)
        order = torch.argsort(inverse, stable=True)
        parts: list[Tensor] = []
        for number, index in zip(numbers.tolist(), order.split(counts.tolist()), strict=True):
            first, outputs = self._block(source, start + number * width, width, compute)
            parts.append(outputs[events.row[index] - first])
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return torch.cat(parts)[back]

    def drop(self, before: int) -> None:
        """Forget intervals that start before a time; if they are needed again, they are computed again."""
        self._blocks = {start: block for start, block in self._blocks.items() if start >= before}

    def _block(self, source: Source, start: int, width: int, compute: Compute) -> tuple[int, Tensor]:
        if start not in self._blocks:
            clicks = source.clicks(start, start + width)
            self._blocks[start] = int(clicks.row[0]), compute(clicks.x)
        return self._blocks[start]
