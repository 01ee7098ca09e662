"""GrowingColumns: the maps of a model's growing columns, and the tables of all its nets kept in step with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import Tensor, nn

from tracecvr.base.durations import duration, exact_duration
from tracecvr.base.errors import UserError
from tracecvr.data.table import Schema
from tracecvr.learn.row_optimisers import START_OF_ROW
from tracecvr.nets.backbones import Embedding
from tracecvr.nets.growing import GrowingMap, keys
from tracecvr.nets.rows import resize


class GrowingColumns:
    """One map for each table that grows; none, as a rule. Clicks drive them in the order of intervals: a replay, a live
    model and a restored one have the same maps."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.maps = {table: GrowingMap(growth) for table, growth in schema.growths.items()}

    def __bool__(self) -> bool:
        return bool(self.maps)

    def check(self, memory: int, interval: int) -> None:
        """Refuse to forget a value while its clicks may still be asked about: answers would depend on when."""
        for table, growth in self.schema.growths.items():
            if growth.forget < memory + interval:
                raise UserError(
                    f"column {table!r}: forget = {exact_duration(growth.forget)} is too short: a click may be asked "
                    f"about for {duration(memory)}, and an interval has {duration(interval)}; give "
                    f"{exact_duration(memory + interval)} or more"
                )

    def join(self, nets: Iterable[nn.Module]) -> None:
        """Have nets read these maps, with tables of the size that they need."""
        for embedding in embeddings(nets) if self else ():
            embedding.maps = list(self.maps.values())
            for rows, one in zip(embedding.grown_tables, embedding.maps, strict=True):
                rows.resize(one.capacity)

    def see(self, x: Tensor, at: Tensor) -> None:
        """Count the values of clicks, given when each came."""
        for table, key in keys(self.schema, x):
            self.maps[table].see(key, at)

    def settle(self, now: int | None = None) -> list[tuple[Tensor, int]]:
        """Give rows and take them back, as of now or of the last click; of each map the fresh rows, and how many rows
        there are in all."""
        settled = []
        for one in self.maps.values():
            last = int(one.seen.max()) if len(one.seen) else 0
            settled.append((one.settle(last if now is None else now), one.capacity))
        return settled

    def as_rows(self, x: Tensor) -> Tensor:
        """Clicks as an export is given them: a row in the place of low bits, 0 in that of high ones."""
        x = x.clone()
        places = [
            j for j, feature in enumerate(self.schema.features) if feature.growth is not None and not feature.high
        ]
        for j, (table, key) in zip(places, keys(self.schema, x), strict=True):
            x[:, j], x[:, j + 1] = self.maps[table].rows(key).to(x.dtype), 0
        return x

    def state(self) -> dict[str, Tensor]:
        return {f"{table}.{name}": value for table, one in self.maps.items() for name, value in one.state().items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        for table, one in self.maps.items():
            one.load_state({name: state[f"{table}.{name}"] for name in one.state()})


def embeddings(nets: Iterable[nn.Module]) -> list[Embedding]:
    return [module for net in nets for module in net.modules() if isinstance(module, Embedding)]


def start_rows(nets: Iterable[nn.Module], settled: list[tuple[Tensor, int]]) -> None:
    """Give nets the rows that are fresh."""
    for embedding in embeddings(nets):
        for rows, (fresh, capacity) in zip(embedding.grown_tables, settled, strict=True):
            rows.start(fresh, capacity)


def start_moments(
    optimisers: Collection[torch.optim.Optimizer], net: nn.Module, settled: list[tuple[Tensor, int]]
) -> None:
    """Forget what optimisers know of rows that have passed to another value."""
    for embedding in embeddings([net]):
        for rows, (fresh, capacity) in zip(embedding.grown_tables, settled, strict=True):
            for optimiser in optimisers:
                state = optimiser.state.get(rows.weight, {})
                for name, value in list(state.items()):
                    if value.dim():
                        first = int(state["step"]) if name == "last" else START_OF_ROW.get(name, 0)
                        state[name] = resize(value, capacity, first)
                        state[name][fresh] = first


def start_published(state: dict[str, Tensor], net: nn.Module, settled: list[tuple[Tensor, int]]) -> None:
    """The same as `start_rows` for a published copy of a net's state."""
    for name, embedding in net.named_modules():
        for number, (fresh, capacity) in enumerate(settled) if isinstance(embedding, Embedding) else ():
            key = f"{name}.growing.{number}.weight"
            weight = resize(state[key], capacity)
            weight[fresh] = weight[0].clone()
            state[key] = weight
