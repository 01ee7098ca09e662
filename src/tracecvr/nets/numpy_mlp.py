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


class NumpyMLP:
    """A copy of a net's weights, with each batch normalisation folded into the layer after it. Tables are shared with
    the net, not copied: the net must not learn any more."""

    def __init__(self, net: MLP) -> None:
        self._embed = _embedding(net.embedding)
        self._dense = net.embedding.dim * net.embedding.fields
        self._layers = _layers(net.layers)
        first, _ = self._layers[0]
        places = np.cumsum([self._dense, *(size for _, size in net.embedding.one_hot)])[:-1]
        self._one_hot = [(j, first[at:]) for (j, _), at in zip(net.embedding.one_hot, places, strict=True)]
        self._layers[0] = first[: self._dense], self._layers[0][1]
        self._wide = _embedding(net.wide) if isinstance(net, WideDeep) else None

    def __call__(self, x: Integers) -> Floats:  # (B, F) -> (B, J)
        weight, bias = self._layers[0]
        h = self._embed(x) @ weight
        h += bias
        for j, rows in self._one_hot:
            h += rows[x[:, j]]
        for weight, bias in self._layers[1:]:
            np.maximum(h, 0, out=h)
            h = h @ weight
            h += bias
        if self._wide is not None:
            h[:, 0] += np.float32(WIDE_STEPS) * self._wide(x).sum(1)
        return h


def numpy_form(net: nn.Module) -> NumpyMLP | None:
    """The same net as NumPy calls, if it is of a kind that is known here."""
    return NumpyMLP(net) if type(net) in (MLP, WideDeep) else None


def _embedding(embedding: Embedding) -> Callable[[Integers], Floats]:
    """Embeddings side by side: (B, F) -> (B, fields * dim)."""
    table, dim = _array(embedding.table.weight), embedding.dim
    columns = np.array(embedding.embedded, np.intp)
    starts = np.array([embedding.starts[t] for t in embedding.tables], np.intp)
    grown = [(j, embedding.maps[n], _array(embedding.grown_tables[n].weight)) for j, n in embedding.grown]

    def embed(x: Integers) -> Floats:
        dense: Floats = table[x[:, columns] + starts].reshape(len(x), len(columns) * dim)
        parts = [rows[_rows_of(one, x[:, j + 1].astype(np.int64) << 31 | x[:, j])] for j, one, rows in grown]
        return np.concatenate([dense, *parts], axis=1) if parts else dense

    return embed


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
