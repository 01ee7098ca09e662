"""Optimisers of stream and warm-up, by name: here, or in the entry-point group `tracecvr.optimisers`.

One is a class with a `name` and a static method `make(net, learning_rate, weight_decay)`, which returns torch
optimisers that together cover all parameters of a net. Their state is saved under the names of their keys. An
`nn.Embedding` whose `sparse` is set has a gradient of only the rows of a batch: it is set for optimisers that can take
it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from tracecvr.base import registry
from tracecvr.base.devices import is_on_processor
from tracecvr.base.errors import DivergedError
from tracecvr.learn.row_optimisers import ForgettingAdagrad, FusedAdam, LazyAdamRows
from tracecvr.nets.blend import Blend

REGRESSION = "regression"
"""Name of the optimiser that the regression of a blend has, whatever learns the net beside it."""


class Adam:
    """Adam for all parameters: the field's choice."""

    name = "adam"

    @staticmethod
    def make(net: nn.Module, learning_rate: float, weight_decay: float) -> dict[str, torch.optim.Optimizer]:
        return {"adam": _adam(list(net.parameters()), learning_rate, weight_decay)}


class LazyAdam:
    """Adam, for embedding tables only in the rows of a batch, with the decay of moments that a row missed: a step does
    not take longer if a table has more rows."""

    name = "lazy_adam"

    @staticmethod
    def make(net: nn.Module, learning_rate: float, weight_decay: float) -> dict[str, torch.optim.Optimizer]:
        _set_sparse(net, True)
        tables = [module.weight for module in net.modules() if isinstance(module, nn.Embedding)]
        dense = [one for one in net.parameters() if not any(one is table for table in tables)]
        adam = _adam(dense, learning_rate, weight_decay)
        return {"adam": adam, "lazy_adam": LazyAdamRows(tables, learning_rate, weight_decay)}


def make_optimisers(
    name: str, net: nn.Module, learning_rate: float, weight_decay: float
) -> dict[str, torch.optim.Optimizer]:
    """The optimisers of a name for a net, whose tables give the gradients that these take."""
    _set_sparse(net, False)
    maker: Any = registry.get("optimiser", name)
    optimisers: dict[str, torch.optim.Optimizer] = maker.make(net, learning_rate, weight_decay)
    if not isinstance(net, Blend):
        return optimisers
    regression = net.regression_parameters()
    for optimiser in optimisers.values():
        _leave_out(optimiser, [*regression, net.shares])
    return optimisers | {REGRESSION: ForgettingAdagrad(regression)}


def _leave_out(optimiser: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
    """Let an optimiser learn all that it has but these parameters."""
    for group in optimiser.param_groups:
        group["params"] = [one for one in group["params"] if not any(one is other for other in parameters)]
    for parameter in parameters:
        optimiser.state.pop(parameter, None)


def take_step(optimisers: Collection[torch.optim.Optimizer], loss: torch.Tensor, where: str) -> None:
    """One step of the optimisers against the gradient of a loss. `where` is for the message if it has diverged."""
    if not torch.isfinite(loss):
        raise DivergedError(f"{where}: the loss is {loss.item()}; try a lower learning_rate")
    for parameter in (one for optimiser in optimisers for group in optimiser.param_groups for one in group["params"]):
        parameter.grad = None
    loss.backward()
    for optimiser in optimisers:
        optimiser.step()


def _set_sparse(net: nn.Module, on: bool) -> None:
    for module in net.modules():
        if isinstance(module, nn.Embedding):
            module.sparse = on and is_on_processor(module.weight)


def _adam(parameters: list[nn.Parameter], learning_rate: float, weight_decay: float) -> FusedAdam:
    # A small net may have no parameter at all: an optimiser refuses an empty list, but not an empty group.
    return FusedAdam([{"params": parameters}], learning_rate, weight_decay)
