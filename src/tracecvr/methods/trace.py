"""TRACE: static intent, corrected by how well the trajectory so far fits conversion and non-conversion."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tracecvr.authoring.losses import cross_entropy, mean_over
from tracecvr.authoring.method import Plugin
from tracecvr.authoring.part import Helper
from tracecvr.base.config import option
from tracecvr.base.errors import UserError
from tracecvr.families.trajectory import (
    TrajectoryAware,
    count_states,
    marginal_nll,
    window_log_likelihood,
    window_weights,
)
from tracecvr.plugins.completer import Completer
from tracecvr.stream.reveal import After, LabelledReveals, Reveals, Schedule


@dataclass
class Trace(TrajectoryAware):
    """Shows a click at each horizon and fits the marginal likelihood of every window seen so far, without a label for
    open clicks. A posterior from features and trajectory is trained on the outcome where that is known. Elsewhere it is
    pulled towards a completer, which was trained on complete past trajectories.

    `reading="paper"` follows the text of the paper where the authors' release differs: clicks count as revealed once
    converted (not only once mature), the entropy of a window is that of all actions jointly (not of the purchase
    alone), and the completer has the hidden sizes of the other nets. Ablations: `trajectory=false`, `lam=0`,
    `gate=false`.

    `telescoped=true` keeps nets and evidence, but each showing teaches only the change of the posterior since the one
    before, and the last one the outcome. Over the life of a click this adds up to y - p: every click counts once.
    """

    name = "trace"
    title = "TRACE"
    reference = "Zhang et al., Follow the TRACE, SIGIR 2026"
    status = "paper and code"
    contains = ("completer",)

    reading: str = option("default", "which reading of ambiguous points", choices=("default", "paper"))
    beta: float = option(2.0, "how strongly a window's entropy lowers its weight", low=0, high=10)
    lam: float = option(0.1, "lambda, the weight of the completer; 0 leaves it out", low=0)
    trajectory: bool = option(True, "use the trajectory estimator; without it the posterior is the prior")
    gate: bool = option(True, "weight the completer by reliability; without it, equally")
    telescoped: bool = option(False, "learn the change of the posterior since a click was shown before, not all of it")

    _eta: tuple[Tensor, Tensor] | None = field(default=None, init=False, repr=False, compare=False)

    def schedule(self) -> Schedule:
        # If the horizons end before d_max, a click is shown once more when its outcome is final.
        last = () if self.ends[-1] == self.schema.d_max else (After(self.schema.d_max),)
        return super().schedule() + last

    def plugins(self) -> tuple[Plugin, ...]:
        hidden = self.hidden if self.reading == "paper" else Completer.hidden
        return (Completer(weight=self.lam, gate=self.gate, hidden=hidden),) if self.lam else ()

    # The trajectory estimator psi: P(o_h | x, y).

    def helpers(self) -> dict[str, Helper]:
        return super().helpers() if self.trajectory else {}

    def log_likelihood(self, b: Reveals) -> Tensor:
        """log psi(o_h | x, y), summed over actions: (B, 2, H)."""
        logits, state = self.call("trajectory", b.x), b.trajectory(self.ends)[0]
        return self.call(window_log_likelihood, logits, state)

    # The weight of a window, from the entropy of the label given the window's state.

    def observe(self, b: Reveals) -> None:
        if isinstance(b, LabelledReveals):
            seen = count_states(b, self.ends, len(self.schema.actions) if self.reading == "paper" else 1)
            self.counts["cells"] = self.counts.get("cells", torch.zeros_like(seen)) + seen

    def eta(self) -> Tensor:
        """The weight of each window, up to a factor that cancels: (H,)."""
        if "cells" not in self.counts:
            raise UserError("trace weighs its windows by warm-up history: call warm_up first")
        cells = self.counts["cells"]  # counts are replaced, never changed: the stream's stay those of history
        if self._eta is None or self._eta[0] is not cells:
            self._eta = cells, window_weights(cells, self.beta).float()
        return self._eta[1]

    # Training.

    def posterior(self, b: Reveals) -> Tensor:
        """The prior's log-odds plus the weighted evidence of every visible window."""
        return self.logit(b.x) + b.once(self._evidence_so_far) if self.trajectory else self.logit(b.x)

    def _evidence_so_far(self, b: Reveals) -> Tensor:
        return self._evidence(b, b.trajectory(self.ends)[1])

    def _evidence(self, b: Reveals, visible: Tensor) -> Tensor:
        """The weighted evidence of these windows (B, H) for a conversion, in log-odds: (B,)."""
        weight = visible * self.eta()
        alpha = weight / weight.sum(1, keepdim=True).clamp_min(1e-6)
        log_psi = self.log_likelihood(b)
        return (alpha * (log_psi[:, 1] - log_psi[:, 0])).sum(1)

    def loss(self, b: Reveals) -> Tensor:
        if self.telescoped:
            return self.telescoped_loss(b)
        supervised = self.supervised_loss(b)
        return supervised + self.trajectory_loss(b) if self.trajectory else supervised

    def supervised_loss(self, b: Reveals) -> Tensor:
        """Cross-entropy of the posterior where the outcome is known."""
        return mean_over(cross_entropy(self.posterior(b), b.label), self._revealed(b))

    def trajectory_loss(self, b: Reveals) -> Tensor:
        """The marginal likelihood of every visible window, whatever the outcome will be."""
        weight = b.trajectory(self.ends)[1] * self.eta()
        loss = marginal_nll(self.logit(b.x), self.log_likelihood(b))
        return (weight * loss).sum() / weight.sum().clamp_min(1e-6)

    def telescoped_loss(self, b: Reveals) -> Tensor:
        """Its gradient in the prior's log-odds is the change of the posterior since the click was shown before."""
        window = torch.arange(len(self.ends))
        before, now = (
            torch.sigmoid(self.logit(b.x) + self._evidence(b, seen.float()))
            for seen in (window < b.trigger[:, None], window <= b.trigger[:, None])
        )
        last = b.trigger == len(self.schedule()) - 1
        change = torch.where(last, b.label, now) - before
        return -(self.stop_gradient(change) * self.logit(b.x)).mean()

    def uncertain(self, b: Reveals) -> Tensor:
        return ~self._revealed(b)

    def _revealed(self, b: Reveals) -> Tensor:
        return b.mature | b.converted if self.reading == "paper" else b.mature
