"""NumpyMLP: the outputs of a perceptron backbone by a few NumPy calls, for a service that scores one click at a time.

For one click, what torch does around its arithmetic takes ten times as long as the arithmetic. Nothing here is
remembered between two calls, so threads need no lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tracecvr.nets.backbones import MLP, WIDE_STEPS, Embedding, Perceptron, WideDeep
from tracecvr.nets.growing import GrowingMap

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[Any]
Part = Callable[[Integers], Floats]
"""What some features of clicks come to: (B, F) -> (B, n)."""

_PROJECTED = 1 << 24
"""Numbers that are computed beforehand at most: 64 MB."""


class NumpyMLP:
    """A copy of a net's weights, with each batch normalisation folded into the layer after it. Tables are shared with
    the net, not copied: the net must not learn any more. Small ones are multiplied by the first layer beforehand."""

    def __init__(self, net: MLP) -> None:
        (first, self._bias), *self._layers = _layers(net.layers)
        embedding, width = net.embedding, net.embedding.dim * len(net.embedding.tables)
        sizes = [embedding.sizes[table] for table in embedding.tables]
        self._parts: list[Part] = []
        if sum(sizes) * first.shape[1] <= _PROJECTED:
            self._parts.append(_projected(embedding, first[:width]))
        else:
            self._parts.append(_multiplied(_look_up(embedding), first[:width]))
        for number, grown in enumerate(_grown(embedding)):
            start = width + number * embedding.dim
            self._parts.append(_multiplied(grown, first[start : start + embedding.dim]))
        start = embedding.dim * embedding.fields
        for j, size in embedding.one_hot:
            self._parts.append(_row_of(j, first[start : start + size]))
            start += size
        self._wide = [_look_up(net.wide), *_grown(net.wide)] if isinstance(net, WideDeep) else []

    def __call__(self, x: Integers) -> Floats:  # (B, F) -> (B, J)
        h = self._bias + self._parts[0](x)
        for part in self._parts[1:]:
            h += part(x)
        for weight, bias in self._layers:
            np.maximum(h, 0, out=h)
            h = h @ weight
            h += bias
        for values in self._wide:
            h[:, 0] += np.float32(WIDE_STEPS) * values(x).sum(1)
        return h


def numpy_form(net: nn.Module) -> NumpyMLP | None:
    """The same net as NumPy calls, if it is of a kind that is known here."""
    return NumpyMLP(net) if isinstance(net, MLP) and type(net) in (MLP, WideDeep) else None


def _look_up(embedding: Embedding) -> Part:
    """Embeddings of features of the common table, side by side."""
    table, columns = _array(embedding.table.weight), np.array(embedding.embedded, np.intp)
    starts = np.array([embedding.starts[t] for t in embedding.tables], np.intp)
    return lambda x: table[x[:, columns] + starts].reshape(len(x), -1)


def _projected(embedding: Embedding, weight: Floats) -> Part:
    """The same, multiplied by a layer: a row for each value of each feature, of which a click adds up some."""
    table, dim = _array(embedding.table.weight), embedding.dim
    spans = [(embedding.starts[t], embedding.sizes[t]) for t in embedding.tables]
    blocks = [table[at : at + n] @ weight[i * dim : (i + 1) * dim] for i, (at, n) in enumerate(spans)]
    rows = np.concatenate([np.zeros((0, weight.shape[1]), np.float32), *blocks])
    columns = np.array(embedding.embedded, np.intp)
    starts = np.cumsum([0, *(size for _, size in spans)])[:-1]
    return lambda x: rows[x[:, columns] + starts].sum(1)


def _grown(embedding: Embedding) -> list[Part]:
    """Embeddings of each growing feature."""

    def part(j: int, number: int) -> Part:
        one, rows = embedding.maps[number], _array(embedding.grown_tables[number].weight)
        return lambda x: rows[_rows_of(one, x[:, j + 1].astype(np.int64) << 31 | x[:, j])]

    return [part(j, number) for j, number in embedding.grown]


def _multiplied(part: Part, weight: Floats) -> Part:
    return lambda x: part(x) @ weight


def _row_of(j: int, weight: Floats) -> Part:
    """What a one-hot feature adds."""
    return lambda x: weight[x[:, j]]


def _rows_of(one: GrowingMap, key: Integers) -> Integers:
    """`GrowingMap.rows`."""
    known, row = one.key.numpy(), one.row.numpy()
    if not len(known):
        return np.zeros_like(key)
    place = np.searchsorted(known, key).clip(max=len(known) - 1)
    return np.where(known[place] == key, row[place], 0)


def _layers(perceptron: Perceptron) -> list[tuple[Floats, Floats]]:
    """(inputs, outputs) weights and the bias of each layer, what was normalised before it folded in."""
    modules = list(perceptron)
    folded = [_weights(modules[0], None)]
    folded += [_weights(linear, norm) for norm, linear in zip(modules[2::3], modules[3::3], strict=True)]
    return folded


def _weights(linear: nn.Module, norm: nn.Module | None) -> tuple[Floats, Floats]:
    assert isinstance(linear, nn.Linear)
    weight, bias = linear.weight.detach().double(), linear.bias.detach().double()
    if norm is not None:
        assert isinstance(norm, nn.BatchNorm1d)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = norm.weight.detach().double() / torch.sqrt(norm.running_var.double() + norm.eps)
        bias = bias + weight @ (norm.bias.detach().double() - norm.running_mean.double() * scale)
        weight = weight * scale
    return _array(weight.t().contiguous().float()), _array(bias.float())


def _array(tensor: Tensor) -> Floats:
    array: Floats = tensor.detach().numpy()
    return array
