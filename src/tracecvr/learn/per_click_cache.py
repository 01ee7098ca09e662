"""Answers: what a frozen net that sees features alone says of each click, asked once however often it is shown."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tracecvr.stream.reveal import Reveals
from tracecvr.stream.source import Source

Ask = Callable[[Tensor], Tensor]


class PerClickCache:
    """One net's answers. It is asked about all clicks of an interval together: who recomputes them, after a restart or
    because they were dropped, asks about the same block and so gets the same bytes."""

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[int, Tensor]] = {}

    def of(self, events: Reveals, source: Source, start: int, end: int, ask: Ask) -> Tensor:
        """The answers about the clicks of events, in an interval that tells how long all intervals are."""
        width = end - start
        block = (events.arrival - start).div(width, rounding_mode="floor")
        numbers, inverse, counts = torch.unique(block, return_inverse=True, return_counts=True)
        order = torch.argsort(inverse, stable=True)
        parts: list[Tensor] = []
        for number, index in zip(numbers.tolist(), order.split(counts.tolist()), strict=True):
            first, answers = self._block(source, start + number * width, width, ask)
            parts.append(answers[events.row[index] - first])
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return torch.cat(parts)[back]

    def drop(self, before: int) -> None:
        """Forget intervals that start before a time; whoever asks about them again pays again."""
        self._blocks = {start: block for start, block in self._blocks.items() if start >= before}

    def _block(self, source: Source, start: int, width: int, ask: Ask) -> tuple[int, Tensor]:
        if start not in self._blocks:
            clicks = source.clicks(start, start + width)
            self._blocks[start] = int(clicks.row[0]), ask(clicks.x)
        return self._blocks[start]
