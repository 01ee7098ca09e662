"""Embeddings and backbones. A backbone is found by its `name`, here or in the entry-point group `tracecvr.nets`."""

from __future__ import annotations

from itertools import accumulate
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracecvr.clicks import Schema
from tracecvr.config import DAY, MINUTE


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
    """Feature ids (B, F) to outputs (B, J): embeddings, then `top`. A third party's backbone gives itself a `name`."""

    name: ClassVar[str]

    def __init__(self, schema: Schema, outputs: int, hidden: tuple[int, ...], dim: int) -> None:
        super().__init__()
        self.embedding = Embedding(schema, dim)

    def top(self, embedded: Tensor) -> Tensor:  # (B, width) -> (B, J)
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.embedding(x))


class MLP(Backbone):
    """A perceptron: the paper's backbone."""

    name = "mlp"

    def __init__(self, schema: Schema, outputs: int, hidden: tuple[int, ...], dim: int) -> None:
        super().__init__(schema, outputs, hidden, dim)
        self.layers = perceptron(self.embedding.width, hidden, outputs)

    def top(self, embedded: Tensor) -> Tensor:
        out: Tensor = self.layers(embedded)
        return out


class DCNv2(Backbone):
    """Cross layers beside a perceptron (Wang et al., DCN V2, WWW 2021): each multiplies its input by the embeddings."""

    name = "dcn_v2"

    def __init__(self, schema: Schema, outputs: int, hidden: tuple[int, ...], dim: int, crosses: int = 3) -> None:
        super().__init__(schema, outputs, hidden, dim)
        width = self.embedding.width
        self.crosses = nn.ModuleList(nn.Linear(width, width) for _ in range(crosses))
        self.deep = perceptron(width, hidden, hidden[-1])
        self.out = nn.Linear(width + hidden[-1], outputs)

    def top(self, embedded: Tensor) -> Tensor:
        crossed = embedded
        for layer in self.crosses:
            crossed = embedded * layer(crossed) + crossed
        out: Tensor = self.out(torch.cat([crossed, self.deep(embedded)], dim=1))
        return out


class DeepFM(Backbone):
    """A factorisation machine beside a perceptron on the same embeddings (Guo et al., DeepFM, IJCAI 2017)."""

    name = "deepfm"

    def __init__(self, schema: Schema, outputs: int, hidden: tuple[int, ...], dim: int) -> None:
        super().__init__(schema, outputs, hidden, dim)
        self.first = nn.Linear(self.embedding.width, outputs)
        self.second = nn.Linear(dim, outputs, bias=False)
        self.deep = perceptron(self.embedding.width, hidden, outputs)
        self.dim, self.fields = dim, len(self.embedding.embedded)

    def top(self, embedded: Tensor) -> Tensor:
        fields = embedded[:, : self.fields * self.dim].view(-1, self.fields, self.dim)
        pairs = (fields.sum(1) ** 2 - (fields**2).sum(1)) / 2  # sum of products over all pairs of fields
        out: Tensor = self.first(embedded) + self.second(pairs) + self.deep(embedded)
        return out


class ElapsedNet(nn.Module):
    """One logit from features and elapsed time, given in units of five days and as its logarithm: most conversions come
    early, where time in days is too coarse (at an hour, FSIW's a1 on the synthetic log was .45 without it, .24 with
    it, and .25 in truth)."""

    def __init__(self, encoder: nn.Module, width: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = perceptron(width + 2, hidden, 1)

    def forward(self, x: Tensor, elapsed: Tensor) -> Tensor:
        seconds = elapsed.to(torch.float32)[:, None]
        time = [seconds / (5 * DAY), torch.log1p(seconds / MINUTE) / 5]
        out: Tensor = self.head(torch.cat([self.encoder(x), *time], dim=1))
        return out[:, 0]
