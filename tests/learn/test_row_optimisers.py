"""Optimisers that touch only the rows of a batch: exactly what they do to a row, and that other rows cost nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tracecvr.base.config import DAY
from tracecvr.checks.subject import plan_for, small_log
from tracecvr.data.table import Feature, Schema
from tracecvr.learn.averaged_net import AveragedNet
from tracecvr.learn.engine import Engine
from tracecvr.learn.optimisers import FusedAdam, LazyAdamRows, make_optimisers
from tracecvr.learn.stream_learning import StreamLearning, load_moments, moments
from tracecvr.learn.warm_up import Fit, Fitted
from tracecvr.methods.vanilla import Vanilla
from tracecvr.nets.backbones import MLP, Backbone
from tracecvr.nets.row_access import row_gradient, touched_rows
from tracecvr.stream.source import TableSource

ROWS, DIM, LR = 5, 3, 0.1
Steps = list[list[int]]
STEPS = st.lists(st.lists(st.integers(0, ROWS - 1), max_size=4, unique=True), min_size=1, max_size=12)


def gradient(rows: list[int], seed: int) -> Tensor:
    """Of so many rows of a table; 0 in others."""
    grad = torch.zeros(ROWS, DIM, dtype=torch.float64)
    grad[rows] = torch.randn(len(rows), DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return grad


def start() -> nn.Parameter:
    return nn.Parameter(torch.randn(ROWS, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(9)))


def taken(optimiser: torch.optim.Optimizer, table: nn.Parameter, steps: Steps, sparse: bool) -> list[Tensor]:
    """The weights before the first step and after each."""
    weights = [table.detach().clone()]
    for number, rows in enumerate(steps):
        grad = gradient(rows, number)
        table.grad = row_gradient(torch.tensor(rows), grad[rows], tuple(grad.shape), distinct=False) if sparse else grad
        optimiser.step()
        weights.append(table.detach().clone())
    return weights


@given(STEPS, st.booleans())
def test_lazy_adam_has_dense_adams_moments_and_moves_a_touched_row_as_it_does(steps: Steps, sparse: bool) -> None:
    lazy, dense = start(), start()
    ours, theirs = LazyAdamRows([lazy], LR, 0.0), torch.optim.Adam([dense], lr=LR)
    weights, expected = taken(ours, lazy, steps, sparse), taken(theirs, dense, steps, False)
    last = {row: number for number, rows in enumerate(steps, 1) for row in rows}
    for row, number in last.items():  # later, moments of a row that is not touched are those of dense Adam, decayed
        for key, beta in (("exp_avg", 0.9), ("exp_avg_sq", 0.999)):
            missed = beta ** (len(steps) - number)
            torch.testing.assert_close(ours.state[lazy][key][row] * missed, theirs.state[dense][key][row])
    for number, rows in enumerate(steps):
        moved, as_dense = (w[number + 1] - w[number] for w in (weights, expected))
        torch.testing.assert_close(moved[rows], as_dense[rows])
        others = [row for row in range(ROWS) if row not in rows]
        assert not moved[others].any()


@given(STEPS)
def test_a_row_makes_up_for_the_weight_decay_that_it_missed(steps: Steps) -> None:
    decayed, plain, decay = start(), start(), 0.5
    weights = taken(LazyAdamRows([decayed], LR, decay), decayed, steps, True)
    moves = taken(LazyAdamRows([plain], LR, 0.0), plain, steps, True)
    expected, last = weights[0].clone(), dict.fromkeys(range(ROWS), 0)
    for number, rows in enumerate(steps, 1):
        for row in rows:
            expected[row] *= (1 - LR * decay) ** (number - last[row])
            expected[row] += moves[number][row] - moves[number - 1][row]
            last[row] = number
    torch.testing.assert_close(weights[-1], expected)


def test_a_row_whose_gradient_is_zero_is_not_touched_and_duplicates_are_added() -> None:
    values = torch.tensor([[1.0], [0.0], [2.0], [3.0], [-3.0]])
    rows, grads = touched_rows(row_gradient(torch.tensor([4, 2, 4, 0, 0]), values, (6, 1), distinct=False))
    assert (rows.tolist(), grads.tolist()) == ([4], [[3.0]])


@given(STEPS, st.sampled_from([0.0, 0.1]))
def test_adam_is_torchs_to_the_byte(steps: Steps, decay: float) -> None:
    """Of two tables, one without a gradient in every other step."""
    pairs = [[start(), start()] for _ in range(2)]
    ours = FusedAdam([{"params": pairs[0]}], LR, decay)
    theirs = torch.optim.Adam(pairs[1], lr=LR, weight_decay=decay, fused=True)
    for number, rows in enumerate(steps):
        for optimiser, (first, second) in zip((ours, theirs), pairs, strict=True):
            first.grad, second.grad = gradient(rows, number), gradient(rows, -number) if number % 2 else None
            optimiser.step()
    assert all(torch.equal(one, other) for one, other in zip(*pairs, strict=True))
    for one, other in zip(*pairs, strict=True):
        assert ours.state[one].keys() == theirs.state[other].keys()
        assert all(torch.equal(ours.state[one][name], value) for name, value in theirs.state[other].items())


@pytest.mark.parametrize("name", ["adam", "lazy_adam"])
def test_a_step_does_not_import_the_compiler_of_torch(name: str) -> None:
    code = f"""
