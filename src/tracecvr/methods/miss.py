"""MISS: one head per window, and a synthesizer trained on the newest conversions and on real negatives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracecvr.authoring.losses import cross_entropy, mean_over, mixture
from tracecvr.authoring.method import MultiWindow
from tracecvr.base.config import option
from tracecvr.base.devices import double
from tracecvr.base.errors import UserError
from tracecvr.nets.backbones import output_layers
from tracecvr.stream.reveal import After, LabelledReveals, On, Reveals, Schedule


@dataclass
class MISS(MultiWindow):
    """Trains one head for each window on the window's labels and on late positives. Positives are weighted up by the
    share of conversions that come after the window. A synthesizer learns to mix the rates of the heads, on a stream of
    every conversion as it happens and every click that never converted, once that is certain.

    Reconstructed. From notes on the paper: streams and weights of the heads, inputs and training of the synthesizer.
    Assumed: heads enter the synthesizer behind a stop-gradient; two hidden layers of 16 without batch normalisation;
    rates are normalised by their sum; alpha is the conversion rate of the warm-up part; recent conversions are an
    exponential average; warm-up replays the recipe of each head; windows on logs other than Criteo's.

    One event can serve several streams. On a stationary stream head i converges to p w / (p w + 1 - p + pi_dp,i), where
    w is the weight of its positives, and the synthesizer's stream leads to p.
    """

    name = "miss"
    title = "MISS"
    reference = (
        "Liu et al., Online Conversion Rate Prediction via Multi-Interval Screening and Synthesizing under Delayed "
        "Feedback, AAAI 2024"
    )
    status = "reconstructed"
    serves = "the heads' rates, mixed by the synthesizer"

    alpha: float | None = option(None, "weight of the share of late conversions; the warm-up rate by default", low=0)
    recent: float = option(100_000.0, "conversions over which the share of late ones is averaged", above=0)

    def schedule(self) -> Schedule:
        return (*(After(window) for window in self.spans), On(0))

    def build(self) -> nn.Module:
        return MixedNet(self.net(len(self.spans)), len(self.spans))

    def log_odds(self, x: Tensor) -> Tensor:
        return self._served(self.call("main", x))

    def observe(self, b: Reveals) -> None:
        if isinstance(b, LabelledReveals):
            converted, delay = b.truth.bool(), b.delay[:, 0]
            self._count("history", torch.tensor([len(b), int(converted.sum())]), 1.0)
        else:
            converted, delay = b.trigger == len(self.spans), b.age[:, 0]
        late = delay[converted][:, None] > self._ends  # (conversions, N)
        counts = torch.cat([late.sum(0), torch.tensor([len(late)])])
        self._count("conversions", counts, float(torch.exp(torch.tensor(-len(late) / self.recent))))

    def _count(self, name: str, new: Tensor, kept: float) -> None:
        self.counts[name] = kept * self.counts.get(name, double(torch.zeros(len(new)))) + new

    def positive_weight(self) -> Tensor:
        """1 + alpha P(d > d_i | y = 1) of each head, as counted."""
        if "history" not in self.counts:
            raise UserError("miss weighs positives by warm-up history: call warm_up first")
        *late, conversions = self.counts["conversions"].tolist()
        clicks, converted = self.counts["history"].tolist()
        alpha = converted / max(clicks, 1.0) if self.alpha is None else self.alpha
        return torch.tensor([1 + alpha * count / max(conversions, 1.0) for count in late])

    def loss(self, b: Reveals) -> Tensor:
        heads, count = self.call("main", b.x), len(self.spans)
        converts = b.trigger == count
        late = converts[:, None] & (b.elapsed[:, None] > self._ends)
        own = (b.trigger[:, None] == torch.arange(count)) | late  # (B, N)
        assembled = converts | ((b.trigger == count - 1) & ~b.converted)
        return self.head_loss(heads, b.label[:, None].expand_as(heads), own) + self.mix_loss(heads, b.label, assembled)

    def warm_loss(self, b: LabelledReveals) -> Tensor:
        heads = self.call("main", b.x)
        early = b.delay[:, :1] <= self._ends  # (B, N)
        late = b.truth[:, None].bool() & ~early
        label = torch.cat([early, torch.ones_like(early)]).to(heads.dtype)
        own = torch.cat([torch.ones_like(early), late])
        everything = torch.ones(len(b), dtype=torch.bool)
        return self.head_loss(torch.cat([heads, heads]), label, own) + self.mix_loss(heads, b.truth, everything)

    def base_rates(self, name: str, b: LabelledReveals) -> tuple[tuple[Tensor, ...], Tensor] | None:
        early = b.delay[:, :1] <= self._ends
        again = b.truth[:, None].where(b.truth[:, None].bool() & ~early, torch.nan)  # late positives are shown twice
        return (b.x,), torch.cat([early.float(), again])

    def head_loss(self, heads: Tensor, label: Tensor, own: Tensor) -> Tensor:
        """Each head's weighted cross-entropy over its own events, summed over heads."""
        weight = torch.where(label == 1, self.positive_weight(), 1.0)
        return ((own * weight * cross_entropy(heads, label)).sum(0) / own.sum(0).clamp_min(1)).sum()

    def mix_loss(self, heads: Tensor, label: Tensor, assembled: Tensor) -> Tensor:
        """The synthesizer's cross-entropy on the assembled stream; no head is trained by it."""
        return mean_over(cross_entropy(self._served(self.stop_gradient(heads)), label), assembled)

    def _served(self, heads: Tensor) -> Tensor:
        net = self.nets["main"]
        assert isinstance(net, MixedNet)
        return mixture(net.log_weights(self.stop_gradient(F.logsigmoid(heads))), heads)

    @property
    def _ends(self) -> Tensor:
        return torch.tensor(self.spans)


class MixedNet(nn.Module):
    """Logits of N heads (B, N), and a synthesizer that weighs them by their rates."""

    def __init__(self, heads: nn.Module, count: int, width: int = 16) -> None:
        super().__init__()
        self.heads = heads
        inner = [nn.Linear(2 * count, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        self.synthesizer = nn.Sequential(*inner, nn.Linear(width, count))

    def output_layers(self) -> list[nn.Linear]:
        return output_layers(self.heads)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.heads(x)
        return out

    def log_weights(self, log_rate: Tensor) -> Tensor:  # (B, N) -> (B, N)
        share = F.softmax(log_rate, dim=1)  # f / sum f
        return F.log_softmax(self.synthesizer(torch.cat([log_rate.exp(), share], dim=1)), dim=1)
