"""DEFER: every click twice, so that the stream keeps the clicks' own law, and weights for the early negatives in it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tracecvr.authoring.losses import cross_entropy
from tracecvr.families.late_conversions import Confirming
from tracecvr.stream.reveal import After, On, Reveals, Schedule


@dataclass
class Defer(Confirming):
    """Shows every click twice: at the end of the window, and again when its label is certain. Weights correct for
    negatives that convert later: f / (f - pi_dp / 2) for positives, (1 - f) / (1 - f + pi_dp / 2) for negatives. Here f
    is the served rate, and pi_dp is the probability of a conversion after the window.

    A conversion inside the window is shown for the second time when the window ends. The release shows it once, with
    other weights; another release, used by later papers, has an error in its weights. The formula is followed here.
    With `negative_after` below d_max, later conversions count as negatives once, which is a bias.
    """

    name = "defer"
    title = "DEFER"
    reference = "Gu et al., Real Negatives Matter: Continuous Training with Real Negatives, KDD 2021"
    status = "paper"

    def schedule(self) -> Schedule:
        return (
            After(self.wait),
            After(self.wait, seen=True),
            On(0, later_than=self.wait),
            After(self.patience, seen=False),
        )

    def loss(self, b: Reveals) -> Tensor:
        late, _ = self.estimates(b)
        logit = self.logit(b.x)
        weight = self.clip(self.weights(torch.sigmoid(logit).clamp(1e-6, 1 - 1e-6), late, b.converted))
        return (weight * cross_entropy(logit, b.label)).mean()

    def weights(self, f: Tensor, late: Tensor, converted: Tensor) -> Tensor:
        """What makes the stream's label law, P(1 | x) = p - pi_dp / 2, that of the clicks."""
        # The floor leaves the weight of a rate below pi_dp / 2 huge rather than negative: it is then clipped to 10.
        positive = f / (f - late / 2).clamp_min(1e-9)
        return torch.where(converted, positive, (1 - f) / (1 - f + late / 2))
