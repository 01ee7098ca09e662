"""FTP: one task per window, and a policy that learns which of them a prophet would have followed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracecvr.authoring.losses import cross_entropy, mean_over, mixture
from tracecvr.authoring.method import MultiWindow
from tracecvr.nets.backbones import Perceptron, output_layers
from tracecvr.stream.reveal import After, LabelledReveals, Reveals, Schedule

DECAY = 0.9


@dataclass
class FTP(MultiWindow):
    """Trains one task for each window on the labels known when it ends, and serves a mixture of the tasks. When a click
    is mature, a policy learns which task was nearest to a prophet; the mixture follows the policy.

    The prophet is a net that trains on final labels in the order of clicks, d_max late, and predicts each click before
    it trains on it. What the tasks predicted is logged at serving. Clicks that were served before the stream have no
    logged predictions, so they do not teach the policy. Warm-up trains tasks, prophet and policy on history.
    """

    name = "ftp"
    title = "FTP"
    reference = (
        "Li et al., Follow the Prophet: Accurate Online Conversion Rate Prediction in the Face of Delayed Feedback, "
        "SIGIR 2021"
    )
    status = "code"
    serves = "the tasks' rates, mixed by the policy"

    def schedule(self) -> Schedule:
        return tuple(After(window) for window in self.spans)

    def build(self) -> nn.Module:
        width = self.hidden[-1]
        return ProphetNet(self.net(width), self.net(), width, len(self.spans))

    def log_odds(self, x: Tensor) -> Tensor:
        tasks, policy = self.call("main", x).chunk(2, dim=1)
        return mixture(F.log_softmax(policy, dim=1), tasks)

    def record(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.call("main", x).chunk(2, dim=1)[0])

    def loss(self, b: Reveals) -> Tensor:
        tasks, policy = self.call("main", b.x).chunk(2, dim=1)
        own = b.trigger[:, None] == torch.arange(len(self.spans))  # (B, n)
        mature = own[:, -1]
        taught, target = self.followed(b, mature)
        chosen = F.cross_entropy(policy, target, reduction="none")
        losses = [mean_over(cross_entropy(tasks[:, i], b.label), own[:, i]) for i in range(len(self.spans))]
        losses.append(mean_over(chosen, taught))
        seen = torch.cat([own.any(0), taught.any()[None]])
        return self._sum(torch.stack(losses), seen) + self._prophet_loss(b.x[mature], b.label[mature])

    def warm_loss(self, b: LabelledReveals) -> Tensor:
        tasks, policy = self.call("main", b.x).chunk(2, dim=1)
        converted = (b.delay[:, :1] <= torch.tensor(self.spans)).to(tasks.dtype)  # (B, n)
        prophet = self._net.prophet(b.x)[:, 0]
        target = nearest(self.stop_gradient(torch.sigmoid(tasks)), self.stop_gradient(torch.sigmoid(prophet)))
        losses = torch.cat([cross_entropy(tasks, converted).mean(0), F.cross_entropy(policy, target)[None]])
        seen = torch.ones(len(losses), dtype=torch.bool)
        return self._sum(losses, seen) + cross_entropy(prophet, b.truth).mean()

    def base_rates(self, name: str, b: LabelledReveals) -> tuple[tuple[Tensor, ...], Tensor] | None:
        converted = (b.delay[:, :1] <= torch.tensor(self.spans)).float()
        return (b.x,), torch.cat([converted, torch.full_like(converted, torch.nan)], dim=1)  # of the policy, no rate

    def followed(self, b: Reveals, mature: Tensor) -> tuple[Tensor, Tensor]:
        """Clicks that teach the policy, and the task to be followed: the prophet is asked about mature clicks alone."""
        taught, target = torch.zeros_like(mature), torch.zeros(len(b), dtype=torch.int64)
        if b.logged is not None:
            taught = mature & ~b.logged.isnan().any(1)
            target[taught] = nearest(b.logged[taught], torch.sigmoid(self._net.foretold(b.x[taught])))
        return taught, target

    def fixed_point(self, p: float, delayed: float) -> None:
        """Depends on what the policy has learnt."""

    def _prophet_loss(self, x: Tensor, label: Tensor) -> Tensor:
        if len(x) < 2:  # batch normalisation has no statistics of one
            return torch.zeros(())
        return cross_entropy(self._net.prophet(x)[:, 0], label).mean()

    def _sum(self, losses: Tensor, seen: Tensor) -> Tensor:
        """The tasks' losses plus the policy's, scaled to a task's by moving averages of what has been seen of each."""
        now = self.stop_gradient(losses)
        old = self.counts.get("average_loss", torch.full_like(now, torch.nan))
        moved = torch.where(old.isnan(), now, DECAY * old + (1 - DECAY) * now)
        average = self.counts["average_loss"] = torch.where(seen, moved, old)
        scale = torch.where(seen[-1], average[:-1].nanmean() / average[-1].clamp_min(1e-3), 0.0)
        return losses[:-1].sum() + scale * losses[-1]

    @property
    def _net(self) -> ProphetNet:
        net = self.nets["main"]
        assert isinstance(net, ProphetNet)
        return net


class ProphetNet(nn.Module):
    """Logits of n tasks and of the policy's n choices, on shared layers: (B, 2n). The prophet beside shares nothing."""

    def __init__(self, bottom: nn.Module, prophet: nn.Module, width: int, tasks: int) -> None:
        super().__init__()
        self.bottom, self.prophet = bottom, prophet
        self.tasks = nn.ModuleList(Perceptron(width, (width,), 1) for _ in range(tasks))
        self.policy = Perceptron(width, (width,), tasks)

    def output_layers(self) -> list[nn.Linear]:
        return [layer for part in (*self.tasks, self.policy) for layer in output_layers(part)]

    def forward(self, x: Tensor) -> Tensor:
        shared = F.relu(self.bottom(x))
        return torch.cat([*(task(shared) for task in self.tasks), self.policy(shared)], dim=1)

    def foretold(self, x: Tensor) -> Tensor:
        """The prophet's logits as it would serve them."""
        training = self.prophet.training
        self.prophet.eval()
        with torch.no_grad():
            logit: Tensor = self.prophet(x)[:, 0]
        self.prophet.train(training)
        return logit


def nearest(tasks: Tensor, prophet: Tensor) -> Tensor:
    """The task whose rate is nearest to the prophet's, of each click."""
    return (tasks - prophet[:, None]).abs().argmin(dim=1)
