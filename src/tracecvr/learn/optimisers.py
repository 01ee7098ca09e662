"""The optimisers of a net, in warm-up and in the stream, and one step of them."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from tracecvr.base.devices import is_on_processor
from tracecvr.base.errors import DivergedError
from tracecvr.learn.row_optimisers import ForgettingAdagrad, FusedAdam, LazyAdamRows
from tracecvr.nets.blend import Blend

REGRESSION = "regression"
"""Name of the optimiser that the regression of a blend has, whatever learns the net beside it."""


def make_optimisers(
    name: str, net: nn.Module, learning_rate: float, weight_decay: float
) -> dict[str, torch.optim.Optimizer]:
    """Optimisers that together learn all parameters of a net: `adam`, or `lazy_adam`, which has embedding tables learnt
    by rows. The regression of a blend has an optimiser of its own; its shares are learnt in the stream alone."""
    lazy = name == "lazy_adam"
    tables = [module for module in net.modules() if isinstance(module, nn.Embedding)]
    for table in tables:  # the gradient of a sparse table has only the rows of a batch
        table.sparse = lazy and is_on_processor(table.weight)
    regression = net.regression_parameters() if isinstance(net, Blend) else []
    apart = {id(one) for one in regression} | ({id(net.shares)} if isinstance(net, Blend) else set())
    by_rows = [table.weight for table in tables if lazy and id(table.weight) not in apart]
    apart |= {id(one) for one in by_rows}
    # A small net may have no parameter at all: an optimiser refuses an empty list, but not an empty group.
    others = {"params": [one for one in net.parameters() if id(one) not in apart]}
    optimisers: dict[str, torch.optim.Optimizer] = {"adam": FusedAdam([others], learning_rate, weight_decay)}
    if lazy:
        optimisers["lazy_adam"] = LazyAdamRows(by_rows, learning_rate, weight_decay)
    if regression:
        optimisers[REGRESSION] = ForgettingAdagrad(regression)
    return optimisers


def take_step(optimisers: Collection[torch.optim.Optimizer], loss: torch.Tensor, where: str) -> None:
    """One step of the optimisers against the gradient of a loss. `where` is for the message if it has diverged."""
    if not torch.isfinite(loss):
        raise DivergedError(f"{where}: the loss is {loss.item()}; try a lower learning_rate")
    for parameter in (one for optimiser in optimisers for group in optimiser.param_groups for one in group["params"]):
        parameter.grad = None
    loss.backward()
    for optimiser in optimisers:
        optimiser.step()
