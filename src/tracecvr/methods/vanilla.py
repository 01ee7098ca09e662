"""Vanilla: the label as it stands after a short window."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tracecvr.families.losses import cross_entropy
from tracecvr.families.method import Windowed
from tracecvr.stream.reveal import After, Reveals, Schedule


@dataclass
class Vanilla(Windowed):
    """Waits one window, takes "not yet" for "no" and never looks again; its rate is that of the window, P(d <= w).

    >>> Vanilla(window=3600).schedule()
    (After(seconds=3600, seen=None),)
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
