"""NumpyMLP: the first output of a perceptron backbone by a few NumPy calls, for a service that scores single clicks.

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

from tracecvr.nets.backbones import MLP, Embedding, Perceptron, WideDeep
from tracecvr.nets.blend import Blend

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[Any]
Part = Callable[[Integers], Floats]
"""What some features of clicks come to: (B, F) -> (B, n)."""

_PROJECTED = 1 << 24
"""Numbers that are computed beforehand at most: 64 MB."""


class NumpyMLP:
    """A copy of a net's weights, with each batch normalisation folded into the layer after it. Tables are shared with
    the net, not copied: the net must not learn any more. Small ones are multiplied by the first layer beforehand.

    Linear parts are one more unit of the first layer, which goes to the output as it is."""

    def __init__(self, net: MLP) -> None:
        (first, bias), *self._hidden, (last, last_bias) = _layers(net.layers)
        embedding, width = net.embedding, net.embedding.dim * len(net.embedding.tables)
        share, linear, intercept = _linear_parts(net)
        first = np.pad(first, ((0, 0), (0, 1)))
        self._bias = np.append(bias, np.float32(share * last_bias[0] + intercept))
        self._last = np.ascontiguousarray(np.float32(share) * last[:, 0])
        self._linear = []
        if sum(embedding.sizes[table] for table in embedding.tables) * first.shape[1] <= _PROJECTED:
            self._parts = [_projected(embedding, first[:width], linear)]
        else:
            self._parts = [_multiplied(_look_up(embedding), first[:width])]
            self._linear = [(_look_up(part), factor) for part, factor in linear]
        start = width
        for j, size in embedding.one_hot:
            self._parts.append(lambda x, j=j, weight=first[start : start + size]: weight[x[:, j]])  # type: ignore[misc]
            start += size

    def __call__(self, x: Integers) -> Floats:  # (B, F) -> (B,)
        units = self._bias + self._parts[0](x)
        for part in self._parts[1:]:
            units += part(x)
        for values, factor in self._linear:
            units[:, -1] += np.float32(factor) * values(x).sum(1)
        h = np.maximum(units[:, :-1], _ZERO)
        for weight, bias in self._hidden:
            h = h.dot(weight)
            h += bias
            np.maximum(h, _ZERO, out=h)
        output: Floats = h.dot(self._last) + units[:, -1]
        return output


_ZERO = np.float32(0)


def numpy_form(net: nn.Module) -> NumpyMLP | None:
    """The same net as NumPy calls, if it is of a kind that is known here."""
    return NumpyMLP(net) if isinstance(net, MLP) and type(net) in (MLP, WideDeep, Blend) else None


def _linear_parts(net: MLP) -> tuple[float, list[tuple[Embedding, float]], float]:
    """The share of the perceptron in the output, tables of linear parts with their factors, and what is added."""
    if isinstance(net, Blend):
        share = net.shares[1].item()
        return 1 - share, [(net.wide, 1 - share), (net.weights, share)], share * net.intercept.item()
    return 1.0, [(net.wide, 1.0)] if isinstance(net, WideDeep) else [], 0.0


def _look_up(embedding: Embedding) -> Part:
    """Embeddings of features of the common table, side by side."""
    table, columns = _array(embedding.table.weight), np.array(embedding.embedded, np.intp)
    starts = np.array([embedding.starts[t] for t in embedding.tables], np.intp)
    return lambda x: table[x[:, columns] + starts].reshape(len(x), -1)


def _projected(embedding: Embedding, weight: Floats, linear: list[tuple[Embedding, float]]) -> Part:
    """The same, multiplied by a layer: a row for each value of each feature, of which a click adds up some."""
    table, dim = _array(embedding.table.weight), embedding.dim
    spans = [(embedding.starts[t], embedding.sizes[t]) for t in embedding.tables]
    blocks = [table[at : at + n] @ weight[i * dim : (i + 1) * dim] for i, (at, n) in enumerate(spans)]
    for part, factor in linear:
        for block, (at, n) in zip(blocks, spans, strict=True):
            block[:, -1] += np.float32(factor) * _array(part.table.weight)[at : at + n, 0]
    rows = np.concatenate([np.zeros((0, weight.shape[1]), np.float32), *blocks])
    columns = np.array(embedding.embedded, np.intp)
    starts = np.cumsum([0, *(size for _, size in spans)])[:-1]
    every, ones = not embedding.one_hot, np.ones((1, len(columns)), np.float32)

    def sum_rows(x: Integers) -> Floats:
        chosen = rows.take((x if every else x[:, columns]) + starts, axis=0)  # (B, F, n)
        total: Floats = (ones @ chosen)[:, 0]  # faster than NumPy's own sum
        return total

    return sum_rows


def _multiplied(part: Part, weight: Floats) -> Part:
    return lambda x: part(x) @ weight


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
