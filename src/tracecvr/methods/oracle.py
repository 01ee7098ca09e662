"""Oracle: the true label at the moment of the click."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tracecvr.authoring.losses import cross_entropy
from tracecvr.authoring.method import Method
from tracecvr.stream.reveal import After, LabelledReveals, Reveals, Schedule


@dataclass
class Oracle(Method):
    """Trains on every click at once, with its final label. No live system can do this, so it is the upper reference."""

    name = "oracle"
    title = "Oracle"
    reference = "the field's upper reference"
    status = "code"
    role = "upper"
    privileged = True

    def schedule(self) -> Schedule:
        return (After(0),)

    def uncertain(self, b: Reveals) -> Tensor:
        return torch.zeros_like(b.open)

    def loss(self, b: Reveals) -> Tensor:
        assert isinstance(b, LabelledReveals)  # it is privileged
        return cross_entropy(self.logit(b.x), b.truth).mean()
