"""GDFM: every window of every action is evidence of the outcome, weighted by what it tells and how early."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from tracecvr.authoring.losses import cross_entropy
from tracecvr.base.config import option
from tracecvr.base.errors import UserError
from tracecvr.families.trajectory import (
    TrajectoryAware,
    count_action_states,
    label_entropy,
    log_likelihood,
    marginal_nll,
)
from tracecvr.stream.reveal import LabelledReveals, Reveals


@dataclass
class GDFM(TrajectoryAware):
    """Shows a click at each horizon and fits the marginal likelihood of the state of every action in every window seen
    so far. Windows that say much about the label, and windows that end early, have higher weights. The served rate is
    kept close to that of the net at the end of warm-up, as in the authors' release.

    Where a log has many conversions at the click (Criteo), there is one more window that ends with the click.
    """

    name = "gdfm"
    title = "GDFM"
    reference = (
        "Yang and Zhan, Generalized Delayed Feedback Model with Post-Click Information in Recommender Systems, "
        "NeurIPS 2022"
    )
    status = "code"

    alpha: float = option(2.0, "how strongly the label's entropy given a state lowers its weight", low=0, high=10)
    beta: float = option(1.0, "how strongly a window's length lowers its weight", low=0, high=10)
    anchor: float = option(0.01, "weight of the divergence from the net as warm-up left it", low=0)

    @property
    def ends(self) -> tuple[int, ...]:
        ends = super().ends
        at_click = self.horizons is None and self.schema.conversions_at_click and ends[0] > 0
        return (0, *ends) if at_click else ends

    def after_warm_up(self) -> None:
        reference = deepcopy(self.nets["main"]).eval().requires_grad_(False)
        reference.zero_grad(set_to_none=True)
        self.nets["reference"] = reference

    def observe(self, b: Reveals) -> None:
        if isinstance(b, LabelledReveals):
            seen = count_action_states(b, self.ends)
            self.counts["cells"] = self.counts.get("cells", torch.zeros_like(seen)) + seen

    def weights(self) -> Tensor:
        """omega_hk: mean 1 before the last factor, which undoes that window h is in H - h + 1 copies of a click."""
        if "cells" not in self.counts:
            raise UserError("gdfm weighs its windows by warm-up history: call warm_up first")
        entropy = label_entropy(self.counts["cells"])  # (H, K)
        relative = entropy / entropy.max().clamp_min(torch.finfo(entropy.dtype).tiny)
        ends = torch.tensor(self.ends, dtype=entropy.dtype)[:, None]
        weight = torch.exp(-self.alpha * relative - self.beta * ends / ends[-1].clamp_min(1.0))
        copies = torch.arange(len(ends), 0, -1)[:, None]
        return (weight / weight.mean() / copies).float()

    def loss(self, b: Reveals) -> Tensor:
        windows = self.window_loss(b)
        return windows + self.anchor * self.departure(b) if "reference" in self.nets else windows

    def window_loss(self, b: Reveals) -> Tensor:
        """The marginal likelihood of each action's state in each visible window, whatever the outcome will be."""
        state, visible = b.trajectory(self.ends)
        log_psi = log_likelihood(self.call("trajectory", b.x), state)  # (B, 2, H, K)
        each = visible[:, :, None] * self.weights() * marginal_nll(self.logit(b.x), log_psi)
        return each.sum() / visible.sum().clamp_min(1.0)

    def departure(self, b: Reveals) -> Tensor:
        """KL(reference || served rate), per event."""
        was = self.call("reference", b.x)[:, 0]
        target = torch.sigmoid(was)
        return (cross_entropy(self.logit(b.x), target) - cross_entropy(was, target)).mean()
