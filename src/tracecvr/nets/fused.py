"""Fast forms of what nets are made of: looking ids up, projecting tables, hidden layers. Each equals its plain form up
to the order of summation; the plain forms are in the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracecvr.base.devices import is_on_processor
from tracecvr.nets.row_access import row_gradient, sum_by_row


def in_plain_form(tensor: Tensor) -> bool:
    """Whether the fast forms are left aside: on other devices, where torch's own are fast, and while torch draws a
    graph of the net for an export. The graph is for any number of rows, and ONNX has no bags."""
    return torch.compiler.is_compiling() or not is_on_processor(tensor)


_LARGE_PRODUCT = 64
"""Outputs of a layer from which on a lower precision saves time. The outputs of a net are fewer, and stay exact."""

_PADDING = 128
"""The number of rows of a product in bfloat16 is a multiple of this."""


@dataclass(frozen=True, eq=False)
class Group:
    """Features of one vocabulary size: where their tables start, and their positions in a layer."""

    size: int
    starts: tuple[int, ...]
    features: Tensor  # (n,)

    @cached_property
    def rows(self) -> Tensor:
        """The rows of all their tables, one after the other: (n * size,)."""
        return torch.cat([torch.arange(start, start + self.size) for start in self.starts])


def lookup(table: Tensor, ids: Tensor, sparse: bool = False) -> Tensor:
    """Sums of table rows: (V, D) and ids (B, n) to (B, D). With `sparse`, the gradient holds only the rows of `ids`:
    to compute it takes no longer if the table has more rows."""
    if in_plain_form(table):
        return F.embedding(ids, table).sum(1)
    if not (table.requires_grad and torch.is_grad_enabled()):
        return F.embedding_bag(ids, table, mode="sum")
    sums: Tensor = _Lookup.apply(table, ids, sparse)  # type: ignore[no-untyped-call]
    return sums


class _Lookup(torch.autograd.Function):
    """Forward is torch's bag of rows. Backward is one, too: sorted by id, what reaches a table row is a bag of rows of
    the gradient. Some eight times faster than torch's own, sort included; the sort is stable to fix the summation."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor, sparse: bool) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.table, ctx.sparse = tuple(table.shape), sparse
        return F.embedding_bag(ids, table, mode="sum")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (ids,) = ctx.saved_tensors
        flat, each = ids.flatten(), ids.shape[1]
        if ctx.table[1] == 1 and not ctx.sparse:  # adds in the same order, ten times as fast
            of_ids = grad.expand(-1, each).reshape(-1)
            return grad.new_zeros(ctx.table[0]).index_add_(0, flat, of_ids)[:, None], None, None
        if ctx.sparse:
            return row_gradient(*sum_by_row(flat, grad, each), ctx.table, distinct=True), None, None
        rows = torch.sort(flat, stable=True).indices.div_(each, rounding_mode="floor")
        ends = torch.bincount(flat, minlength=ctx.table[0]).cumsum(0)
        return F.embedding_bag(rows, grad.contiguous(), F.pad(ends[:-1], (1, 0)), mode="sum"), None, None


def project(table: Tensor, weight: Tensor, bias: Tensor, groups: list[Group], sparse: bool = False) -> Tensor:
    """Every feature's table rows times its columns of a layer, features one below the other as in `groups`; the first
    feature's plus `bias`. `sparse` as in `lookup`."""
    products: Tensor = _Projection.apply(table, weight, bias, groups, sparse)  # type: ignore[no-untyped-call]
    return products


class _Projection(torch.autograd.Function):
    """By hand and by groups: autograd would copy every feature's block in and out, and products of 16 columns each are
    so small that calling them takes longer than they do."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, weight: Tensor, bias: Tensor, groups: list[Group], sparse: bool) -> Tensor:
        gathered = [_of_group(g, table, weight) for g in groups]
        ctx.save_for_backward(table, weight, *(tensor for pair in gathered for tensor in pair))
        ctx.groups, ctx.sparse = groups, sparse
        out = table.new_empty(sum(len(g.rows) for g in groups), len(weight))
        parts = out.split([len(g.rows) for g in groups])
        for g, (rows, columns), part in zip(groups, gathered, parts, strict=True):
            torch.bmm(rows, columns, out=part.view(len(rows), g.size, -1))
        out[: groups[0].size].add_(bias)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        table, weight, *gathered = ctx.saved_tensors
        of_weight = torch.zeros_like(weight)
        by_feature, of_tables = _by_feature(of_weight, table.shape[1]), []
        parts = grad.split([len(g.rows) for g in ctx.groups])
        for g, rows, columns, part in zip(ctx.groups, gathered[::2], gathered[1::2], parts, strict=True):
            of_values = part.view(len(rows), g.size, -1)
            of_tables.append(torch.bmm(of_values, columns.transpose(1, 2)))
            by_feature[:, g.features] = torch.bmm(of_values.transpose(1, 2), rows).transpose(0, 1)
        of_table = (_sparse if ctx.sparse else _dense)(ctx.groups, of_tables, table)
        return of_table, of_weight, grad[: ctx.groups[0].size].sum(0), None, None


def _dense(groups: list[Group], of_tables: list[Tensor], table: Tensor) -> Tensor:
    """The gradient of a whole table, from those of groups of features, each (n, size, dim)."""
    of_table = torch.zeros_like(table)
    for g, of_rows in zip(groups, of_tables, strict=True):
        for start, of_feature in zip(g.starts, of_rows, strict=True):
            of_table[start : start + g.size] += of_feature  # added, since features may share a table
    return of_table


def _sparse(groups: list[Group], of_tables: list[Tensor], table: Tensor) -> Tensor:
    """The same of their rows alone, once for each feature that shares a table."""
    rows, values = torch.cat([g.rows for g in groups]), torch.cat([part.flatten(0, 1) for part in of_tables])
    return row_gradient(rows, values, tuple(table.shape), distinct=False)


def _of_group(g: Group, table: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    dim = table.shape[1]
    return table[g.rows].view(-1, g.size, dim), _by_feature(weight, dim)[:, g.features].permute(1, 2, 0)


def _by_feature(weight: Tensor, dim: int) -> Tensor:
    """(D, columns) to (D, features, dim), without the columns that are no feature's."""
    features = weight.shape[1] // dim
    return weight[:, : features * dim].view(len(weight), features, dim)


