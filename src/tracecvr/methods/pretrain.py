"""Pretrain: the warm-up model, never updated."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tracecvr.authoring.losses import cross_entropy
from tracecvr.authoring.method import Method
from tracecvr.stream.reveal import Reveals, Schedule


@dataclass
class Pretrain(Method):
    """Serves the model that was trained on the warm-up part and never updates it: the lower reference."""

    name = "pretrain"
    title = "Pretrain"
    reference = "the field's lower reference"
    status = "code"
    role = "lower"

    def schedule(self) -> Schedule:
        return ()

    def loss(self, b: Reveals) -> Tensor:
        return cross_entropy(self.logit(b.x), b.label).mean()
