"""Methods that model when a click converts: the likelihood of what is known of it, and how that is streamed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tracecvr.authoring.losses import CERTAIN
from tracecvr.authoring.method import Windowed
from tracecvr.base.config import Seconds, option
from tracecvr.stream.reveal import After, LabelledReveals, On, Reveals, Schedule


@dataclass
class Survival(Windowed):
    """A method whose first output is the logit of f, the rate of converting at any time, and whose other outputs are a
    law of the delay, given by its subclass: a density and S(t) = P(delay > t | converts).

    A click is shown when its window w ends, with the likelihood of its state by then. While it is open it is shown at
    each look and at d_max, and when it converts, each time given that it was open when it was shown before. So each
    stretch between two looks is unbiased by itself, and over a click's life the terms add up to the likelihood of its
    final state: nothing is counted twice.

    Without looks, late positives come up to d_max before the negatives that balance them. Where new ids appear all the
    time, that raises their rates. So open clicks are shown at the log's horizons, too, unless `looks` says otherwise.
    """

    rates: ClassVar[int | None] = 1

    looks: tuple[Seconds, ...] | None = option(
        None,
        "ages between window and d_max at which open clicks are shown, too, to balance late positives sooner; the "
        "horizons by default; [] for no looks",
        low=1,
    )

    @property
    def ages(self) -> tuple[int, ...]:
        """Ages at which clicks are shown: the end of the window and, while they are open, later looks and d_max."""
        looks = self.default_looks if self.looks is None else self.looks
        later = {age for age in (*looks, self.schema.d_max) if self.wait < age <= self.schema.d_max}
        return (self.wait, *sorted(later))

    @property
    def default_looks(self) -> tuple[int, ...]:
        """Where to look unless `looks` is given; ages outside (window, d_max) do not count."""
        return self.ends

    def resolve_options(self) -> dict[str, Any]:
        return super().resolve_options() | {"looks": [age for age in self.ages[1:] if age < self.schema.d_max]}

    def log_density(self, law: Tensor, delay: Tensor) -> Tensor:
        """log P(delay | converts), up to a term without parameters; `delay` in seconds."""
        raise NotImplementedError

    def log_survival(self, law: Tensor, elapsed: Tensor) -> Tensor:
        """log S(elapsed); at most 0 and finite."""
        raise NotImplementedError

    def resolve(self, elapsed: Tensor) -> Tensor:
        """The latest age, up to `elapsed`, at which the law tells converted from not: any, if it is continuous."""
        return elapsed

    def schedule(self) -> Schedule:
        later = (After(age, seen=False) for age in self.ages[1:])
        return (After(self.wait), On(0, later_than=self.wait), *later)

    def loss(self, b: Reveals) -> Tensor:
        given = (b.trigger > 0) * self.log_open(b.x, self.shown_before(b))
        each = self._nll(b.x, b.converted, b.age[:, 0], b.elapsed) + given
        # A click that came with its conversion, after its window: the first event has shown both.
        shown = (b.trigger == 1) & (b.elapsed <= b.lateness)
        return torch.where(shown, 0.0, each).mean()

    def shown_before(self, b: Reveals) -> Tensor:
        """The age at which the click of each event after the first was shown, as open, the time before.

        What is overdue when a click comes late fires as it comes, at one age. So the first of these events says all,
        the other looks add nothing, and what fires later is given that the click was open at that age.
        """
        ages = torch.tensor(self.ages)
        look = ages[(torch.bucketize(b.elapsed, ages) - 1).clamp_min(0)]  # the last before the event
        return torch.maximum(look, b.lateness)

    def warm_loss(self, b: LabelledReveals) -> Tensor:
        elapsed, age = self.resolve(b.elapsed), b.age[:, 0]
        return self._nll(b.x, b.converted & (age <= elapsed), age, elapsed).mean()

    def level(self, name: str, b: LabelledReveals) -> tuple[Tensor, Tensor] | None:
        """What is served: the rate of converting within d_max."""
        mature = b.take(b.mature.nonzero()[:, 0])
        return (self.log_odds(mature.x)[:, None], CERTAIN * (2 * mature.truth - 1)[:, None]) if len(mature) else None

    def log_open(self, x: Tensor, elapsed: Tensor) -> Tensor:
        """log P(not converted by `elapsed`); after d_max nothing counts any more."""
        outputs = self.call("main", x)
        survives = self.log_survival(outputs[:, 1:], elapsed.clamp_max(self.schema.d_max))
        return torch.logaddexp(F.logsigmoid(-outputs[:, 0]), F.logsigmoid(outputs[:, 0]) + survives)

    def log_odds(self, x: Tensor) -> Tensor:
        outputs, end = self.call("main", x), torch.full((x.shape[0],), self.schema.d_max)
        survives = self.log_survival(outputs[:, 1:], end).clamp_max(-1e-30)  # a law may put all its mass after d_max
        within = F.logsigmoid(outputs[:, 0]) + torch.log(-torch.expm1(survives))
        return within - self.log_open(x, end)

    def fixed_point(self, p: float, delayed: float) -> float | None:
        return None

    def _nll(self, x: Tensor, converted: Tensor, age: Tensor, elapsed: Tensor) -> Tensor:
        """-log P(converted after `age`), or of not having converted by `elapsed`."""
        outputs = self.call("main", x)
        delay = torch.where(converted, age, 0)
        happened = F.logsigmoid(outputs[:, 0]) + self.log_density(outputs[:, 1:], delay)
        return -torch.where(converted, happened, self.log_open(x, elapsed))
