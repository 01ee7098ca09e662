"""Optimisers of stream and warm-up, by name: here, or in the entry-point group `tracecvr.optimisers`.

One is a class with a `name` and a static method `make`, which returns torch optimisers that together cover all
parameters of a net. Their state is saved under the names of their keys. An `nn.Embedding` whose `sparse` is set has a
gradient of only the rows of a batch: it is set for optimisers that can take it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tracecvr.base import registry
from tracecvr.base.errors import DivergedError
from tracecvr.learn.row_optimisers import ForgettingAdagrad, FusedAdam, LazyAdamRows
from tracecvr.nets.blend import Blend

REGRESSION = "regression"
"""Name of the optimiser that the regression of a blend has, whatever learns the net beside it."""


@dataclass(frozen=True)
class Rates:
    """Step sizes, and the decay of weights."""

    dense: float
    embedding: float
    weight_decay: float


class Adam:
    """Adam for all parameters: the field's choice."""

    name = "adam"

    @staticmethod
    def make(net: nn.Module, rates: Rates) -> dict[str, torch.optim.Optimizer]:
        return {"adam": _adam(_groups(net, rates), rates)}


class Adagrad:
    """Adagrad for embedding tables, Adam for all other parameters: common in the industry. The steps of a table row
    shrink with what the row has learnt, so a frequent id is stable while a new one moves fast."""

    name = "adagrad"

    @staticmethod
    def make(net: nn.Module, rates: Rates) -> dict[str, torch.optim.Optimizer]:
        tables, dense = _tables(net), _dense(net)
        adagrad = torch.optim.Adagrad([{"params": tables}], lr=rates.embedding, weight_decay=rates.weight_decay)
        return {"adam": _adam([{"params": dense}], rates), "adagrad": adagrad}


class LazyAdam:
    """Adam, for embedding tables only in the rows of a batch, with the decay of moments that a row missed: a step does
    not take longer if a table has more rows."""

    name = "lazy_adam"

    @staticmethod
    def make(net: nn.Module, rates: Rates) -> dict[str, torch.optim.Optimizer]:
        _set_sparse(net, True)
        adam = _adam([{"params": _dense(net)}], rates)
        return {"adam": adam, "lazy_adam": LazyAdamRows(_tables(net), rates.embedding, rates.weight_decay)}


def made(name: str, net: nn.Module, rates: Rates) -> dict[str, torch.optim.Optimizer]:
    """The optimisers of a name for a net, whose tables give the gradients that these take."""
    _set_sparse(net, False)
    optimisers: dict[str, torch.optim.Optimizer] = registry.get("optimiser", name).make(net, rates)  # type: ignore[attr-defined]
    if not isinstance(net, Blend):
        return optimisers
    regression = net.regression_parameters()
    for optimiser in optimisers.values():
        _leave_out(optimiser, regression)
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
            module.sparse = on


def _adam(groups: list[dict[str, Any]], rates: Rates) -> FusedAdam:
    return FusedAdam(groups, rates.dense, rates.weight_decay)


def _groups(net: nn.Module, rates: Rates) -> list[dict[str, Any]]:
    """One group, or two if embeddings have a step size of their own."""
    # Small nets may have no parameter at all; an optimiser refuses an empty list but not an empty group.
    if rates.embedding == rates.dense:
        return [{"params": list(net.parameters())}]
    return [{"params": _tables(net), "lr": rates.embedding}, {"params": _dense(net)}]


def _tables(net: nn.Module) -> list[torch.Tensor]:
    return [module.weight for module in net.modules() if isinstance(module, nn.Embedding)]


def _dense(net: nn.Module) -> list[nn.Parameter]:
    tables = {id(table) for table in _tables(net)}
    return [parameter for parameter in net.parameters() if id(parameter) not in tables]
