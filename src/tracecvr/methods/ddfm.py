"""DDFM: soft labels for a window's negatives and for the negatives that are shown again, instead of weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tracecvr.authoring.losses import cross_entropy
from tracecvr.families.late_conversions import Confirming
from tracecvr.stream.reveal import After, On, Reveals, Schedule


@dataclass
class DDFM(Confirming):
    """Shows a click when its window ends, and again when it converts later or is known not to convert. It corrects
    labels instead of weighting events. A negative at the end of the window stays one with probability rho. A confirmed
    negative, which balances late positives that are shown twice, is one with probability z = 1 - f + pi_dp, in [0, 1].

    First events alone, and later events alone, converge to the true rate. With `negative_after` below d_max (one day in
    the release), later conversions count as negatives, which is a bias.
    """

    name = "ddfm"
    title = "DDFM"
    reference = (
        "Dai et al., Dually Enhanced Delayed Feedback Modeling for Streaming Conversion Rate Prediction, CIKM 2023"
    )
    status = "code"

    def schedule(self) -> Schedule:
        return (After(self.wait), On(0, later_than=self.wait), After(self.patience, seen=False))

    def loss(self, b: Reveals) -> Tensor:
        late, never = self.estimates(b)
        logit = self.logit(b.x)
        f = torch.sigmoid(logit).clamp(1e-6, 1 - 1e-6)
        negative = self.clip(torch.where(b.trigger == 2, 1 - f + late, never), high=1.0)
        return cross_entropy(logit, torch.where(b.converted, 1.0, 1 - negative)).mean()
