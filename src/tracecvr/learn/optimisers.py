"""The optimisers of a net and one step of them: Adam, lazy Adam for embedding tables, and Adagrad that forgets.

Lazy Adam touches only the rows of a batch, so a step takes no longer if a table has more rows.

A row is touched by a step if its gradient is not 0. Nothing is done to other rows, neither to their weights nor to
their state. What they miss is made up for by the next step that touches them, from the number of steps in between:

- moments fall as if the gradient had been 0 in the steps that were missed, so they are always dense Adam's.
  Unlike dense Adam, a row does not move while it is not touched.
- weight decay: the row is multiplied by (1 - lr * weight_decay) once for each step since it was last touched. Dense
  Adam adds the decay to the gradient instead, so that every row moves in every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from tracecvr.base.devices import double, is_on_processor
from tracecvr.base.errors import DivergedError
from tracecvr.nets.blend import Blend
from tracecvr.nets.row_access import read_rows, touched_rows, write_rows

REGRESSION = "regression"
"""Name of the optimiser that the regression of a blend has, whatever learns the net beside it."""

START_OF_ROW = {"squares": 0.01}
"""What the state of a row that was never touched is, where it is not 0. Adagrad's sum of squares: as if a tenth of a
conversion had been seen."""

_DOUBT_OF_SHARES = 25.0
"""How curved the parabola is that shares of a blend start with: a standard deviation of .2 around a half."""


class Optimiser(torch.optim.Optimizer):
    """Base of optimisers. Torch's own way to add parameters imports torch's compiler, for 1.7 s of processor time."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.param_groups.append(self.defaults | param_group)


class FusedAdam(Optimiser):
    """`torch.optim.Adam(fused=True)` to the byte, without what it does around the arithmetic of a step: for a small
    batch that takes longer than the arithmetic, and it imports torch's compiler."""

    def __init__(self, groups: list[dict[str, Any]], lr: float, weight_decay: float) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            learnt = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not learnt:
                continue
            states = [self.state[parameter] or self._start(parameter) for parameter in learnt]
            steps, means, squares = ([state[name] for state in states] for name in ("step", "exp_avg", "exp_avg_sq"))
            torch._foreach_add_(steps, 1)
            torch._fused_adam_(
                learnt,
                [parameter.grad for parameter in learnt],
                means,
                squares,
                [],
                steps,
                lr=group["lr"],
                beta1=0.9,
                beta2=0.999,
                weight_decay=group["weight_decay"],
                eps=1e-8,
                amsgrad=False,
                maximize=False,
            )

    def _start(self, parameter: Tensor) -> dict[str, Tensor]:
        moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        self.state[parameter] = {"step": torch.zeros((), dtype=torch.float32)} | moments
        state: dict[str, Tensor] = self.state[parameter]
        return state


