"""Embeddings and backbones. A backbone is found by its `name`, here or in the entry-point group `tracecvr.nets`."""

from __future__ import annotations

from itertools import accumulate, groupby
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracecvr.base.config import DAY, MINUTE
from tracecvr.data.table import Schema
from tracecvr.nets.fused import Group, in_plain_form, lookup, normed_linear, project
from tracecvr.nets.rows import Rows

_START = 0.01
"""Deviation of the first weights of tables."""


class Embedding(nn.Module):
    """Feature ids to one flat vector. All features look up one table, each at its own offset."""

    def __init__(self, schema: Schema, dim: int) -> None:
        super().__init__()
        self.dim, self.sizes = dim, list(schema.tables.values())
        self.embedded = [j for j, f in enumerate(schema.features) if not f.one_hot]
        self.one_hot = [(j, f.size) for j, f in enumerate(schema.features) if f.one_hot]
        self.table = Rows(sum(self.sizes), dim)
        # Small, because ids that appear after warm-up are served untrained: torch's N(0, 1) would be loud noise
        # (Oracle on criteo_search: AUC .775 and NLL .278 with it, .788 and .272 with this).
        nn.init.normal_(self.table.weight, std=_START)
        self._groups: dict[tuple[int, ...], tuple[list[Group], list[int]]] = {}
        self.projected: dict[tuple[nn.Linear, tuple[int, ...]], Tensor] | None = None  # of a frozen net: see `freeze`
        self.starts = list(accumulate(self.sizes, initial=0))[:-1]
        self.tables = [list(schema.tables).index(schema.features[j].table) for j in self.embedded]
        self.width = dim * len(self.embedded) + sum(size for _, size in self.one_hot)

    def forward(self, x: Tensor) -> Tensor:  # (B, F) -> (B, width)
        return torch.cat(self._dense(x, list(range(len(self.tables)))), dim=1)

    def total(self, x: Tensor) -> Tensor:
        """The sum of the embeddings of all features but one-hot ones: (B, F) -> (B, dim)."""
        if not self.tables:
            return self.table.weight.new_zeros(x.shape[0], self.dim)
        return self.table.sums(self._ids(x, list(range(len(self.tables))), [self.starts[t] for t in self.tables]))

    def linear(self, x: Tensor, layer: nn.Linear, *beside: Tensor) -> Tensor:
        """`layer(cat(self(x), *beside))`, up to the order of summation, without multiplying the same thing twice.

        A feature with few values for the size of the batch goes through its block of the layer value by value; each
        row of the batch then only looks up and adds. Criteo's 17 tables have 3,488 rows, a batch 17 x 4,096 ids.
        """
        at_most = 0 if in_plain_form(x) or self.table.lag is not None else len(x) // 2
        few = [i for i, t in enumerate(self.tables) if self.sizes[t] <= at_most]
        if not few:
            return F.linear(torch.cat([self(x), *beside], dim=1), layer.weight, layer.bias)
        many = [i for i, t in enumerate(self.tables) if self.sizes[t] > at_most]
        dense, outputs = [*self._dense(x, many), *beside], self._look_up(x, layer, few)
        if dense:
            rest = layer.in_features - self.dim * len(self.tables)
            blocks = layer.weight.split([self.dim] * len(self.tables) + [rest], dim=1)
            weight = torch.cat([*(blocks[i] for i in many), blocks[-1]], dim=1)
            outputs = outputs + F.linear(torch.cat(dense, dim=1), weight)
        return outputs

    def _look_up(self, x: Tensor, layer: nn.Linear, chosen: list[int]) -> Tensor:
        key = tuple(chosen)
        if key not in self._groups:
            self._groups[key] = self._group(chosen)
        groups, starts = self._groups[key]
        return lookup(self._projection(layer, key, groups), self._ids(x, chosen, starts))

    def _projection(self, layer: nn.Linear, chosen: tuple[int, ...], groups: list[Group]) -> Tensor:
        if self.projected is None:
            return project(self.table.weight, layer.weight, layer.bias, groups, self.table.sparse)
        if (layer, chosen) not in self.projected:
            self.projected[layer, chosen] = project(self.table.weight, layer.weight, layer.bias, groups)
        return self.projected[layer, chosen]

    def _group(self, chosen: list[int]) -> tuple[list[Group], list[int]]:
        """The chosen features by size of their vocabulary, and where each one's values start in that order."""
        size_of = {i: self.sizes[self.tables[i]] for i in chosen}
        order = sorted(chosen, key=lambda i: size_of[i])
        starts = dict(zip(order, accumulate((size_of[i] for i in order), initial=0), strict=False))
        groups = []
        for size, together in groupby(order, key=lambda i: size_of[i]):
            features = list(together)
            groups.append(Group(size, tuple(self.starts[self.tables[i]] for i in features), torch.tensor(features)))
        return groups, [starts[i] for i in chosen]

    def _ids(self, x: Tensor, chosen: list[int], starts: list[int]) -> Tensor:
        columns = [self.embedded[i] for i in chosen]
        picked = x if len(columns) == x.shape[1] else x[:, columns]
        return picked + torch.tensor(starts, dtype=x.dtype)

    def _dense(self, x: Tensor, chosen: list[int]) -> list[Tensor]:
        """Embeddings of the chosen features side by side, and every one-hot feature."""
        parts = [F.one_hot(x[:, j].long(), size).to(self.table.weight.dtype) for j, size in self.one_hot]
        if chosen:
            ids = self._ids(x, chosen, [self.starts[self.tables[i]] for i in chosen])
            parts.insert(0, self.table.of(ids.reshape(-1)).view(x.shape[0], len(chosen) * self.dim))
        return parts


