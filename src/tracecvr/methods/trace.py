"""TRACE: static intent, corrected by how well the trajectory so far fits conversion and non-conversion."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracecvr.config import option
from tracecvr.method import Helper, Method, Plugin, cross_entropy, mean_over
from tracecvr.nets import TrajectoryNet
from tracecvr.plugins.completer import Completer
from tracecvr.reveal import After, Reveals, Schedule


@dataclass
class Trace(Method):
    """Shows a click again at each horizon and fits the marginal likelihood of every window seen so far, never forcing a
    label on an open click. A posterior from intent and trajectory is supervised where the outcome is known, and pulled
    towards a completer, trained on past full lifecycles, where it is not.

    `reading="paper"` follows the paper's text where the authors' release differs from it: clicks count as revealed once
    converted (not only once mature), the windows' entropies are of all actions jointly (not of the purchase alone), and
    the completer has the hidden sizes of the other nets. Ablations: `trajectory=false`, `lam=0`, `gate=false`.

    >>> Trace(horizons=(360, 3600)).revisits()
    2
    """

    name = "trace"
    reference = "Zhang et al., Follow the TRACE, SIGIR 2026"

    reading: str = option("default", "which reading of ambiguous points", choices=("default", "paper"))
    beta: float = option(2.0, "how strongly a window's entropy lowers its weight", low=0)
    lam: float = option(0.1, "lambda, the weight of the completer; 0 leaves it out", low=0)
    trajectory: bool = option(True, "use the trajectory estimator; without it the posterior is the prior")
    gate: bool = option(True, "weight the completer by reliability; without it, equally")
    revealed: str | None = option(None, "clicks with a known outcome; by reading", choices=("mature", "known"))
    entropy: str | None = option(None, "actions a window's entropy is taken of; by reading", choices=("pay", "joint"))
    completer_hidden: tuple[int, ...] | None = option(None, "hidden sizes of the completer; by reading", low=1)

    def schedule(self) -> Schedule:
        return tuple(After(end) for end in self.ends)

    def revisits(self) -> int:
        """How often a click is shown."""
        return len(self.ends)

    def plugins(self) -> tuple[Plugin, ...]:
        hidden = self.completer_hidden or (self.hidden if self.reading == "paper" else None)
        return (Completer(weight=self.lam, gate=self.gate, hidden=hidden or Completer.hidden),) if self.lam else ()

    # The trajectory estimator psi: P(o_h | x, y).

    def helpers(self) -> dict[str, Helper]:
        return {"trajectory": Helper(self._estimator)} if self.trajectory else {}

    def _estimator(self) -> nn.Module:
        hidden = self.schema.estimator_hidden
        encoder = self.net(hidden[-1], hidden)
        return TrajectoryNet(encoder, hidden[-1], hidden, len(self.ends), len(self.schema.actions))

    def helper_loss(self, name: str, b: Reveals) -> Tensor:
        assert b.truth is not None
        state, visible = b.trajectory(self.ends)
        logits = self.nets[name].given(b.x, b.truth)  # type: ignore[operator]
        return mean_over(cross_entropy(logits, state), visible[:, :, None].expand_as(state))

    def log_likelihood(self, b: Reveals) -> Tensor:
        """log psi(o_h | x, y), summed over actions: (B, 2, H)."""
        state = b.trajectory(self.ends)[0]
        return window_log_likelihood(self.frozen("trajectory", b.x), state)

    # The weight of a window, from the entropy of the label given the window's state.

    def observe(self, b: Reveals) -> None:
        if b.truth is None:  # counted on warm-up history only
            return
        state, visible = b.trajectory(self.ends)
        actions = len(self.schema.actions) if self._entropy == "joint" else 1
        cell = (state[:, :, :actions] * 2 ** torch.arange(actions)).sum(2).long()  # (B, H)
        outcome = F.one_hot(cell * 2 + b.truth.long()[:, None], 2 ** (actions + 1))  # (B, H, cells x 2)
        seen = (outcome * visible.long()[:, :, None]).sum(0).double().unflatten(1, (-1, 2))
        self.counts["cells"] = self.counts.get("cells", torch.zeros_like(seen)) + seen

    def eta(self) -> Tensor:
        """The weight of each window, up to a factor that cancels: (H,)."""
        return window_weights(self.counts["cells"], self.beta).float()

    # Training.

    def posterior(self, b: Reveals) -> Tensor:
        prior = self.logit(b.x)
        if not self.trajectory:
            return prior
        visible = b.trajectory(self.ends)[1]
        weight = visible * self.eta()
        alpha = weight / weight.sum(1, keepdim=True).clamp_min(1e-6)
        log_psi = self.log_likelihood(b)
        return prior + (alpha * (log_psi[:, 1] - log_psi[:, 0])).sum(1)

    def loss(self, b: Reveals) -> Tensor:
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

    def uncertain(self, b: Reveals) -> Tensor:
        return ~self._revealed(b)

    def _revealed(self, b: Reveals) -> Tensor:
        known = self.revealed or ("known" if self.reading == "paper" else "mature")
        return b.mature | b.converted if known == "known" else b.mature

    @property
    def _entropy(self) -> str:
        return self.entropy or ("joint" if self.reading == "paper" else "pay")


def window_log_likelihood(logits: Tensor, state: Tensor) -> Tensor:
    """log P(o_h | x, y) from logits (B, 2, H, K) and states (B, H, K): actions are independent given (x, y)."""
    sign = 2 * state[:, None] - 1
    return F.logsigmoid(sign * logits).sum(-1)


def marginal_nll(logit: Tensor, log_psi: Tensor) -> Tensor:
    """-log sum_y p(y | x) psi(o_h | x, y) per window, (B, H)."""
    no = F.logsigmoid(-logit)[:, None] + log_psi[:, 0]
    yes = F.logsigmoid(logit)[:, None] + log_psi[:, 1]
    return -torch.logaddexp(no, yes)


def window_weights(cells: Tensor, beta: float) -> Tensor:
    """eta_h = exp(-h/H - beta C_h) / (H - h + 1) from counts (H, cells, 2); C_h is H(y | o_h) over its maximum."""
    count = len(cells)
    joint = cells / cells.sum((1, 2), keepdim=True).clamp_min(1.0)
    given = joint / joint.sum(2, keepdim=True).clamp_min(1e-300)
    entropy = -(joint * given.clamp_min(1e-300).log()).sum((1, 2))  # H(y | o_h)
    relative = entropy / entropy.max().clamp_min(1e-300)
    h = torch.arange(1, count + 1, dtype=cells.dtype)
    return torch.exp(-h / count - beta * relative) / (count - h + 1)
