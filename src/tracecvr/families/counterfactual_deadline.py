"""Methods that ask what became of clicks after a deadline in the past, to know what is to be expected of fresh ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from tracecvr.authoring.losses import cross_entropy
from tracecvr.authoring.method import Windowed
from tracecvr.base.config import DAY, Seconds, option
from tracecvr.nets.backbones import ElapsedNet
from tracecvr.stream.reveal import LabelledReveals, Reveals


@dataclass
class CounterfactualDeadline(Windowed):
    """A windowed method whose helpers look at history from a deadline before its end T: at what was known of a click
    by then, and at what happened to it from then to T. Nothing later than T is looked at, whatever history holds."""

    deadline: Seconds | None = option(
        None,
        "CD, how long before the end of history the deadline is; by default 7 days, but at most d_max and 70 % of the "
        "warm-up part; below d_max the latest conversions are missed, a bias",
        above=0,
    )
    as_of: str = option(
        "window",
        "helpers learn of clicks as they were at the end of their window, the only age that a stream asks about, or at "
        "the deadline, at all ages, as published for training offline",
        choices=("deadline", "window"),
    )
    usual_epochs: ClassVar[int] = 2
    helper_epochs: int | None = option(
        None, "passes of the helpers over the warm-up part; as `warm_epochs`, but 2 if it is large", low=1
    )

    @property
    def before_end(self) -> int:
        """The deadline in force, in seconds before the end of history."""
        if self.deadline is not None:
            return self.deadline
        return min(7 * DAY, self.schema.d_max, round(0.7 * self.schema.split))

    def elapsed_net(self) -> nn.Module:
        """A helper's net: the logit of a probability given features and elapsed time."""
        width = self.hidden[-1]
        return ElapsedNet(self.net(width), width, (width,))

    def known_and_later(self, b: LabelledReveals) -> tuple[Tensor, Tensor, Tensor]:
        """Of clicks in history: age at the deadline (negative if they came after it), whether they had converted by
        then, and whether they converted between then and the end."""
        elapsed, delay = b.span - self.before_end, b.delay[:, 0]
        if self.as_of == "window":
            elapsed = torch.where(elapsed >= self.wait, self.wait, -1)
        known = delay <= (elapsed + self.before_end).clamp_max(self.schema.d_max)
        return elapsed, known & (delay <= elapsed), known & (delay > elapsed)

    def question(self, name: str, b: LabelledReveals) -> tuple[Tensor, Tensor, Tensor]:
        """What a helper is asked about clicks in history: their age, which of them, and the answers."""
        raise NotImplementedError

    def base_rates(self, name: str, b: LabelledReveals) -> tuple[tuple[Tensor, ...], Tensor] | None:
        if name not in self.helpers():
            return super().base_rates(name, b)
        elapsed, asked, label = self.question(name, b)
        return (b.x, elapsed.clamp_min(0)), label.float().where(asked & (elapsed >= 0), torch.nan)[:, None]

    def helper_loss(self, name: str, b: LabelledReveals) -> Tensor:
        """A helper's loss on those asked about that came before the deadline; 0 if there are too few to normalise.

        Others do not enter the net: through batch statistics, they would move embeddings that nothing else trains.
        """
        elapsed, asked, label = self.question(name, b)
        rows = torch.nonzero(asked & (elapsed >= 0))[:, 0]
        if len(rows) < 2:
            return torch.stack([0 * weight.sum() for weight in self.nets[name].parameters()]).sum()
        return cross_entropy(self.call(name, b.x[rows], elapsed[rows]), label[rows].float()).mean()

    def estimate(self, name: str, b: Reveals) -> Tensor:
        """A helper's probability for each event, at the event's clock."""
        return torch.sigmoid(self.call(name, b.x, b.elapsed))
