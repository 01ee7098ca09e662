"""The retrospective completer: what past full lifecycles say of a trajectory cut off here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tracecvr.authoring.losses import cross_entropy, entropy_bits
from tracecvr.authoring.method import Method, Plugin
from tracecvr.authoring.part import Helper
from tracecvr.base.config import option
from tracecvr.data.table import Schema
from tracecvr.nets.backbones import Embedding, Perceptron
from tracecvr.stream.reveal import After, LabelledReveals, Reveals


@dataclass
class Completer(Plugin):
    """Pulls a method's posterior of clicks with an unknown outcome towards that of a net, the completer. The completer
    is trained on complete past trajectories that are cut off at random. A gate gives it more weight where the method is
    unsure, the completer is sure, and few windows have been seen.
    """

    name = "completer"
    reference = "Zhang et al., Follow the TRACE, SIGIR 2026"

    weight: float = option(0.1, "lambda, the factor of the consistency loss", low=0)
    gate: bool = option(True, "weight clicks by reliability; without it, equally")
    hidden: tuple[int, ...] = option((128, 128), "hidden layer sizes", low=1)
    embedding_dim: int = option(32, "embedding size", low=1)
    epochs: int | None = option(
        None, "passes over the warm-up part; by default 3 if it is large, else as many as held-back clicks want", low=1
    )

    ends: tuple[int, ...] = field(init=False, repr=False, compare=False)
    shortest: int = field(init=False, repr=False, compare=False)

    def attach(self, method: Method) -> None:
        self.ends = method.ends
        delays = [t.seconds for t in method.schedule() if isinstance(t, After)]
        # A method that shows clicks before the first window has ended asks about trajectories of length 0, too.
        self.shortest = 0 if delays and min(delays) < self.ends[0] else 1

    def helpers(self) -> dict[str, Helper]:
        return {"completer": Helper(self._net, self.epochs, usual=3)}

    def _net(self) -> nn.Module:
        return CompleterNet(self.schema, len(self.ends), self.hidden, self.embedding_dim)

    def helper_loss(self, name: str, b: LabelledReveals) -> Tensor:
        assert b.rng is not None
        state, visible = b.trajectory(self.ends)
        length = torch.as_tensor(b.rng.integers(self.shortest, len(self.ends) + 1, len(b)))
        kept = visible * (torch.arange(len(self.ends)) < length[:, None])
        return cross_entropy(self.call(name, b.x, state * kept[:, :, None], kept), b.truth).mean()

    def base_rates(self, name: str, b: LabelledReveals) -> tuple[tuple[Tensor, ...], Tensor] | None:
        return (b.x, *b.trajectory(self.ends)), b.truth[:, None]

    def level(self, name: str, b: LabelledReveals) -> None:
        """None: its log-odds are near certain where a trajectory is complete, and right elsewhere for other reasons."""

    def loss(self, method: Method, b: Reveals) -> Tensor:
        pulled, visible, target = b.once(self._complete, method.uncertain)
        posterior = method.posterior(b)[pulled]
        trust = torch.ones_like(target)
        if self.gate:
            trust = self.stop_gradient(reliability(posterior, target, visible.mean(1)))
        pull = cross_entropy(posterior, torch.sigmoid(self.stop_gradient(target)))
        return (trust * pull).sum() / trust.sum().clamp_min(1e-6)

    def _complete(self, b: Reveals, uncertain: Callable[[Reveals], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Clicks that are pulled, which windows of them have been seen, and what the completer says."""
        pulled = uncertain(b).nonzero()[:, 0]
        state, visible = (whole[pulled] for whole in b.trajectory(self.ends))
        return pulled, visible, self.call("completer", b.x[pulled], state, visible)


def reliability(posterior: Tensor, target: Tensor, visible: Tensor) -> Tensor:
    """The gate, from two logits and the share of windows seen: between 0.125 and 0.39 by construction."""
    unsure = torch.sigmoid(entropy_bits(posterior))
    confident = torch.sigmoid(1 - entropy_bits(target))
    sparse = torch.sigmoid(1 - visible)
    return unsure * confident * sparse


class CompleterNet(nn.Module):
    """Logit of conversion from features, masked states, visibility and how many windows are visible (none is 0)."""

    def __init__(self, schema: Schema, horizons: int, hidden: tuple[int, ...], dim: int) -> None:
        super().__init__()
        self.embedding = Embedding(schema, dim)
        self.length = nn.Embedding(horizons + 1, 16)
        seen = horizons * (len(schema.actions) + 1)
        self.layers = Perceptron(self.embedding.width + seen + 16, hidden, 1)

    def output_layers(self) -> list[nn.Linear]:
        return self.layers.output_layers()

    def forward(self, x: Tensor, state: Tensor, visible: Tensor) -> Tensor:
        length = self.length(visible.sum(1).long())
        return self.layers.of_ids(self.embedding, x, state.flatten(1), visible, length)[:, 0]
