"""What the tests of data-parallel training have one process or several do: the same code for both."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

import grown
from tracecvr.base import registry
from tracecvr.base.config import DAY, HOUR, MINUTE
from tracecvr.base.errors import UserError
from tracecvr.base.progress import Progress
from tracecvr.checks.subject import plan_for
from tracecvr.data.table import ClickTable
from tracecvr.datasets.synthetic import Synthetic
from tracecvr.learn.engine import Engine
from tracecvr.learn.stream_learning import AS_WARM_UP, StreamLearning
from tracecvr.nets import ranks
from tracecvr.runs.run import Spec, work
from tracecvr.stream.source import TableSource

Case = tuple[str, tuple[str, ...]]
Floats = npt.NDArray[Any]
Step = list[Tensor | None]

SPLIT = DAY
FEW: Case = ("es_dfm", ())
SIZES: dict[str, Any] = {"hidden": (16, 8), "embedding_dim": 4, "batch_size": 31}
"""Halves of a batch are 16 and 15 rows: one is worth folding a normalisation of 16 columns, the other is not."""


@cache
def table(hourly: int) -> ClickTable:
    """Three days of clicks, so many an hour, the first of which is for warm-up."""
    horizons = (15 * MINUTE, HOUR, 6 * HOUR, 12 * HOUR)
    return Synthetic(
        clicks=72 * hourly, days=3, split=SPLIT, d_max=12 * HOUR, horizons=horizons, interval=HOUR
    ).prepare(None)[0]


def engine_of(
    case: Case, log: ClickTable, stream: StreamLearning = AS_WARM_UP, **options: Any
) -> tuple[Engine, TableSource]:
    """An engine of small nets after its warm-up, and what it learns from."""
    method, plugins = case
    made = registry.get("method", method)(**SIZES | options)
    parts = tuple(_plugin(name) for name in plugins)
    engine, source = Engine(made, log.schema, 0, parts, stream=stream), TableSource(log)
    engine.warm_up(source.history(SPLIT, "mature"))
    return engine, source


def _plugin(name: str) -> Any:
    small = {"hidden": (16, 8), "embedding_dim": 4} if name == "completer" else {}
    return registry.get("plugin", name)(**small)


@contextmanager
def precision(dtype: torch.dtype) -> Iterator[None]:
    """Nets that are built meanwhile are of this type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@dataclass(frozen=True)
class Taken:
    """What is compared of a case; arrays, because tensors do not outlive the process that sends them."""

    taken: int
    """How many steps there were."""
    steps: list[Floats]
    """The gradient of every step."""
    missing: list[list[bool]]
    """Which parameters have none in it."""
    state: dict[str, Floats]
    fingerprint: str
    scores: Floats


def gradients(case: Case, dtype: torch.dtype, hourly: int = 4, **options: Any) -> Taken:
    """The gradients of every step of all warm-ups and of some ticks; none of the steps is taken, so that differences do
    not grow."""
    with precision(dtype), recorded() as steps:
        engine, source = engine_of(case, table(hourly), **options)
        for hour in (0, 13, 14):  # early, and when clicks have become mature
            engine.tick(source, SPLIT + hour * HOUR, SPLIT + (hour + 1) * HOUR)
        return taken(engine, source, steps)


