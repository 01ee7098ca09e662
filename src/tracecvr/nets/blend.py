"""Blend: a perceptron and a logistic regression, learnt apart and averaged. The default backbone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracecvr.data.table import Schema
from tracecvr.nets.backbones import Backbone, Embedding, WideDeep


class Blend(WideDeep):
    """The mean of the log-odds of two models: `WideDeep`, and a logistic regression of the ids.

    Each learns by the method's loss as if it alone answered. Only the first output is blended. Others, for instance a
    law of delays, are those of `WideDeep`, and the regression does not teach them. The two err in different ways: a
    perceptron overfits a small log; a regression needs few clicks, but knows no interactions, so a large log does
    without it (`leave_out_regression`). In training mode one of them answers, otherwise both.
    """

    name = "blend"
    helper: ClassVar[type[Backbone]] = WideDeep
    """The backbone of helper nets: only the served rate is blended."""

    def __init__(self, schema: Schema, outputs: int, hidden: tuple[int, ...], dim: int) -> None:
        super().__init__(schema, outputs, hidden, dim)
        self.weights = Embedding(schema, 1)
        for table in self.weights.parameters():
            nn.init.zeros_(table)
        self.intercept = nn.Parameter(torch.zeros(1, 1))
        self.share: Tensor  # of the regression in the served log-odds
        self.register_buffer("share", torch.tensor(0.5))
        self._regression_alone = False
        self._last: tuple[Tensor, Tensor] | None = None  # ids of the last batch, and its outputs

    def forward(self, x: Tensor) -> Tensor:
        if self._regression_alone:
            return torch.cat([self.regression(x), self._other_outputs(x)], dim=1)
        outputs = super().forward(x)
        if self.training:
            self._last = x, outputs.detach()
            return outputs
        return outputs + F.pad(self.share * (self.regression(x) - outputs[:, :1]), (0, outputs.shape[1] - 1))

    def regression(self, x: Tensor) -> Tensor:
        """Log-odds by the logistic regression: (B, F) -> (B, 1)."""
        return self.weights.total(x) + self.intercept

    def leave_out_regression(self) -> None:
        """From now on the net is `WideDeep`: the regression neither learns nor answers."""
        self.share.zero_()

    def regression_parameters(self) -> list[nn.Parameter]:
        """What the regression learns."""
        return [*self.weights.parameters(), self.intercept]

    @contextmanager
    def regression_alone(self) -> Iterator[None]:
        """While it lasts, the regression gives the first output alone; others are those of the batch that the net was
        asked about last."""
        self._regression_alone = True
        try:
            yield
        finally:
            self._regression_alone = False
            self._last = None

    def _other_outputs(self, x: Tensor) -> Tensor:
        if self._last is None or self._last[0] is not x:
            with torch.no_grad():
                return super().forward(x)[:, 1:]
        return self._last[1][:, 1:]


def is_regression_alone(net: nn.Module) -> bool:
    """Whether the regression of a blend is learning, and other outputs than the first are constants."""
    return isinstance(net, Blend) and net._regression_alone


def loss_of_each(net: nn.Module, events: int, loss: Callable[[], Tensor], forget: Callable[[], None]) -> Tensor:
    """The loss of a net; of a blend, that of the perceptron, and that of the regression summed over events: its
    optimiser counts what it has learnt from. `forget` drops remembered outputs of the net."""
    total = loss()
    if isinstance(net, Blend) and net.share > 0:
        forget()
        with net.regression_alone():
            total = total + events * loss()
        forget()
    return total
