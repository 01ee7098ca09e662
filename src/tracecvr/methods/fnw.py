"""FNW: every click as a negative at once, every conversion as a positive, reweighted by the model's own rate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tracecvr.authoring.losses import cross_entropy
from tracecvr.authoring.method import Method
from tracecvr.stream.reveal import After, On, Reveals, Schedule


@dataclass
class FNW(Method):
    """Shows every click at once as a negative, and every conversion as a positive when it comes. Importance weights
    from the current rate f, 1 + f for positives and (1 + f)(1 - f) for negatives, correct for the surplus of negatives.
    So it converges to the true rate, and nothing waits.
    """

    name = "fnw"
    title = "FNW"
    reference = (
        "Ktena et al., Addressing Delayed Feedback for Continuous Training with Neural Networks in CTR Prediction, "
        "RecSys 2019 (fake negative weighted)"
    )
    status = "code"

    def schedule(self) -> Schedule:
        return (After(0), On(0))

    def loss(self, b: Reveals) -> Tensor:
        logit, positive = self.logit(b.x), self.positive(b)
        f = self.stop_gradient(torch.sigmoid(logit))
        weight = (1 + f) * torch.where(positive, 1.0, 1 - f)
        return (weight * cross_entropy(logit, positive.float())).mean()

    def positive(self, b: Reveals) -> Tensor:
        """Which copy an event is. Not what is known: a conversion without delay has a negative copy, too."""
        return b.trigger == 1
