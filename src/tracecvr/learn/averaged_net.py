"""AveragedNet: the moving average of a net's weights, which is what is served."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from copy import deepcopy

import torch
from torch import Tensor, nn

from tracecvr.learn.optimisers import LazyAdamRows
from tracecvr.nets.rows import Lag, Rows

_LAG = "lag."
"""What the names of the state of lags begin with."""


class AveragedNet:
    """The moving average of a net's weights and batch statistics: a net of its own, to be served.

    Tables that a row optimiser learns are averaged row by row, when a row is about to change, and brought up to date
    where they are read: the same average, without a pass over all rows in each interval.
    """

    def __init__(self, net: nn.Module, optimisers: Collection[torch.optim.Optimizer] = ()) -> None:
        self.net = deepcopy(net).eval().requires_grad_(False)
        self.net.zero_grad(set_to_none=True)
        self._lags: dict[str, Lag] = {}
        rowwise = [optimiser for optimiser in optimisers if isinstance(optimiser, LazyAdamRows)]
        tables = {id(table) for optimiser in rowwise for group in optimiser.param_groups for table in group["params"]}
        for (name, averaged), newest in zip(self.net.named_modules(), net.modules(), strict=True):
            if isinstance(averaged, Rows) and isinstance(newest, Rows) and id(newest.weight) in tables:
                averaged.lag = self._lags[f"{name}.weight"] = Lag(averaged.weight, newest.weight)
        for optimiser in rowwise:
            optimiser.before_change.append(self._before_change)
        own = _tensors(self.net)
        self._pairs = [(own[name], value) for name, value in _tensors(net).items() if name not in self._lags]

    @torch.no_grad()
    def update(self, decay: float) -> None:
        """Move towards the newest weights; counters are taken over."""
        for lag in self._lags.values():
            lag.clock += math.log(max(decay, 1e-300))
        for averaged, newest in self._pairs:
            if newest.is_floating_point():
                averaged.lerp_(newest, 1 - decay)
            else:
                averaged.copy_(newest)

    def state(self) -> dict[str, Tensor]:
        lags = {f"{_LAG}{name}": lag for name, lag in self._lags.items()}
        beside = {f"{name}.{key}": getattr(lag, key) for name, lag in lags.items() for key in ("since", "clock")}
        return self.net.state_dict() | beside

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.net.load_state_dict({name: value for name, value in state.items() if not name.startswith(_LAG)})
        for name, lag in self._lags.items():
            lag.since = state[f"{_LAG}{name}.since"].clone()
            lag.clock = state[f"{_LAG}{name}.clock"].clone()

    @contextmanager
    def settled(self) -> Iterator[None]:
        """While it lasts, the net is an ordinary one, whose tables are up to date: to be exported."""
        late = [module for module in self.net.modules() if isinstance(module, Rows) and module.lag is not None]
        before = [(module, module.lag, module.weight.data) for module in late]
        try:
            for module, lag, _ in before:
                assert lag is not None
                module.lag, module.weight.data = None, lag.settled()
            yield
        finally:
            for module, lag, average in before:
                module.lag, module.weight.data = lag, average

    def _before_change(self, table: Tensor, rows: Tensor, newest: Tensor) -> None:
        for lag in self._lags.values():
            if lag.newest is table:
                lag.catch_up(rows, newest)


def _tensors(net: nn.Module) -> dict[str, Tensor]:
    """Parameters and batch statistics by name. A `state_dict` for each interval takes longer than the average."""
    return dict(net.named_parameters()) | dict(net.named_buffers())
