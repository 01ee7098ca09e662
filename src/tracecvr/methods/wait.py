"""Wait: train only when the label is final."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tracecvr.authoring.losses import cross_entropy
from tracecvr.authoring.method import Method
from tracecvr.stream.reveal import After, Reveals, Schedule


@dataclass
class Wait(Method):
    """Trains on each click once, when d_max has passed: the labels are final, but as old as they can be."""

    name = "wait"
    title = "Vanilla, waiting"
    reference = "`ce` of Yang et al., GDFM, NeurIPS 2022"
    status = "code"

    def schedule(self) -> Schedule:
        return (After(self.schema.d_max),)

    def loss(self, b: Reveals) -> Tensor:
        return cross_entropy(self.logit(b.x), b.label).mean()
