"""What a training step costs as embedding tables grow: small and large tables in one run, as a ratio.

    python benchmarks/embeddings.py                       # ten thousand against ten million rows of 16
    python benchmarks/embeddings.py --large 17            # all columns are large, not one of them
    python benchmarks/embeddings.py --rows 1000000 --optimisers adam lazy_adam

A step is the forward pass, the backward pass and the optimisers of the paper's perceptron on 17 columns, as many as
Criteo has. One column has ten thousand ids or ten million, the others 200 each. Ids are spread evenly over all rows,
which is the worst case: real traffic has favourites that stay in the cache.

A batch has more distinct rows if tables are large, which is more work by nature. So large tables are measured twice:
with ids from all rows, and with as many distinct rows in a batch as with small tables, from new places in each step.
Exit code 1 if a row optimiser's ratio of the latter is above 1.3.

Times are processor time of one thread. Steps of all kinds take turns, because other work on the machine slows memory.
The last lines tell what is done once per interval and not per step: averaging, and the state that a checkpoint
writes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from tracecvr.data.table import Feature, Schema
from tracecvr.learn.averaged_net import AveragedNet
from tracecvr.learn.optimisers import make_optimisers
from tracecvr.learn.stream_learning import moments
from tracecvr.nets.backbones import MLP

SMALL, LARGE, LIMIT = 10_000, 10_000_000, 1.3
COLUMNS, FEW, DIM = 17, 200, 16
BY_ROWS = ("lazy_adam",)


class Learnt:
    """A net whose large columns have so many rows in all, and what learns and averages it."""

    def __init__(self, rows: int, large: int, optimiser: str, batch: int) -> None:
        self.sizes = torch.tensor([rows // large] * large + [FEW] * (COLUMNS - large))
        features = tuple(Feature(f"c{j}", size, f"c{j}") for j, size in enumerate(self.sizes.tolist()))
        schema = Schema("made up", features, ("conversion",), (10, 20), 20, 100, 10, 1000)
        self.net, self.batch = MLP(schema, 1, (256, 256, 128), DIM), batch
        self.optimisers = make_optimisers(optimiser, self.net, 1e-3, 1e-6)
        self.average = AveragedNet(self.net, self.optimisers.values())
        self.step(self.ids())  # makes the optimisers' state
        for tensor in (*moments(self.optimisers, self.net).values(), *self.average.state().values()):
            tensor += 0  # so that its memory is there: a page comes into being when it is first written

    def ids(self, of_each: Tensor | None = None) -> Tensor:
        """Of a batch, evenly spread; with `of_each`, from so many values of each column, which are drawn anew."""
        if of_each is None:
            return (torch.rand(self.batch, COLUMNS, dtype=torch.float64) * self.sizes).int()
        pools = [
            torch.from_numpy(np.random.default_rng().choice(size, few, replace=False).astype(np.int32))
            for size, few in zip(self.sizes.tolist(), of_each.tolist(), strict=True)
        ]
        return torch.stack([pool[torch.randint(len(pool), (self.batch,))] for pool in pools], dim=1)

    def step(self, x: Tensor) -> None:
        for optimiser in self.optimisers.values():
            optimiser.zero_grad(set_to_none=True)
        self.net(x)[:, 0].square().mean().backward()
        for optimiser in self.optimisers.values():
            optimiser.step()

    def state_mb(self) -> float:
        """What a checkpoint writes."""
        tensors = [*self.net.state_dict().values(), *moments(self.optimisers, self.net).values()]
        tensors += self.average.state().values()
        return float(sum(tensor.numel() * tensor.element_size() for tensor in tensors)) / 1e6


@dataclass(frozen=True)
class Cost:
    """Of one optimiser: milliseconds of a step, and how many distinct rows its batch has."""

    optimiser: str
    small: float
    large: float
    same_rows: float
    distinct: tuple[int, int, int]
    averaging: float
    state_mb: float

    @property
    def passed(self) -> bool:
        return self.optimiser not in BY_ROWS or self.same_rows / self.small <= LIMIT


def measured(optimiser: str, rows: int, columns: int, batch: int, steps: int) -> Cost:
    """Steps of all kinds in turn; the first ones do not count."""
    few, many = (Learnt(total, columns, optimiser, batch) for total in (SMALL, rows))
    kinds: list[tuple[Learnt, Callable[[], Tensor]]] = [
        (few, few.ids),
        (many, many.ids),
        (many, lambda: many.ids(few.sizes)),
    ]
    taken = [[_step_ms(net, draw()) for net, draw in kinds] for _ in range(steps + 3)][3:]
    small, large, same_rows = (median(times) for times in zip(*taken, strict=True))
    one, two, three = (_distinct(draw()) for _, draw in kinds)
    averaging = median(_ms(lambda: many.average.update(0.9)) for _ in range(3))
    return Cost(optimiser, small, large, same_rows, (one, two, three), averaging, many.state_mb())


def _step_ms(net: Learnt, x: Tensor) -> float:
    return _ms(lambda: net.step(x))


def _ms(work: Callable[[], None]) -> float:
    clock = time.process_time()
    work()
    return 1000 * (time.process_time() - clock)


def _distinct(x: Tensor) -> int:
    return sum(len(column.unique()) for column in x.unbind(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=LARGE, help="of the large tables, in all")
    parser.add_argument("--large", type=int, default=1, help=f"how many of the {COLUMNS} columns are large")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--optimisers", nargs="+", default=["adam", *BY_ROWS])
    given = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("optimiser", "rows in all", "rows in a batch", "ms of a step", "ratio")
    costs = [measured(name, given.rows, given.large, given.batch, given.steps) for name in given.optimisers]
    for cost in costs:
        times, totals = (cost.small, cost.large, cost.same_rows), (SMALL, given.rows, given.rows)
        for total, distinct, ms in zip(totals, cost.distinct, times, strict=True):
            table.add_row(cost.optimiser, f"{total:,}", f"{distinct:,}", f"{ms:,.1f}", f"{ms / cost.small:.2f}")
    Console().print(table)
    for cost in costs:
        Console().print(f"{cost.optimiser}: averaging {cost.averaging:,.2f} ms, state {cost.state_mb:,.0f} MB")
    sys.exit(0 if all(cost.passed for cost in costs) else 1)


if __name__ == "__main__":
    main()
