"""Embeddings and backbones. A backbone is found by its `name`, here or in the entry-point group `tracecvr.nets`."""

from __future__ import annotations

from itertools import accumulate
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracecvr.clicks import Schema


class Embedding(nn.Module):
    """Feature ids to one flat vector. All features look up one table, each at its own offset."""

    def __init__(self, schema: Schema, dim: int) -> None:
        super().__init__()
        starts = dict(zip(schema.tables, accumulate(schema.tables.values(), initial=0), strict=False))
        self.embedded = [j for j, f in enumerate(schema.features) if not f.one_hot]
        self.one_hot = [(j, f.size) for j, f in enumerate(schema.features) if f.one_hot]
        self.width = dim * len(self.embedded) + sum(size for _, size in self.one_hot)
        self.table = nn.Embedding(sum(schema.tables.values()), dim)
        # Small, because ids that appear after warm-up are served untrained: torch's N(0, 1) would be loud noise
        # (Oracle on criteo_search: AUC .775 and NLL .278 with it, .788 and .272 with this).
        nn.init.normal_(self.table.weight, std=0.01)
        offsets = torch.tensor([starts[schema.features[j].table] for j in self.embedded], dtype=torch.int32)
        self.register_buffer("offsets", offsets, persistent=False)
        self.offsets: Tensor

    def forward(self, x: Tensor) -> Tensor:  # (B, F) -> (B, width)
        ids = x if not self.one_hot else x[:, self.embedded]
        parts = [self.table(ids + self.offsets).flatten(1)]
        parts += [F.one_hot(x[:, j].long(), size).float() for j, size in self.one_hot]
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


def perceptron(width: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    """Linear layers, each hidden one followed by ReLU, then batch normalisation."""
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(width, size), nn.ReLU(), nn.BatchNorm1d(size)]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, outputs))


class Backbone(nn.Module):
    """Feature ids (B, F) to outputs (B, J). A third party's backbone subclasses this and gives itself a `name`."""

    name: ClassVar[str]

    def __init__(self, schema: Schema, outputs: int, hidden: tuple[int, ...], dim: int) -> None:
        super().__init__()


class MLP(Backbone):
    """Embeddings, then a perceptron: the paper's backbone."""

    name = "mlp"

    def __init__(self, schema: Schema, outputs: int, hidden: tuple[int, ...], dim: int) -> None:
        super().__init__(schema, outputs, hidden, dim)
        self.embedding = Embedding(schema, dim)
        self.layers = perceptron(self.embedding.width, hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(self.embedding(x))
        return out


class TrajectoryNet(nn.Module):
    """Logits of P(action k has happened by horizon h | x, y) for both outcomes, from x alone: (B, 2, H, K)."""

    def __init__(self, encoder: nn.Module, width: int, hidden: tuple[int, ...], horizons: int, actions: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = perceptron(width + 2, hidden, horizons * actions)
        self.shape = (horizons, actions)

    def forward(self, x: Tensor) -> Tensor:
        encoded = self.encoder(x)
        return torch.stack([self._given(encoded, torch.full((len(x),), y)) for y in (0, 1)], dim=1)

    def given(self, x: Tensor, y: Tensor) -> Tensor:
        """Logits under each click's own outcome only, (B, H, K): what is trained."""
        return self._given(self.encoder(x), y.long())

    def _given(self, encoded: Tensor, y: Tensor) -> Tensor:
        out: Tensor = self.head(torch.cat([encoded, F.one_hot(y, 2).to(encoded.dtype)], dim=1))
        return out.view(-1, *self.shape)
