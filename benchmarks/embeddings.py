"""What a training step costs as embedding tables grow: small and large tables in one run, as a ratio.

    python benchmarks/embeddings.py                       # ten thousand against ten million rows of 16
    python benchmarks/embeddings.py --large 17            # all columns are large, not one of them
    python benchmarks/embeddings.py --rows 1000000 --optimisers adam lazy_adam

A step is the forward pass, the backward pass and the optimisers of the paper's perceptron on 17 columns, as many as
Criteo has. One column has ten thousand ids or ten million, the others 200 each. Ids are spread evenly over all rows,
which is the worst case: real traffic has favourites that stay in the cache. Steps of both sizes take turns, so that
other work on the machine slows both. Exit code 1 if a row optimiser's ratio is above 1.3.

It also tells what is done once per interval and not per step: averaging, and the state that a checkpoint writes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from tracecvr.data.table import Feature, Schema
from tracecvr.learn.averaged_net import AveragedNet
from tracecvr.learn.optimisers import Rates, made
from tracecvr.learn.stream_learning import moments
from tracecvr.nets.backbones import MLP

SMALL, LARGE, LIMIT = 10_000, 10_000_000, 1.3
COLUMNS, FEW, DIM = 17, 200, 16
BY_ROWS = ("lazy_adam", "row_adagrad")


class Learnt:
    """A net whose large columns have so many rows in all, and what learns and averages it."""

    def __init__(self, rows: int, large: int, optimiser: str, batch: int) -> None:
        self.sizes = torch.tensor([rows // large] * large + [FEW] * (COLUMNS - large))
        features = tuple(Feature(f"c{j}", size, f"c{j}") for j, size in enumerate(self.sizes.tolist()))
        schema = Schema("made up", features, ("conversion",), (10, 20), 20, 100, 10, 1000)
        self.net, self.batch = MLP(schema, 1, (256, 256, 128), DIM), batch
        self.optimisers = made(optimiser, self.net, Rates(1e-3, 1e-3, 1e-6))
        self.average = AveragedNet(self.net, self.optimisers.values())
        self.step()  # makes the optimisers' state
        for tensor in moments(self.optimisers, self.net).values():
            tensor += 0  # so that its memory is there: a page comes into being when it is first written

    def step(self) -> None:
        x = (torch.rand(self.batch, COLUMNS, dtype=torch.float64) * self.sizes).int()
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
    """Of one optimiser: milliseconds with small and large tables."""

    optimiser: str
    small: float
    large: float
    averaging: float
    state_mb: float

    @property
    def ratio(self) -> float:
        return self.large / self.small

    @property
    def passed(self) -> bool:
        return self.optimiser not in BY_ROWS or self.ratio <= LIMIT


def measured(optimiser: str, rows: int, columns: int, batch: int, steps: int) -> Cost:
    """Steps of both sizes in turn; the first ones do not count."""
    few, many = (Learnt(total, columns, optimiser, batch) for total in (SMALL, rows))
    taken = [(_ms(few.step), _ms(many.step)) for _ in range(steps + 3)][3:]
    small, large = (median(times) for times in zip(*taken, strict=True))
    averaging = median(_ms(lambda: many.average.update(many.net, 0.9)) for _ in range(3))
    return Cost(optimiser, small, large, averaging, many.state_mb())


def _ms(work: Callable[[], None]) -> float:
    clock = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=LARGE, help="of the large tables, in all")
    parser.add_argument("--large", type=int, default=1, help=f"how many of the {COLUMNS} columns are large")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--optimisers", nargs="+", default=["adam", *BY_ROWS])
    given = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("optimiser", f"ms, {SMALL:,} rows", f"ms, {given.rows:,} rows", "ratio", "averaging, ms", "state, MB")
    costs = []
    for optimiser in given.optimisers:
        cost = measured(optimiser, given.rows, given.large, given.batch, given.steps)
        costs.append(cost)
        figures = (cost.small, cost.large, cost.ratio, cost.averaging, cost.state_mb)
        table.add_row(optimiser, *(f"{figure:,.2f}" for figure in figures))
    Console().print(table)
    sys.exit(0 if all(cost.passed for cost in costs) else 1)


if __name__ == "__main__":
    main()