def freeze(net: nn.Module) -> nn.Module:
    """Stop a net from learning, and let it keep results that depend on its weights alone. After a change of weights,
    call `thaw` or `freeze`: torch does not signal it (a fused optimiser does not change the version of a tensor)."""
    net.eval().requires_grad_(False).zero_grad(set_to_none=True)
    return _remembering(net, True)


def is_frozen(net: nn.Module) -> bool:
    return not any(parameter.requires_grad for parameter in net.parameters())


def thaw(net: nn.Module) -> nn.Module:
    return _remembering(net.requires_grad_(True), False)


def _remembering(net: nn.Module, on: bool) -> nn.Module:
    for module in net.modules():
        if isinstance(module, Embedding):
            module.projected = {} if on else None
    return net


def set_precision(net: nn.Module, name: str) -> None:
    """Let a net learn with this precision of large products. Weights, sums and what it answers stay float32."""
    for module in net.modules():
        if isinstance(module, Perceptron):
            module.precision = None if name == "float32" else torch.bfloat16


def output_layers(net: nn.Module) -> list[nn.Linear]:
    """The layers whose biases move one output each, in the order of the outputs, as the net declares them by a method
    of this name; of a `Backbone`, its last linear layer. None of a net that declares nothing: it starts as it is."""
    declared = getattr(net, "output_layers", None)
    return [] if declared is None else list(declared())


def start_at(net: nn.Module, logits: Tensor, spread: float = 1.0) -> None:
    """Set the biases of a net's outputs. An output whose logit is NaN, or beyond those given, is left alone.

    `spread` is a factor of the weights beside such a bias: how far clicks differ before anything is learnt.
    """
    for layer, start in _by_layer(net, logits):
        if not start.isnan().all():
            layer.bias.data = torch.where(start.isnan(), layer.bias.data, start.to(layer.bias.dtype))
            layer.weight.data *= spread
    if (intercept := getattr(net, "intercept", None)) is not None and not logits[0].isnan():
        intercept.data.fill_(logits[0])


def shift_outputs(net: nn.Module, shift: Tensor) -> None:
    """Add to the biases of a net's outputs. An output whose shift is NaN, or beyond those given, is left alone."""
    for layer, change in _by_layer(net, shift):
        layer.bias.data += change.nan_to_num(0.0).to(layer.bias.dtype)
    if (intercept := getattr(net, "intercept", None)) is not None:
        intercept.data += shift[0].nan_to_num(0.0).to(intercept.dtype)


def _by_layer(net: nn.Module, values: Tensor) -> list[tuple[nn.Linear, Tensor]]:
    """Each output layer with the values that are its outputs'; NaN for those beyond what is given."""
    layers = output_layers(net)
    sizes = [layer.out_features for layer in layers]
    padded = F.pad(values, (0, sum(sizes) - len(values)), value=torch.nan)
    return list(zip(layers, padded.split(sizes), strict=True)) if layers else []


