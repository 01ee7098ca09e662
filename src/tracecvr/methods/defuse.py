"""DEFUSE: early negatives are in part false ones; each part is given the loss of what it is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tracecvr.authoring.losses import weighted_cross_entropies
from tracecvr.base.config import HOUR, option
from tracecvr.families.late_conversions import DelayAware
from tracecvr.stream.reveal import After, On, Reveals, Schedule


@dataclass
class Defuse(DelayAware):
    """Shows a click when its window ends and once more if it converts later, as ES-DFM does. A negative at the end of
    the window is a false one with probability z: with this weight it is trained as a positive. Positives inside the
    window, late positives, false and real negatives have the weights 1 + pi_dp, 1, pi_dp and 1 + pi_dp.

    z is 1 - rho of the helper, which the authors prefer. With `false_negatives="served"` it is pi_dp / (1 - f + pi_dp),
    where f is the served rate. The release gives both positive weights to every positive, which is biased; the formula
    is followed here.
    """

    name = "defuse"
    title = "DEFUSE"
    reference = (
        "Chen et al., Asymptotically Unbiased Estimation for Delayed Feedback Modeling via Label Correction, WWW 2022"
    )
    status = "paper"
    default_window = HOUR

    false_negatives: str = option("helper", "what z is computed from", choices=("helper", "served"))

    def schedule(self) -> Schedule:
        return (After(self.wait), On(0, later_than=self.wait))

    def loss(self, b: Reveals) -> Tensor:
        late, never = self.estimates(b)
        logit = self.logit(b.x)
        z = 1 - never if self.false_negatives == "helper" else self._served(logit, late)
        as_positive = torch.where(b.converted, self.positive_weight(b, late), z * late)
        as_negative = torch.where(b.converted, 0.0, (1 - z) * (1 + late))
        return weighted_cross_entropies(logit, self.clip(as_positive), self.clip(as_negative)).mean()

    def positive_weight(self, b: Reveals, late: Tensor) -> Tensor:
        """1 for a conversion after the window, whose first copy carries the rest; 1 + pi_dp for one inside."""
        return torch.where(b.trigger == 1, 1.0, 1 + late)

    def _served(self, logit: Tensor, late: Tensor) -> Tensor:
        return late / (1 - torch.sigmoid(logit).clamp(1e-6, 1 - 1e-6) + late)
