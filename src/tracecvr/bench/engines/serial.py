"""Cells one after the other in this process: for methods that no other process knows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tracecvr.bench.runner import Bench, State, Watch, run_cell
from tracecvr.bench.suite import Cell


class Serial:
    def __call__(self, bench: Bench, waiting: Sequence[Cell], state: State, watch: Watch) -> None:
        threads = torch.get_num_threads()  # a cell has one, as in every engine
        try:
            for cell in waiting:
                self._run(cell, bench, state, watch)
        finally:
            torch.set_num_threads(threads)

    def _run(self, cell: Cell, bench: Bench, state: State, watch: Watch) -> None:
        def tell(stage: str, done: int, total: int) -> None:
            state.at[cell.name] = stage, done, total
            watch(state)

        tell("start", 0, 1)
        state.end(cell.name, run_cell(cell, bench.out, bench.data, bench.log, tell))
        watch(state)
