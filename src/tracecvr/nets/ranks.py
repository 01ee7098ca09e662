"""Ranks: processes that compute one batch together, each a share of its rows, as one process would compute it.

All ranks run the same engine on the same events in the same order, so weights, moments, counts and logs are equal on
all of them, to the bit. Shared out is what nets do with rows: whoever calls a net that is `shared` gives it the whole
batch and gets the whole answer, but each rank computes its own rows and gathers those of the others. Losses, with all
their weights and normalisers, are therefore those of one process, whatever the method. What couples rows inside a net,
batch normalisation, is reduced over ranks, forward and backward.

Gradients: inside a net each rank has those of its own rows, times the number of ranks; outside, all have the same. The
mean over ranks is then right for both, also for a parameter that a loss reaches without calling its net.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tracecvr.base.errors import UserError
from tracecvr.nets.row_gradients import row_gradient, rows_of

Call = Callable[..., Any]
Net = TypeVar("Net", bound=nn.Module)


class WorkerLostError(UserError):
    """Another rank is gone: the consequence of an error that is told elsewhere."""


class Ranks:
    """One process among those of a run: what it says to the others, through torch.distributed. What comes back is the
    same on all ranks, to the bit."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def share(self, rows: int) -> slice:
        """This rank's rows of so many: all ranks have equally many, except for the last ones."""
        each = self.each(rows)
        return slice(min(self.rank * each, rows), min((self.rank + 1) * each, rows))

    def each(self, rows: int) -> int:
        """The size of a full share."""
        return -(-rows // self.size)

    def gathered(self, value: Tensor) -> Tensor:
        """The values of all ranks, of one shape, in order: (...) to (ranks, ...)."""
        values = value.new_empty(self.size, *value.shape)
        if value.numel():
            with _lost_workers_as_errors():
                dist.all_gather(list(values), value.contiguous())
        return values

    def whole(self, mine: Tensor, rows: int) -> Tensor:
        """All rows, from each rank's share of them."""
        short = self.each(rows) - len(mine)
        padded = torch.cat([mine, mine.new_zeros(short, *mine.shape[1:])]) if short else mine
        return self.gathered(padded).flatten(0, 1)[:rows]

    def summed(self, value: Tensor) -> Tensor:
        """The sum over ranks, which replaces the value."""
        with _lost_workers_as_errors():
            dist.all_reduce(value)
        return value

    def broadcast_first(self, value: bool) -> bool:
        """What the first rank says of something that only it may decide."""
        decision = torch.tensor(value)
        with _lost_workers_as_errors():
            dist.broadcast(decision, 0)
        return bool(decision)

    def agree(self, digest: str, where: str) -> None:
        """Stop if what ought to be equal on all ranks, of which this is a hash, is not."""
        digests = self.gathered(torch.tensor(list(digest.encode()), dtype=torch.uint8))
        if other := [rank for rank in range(self.size) if not torch.equal(digests[rank], digests[0])]:
            raise UserError(
                f"{where}: the state of worker {other[0]} is not that of worker 0, so the run stops; are processors "
                "and versions of torch the same everywhere? The last checkpoint is sound: continue with --resume"
            )

    def mean_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Make every gradient its mean over ranks; one that no rank has stays away."""
        having = list(parameters)
        if not having:
            return
        sizes = [p.numel() for p in having]
        own = [torch.zeros_like(p) if p.grad is None else p.grad for p in having]
        has = own[0].new_tensor([p.grad is not None for p in having])
        flat = self.summed(torch.cat([*(grad.flatten() for grad in own), has])).div_(self.size)
        *means, has = flat.split([*sizes, len(having)])
        for p, mean, some in zip(having, means, has.tolist(), strict=True):
            p.grad = mean.view_as(p) if some else None

    def mean_row_gradients(self, tables: Iterable[nn.Parameter]) -> None:
        """The same of gradients that hold only some rows of their tables: the rows of all ranks, in the order of ranks.
        All ranks have a gradient of a table, or none has."""
        for table in tables:
            if table.grad is None:
                continue
            rows, values = rows_of(table.grad)
            counts = self.gathered(torch.tensor(len(rows)))
            most = int(counts.max())
            present = torch.arange(most) < counts[:, None]  # (ranks, rows)
            rows = self.gathered(F.pad(rows, (0, most - len(rows))))[present]
            values = self.gathered(F.pad(values, (0, 0, 0, most - len(values))))[present]
            table.grad = row_gradient(rows, values / self.size, tuple(table.shape), distinct=False)


_joined: Ranks | None = None
_splitting: Ranks | None = None


def current() -> Ranks | None:
    """The ranks that this process is one of; None, as a rule, if it is alone."""
    return _joined


def splitting() -> Ranks | None:
    """The ranks, if the rows at hand are a share of a batch that is computed by all of them together."""
    return _splitting


@contextmanager
def sharing_batches(ranks: Ranks) -> Iterator[None]:
    """While it lasts, this process is one of these ranks: nets that are built are `shared`."""
    global _joined
    _joined = ranks
    try:
        yield
    finally:
        _joined = None


def shared(net: Net) -> Net:
    """The net itself; if this process is one of several, they share out each of its calls from now on, and calls of a
    module inside it. Rows are the first dimension, and come out as they went in. A net that was not given to this
    function is computed by every rank for all rows: slower, and as right."""
    for module in net.modules() if _joined is not None else ():
        module.__class__ = _sharing(type(module))  # type: ignore[arg-type]
    return net


@cache
def _sharing(kind: type[nn.Module]) -> type[nn.Module]:
    """The same kind of module with calls that are shared out. A class rather than a module around it, so that names in
    `state_dict`, attributes and copies of a net stay as they are."""
    return kind if kind.__call__ is _call else type(kind.__name__, (kind,), {"__call__": _call})


def _call(module: nn.Module, *inputs: Any, **named: Any) -> Any:
    if _splitting is not None:
        return _forward(module)(*inputs, **named)
    rows = _rows(module, (*inputs, *named.values()))
    if _joined is None or not rows:
        return nn.Module.__call__(module, *inputs, **named)
    return _shared_out(_joined, _forward(module), rows, inputs, named)


def _rows(module: nn.Module, inputs: tuple[Any, ...]) -> int:
    """How many rows a call is about; 0 if it is not about rows, or its module has nothing to learn, as a loss."""
    sizes = {value.shape[0] if value.dim() else 0 for value in inputs if isinstance(value, Tensor)}
    return sizes.pop() if len(sizes) == 1 and next(module.parameters(), None) is not None else 0


def _forward(module: nn.Module) -> Call:
    if module.training and isinstance(module, nn.modules.batchnorm._BatchNorm):
        return lambda input: normed(input, module)
    return lambda *inputs, **named: nn.Module.__call__(module, *inputs, **named)


def _shared_out(ranks: Ranks, forward: Call, rows: int, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
    global _splitting
    share = ranks.share(rows)

    def mine(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return _Share.apply(value, ranks) if value.requires_grad else value[share]  # type: ignore[no-untyped-call]

    shares, named_shares = [mine(value) for value in inputs], {name: mine(value) for name, value in named.items()}
    _splitting = ranks
    try:
        outputs = forward(*shares, **named_shares)
    finally:
        _splitting = None

    def everyones(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(everyones(part) for part in value)
        if not isinstance(value, Tensor) or value.shape[:1] != (share.stop - share.start,):
            raise UserError("a net that several workers share has to answer with one row for each row that it is given")
        return _Whole.apply(value, ranks, rows)  # type: ignore[no-untyped-call]

    return everyones(outputs)


class _Share(torch.autograd.Function):
    """This rank's rows of a batch that all have; backward, the gradient of the whole batch, for all."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks, ctx.rows = ranks, len(whole)
        return whole[ranks.share(len(whole))]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.whole(grad, ctx.rows) / ctx.ranks.size, None


class _Whole(torch.autograd.Function):
    """The whole batch, from each rank's rows; backward, these rows' part of the gradient, times the ranks."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, ranks: Ranks, rows: int) -> Tensor:
        ctx.ranks = ranks
        return ranks.whole(mine, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad[ctx.ranks.share(len(grad))] * ctx.ranks.size, None, None


# Batch normalisation.


def moments(norm: nn.modules.batchnorm._BatchNorm, r: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor, float]:
    """Mean, variance and number of the rows of all ranks, of which one may have none; moves the running ones."""
    if r.dim() != 2 or norm.running_mean is None or norm.running_var is None or norm.momentum is None:
        raise UserError("workers share nn.BatchNorm1d of rows, with running statistics and a momentum, no other kind")
    assert norm.num_batches_tracked is not None
    if len(r):
        mean, variance = torch.batch_norm_update_stats(r, None, None, 0.0)
    else:
        mean, variance = r.new_zeros(2, r.shape[1])
    statistics = ranks.gathered(torch.cat([mean, variance, mean.new_tensor([len(r)])]))
    means, variances, counts = statistics.split([len(mean), len(mean), 1], dim=1)
    count = float(counts.sum())
    weight = counts / count
    mean = (weight * means).sum(0)
    variance = (weight * (variances + (means - mean).square())).sum(0)
    norm.num_batches_tracked.add_(1)
    norm.running_mean.lerp_(mean, norm.momentum)
    norm.running_var.lerp_(variance * (count / (count - 1)), norm.momentum)
    return mean, variance, count


def normed(r: Tensor, norm: nn.modules.batchnorm._BatchNorm) -> Tensor:
    """`norm(r)` of a share of the rows, while training: with the statistics of all of them."""
    assert _splitting is not None
    mean, variance, count = moments(norm, r.detach(), _splitting)
    inverse = (variance + norm.eps).rsqrt()
    gamma, beta = (norm.weight, norm.bias) if norm.affine else (torch.ones_like(mean), torch.zeros_like(mean))
    out: Tensor = _Normed.apply(r, gamma, beta, mean, inverse, count, _splitting)  # type: ignore[no-untyped-call]
    return out


class _Normed(torch.autograd.Function):
    """gamma * (r - mean) * inverse + beta, where mean and inverse deviation are of the rows of all ranks. Backward sums
    over ranks what the folded form in `fused` does, too: which of them is faster is for each rank to say."""

    @staticmethod
    def forward(
        ctx: Any, r: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, inverse: Tensor, count: float, ranks: Ranks
    ) -> Tensor:
        centred, scale = r - mean, gamma * inverse
        ctx.save_for_backward(centred, inverse, scale)
        ctx.count, ctx.ranks = count, ranks
        return torch.addcmul(beta, centred, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        centred, inverse, scale = ctx.saved_tensors
        of_shift, of_scale = grad.sum(0), (grad * centred).sum(0)
        offset, slope = ctx.ranks.summed(torch.stack([of_shift, of_scale])) / ctx.count
        of_r = scale * (grad - offset - centred * (inverse.square() * slope))
        return of_r, inverse * of_scale, of_shift, None, None, None, None


@contextmanager
def _lost_workers_as_errors() -> Iterator[None]:
    """What a collective says when it fails: as a rule that another process has ended."""
    try:
        yield
    except RuntimeError as error:
        raise WorkerLostError(f"another worker is gone ({str(error).splitlines()[0]})") from error
