"""Logarithms and exponentials that keep their digits. ONNX has none of these four: the exporter writes log(1 + x),
exp(x) - 1, log(sigmoid(x)) and log(exp(a) + exp(b)), which lose all digits near 0 and are infinite far from it. Rates
are near 0, and the difference of two infinities is no number at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def log1p(x: Tensor) -> Tensor:
    return torch.where(x.abs() < 0.5, _log1p_near_zero(x), torch.log(1 + x))


def expm1(x: Tensor) -> Tensor:
    return torch.tanh(x / 2) * (torch.exp(x) + 1)


def log_sigmoid(x: Tensor) -> Tensor:
    return x.clamp_max(0.0) - _log1p_near_zero(torch.exp(-x.abs()))


def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    return torch.maximum(a, b) + _log1p_near_zero(torch.exp(-(a - b).abs()))


def _log1p_near_zero(x: Tensor) -> Tensor:
    """For x from -0.5 to 1: far from there the quotient is too near 1."""
    return 2 * torch.atanh(x / (2 + x))


FORMS: dict[Any, Callable[..., Tensor]] = {
    torch.ops.aten.log1p.default: log1p,
    torch.ops.aten.expm1.default: expm1,
    torch.ops.aten.log_sigmoid.default: log_sigmoid,
    torch.ops.aten.logaddexp.default: logaddexp,
}
"""By the operator that each is written in place of."""
