"""What a method logged when clicks were served, kept until their labels are final and given back with their events."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tracecvr.base.devices import array_of
from tracecvr.data.table import Ints
from tracecvr.stream.reveal import Reveals


@dataclass(frozen=True)
class _Block:
    first: int  # row of its first click; the others follow
    values: Tensor  # (n, J)
    until: int  # when the last label is final


class RecordedOutputs:
    """Blocks of consecutive clicks, one per interval, oldest first."""

    def __init__(self) -> None:
        self._blocks: deque[_Block] = deque()

    def add(self, row: Ints, values: Tensor, until: int) -> None:
        if len(row):
            self._blocks.append(_Block(int(row[0]), values, until))

    def drop(self, now: int) -> None:
        while self._blocks and self._blocks[0].until <= now:
            self._blocks.popleft()

    def with_recorded(self, events: Reveals) -> Reveals:
        """The events with what was logged of their clicks, NaN where nothing was."""
        if not self._blocks:
            return events
        row = array_of(events.row)
        values = self._blocks[0].values
        logged = values.new_full((len(row), values.shape[1]), torch.nan)
        which = np.searchsorted([block.first for block in self._blocks], row, side="right") - 1
        for number in np.unique(which[which >= 0]):
            block, mine = self._blocks[number], np.flatnonzero(which == number)
            mine = mine[row[mine] - block.first < len(block.values)]
            logged[torch.as_tensor(mine)] = block.values[torch.as_tensor(row[mine] - block.first)]
        return replace(events, logged=logged)

    def state(self) -> dict[str, Tensor]:
        facts = torch.tensor([[b.first, b.until] for b in self._blocks], dtype=torch.int64).view(-1, 2)
        return {"facts": facts} | {f"block.{i}": b.values for i, b in enumerate(self._blocks)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self._blocks.clear()
        for i, (first, until) in enumerate(state["facts"].tolist()):
            self._blocks.append(_Block(first, state[f"block.{i}"], until))
