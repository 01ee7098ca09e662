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
    """A weighted mean of the log-odds of two models: `WideDeep`, and a logistic regression of the ids.

    Each learns by the method's loss as if it alone answered. Only the first output is blended. Others, for instance a
    law of delays, are those of `WideDeep`, and the regression does not teach them. The two err in different ways: a
    perceptron overfits a small log; a regression needs few clicks, but knows no interactions. Each has a half to begin
    with. The stream then learns their shares (`ShareOptimiser`). In training mode one of them answers, otherwise both.
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
        self.shares = nn.Parameter(torch.tensor([0.5, 0.5]))  # of the perceptron, of the regression
        self._regression_alone = False
        self._events = 1
        self._last: tuple[Tensor, Tensor, Tensor] | None = None  # ids of the last batch, and what both models answered

    def forward(self, x: Tensor) -> Tensor:
        if self._regression_alone:
            outputs, regression = self._answers(x)
            difference = (regression - outputs[:, :1]).detach()
            return torch.cat([regression + self._slope(1, difference), outputs[:, 1:]], dim=1)
        outputs = super().forward(x)
        difference = (regression := self.regression(x)) - outputs[:, :1]
        if not self.training:
            return outputs + F.pad(self.shares[1] * difference, (0, outputs.shape[1] - 1))
        self._last = x, outputs.detach(), regression
        slope = self._events * self._slope(0, difference.detach())
        return outputs + F.pad(slope, (0, outputs.shape[1] - 1))

    def regression(self, x: Tensor) -> Tensor:
        """Log-odds by the logistic regression: (B, F) -> (B, 1)."""
        return self.weights.total(x) + self.intercept

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

    @contextmanager
    def in_batch_of(self, events: int) -> Iterator[None]:
        """While it lasts, a loss is a mean over so many events."""
        self._events = events
        try:
            yield
        finally:
            self._events = 1

    def _slope(self, place: int, difference: Tensor) -> Tensor:
        """Zero. Its gradient by a share is that of the loss, if log-odds moved from the perceptron's answer towards
        the regression's: where the perceptron alone answers (place 0), and where the regression does (1)."""
        share = self.shares[place]
        return (share - share.detach()) * difference

    def _answers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self._last is None or self._last[0] is not x:
            with torch.no_grad():
                outputs = super().forward(x)
            return outputs, self.regression(x)
        return self._last[1], self._last[2]


def is_regression_alone(net: nn.Module) -> bool:
    """Whether the regression of a blend is learning, and other outputs than the first are constants."""
    return isinstance(net, Blend) and net._regression_alone


def loss_of_each(net: nn.Module, events: int, loss: Callable[[], Tensor], forget: Callable[[], None]) -> Tensor:
    """The loss of a net; of a blend, that of the perceptron, and that of the regression summed over events: its
    optimiser counts what it has learnt from. `forget` drops remembered outputs of the net."""
    if not isinstance(net, Blend):
        return loss()
    with net.in_batch_of(events):
        total = loss()
    forget()
    with net.regression_alone():
        total = total + events * loss()
    forget()
    return total
