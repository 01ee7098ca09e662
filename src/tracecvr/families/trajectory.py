"""Trajectories as evidence: the net that estimates P(state of a window | x, y), and what is computed from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracecvr.authoring.losses import cross_entropy, mean_over
from tracecvr.authoring.method import Method
from tracecvr.authoring.part import Helper
from tracecvr.base.devices import double
from tracecvr.nets.backbones import Perceptron
from tracecvr.stream.reveal import After, LabelledReveals, Schedule


@dataclass
class TrajectoryAware(Method):
    """A method that shows a click at each horizon, with a helper that estimates P(state of a window | x, y)."""

    def schedule(self) -> Schedule:
        return tuple(After(end) for end in self.ends)

    def helpers(self) -> dict[str, Helper]:
        return {"trajectory": Helper(self._estimator)}

    def _estimator(self) -> nn.Module:
        hidden = self.schema.estimator_hidden
        encoder = self.net(hidden[-1], hidden)
        return TrajectoryNet(encoder, hidden[-1], hidden, len(self.ends), len(self.schema.actions))

    def helper_loss(self, name: str, b: LabelledReveals) -> Tensor:
        """Cross-entropy of the states of all visible windows, given each click's own outcome."""
        state, visible = b.trajectory(self.ends)
        logits = self.call(name, b.x, b.truth.long())
        return mean_over(cross_entropy(logits, state), visible[:, :, None].expand_as(state))

    def base_rates(self, name: str, b: LabelledReveals) -> tuple[tuple[Tensor, ...], Tensor] | None:
        if name != "trajectory":
            return super().base_rates(name, b)
        state, visible = b.trajectory(self.ends)
        return (b.x, b.truth.long()), state.where(visible[:, :, None] > 0, torch.nan)

    def level(self, name: str, b: LabelledReveals) -> tuple[Tensor, Tensor] | None:
        """None for the estimator: both outcomes share its biases, so that no shift is right for both."""
        return None if name == "trajectory" else super().level(name, b)


class TrajectoryNet(nn.Module):
    """Logits of P(action k has happened by horizon h | x, y) for both outcomes, from x alone: (B, 2, H, K). Given an
    outcome of each click, for that one: (B, H, K)."""

    def __init__(self, encoder: nn.Module, width: int, hidden: tuple[int, ...], horizons: int, actions: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = Perceptron(width + 2, hidden, horizons * actions)
        self.shape = (horizons, actions)

    def output_layers(self) -> list[nn.Linear]:
        return self.head.output_layers()

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        encoded: Tensor = self.encoder(x)
        if y is not None:
            return self._given(encoded, y)
        both = torch.tensor([0, 1]).repeat(x.shape[0])
        return self._given(encoded.repeat_interleave(2, dim=0), both).view(x.shape[0], 2, *self.shape)

    def _given(self, encoded: Tensor, y: Tensor) -> Tensor:
        out: Tensor = self.head(torch.cat([encoded, F.one_hot(y, 2).to(encoded.dtype)], dim=1))
        return out.view(-1, *self.shape)


def log_likelihood(logits: Tensor, state: Tensor) -> Tensor:
    """log P(state of action k at horizon h | x, y), from logits (B, 2, H, K) and states (B, H, K)."""
    sign = 2 * state[:, None] - 1
    return F.logsigmoid(sign * logits)


def window_log_likelihood(logits: Tensor, state: Tensor) -> Tensor:
    """log P(o_h | x, y), (B, 2, H): actions are taken to be independent given (x, y)."""
    return log_likelihood(logits, state).sum(-1)


def marginal_nll(logit: Tensor, log_psi: Tensor) -> Tensor:
    """-log sum_y p(y | x) psi(o | x, y), from logits (B,) and log-likelihoods (B, 2, ...)."""
    prior = logit.view(-1, *[1] * (log_psi.dim() - 2))
    return -torch.logaddexp(F.logsigmoid(-prior) + log_psi[:, 0], F.logsigmoid(prior) + log_psi[:, 1])


def count_states(b: LabelledReveals, ends: tuple[int, ...], actions: int) -> Tensor:
    """How often each joint state of the first `actions` actions came with each label: (H, 2 ** actions, 2)."""
    state, visible = b.trajectory(ends)
    cell = (state[:, :, :actions] * 2 ** torch.arange(actions)).sum(2).long()  # (B, H)
    outcome = F.one_hot(cell * 2 + b.truth.long()[:, None], 2 ** (actions + 1))  # (B, H, cells x 2)
    seen: Tensor = double((outcome * visible.long()[:, :, None]).sum(0)).unflatten(1, (-1, 2))
    return seen


def count_action_states(b: LabelledReveals, ends: tuple[int, ...]) -> Tensor:
    """How often each state of each single action came with each label: (H, K, 2, 2)."""
    state, visible = b.trajectory(ends)
    outcome = F.one_hot(state.long() * 2 + b.truth.long()[:, None, None], 4)  # (B, H, K, 2 x 2)
    seen: Tensor = double((outcome * visible.long()[:, :, None, None]).sum(0)).unflatten(2, (2, 2))
    return seen


def label_entropy(cells: Tensor) -> Tensor:
    """H(y | o) in nats of each window, from counts (..., cells, 2)."""
    joint = cells / cells.sum((-2, -1), keepdim=True).clamp_min(1.0)
    given = joint / joint.sum(-1, keepdim=True).clamp_min(torch.finfo(cells.dtype).tiny)
    return -(joint * given.clamp_min(torch.finfo(cells.dtype).tiny).log()).sum((-2, -1))


def window_weights(cells: Tensor, beta: float) -> Tensor:
    """eta_h = exp(-h/H - beta C_h) / (H - h + 1) from counts (H, cells, 2); C_h is H(y | o_h) over its maximum."""
    count = len(cells)
    entropy = label_entropy(cells)
    relative = entropy / entropy.max().clamp_min(torch.finfo(cells.dtype).tiny)
    h = torch.arange(1, count + 1, dtype=cells.dtype)
    return torch.exp(-h / count - beta * relative) / (count - h + 1)
