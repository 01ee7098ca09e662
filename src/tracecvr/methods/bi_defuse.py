"""Bi-DEFUSE: one head for conversions inside the window, one for those after it; their sum is served."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tracecvr.authoring.losses import cross_entropy, log_odds_of_sum, mean_over, weighted_cross_entropies
from tracecvr.authoring.method import Windowed
from tracecvr.base.config import MINUTE
from tracecvr.stream.reveal import After, LabelledReveals, On, Reveals, Schedule

_EPS = 1e-6


@dataclass
class BiDefuse(Windowed):
    """Learns two rates with two heads: of conversions inside the window, from exact labels, and of conversions after
    it, from events that come late. The second head takes its own rate as the share of false negatives, so no helper is
    needed. The sum of both rates is served.

    Assumption: the heads share a plain backbone, so that all methods have the same net. The paper has experts and gates
    for each head; they are known from notes only, and the release computes them wrongly.
    """

    name = "bi_defuse"
    title = "Bi-DEFUSE"
    reference = (
        "Chen et al., Asymptotically Unbiased Estimation for Delayed Feedback Modeling via Label Correction, WWW 2022"
    )
    status = "paper"
    serves = "the sum of the rates inside and after the window"
    default_window = 15 * MINUTE

    def schedule(self) -> Schedule:
        return (After(self.wait), On(0, later_than=self.wait))

    def heads(self) -> int:
        return 2

    def log_odds(self, x: Tensor) -> Tensor:
        inside, after = self.call("main", x).unbind(1)
        return log_odds_of_sum(inside, after)

    def warm_loss(self, b: LabelledReveals) -> Tensor:
        inside, after = self.call("main", b.x).unbind(1)
        late = b.delay[:, 0] > self.wait
        return (cross_entropy(inside, b.truth * ~late) + cross_entropy(after, b.truth * late)).mean()

    def base_rates(self, name: str, b: LabelledReveals) -> tuple[tuple[Tensor, ...], Tensor] | None:
        late = b.delay[:, 0] > self.wait
        return (b.x,), torch.stack([b.truth * ~late, b.truth * late], dim=1)

    def loss(self, b: Reveals) -> Tensor:
        inside, after = self.call("main", b.x).unbind(1)
        first, k = b.trigger == 0, torch.sigmoid(after).clamp(_EPS, 1 - _EPS)
        as_positive = self.clip(torch.where(first, k * k, 1.0))
        as_negative = self.clip(torch.where(first, (1 - k) * (1 + k), 0.0))
        return (
            mean_over(cross_entropy(inside, b.label), first)
            + weighted_cross_entropies(after, as_positive, as_negative).mean()
        )
