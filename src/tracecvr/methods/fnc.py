"""FNC: the stream of FNW, learnt as it is and calibrated when served."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tracecvr.authoring.losses import cross_entropy
from tracecvr.methods.fnw import FNW
from tracecvr.stream.reveal import LabelledReveals, Reveals

_HIGHEST = math.log((0.5 - 1e-5) / (0.5 + 1e-5))
"""The highest logit of q that is served, that of 0.5 - 1e-5: at 0.5 the rate would be 1."""


@dataclass
class FNC(FNW):
    """Shows every click at once as a negative and every conversion as a positive, and learns the share q of positives
    in that stream without weights. q converges to p / (1 + p), so q / (1 - q), which is served, is the true rate.

    Warm-up learns q, too: each click counts as a negative, and a conversion also as a positive. The served q is kept
    below one half; the published code does not do this.
    """

    name = "fnc"
    title = "FNC"
    reference = (
        "Ktena et al., Addressing Delayed Feedback for Continuous Training with Neural Networks in CTR Prediction, "
        "RecSys 2019 (fake negative calibration)"
    )
    serves = "q / (1 - q), where q is the net's rate"

    def loss(self, b: Reveals) -> Tensor:
        return cross_entropy(self.logit(b.x), self.positive(b).float()).mean()

    def warm_loss(self, b: LabelledReveals) -> Tensor:
        logit = self.logit(b.x)
        return (F.softplus(logit) + b.truth * F.softplus(-logit)).mean()

    def base_rates(self, name: str, b: LabelledReveals) -> tuple[tuple[Tensor, ...], Tensor] | None:
        conversions = b.truth.where(b.truth > 0, torch.nan)
        return (b.x,), torch.cat([torch.zeros_like(b.truth), conversions])[:, None]

    def log_odds(self, x: Tensor) -> Tensor:
        log_rate = self.logit(x).clamp_max(_HIGHEST)  # q / (1 - q) = exp(logit)
        return log_rate - torch.log(-torch.expm1(log_rate))