def trained(case: Case, dtype: torch.dtype) -> Taken:
    """The state after the served net has taken a hundred steps, in warm-up and stream, of about a hundred rows."""
    with precision(dtype), recorded(taking=True) as steps:
        engine, source = engine_of(case, table(100), batch_size=100)
        warm, hour = -(-len(source.history(SPLIT, "mature")) // 100), 0
        while warm + engine.steps < 100:
            engine.tick(source, SPLIT + hour * HOUR, SPLIT + (hour + 1) * HOUR)
            hour += 1
        return taken(engine, source, steps)


def by_rows(optimiser: str) -> Taken:
    """The state after some ticks with an optimiser that touches rows alone, in warm-up, too."""
    with precision(torch.float64):
        stream = StreamLearning(optimiser=optimiser, warm_optimiser=optimiser, batch_size=31)
        engine, source = engine_of(FEW, table(4), stream)
        for hour in range(16):
            engine.tick(source, SPLIT + hour * HOUR, SPLIT + (hour + 1) * HOUR)
        return taken(engine, source, [])


def growing(form: str) -> Taken:
    """The state after all ticks over a log with a growing column, whose rows are given and given back."""
    with precision(torch.float64):
        engine, source = grown.warmed("es_dfm", form)
        plan = plan_for(grown.log()[0])
        for number in range(len(plan)):
            engine.tick(source, *plan.bounds(number))
        return taken(engine, source, [])


def taken(engine: Engine, source: TableSource, steps: list[Step]) -> Taken:
    flat = [torch.cat([g.flatten() for g in step if g is not None]).numpy() for step in steps if step]
    state = {name: value.numpy().copy() for name, value in engine.state().items()}
    scores = engine.score(source.clicks(SPLIT, 2 * SPLIT).x).copy()
    return Taken(len(steps), flat, [[g is None for g in s] for s in steps], state, engine.fingerprint(), scores)


@contextmanager
def recorded(taking: bool = False) -> Iterator[list[Step]]:
    """The gradients of steps, which are not taken; if they are, only their number."""
    steps: list[Step] = []
    plain = torch.optim.Adam.step

    def step(self: torch.optim.Adam) -> None:
        if taking:
            plain(self)
            steps.append([])
        else:
            steps.append([None if p.grad is None else p.grad.clone() for p in self.param_groups[0]["params"]])

    torch.optim.Adam.step = step  # type: ignore[assignment,method-assign]
    try:
        yield steps
    finally:
        torch.optim.Adam.step = plain  # type: ignore[method-assign]


def all_of(jobs: dict[Any, Callable[[], Any]], progress: Progress) -> dict[Any, Any]:
    """Several jobs, one after the other: to start processes takes longer than any of them."""
    torch.set_num_threads(1)
    return {name: job() for name, job in jobs.items()}


def odd_nets() -> list[Floats]:
    """Gradients of a loss that uses nets in ways that methods of ours do not: see `_odd`."""
    with precision(torch.float64):
        gradients_of_rows = []
        for rows in (2, 3, 7, 40):
            torch.manual_seed(0)
            nets = {"in": nn.Linear(3, 5), "norm": nn.BatchNorm1d(5), "out": nn.Linear(5, 2)}
            parts = ranks.shared(nn.ModuleDict(nets))
            parts["every"] = nn.Linear(2, 2)  # not shared: each rank has all rows
            x = torch.randn(rows, 3)
            loss = _odd(parts, x)
            loss.backward()
            if (shared := ranks.current()) is not None:
                shared.mean_gradients(parts.parameters())
            gradients = [p.grad.flatten() for p in parts.parameters() if p.grad is not None]
            buffers = [b.double().flatten() for b in parts.buffers()]
            gradients_of_rows.append(torch.cat([*gradients, *buffers, loss.detach()[None]]).numpy())
    return gradients_of_rows


def _odd(parts: nn.ModuleDict, x: Tensor) -> Tensor:
    """One net after the other, the last not shared, a normalisation called alone, twice, a loss that is a module, a
    normaliser over the batch, arguments by name, and parameters that no net is asked for."""
    h = parts["norm"](input=parts["in"](x))
    h = parts["norm"](h + h.mean(0))
    out = parts["every"](parts["out"](h))
    share = torch.softmax(out[:, 0], 0)
    decay = torch.stack([p.square().sum() for p in parts.parameters()]).sum()
    total: Tensor = nn.BCEWithLogitsLoss()(out[:, 1], x[:, 0].sigmoid()) + (share * out[:, 1]).sum() + 0.1 * decay
    return total


class Mean(nn.Linear):
    """A net that answers with one number for all rows."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).mean()


def refused() -> list[str]:
    """What is said of nets that cannot be shared out."""
    messages = []
    for net in (Mean(3, 1), nn.BatchNorm1d(3, momentum=None)):
        try:
            ranks.shared(net)(torch.ones(8, 3))
        except UserError as error:
            messages.append(str(error))
    return messages


def dying(spec: Spec, out: Path, after: int, progress: Progress) -> None:
    """A run whose second worker is killed once it has learnt from so many intervals."""
    done, tick = 0, Engine.tick

    def counted(self: Engine, *args: Any) -> int:
        nonlocal done
        done += 1
        if done > after and ranks.current().rank == 1:  # type: ignore[union-attr]
            os.kill(os.getpid(), signal.SIGKILL)
        return tick(self, *args)

    Engine.tick = counted  # type: ignore[assignment,method-assign]
    work(spec, out, progress, 0.0)


def straying(spec: Spec, out: Path, progress: Progress) -> None:
    """A run whose second worker has a bit of a weight flipped, once."""
    tick, done = Engine.tick, False

    def flipped(self: Engine, *args: Any) -> int:
        nonlocal done
        if not done and ranks.current().rank == 1:  # type: ignore[union-attr]
            with torch.no_grad():
                next(self.method.nets["main"].parameters()).view(-1)[0] += 1e-6
        done = True
        return tick(self, *args)

    Engine.tick = flipped  # type: ignore[assignment,method-assign]
    work(spec, out, progress, 0.0)
