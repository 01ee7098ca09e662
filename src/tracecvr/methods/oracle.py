"""Oracle: the true label at the moment of the click."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tracecvr.method import Method, cross_entropy
from tracecvr.reveal import After, Reveals, Schedule


@dataclass
class Oracle(Method):
    """Trains on every click at once, with its final label: no live system can, so it bounds the others from above.

    >>> Oracle().schedule()
    (After(seconds=0, seen=None),)
    """

    name = "oracle"
    reference = "the field's upper reference"
    status = "code"
    privileged = True

    def schedule(self) -> Schedule:
        return (After(0),)

    def uncertain(self, b: Reveals) -> Tensor:
        return torch.zeros_like(b.open)

    def loss(self, b: Reveals) -> Tensor:
        assert b.truth is not None
        return cross_entropy(self.logit(b.x), b.truth).mean()
