"""ES-DFM: a window's labels and late positives, reweighted to the law of the clicks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tracecvr.authoring.losses import cross_entropy
from tracecvr.families.late_conversions import DelayAware
from tracecvr.stream.reveal import After, On, Reveals, Schedule


@dataclass
class ESDFM(DelayAware):
    """Shows a click when its window ends and once more if it converts later. Importance weights correct for negatives
    that convert later and for late positives, which are one event too many. So it converges to the true rate.
    """

    name = "es_dfm"
    title = "ES-DFM"
    reference = (
        "Yang et al., Capturing Delayed Feedback in Conversion Rate Prediction via Elapsed-Time Sampling, AAAI 2021"
    )
    status = "code"

    def schedule(self) -> Schedule:
        return (After(self.wait), On(0, later_than=self.wait))

    def loss(self, b: Reveals) -> Tensor:
        late, never = self.estimates(b)
        weight = self.clip((1 + late) * torch.where(b.converted, 1.0, never))
        return (weight * cross_entropy(self.logit(b.x), b.label)).mean()
