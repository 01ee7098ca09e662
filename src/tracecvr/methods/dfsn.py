"""DFSN: a main model with a long window, helped by a fast and by an unbiased satellite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tracecvr.authoring.losses import cross_entropy, mean_over
from tracecvr.authoring.method import Method
from tracecvr.base.config import DAY, HOUR, MINUTE, Seconds, option
from tracecvr.base.errors import UserError
from tracecvr.data.table import Schema
from tracecvr.nets.backbones import Backbone, Embedding
from tracecvr.stream.reveal import After, LabelledReveals, On, Reveals, Schedule

AT_CLICK, CONVERTED, SHORT, LONG = range(4)  # positions in the schedule


@dataclass
class DFSN(Method):
    """Trains three models with embeddings of their own: the main one on a long window and late positives, a feature
    satellite on a short window, and an unbiased satellite on the stream and loss of FNW. The main model mixes the
    embeddings of the satellites into its own and adds the logit of the unbiased one. The greater of its rate and the
    rate of the feature satellite is served.

    Reconstructed. From notes on the paper: the three streams, satellites without hidden layers, how logits and
    embeddings are joined. Assumed: one mixing weight for each feature and model, starting at (1, 0, 0); all models are
    trained in one pass with stop-gradients; warm-up trains the main and the unbiased model on the final label and the
    feature satellite on the label of its window; the windows, which are not published.
    """

    name = "dfsn"
    title = "DFSN"
    reference = (
        "Liu et al., Online Conversion Rate Prediction via Neural Satellite Networks in Delayed Feedback Advertising, "
        "SIGIR 2023"
    )
    status = "reconstructed"
    serves = "the greater of the main model's rate and the feature satellite's"

    window: Seconds | None = option(
        None, "main window; the middle of the dataset's, or 7 of 30 days, by default", low=1
    )
    satellite_window: Seconds | None = option(
        None, "feature satellite's; the dataset's first, or 1 h of 30 days", low=1
    )

    @property
    def spans(self) -> tuple[int, int]:
        """The feature satellite's window and the main model's."""
        if self.window is not None and self.satellite_window is not None:
            return self.satellite_window, self.window
        windows = self.schema.windows or (HOUR, 7 * DAY, 30 * DAY)
        short, long = windows[0], windows[len(windows) // 2]
        short, long = (max(round(w * self.schema.d_max / windows[-1]), MINUTE) for w in (short, long))
        return self.satellite_window or short, self.window or long

    def resolve_options(self) -> dict[str, Any]:
        return super().resolve_options() | dict(zip(("satellite_window", "window"), self.spans, strict=True))

    def check_options(self) -> None:
        super().check_options()
        short, long = self.spans
        if not short < long <= self.schema.d_max:
            raise UserError(f"satellite_window = {short}, window = {long}: expected satellite_window < window <= d_max")

    def schedule(self) -> Schedule:
        return (After(0), On(0), *(After(span) for span in self.spans))

    def build(self) -> nn.Module:
        main = self.net()
        if not isinstance(main, Backbone):
            raise UserError(f"{self.name} needs a backbone with `embedding` and `top`; {self.backbone!r} has none")
        dim = self.embedding_dim or self.schema.embedding_dim
        # The method's own stop-gradient, looked up when it is used.
        return SatelliteNet(main, self.schema, dim, lambda value: self.stop_gradient(value))

    def main_logit(self, x: Tensor) -> Tensor:
        """o_m + sg[o_u]."""
        out = self.call("main", x)
        return out[:, 0] + self.stop_gradient(out[:, 2])

    def log_odds(self, x: Tensor) -> Tensor:
        return torch.maximum(self.main_logit(x), self.call("main", x)[:, 1])

    def loss(self, b: Reveals) -> Tensor:
        out = self.call("main", b.x)
        converts = b.trigger == CONVERTED
        late = converts & (b.elapsed > self.spans[1])
        main = mean_over(cross_entropy(self.main_logit(b.x), b.label), (b.trigger == LONG) | late)
        feature = mean_over(cross_entropy(out[:, 1], b.label), b.trigger == SHORT)
        rate = self.stop_gradient(torch.sigmoid(out[:, 2]))
        weight = (1 + rate) * torch.where(converts, 1.0, 1 - rate)
        # At the click every label is 0, also where the conversion came with it: it has a copy of its own.
        each = weight * cross_entropy(out[:, 2], converts.to(out.dtype))
        return main + feature + mean_over(each, converts | (b.trigger == AT_CLICK))

    def warm_loss(self, b: LabelledReveals) -> Tensor:
        out = self.call("main", b.x)
        soon = (b.delay[:, 0] <= self.spans[0]).to(out.dtype)
        satellites = cross_entropy(out[:, 1], soon) + cross_entropy(out[:, 2], b.truth)
        return (cross_entropy(self.main_logit(b.x), b.truth) + satellites).mean()

    def base_rates(self, name: str, b: LabelledReveals) -> tuple[tuple[Tensor, ...], Tensor] | None:
        soon = (b.delay[:, 0] <= self.spans[0]).to(b.truth.dtype)
        no_rate = torch.full_like(soon, torch.nan)  # what the main model adds to the unbiased satellite's logit
        return (b.x,), torch.stack([no_rate, soon, b.truth], dim=1)

    def fixed_point(self, p: float, delayed: float) -> None:
        """Depends on both windows."""


class Satellite(nn.Module):
    """A linear model on embeddings of its own."""

    def __init__(self, schema: Schema, dim: int) -> None:
        super().__init__()
        self.embedding = Embedding(schema, dim)
        self.out = nn.Linear(self.embedding.width, 1)


class SatelliteNet(nn.Module):
    """Logits of the main model, the feature satellite and the unbiased one: (B, 3)."""

    def __init__(self, main: Backbone, schema: Schema, dim: int, stop: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.main, self.stop = main, stop
        self.feature, self.unbiased = Satellite(schema, dim), Satellite(schema, dim)
        self.shape = (len(main.embedding.embedded), dim)
        self.mixing = nn.Parameter(torch.tensor([1.0, 0.0, 0.0])[:, None].repeat(1, self.shape[0]))  # (3, F)

    def output_layers(self) -> list[nn.Linear]:
        return [*self.main.output_layers(), self.feature.out, self.unbiased.out]

    def forward(self, x: Tensor) -> Tensor:
        feature, unbiased = self.feature.embedding(x), self.unbiased.embedding(x)
        joined = self._join(self.main.embedding(x), self.stop(feature), self.stop(unbiased))
        main = self.main.of_embedded(x, joined)
        return torch.cat([main, self.feature.out(feature), self.unbiased.out(unbiased)], dim=1)

    def _join(self, own: Tensor, *lent: Tensor) -> Tensor:
        """Each feature's embeddings, weighted; one-hot features are the same for all and stay as they are."""
        width = self.shape[0] * self.shape[1]
        parts = torch.stack([e[:, :width].unflatten(1, self.shape) for e in (own, *lent)])  # (3, B, F, dim)
        mixed = (self.mixing[:, None, :, None] * parts).sum(0)
        return torch.cat([mixed.flatten(1), own[:, width:]], dim=1)