import sys, torch
from tracecvr.learn.optimisers import make_optimisers, take_step
net = torch.nn.Sequential(torch.nn.Embedding(3, 2), torch.nn.Linear(2, 1))
optimisers = make_optimisers({name!r}, net, 0.1, 0.0).values()
take_step(optimisers, net(torch.tensor([1])).sum(), "here")
print("torch._dynamo" in sys.modules)
"""
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ended.stdout.split() == ["False"]


def test_a_restored_state_has_whole_steps() -> None:
    """Torch would make them single precision, which has no odd numbers beyond 2^24."""
    table = start().to(torch.float32)
    table = nn.Parameter(table.detach())
    optimiser = LazyAdamRows([table], LR, 0.1)
    table.grad = gradient([1, 3], 0).float()
    optimiser.step()
    optimiser.state[table]["last"][1] = 2**24 + 1
    again = LazyAdamRows([table], LR, 0.1)
    net = nn.ParameterDict({"table": table})
    load_moments({"lazy": again}, net, moments({"lazy": optimiser}, net))
    assert again.state[table]["last"].tolist() == [0, 2**24 + 1, 0, 1, 0]


# Averaged weights.


class Dense(AveragedNet):
    """The average that takes a pass over all rows in each interval."""

    def __init__(self, net: nn.Module, optimisers: object = ()) -> None:
        super().__init__(net)


def tables_of(engine: Engine) -> Tensor:
    net = engine.method.nets["main"]
    assert isinstance(net, Backbone)
    return net.embedding.table.weight


@pytest.mark.parametrize("backbone", ["blend", "dcn_v2"])
def test_the_average_of_touched_rows_is_that_of_all_rows(backbone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = small_log()
    plan, source = plan_for(table), TableSource(table)
    learning = StreamLearning(learning_rate=0.05, optimiser="lazy_adam", batch_size=64, average=DAY // 2)
    served, weights = [], []
    for average in (AveragedNet, Dense):
        monkeypatch.setattr("tracecvr.learn.engine.AveragedNet", average)
        method = Vanilla(backbone=backbone, hidden=(16, 8), batch_size=256, warm_epochs=1)
        engine = Engine(method, table.schema, seed=1, stream=learning)
        engine.warm_up(source.history(plan.split, plan.warm_labels))
        for number in range(6):
            engine.tick(source, *plan.bounds(number))
        served.append(engine.score(source.clicks(plan.split, plan.until).x))
        with engine.exporting():
            weights.append(tables_of(engine).detach().clone())
        again = engine.score(source.clicks(plan.split, plan.until).x)
        assert np.array_equal(served[-1], again)
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(served[0], served[1], rtol=1e-4, atol=1e-4)
    assert (tables_of(engine) - weights[1]).abs().max() > 1e-3  # it is an average, and not the newest


# What a step costs.


def schema_of(rows: int) -> Schema:
    features = tuple(Feature(name, rows // 4, name) for name in "abcd")
    return Schema("test", features, ("conversion",), (10, 20), 20, 100, 10, 1000)


def steps_of(net: Backbone, optimisers: dict[str, torch.optim.Optimizer], x: Tensor, count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        clock = time.perf_counter()
        for optimiser in optimisers.values():
            optimiser.zero_grad(set_to_none=True)
        net(x).square().mean().backward()
        for optimiser in optimisers.values():
            optimiser.step()
        seconds.append(time.perf_counter() - clock)
    return seconds


def test_a_step_costs_as_much_whatever_the_number_of_rows() -> None:
    """With a generous limit, since other work on the machine is measured with it; `benchmarks/embeddings.py` has the
    real one. Dense Adam takes forty times as long here."""
    seconds = {}
    for rows in (10_000, 1_000_000):
        net = MLP(schema_of(rows), 1, (16, 8), 16)
        optimisers = make_optimisers("lazy_adam", net, 1e-3, 1e-6)
        average = AveragedNet(net, optimisers.values())
        x = torch.randint(rows // 4, (256, 4), dtype=torch.int32)
        steps_of(net, optimisers, x, 3)
        seconds[rows] = median(steps_of(net, optimisers, x, 15))
        average.update(0.9)
    assert seconds[1_000_000] < 4 * seconds[10_000]


def test_a_net_that_was_learnt_by_rows_can_be_learnt_densely() -> None:
    net = MLP(schema_of(400), 1, (16, 8), 4)
    for name, sparse in (("lazy_adam", True), ("adam", False)):
        optimisers = make_optimisers(name, net, 1e-3, 0.0)
        steps_of(net, optimisers, torch.randint(100, (32, 4), dtype=torch.int32), 2)
        grad = net.embedding.table.weight.grad
        assert grad is not None
        assert grad.is_sparse == sparse


def test_a_warm_up_by_another_optimiser_is_not_shared() -> None:
    table, shared = small_log(), dict[str, list[Any]]()

    for name in ("adam", "lazy_adam"):
        asked = shared[name] = []

        def share(fit: Fit, facts: dict[str, Any], train: Callable[[Fit], Fitted], seen: list[Any] = asked) -> Fitted:
            seen.append((repr(fit.net), facts))
            return train(fit)

        engine = Engine(Vanilla(hidden=(16, 8), warm_epochs=1), table.schema, stream=StreamLearning(optimiser=name))
        engine.warm_up(TableSource(table).history(table.schema.split, "mature"), share=share)
    assert [facts["optimiser"] for (_, facts) in shared["adam"] + shared["lazy_adam"]] == ["adam", "lazy_adam"]
