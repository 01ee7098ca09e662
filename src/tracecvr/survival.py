"""Methods that model when a click converts: the likelihood of what is known of it, and how that is streamed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tracecvr.config import Seconds, option
from tracecvr.method import Windowed
from tracecvr.reveal import After, On, Reveals, Schedule


@dataclass
class Survival(Windowed):
    """A method whose first output is the logit of f, the rate of converting at any time, and whose other outputs are a
    law of the delay, given by its subclass: a density and S(t) = P(delay > t | converts).

    A click is shown when its window w ends, with the likelihood of its state by then, and once more when it converts
    later or d_max has passed, with the likelihood of that given that it was open at w. Either part alone is unbiased,
    and together they are the likelihood of the final state: nothing is counted twice.

    Late positives come up to d_max before the negatives that balance them. Where new ids appear all the time, that
    raises their rates; `looks`, at which the still open are shown in between, shorten it, at the cost of more events.
    """

    looks: tuple[Seconds, ...] = option(
        (), "ages between window and d_max at which open clicks are shown, too, to balance late positives sooner", low=1
    )

    @property
    def ages(self) -> tuple[int, ...]:
        """Ages at which clicks are shown: the end of the window and, while they are open, later looks and d_max."""
        later = {age for age in (*self.looks, self.schema.d_max) if self.wait < age <= self.schema.d_max}
        return (self.wait, *sorted(later))

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
        later = (After(age, seen=False) for age in self.ages[1:])
        return (After(self.wait), On(0, later_than=self.wait), *later)

    def loss(self, b: Reveals) -> Tensor:
        ages = torch.tensor(self.ages)
        last = ages[(torch.bucketize(b.elapsed, ages) - 1).clamp_min(0)]  # the age at which it was shown before
        given = (b.trigger > 0) * self.log_open(b.x, last)
        return (self._nll(b.x, b.converted, b.age[:, 0], b.elapsed) + given).mean()

    def warm_loss(self, b: Reveals) -> Tensor:
        elapsed, age = self.resolved(b.elapsed), b.age[:, 0]
        return self._nll(b.x, b.converted & (age <= elapsed), age, elapsed).mean()

    def log_open(self, x: Tensor, elapsed: Tensor) -> Tensor:
        """log P(not converted by `elapsed`); after d_max nothing counts any more."""
        outputs = self.outputs(x)
        survives = self.log_survival(outputs[:, 1:], elapsed.clamp_max(self.schema.d_max))
        return torch.logaddexp(F.logsigmoid(-outputs[:, 0]), F.logsigmoid(outputs[:, 0]) + survives)

    def log_odds(self, x: Tensor) -> Tensor:
        outputs, end = self.outputs(x), torch.full((x.shape[0],), self.schema.d_max)
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
