"""Methods that model when a click converts: the likelihood of what is known of it, and how that is streamed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tracecvr.method import Windowed
from tracecvr.reveal import After, On, Reveals, Schedule


@dataclass
class Survival(Windowed):
    """A method whose first output is the logit of f, the rate of converting at any time, and whose other outputs are a
    law of the delay, given by its subclass: a density and S(t) = P(delay > t | converts).

    A click is shown when its window w ends, with the likelihood of its state by then, and once more when it converts
    later or d_max has passed, with the likelihood of that given that it was open at w. Either part alone is unbiased,
    and together they are the likelihood of the final state: nothing is counted twice.
    """

    def log_density(self, law: Tensor, delay: Tensor) -> Tensor:
        """log P(delay | converts), up to a term without parameters; `delay` in seconds."""
        raise NotImplementedError

    def log_survival(self, law: Tensor, elapsed: Tensor) -> Tensor:
        """log S(elapsed); at most 0 and finite."""
        raise NotImplementedError

    def resolved(self, elapsed: Tensor) -> Tensor:
        """The latest age, up to `elapsed`, at which the law tells converted from not: any, if it is continuous."""
        return elapsed

    def schedule(self) -> Schedule:
        return (After(self.wait), On(0, later_than=self.wait), After(self.schema.d_max, seen=False))

    def loss(self, b: Reveals) -> Tensor:
        open_before = self.log_open(b.x, torch.full_like(b.elapsed, self.wait))
        return (self._nll(b.x, b.converted, b.age[:, 0], b.elapsed) + (b.trigger > 0) * open_before).mean()

    def warm_loss(self, b: Reveals) -> Tensor:
        elapsed, age = self.resolved(b.elapsed), b.age[:, 0]
        return self._nll(b.x, b.converted & (age <= elapsed), age, elapsed).mean()

    def log_open(self, x: Tensor, elapsed: Tensor) -> Tensor:
        """log P(not converted by `elapsed`); after d_max nothing counts any more."""
        outputs = self.outputs(x)
        survives = self.log_survival(outputs[:, 1:], elapsed.clamp_max(self.schema.d_max))
        return torch.logaddexp(F.logsigmoid(-outputs[:, 0]), F.logsigmoid(outputs[:, 0]) + survives)

    def log_odds(self, x: Tensor) -> Tensor:
        outputs, end = self.outputs(x), torch.full((len(x),), self.schema.d_max)
        survives = self.log_survival(outputs[:, 1:], end).clamp_max(-1e-30)  # a law may put all its mass after d_max
        within = F.logsigmoid(outputs[:, 0]) + torch.log(-torch.expm1(survives))
        return within - self.log_open(x, end)

    def fixed_point(self, p: float, delayed: float) -> float | None:
        return None

    def _nll(self, x: Tensor, converted: Tensor, age: Tensor, elapsed: Tensor) -> Tensor:
        """-log P(converted after `age`), or of not having converted by `elapsed`."""
        outputs = self.outputs(x)
        delay = torch.where(converted, age, 0)
        happened = F.logsigmoid(outputs[:, 0]) + self.log_density(outputs[:, 1:], delay)
        return -torch.where(converted, happened, self.log_open(x, elapsed))