class LazyAdamRows(Optimiser):
    """Adam with the decay of moments that a row missed."""

    betas = (0.9, 0.999)
    eps = 1e-8

    def __init__(self, tables: list[Tensor], lr: float, weight_decay: float) -> None:
        super().__init__([{"params": tables}], {"lr": lr, "weight_decay": weight_decay})
        self.before_change: list[Callable[[Tensor, Tensor, Tensor], None]] = []
        """Called with a table, the rows of it that are about to change, and what these hold."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is not None:
                    self._step(table, table.grad, group["lr"], group["weight_decay"])

    def _step(self, table: Tensor, of_table: Tensor, lr: float, weight_decay: float) -> None:
        state = self.state[table]
        if not state:
            state |= {"step": torch.zeros((), dtype=torch.int64), "last": torch.zeros(len(table), dtype=torch.int64)}
            state |= {"exp_avg": torch.zeros_like(table), "exp_avg_sq": torch.zeros_like(table)}
        state["step"] += 1
        step = int(state["step"])
        touched, grad = touched_rows(of_table)
        if not len(touched):
            return
        # Memory is what a step costs: a row is read once, here, and written once.
        weight = read_rows(table, touched)
        for notice in self.before_change:
            notice(table, touched, weight)
        elapsed = (step - read_rows(state["last"], touched))[:, None]
        rows = {name: read_rows(value, touched) for name, value in state.items() if name not in ("step", "last")}
        if weight_decay:
            weight *= power(1 - lr * weight_decay, elapsed).to(weight.dtype)
        weight -= self._change(rows, grad, elapsed, step).mul_(lr)
        write_rows(table, touched, weight)
        for name, value in rows.items():
            write_rows(state[name], touched, value)
        state["last"].index_fill_(0, touched, step)

    def _change(self, rows: dict[str, Tensor], grad: Tensor, elapsed: Tensor, step: int) -> Tensor:
        """By how much rows move, in units of lr: (n, dim). Changes their moments, `rows`, in place. `elapsed` (n, 1) is
        the number of steps since each was touched: 1 if that was in the step before."""
        first, second = self.betas
        mean, square = rows["exp_avg"], rows["exp_avg_sq"]
        mean.mul_(power(first, elapsed).to(grad.dtype)).add_(grad, alpha=1 - first)
        square.mul_(power(second, elapsed).to(grad.dtype)).addcmul_(grad, grad, value=1 - second)
        deviation = square.sqrt().div_(math.sqrt(1 - second**step)).add_(self.eps)
        return (mean / deviation).div_(1 - first**step)


class ForgettingAdagrad(Optimiser):
    """Adagrad for a logistic regression, by rows. The sum of squared gradients of a row forgets, so that its steps do
    not become ever smaller: a row follows a change of its effect. `memory` is in steps that touch a row. NLL of
    Telescoped with 300 and 100, one seed: a small log with a jump .4471 and .4463, cryptokitties, days 30 to 60, .3488
    and .3484, a stationary log .5104 and .5106."""

    def __init__(self, tables: list[nn.Parameter], lr: float = 0.1, memory: float = 100.0) -> None:
        super().__init__([{"params": tables}], {"lr": lr, "memory": memory})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is not None:
                    state = self.state[table]
                    if not state:
                        state["squares"] = torch.full_like(table, START_OF_ROW["squares"])
                    update = self._update_rows if table.grad.is_sparse else self._update_all
                    update(table, state["squares"], table.grad, group["lr"], 1 - 1 / group["memory"])

    def _update_rows(self, table: Tensor, squares: Tensor, grad: Tensor, lr: float, kept: float) -> None:
        touched, grad = touched_rows(grad)
        new = read_rows(squares, touched).mul_(kept).addcmul_(grad, grad)
        write_rows(squares, touched, new)
        write_rows(table, touched, read_rows(table, touched) - lr * grad / new.sqrt())

    def _update_all(self, table: Tensor, squares: Tensor, grad: Tensor, lr: float, kept: float) -> None:
        """The same, of one number per row: a row without gradient does not move. To find the rows that do takes longer
        than to update all (2,000 rows: 683 us against 185, 50,000 rows: 1,536 against 522)."""
        new = (squares * kept).addcmul_(grad, grad)
        torch.where(grad != 0, new, squares, out=squares)
        table.sub_(lr * grad / new.sqrt())


class ShareOptimiser(Optimiser):
    """Learns the shares of the two models of a blend in the stream: those that would have been best so far.

    The loss of a batch, as a function of the regression's share, is taken for a parabola. Its slope is known at both
    ends, where one model alone answers: that is the gradient of the shares. The parabolas of all batches are added up.
    Each was seen before the models learnt from its batch; in warm-up, passes repeat, and a model that has memorised
    outcomes would look too good.
    """

    def __init__(self, shares: nn.Parameter) -> None:
        super().__init__([{"params": [shares]}], {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        shares = self.param_groups[0]["params"][0]
        if shares.grad is None:
            return
        state = self.state[shares]
        if not state:
            state["parabola"] = double(torch.tensor([0.5, 1.0])) * _DOUBT_OF_SHARES
        at_perceptron, at_regression = double(shares.grad)
        state["parabola"] += torch.stack([-at_perceptron, at_regression - at_perceptron])
        slope, curvature = state["parabola"]
        share = (slope / curvature.clamp_min(_DOUBT_OF_SHARES)).clamp(0.0, 1.0)
        shares.copy_(torch.stack([1 - share, share]))


def power(base: float, exponent: Tensor) -> Tensor:
    """In double precision: 0.999 to a power of thousands loses digits otherwise."""
    return torch.pow(base, double(exponent))


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
