"""Vanilla: the label as it stands after a short window."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tracecvr.authoring.losses import cross_entropy
from tracecvr.authoring.method import Windowed
from tracecvr.stream.reveal import After, Reveals, Schedule


@dataclass
class Vanilla(Windowed):
    """Shows a click once, when its window ends, and takes a click without a conversion for a negative. So it learns
    the rate of conversions inside the window, which is too low.
    """

    name = "vanilla"
    title = "Vanilla"
    reference = "obs(w) of DEFER and DEFUSE's comparisons"
    status = "code"
    role = "zero"

    def schedule(self) -> Schedule:
        return (After(self.wait),)

    def loss(self, b: Reveals) -> Tensor:
        return cross_entropy(self.logit(b.x), b.label).mean()

    def fixed_point(self, p: float, delayed: float) -> float:
        return p - delayed
