"""TESLA on clicks and conversions alone: ES-DFM, and a term that ranks conversions above clicks without one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tracecvr.authoring.losses import cross_entropy
from tracecvr.base.config import HOUR, option
from tracecvr.methods.es_dfm import ESDFM
from tracecvr.stream.reveal import Reveals


@dataclass
class TeslaCVR(ESDFM):
    """The stream, weights and loss of ES-DFM, plus a ranking term: each conversion of a batch should score higher than
    K of the batch's negatives, which are drawn in proportion to 1 - f. Early conversions weigh more: w_min + alpha
    sigmoid((median h - h) / max(std h, 1)), with the delay h in hours.

    Assumed: TESLA models purchases and refunds, and this is its conversion tower, for logs without refunds. pi_dp and
    rho come from the helper of ES-DFM; the authors take pi_dp as the difference of two frozen nets, which can be
    negative. New negatives are drawn for each conversion, with replacement. The ranking term is not calibrated, so
    look at PCOC (predicted over observed conversions). `ranking=0` is ES-DFM.
    """

    name = "tesla_cvr"
    title = "TESLA (CVR)"
    reference = "Modeling Cascaded Delay Feedback for Online Net Conversion Rate Prediction (TESLA), WWW 2026"
    status = "paper and code"

    ranking: float = option(1.0, "weight of the ranking term", low=0)
    negatives: int = option(50, "K, how many negatives each conversion is compared with", low=1)
    base_weight: float = option(1.0, "w_min, the weight of a conversion that came very late", above=0)
    promptness: float = option(1.0, "alpha, how much more one weighs that came at once", low=0)

    def loss(self, b: Reveals) -> Tensor:
        loss = super().loss(b)
        return loss + self.ranking * self.ranking_loss(b) if self.ranking else loss

    def ranking_loss(self, b: Reveals) -> Tensor:
        """How far conversions are from being ranked above negatives; 0 for a batch of one kind only."""
        score, positive, negative = self.logit(b.x), b.converted.nonzero()[:, 0], (~b.converted).nonzero()[:, 0]
        if not len(positive) or not len(negative):
            return torch.zeros(())
        weight = self.pair_weight(b.age[positive, 0] / HOUR)
        drawn = negative[self._draw(b, score[negative], len(positive))]  # (P, K)
        lead = score[positive, None] - score[drawn]
        return (weight * cross_entropy(lead, torch.ones_like(lead)).mean(1)).sum() / weight.sum()

    def pair_weight(self, hours: Tensor) -> Tensor:
        """The weight of each conversion of a batch, by its delay."""
        scale = hours.std(correction=0).clamp_min(1.0)
        return self.base_weight + self.promptness * torch.sigmoid((hours.quantile(0.5) - hours) / scale)

    def _draw(self, b: Reveals, score: Tensor, rows: int) -> Tensor:
        """Positions among the negatives, (rows, K), in proportion to 1 - f."""
        rng = np.random.default_rng(0) if b.rng is None else b.rng
        share = self.stop_gradient(torch.sigmoid(-score)).clamp(1e-6, 1 - 1e-6).cpu().double().numpy()
        return torch.as_tensor(rng.choice(len(share), size=(rows, self.negatives), p=share / share.sum()))

    def fixed_point(self, p: float, delayed: float) -> float | None:
        return None if self.ranking else super().fixed_point(p, delayed)