def normed_linear(h: Tensor, norm: nn.BatchNorm1d, linear: nn.Linear, precision: torch.dtype | None = None) -> Tensor:
    """linear(norm(relu(h))), in its plain form where folding weights would cost more than the passes it saves. `h` is
    overwritten: half of what a ReLU costs is memory for its result. Where a net is training, large products have
    factors of `precision`, float32 by default."""
    if in_plain_form(h) or len(h) < norm.num_features:
        return F.linear(_normalise(F.relu(h, inplace=True), norm), linear.weight, linear.bias)
    factors = precision if norm.training and linear.out_features >= _LARGE_PRODUCT else None
    out: Tensor = _NormedLinear.apply(h, norm, norm.weight, norm.bias, linear.weight, linear.bias, factors)  # type: ignore[no-untyped-call]
    return out


def _normalise(r: Tensor, norm: nn.BatchNorm1d) -> Tensor:
    """`norm(r)` without the calls around it: for a handful of rows they take longer than the arithmetic."""
    assert norm.momentum is not None
    assert norm.num_batches_tracked is not None
    if norm.training:
        norm.num_batches_tracked.add_(1)
    mean, var = norm.running_mean, norm.running_var
    return F.batch_norm(r, mean, var, norm.weight, norm.bias, norm.training, norm.momentum, norm.eps)


class _NormedLinear(torch.autograd.Function):
    """The normalisation is an affine map of columns, so it is folded into the linear layer's weights, and what its
    backward sums over the batch is in the product that the weights' gradient needs anyway: instead of eight passes over
    the activations, four are left (8 of 43 ms of a TRACE step were spent in normalisation and ReLU; now 3)."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        norm: nn.BatchNorm1d,
        gamma: Tensor,
        beta: Tensor,
        weight: Tensor,
        bias: Tensor,
        factors: torch.dtype | None,
    ) -> Tensor:
        r = h.detach().relu_()
        mean, variance, ctx.count = _statistics(norm, r)
        inverse = (variance + norm.eps).rsqrt()
        scale = gamma * inverse
        shift = beta - mean * scale
        ctx.training, ctx.factors = norm.training, factors
        ctx.save_for_backward(r, mean, inverse, scale, shift, weight)
        offset, folded = bias + weight @ shift, (weight * scale).t()
        return torch.addmm(offset, r, folded) if factors is None else _product(r, folded, factors).add_(offset)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        r, mean, inverse, scale, shift, weight = ctx.saved_tensors
        of_bias, of_folded = grad.sum(0), _product_of_rows(grad, r, ctx.factors)
        of_shift = of_bias @ weight
        of_scale = (weight * of_folded).sum(0) - mean * of_shift
        slope = -scale * inverse.square() * of_scale / ctx.count if ctx.training else torch.zeros_like(mean)
        offset = -scale * of_shift / ctx.count - slope * mean if ctx.training else slope
        of_r, folded = torch.addcmul(offset, r, slope), weight * scale
        of_r = of_r.addmm_(grad, folded) if ctx.factors is None else of_r.add_(_product(grad, folded, ctx.factors))
        of_h = torch.ops.aten.threshold_backward.grad_input(of_r, r, 0, grad_input=of_r)
        of_weight = of_folded * scale + torch.outer(of_bias, shift)
        return of_h, None, inverse * of_scale, of_shift, of_weight, of_bias, None


def _product(rows: Tensor, weight: Tensor, factors: torch.dtype | None) -> Tensor:
    """rows @ weight. With factors of bfloat16, their sums are of float32 inside, and of bfloat16 when they are handed
    out."""
    return rows @ weight if factors is None else (_pad(rows, factors) @ weight.to(factors))[: len(rows)].float()


def _product_of_rows(a: Tensor, b: Tensor, factors: torch.dtype | None) -> Tensor:
    """a.t() @ b, in the same way."""
    return a.t() @ b if factors is None else (_pad(a, factors).t() @ _pad(b, factors)).float()


def _pad(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows in another precision, and zeros below them: torch compiles a product anew for each number of rows, which
    takes as long as the product and 2 MB, and every batch has another one."""
    padded = rows.new_zeros(-(-len(rows) // _PADDING) * _PADDING, rows.shape[1], dtype=dtype)
    padded[: len(rows)] = rows
    return padded


def _statistics(norm: nn.BatchNorm1d, r: Tensor) -> tuple[Tensor, Tensor, float]:
    """Mean and variance to normalise with: the batch's while training, which moves the running ones, else those. And
    how many rows the batch has."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    assert norm.momentum is not None
    if not norm.training:
        return norm.running_mean, norm.running_var, len(r)
    norm.num_batches_tracked.add_(1)
    mean, variance = torch.batch_norm_update_stats(r, norm.running_mean, norm.running_var, norm.momentum)
    return mean, variance, len(r)