class Perceptron(nn.Sequential):
    """Linear layers, each hidden one followed by ReLU, then batch normalisation. `precision` is that of the factors of
    large products while the net is training: see `set_precision`."""

    precision: torch.dtype | None = None

    def __init__(self, width: int, hidden: tuple[int, ...], outputs: int) -> None:
        layers: list[nn.Module] = []
        for size in hidden:
            layers += [nn.Linear(width, size), nn.ReLU(), nn.BatchNorm1d(size)]
            width = size
        super().__init__(*layers, nn.Linear(width, outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        return self._after_first(self[0](inputs))

    def of_ids(self, embedding: Embedding, x: Tensor, *beside: Tensor) -> Tensor:
        """The outputs for embedded ids and inputs beside them."""
        first = self[0]
        assert isinstance(first, nn.Linear)
        return self._after_first(embedding.linear(x, first, *beside))

    def output_layers(self) -> list[nn.Linear]:
        """The last layer: see the function of this name."""
        last = self[-1]
        assert isinstance(last, nn.Linear)
        return [last]

    def _after_first(self, h: Tensor) -> Tensor:
        layers = list(self)
        for norm, linear in zip(layers[2::3], layers[3::3], strict=True):
            assert isinstance(norm, nn.BatchNorm1d)
            assert isinstance(linear, nn.Linear)
            h = normed_linear(h, norm, linear, self.precision)
        return h


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

    def of_embedded(self, x: Tensor, embedded: Tensor) -> Tensor:
        """The outputs for ids, with these embeddings in place of their own."""
        return self.top(embedded)

    def output_layers(self) -> list[nn.Linear]:
        """The layer whose biases move one output each; the last linear one by default."""
        return [layer for layer in self.modules() if isinstance(layer, nn.Linear)][-1:]


class MLP(Backbone):
    """A perceptron: the paper's backbone."""

    name = "mlp"

    def __init__(self, schema: Schema, outputs: int, hidden: tuple[int, ...], dim: int) -> None:
        super().__init__(schema, outputs, hidden, dim)
        self.layers = Perceptron(self.embedding.width, hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers.of_ids(self.embedding, x)

    def top(self, embedded: Tensor) -> Tensor:
        out: Tensor = self.layers(embedded)
        return out


class WideDeep(MLP):
    """A linear model of the ids beside a perceptron, learnt together (Cheng et al., Wide & Deep, 2016).

    The linear part adds one number for each value of a feature to the first output, the log-odds of the rate. It learns
    what single values do from few clicks, where a perceptron alone overfits.
    """

    name = "wide_deep"

    def __init__(self, schema: Schema, outputs: int, hidden: tuple[int, ...], dim: int) -> None:
        super().__init__(schema, outputs, hidden, dim)
        self.wide = Embedding(schema, 1)
        for table in self.wide.parameters():
            nn.init.zeros_(table)

    def forward(self, x: Tensor) -> Tensor:
        return self._add_wide(x, super().forward(x))

    def of_embedded(self, x: Tensor, embedded: Tensor) -> Tensor:
        return self._add_wide(x, super().of_embedded(x, embedded))

    def _add_wide(self, x: Tensor, outputs: Tensor) -> Tensor:
        return outputs + F.pad(self.wide.total(x), (0, outputs.shape[1] - 1))


class DCNv2(Backbone):
    """Cross layers beside a perceptron (Wang et al., DCN V2, WWW 2021): each multiplies its input by the embeddings."""

    name = "dcn_v2"

    def __init__(self, schema: Schema, outputs: int, hidden: tuple[int, ...], dim: int, crosses: int = 3) -> None:
        super().__init__(schema, outputs, hidden, dim)
        width = self.embedding.width
        self.crosses = nn.ModuleList(nn.Linear(width, width) for _ in range(crosses))
        self.deep = Perceptron(width, hidden, hidden[-1])
        self.out = nn.Linear(width + hidden[-1], outputs)

    def top(self, embedded: Tensor) -> Tensor:
        crossed = embedded
        for layer in self.crosses:
            crossed = embedded * layer(crossed) + crossed
        out: Tensor = self.out(torch.cat([crossed, self.deep(embedded)], dim=1))
        return out


class ElapsedNet(nn.Module):
    """One logit from features and elapsed time, given in units of five days and as its logarithm: most conversions come
    early, where time in days is too coarse (at an hour, FSIW's a1 on the synthetic log was .45 without it, .24 with
    it, and .25 in truth)."""

    def __init__(self, encoder: nn.Module, width: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = Perceptron(width + 2, hidden, 1)

    def output_layers(self) -> list[nn.Linear]:
        return self.head.output_layers()

    def forward(self, x: Tensor, elapsed: Tensor) -> Tensor:
        seconds = elapsed.to(torch.float32)[:, None]
        time = [seconds / (5 * DAY), torch.log1p(seconds / MINUTE) / 5]
        out: Tensor = self.head(torch.cat([self.encoder(x), *time], dim=1))
        return out[:, 0]
