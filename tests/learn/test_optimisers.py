"""Adagrad of linear parts: its formula, whatever the batch, and that the stream goes on where warm-up ended."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from tracecvr.base.config import DAY
from tracecvr.checks.subject import plan_for, small_log
from tracecvr.learn.engine import Engine
from tracecvr.learn.optimisers import LINEAR, Rates, make_optimisers, take_step
from tracecvr.learn.row_optimisers import LinearAdagrad
from tracecvr.learn.stream_learning import StreamLearning
from tracecvr.methods.vanilla import Vanilla
from tracecvr.nets.backbones import LinearPart, WideDeep
from tracecvr.stream.source import TableSource

SCHEMA = small_log().schema
RATES = Rates(dense=1e-3, embedding=1e-3, weight_decay=0.0)


class Linear(nn.Module):
    """Nothing but a linear part."""

    def __init__(self) -> None:
        super().__init__()
        self.part = LinearPart(SCHEMA, 1)


def clicks(count: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(count)
    ids = torch.stack([torch.randint(min(size, 4), (count,)) for size in SCHEMA.tables.values()], dim=1).int()
    return ids, torch.rand(count).round()


def learn(net: Linear, batches: list[tuple[Tensor, Tensor]], name: str = "adam") -> Tensor:
    optimisers = make_optimisers(name, net, RATES)
    for x, label in batches:
        loss = nn.functional.binary_cross_entropy_with_logits(net.part(x)[:, 0], label)
        take_step(optimisers.values(), loss, len(x), "test")
    return net.part.table.weight.detach()[:, 0]


@pytest.mark.parametrize("name", ["adam", "adagrad", "lazy_adam"])
def test_a_linear_part_learns_by_adagrad_of_summed_gradients(name: str) -> None:
    batches = [clicks(7), clicks(40), clicks(3)]
    weight = torch.zeros(sum(SCHEMA.tables.values()))
    squares = torch.full_like(weight, 5.0)
    starts = torch.tensor([0, *list(SCHEMA.tables.values())[:-1]]).cumsum(0)
    for x, label in batches:
        slots = x + starts
        error = torch.sigmoid(weight[slots].sum(1)) - label
        gradient = torch.zeros_like(weight)
        gradient.index_put_((slots,), error[:, None].expand(slots.shape), accumulate=True)
        squares += gradient**2
        weight -= 0.2 * gradient / squares.sqrt()
    torch.testing.assert_close(learn(Linear(), batches, name), weight)


def test_what_a_click_teaches_does_not_depend_on_clicks_with_other_values() -> None:
    x, label = clicks(1)
    others = ((x + 1) % torch.tensor(list(SCHEMA.tables.values()))).int().repeat(30, 1)
    alone = learn(Linear(), [(x, label)])
    among = learn(Linear(), [(torch.cat([x, others]), torch.cat([label, torch.zeros(30)]))])
    ids = x[0] + torch.tensor([0, *list(SCHEMA.tables.values())[:-1]]).cumsum(0)
    torch.testing.assert_close(among[ids], alone[ids])


@pytest.mark.parametrize("name", ["adam", "lazy_adam"])
def test_every_parameter_has_one_optimiser(name: str) -> None:
    net = WideDeep(SCHEMA, 1, (4,), 3)
    optimisers = make_optimisers(name, net, RATES)
    covered = [id(p) for one in optimisers.values() for group in one.param_groups for p in group["params"]]
    assert sorted(covered) == sorted(id(parameter) for parameter in net.parameters())


def test_the_stream_goes_on_from_what_warm_up_counted() -> None:
    table = small_log()
    plan, source = plan_for(table), TableSource(table)
    engine = Engine(Vanilla(hidden=(4,), warm_epochs=1), table.schema, stream=StreamLearning())
    engine.warm_up(source.history(plan.split, plan.warm_labels))
    sums = engine.state()[f"{LINEAR}.wide.table.weight.sum"]
    assert sums.max() > 8  # many clicks of warm-up had the most frequent value
    assert (sums >= 5).all()


def test_a_linear_part_forgets_with_time() -> None:
    net = Linear()
    optimisers = make_optimisers("adam", net, RATES)
    x, label = clicks(40)
    loss = nn.functional.binary_cross_entropy_with_logits(net.part(x)[:, 0], label)
    take_step(optimisers.values(), loss, len(x), "test")
    linear = optimisers[LINEAR]
    assert isinstance(linear, LinearAdagrad)
    weight, sums = net.part.table.weight.detach().clone(), linear.state[net.part.table.weight]["sum"].clone()
    for days, d_max, memory in ((5, 7, 10), (40, 30, 30)):
        linear.forget(days * DAY, d_max * DAY)
        share = math.exp(-days / memory)
        weight, sums = weight * share, 5 + (sums - 5) * share
        torch.testing.assert_close(net.part.table.weight.detach(), weight)
        torch.testing.assert_close(linear.state[net.part.table.weight]["sum"], sums)


def test_intervals_without_events_change_nothing() -> None:
    table = small_log()
    source = TableSource(table)
    engine = Engine(Vanilla(hidden=(4,), warm_epochs=1), table.schema, stream=StreamLearning())
    engine.warm_up(source.history(table.schema.split, "mature"))
    before, late = engine.fingerprint(), 1000 * DAY
    assert engine.tick(source, late, late + DAY) == 0
    assert engine.fingerprint() == before
