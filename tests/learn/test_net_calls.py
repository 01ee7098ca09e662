"""How nets are called: once per batch, without gradient where they are frozen, once per click where that pays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tracecvr.base.config import DAY, HOUR
from tracecvr.checks.subject import Subject, plan_for, small_log
from tracecvr.learn.engine import Engine
from tracecvr.stream.source import TableSource

TABLE = small_log()
SPLIT = TABLE.schema.split


def warmed(name: str, **options: Any) -> tuple[Engine, TableSource]:
    return Subject(name).warmed(TABLE, plan_for(TABLE), **options)


class Counting(nn.Module):
    """A net that counts its calls and the rows that it was given."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.rows = net, list[int]()

    def forward(self, *inputs: Tensor) -> Tensor:
        self.rows.append(len(inputs[0]))
        out: Tensor = self.net(*inputs)
        return out


def counted(engine: Engine, name: str) -> Counting:
    net = engine.method.nets[name] = Counting(engine.method.nets[name])
    return net


def test_a_helper_gives_no_gradient_and_the_served_net_does() -> None:
    engine, source = warmed("es_dfm")
    x = source.clicks(0, DAY).x
    assert not engine.method.call("delay", x).requires_grad
    assert engine.method.call("main", x).requires_grad
    with torch.no_grad():
        assert not engine.method.call("main", x).requires_grad
    assert engine.method.call("main", x).requires_grad  # what was computed without gradient is not taken for it


def test_the_same_inputs_are_computed_once_until_weights_change() -> None:
    engine, source = warmed("trace")
    net, x = counted(engine, "main"), source.clicks(0, DAY).x
    first = engine.method.logit(x)
    assert torch.equal(engine.method.logit(x), first)
    assert len(net.rows) == 1
    engine.method.logit(x.clone())
    assert len(net.rows) == 2
    engine.forget()
    engine.method.logit(x)
    assert len(net.rows) == 3


def test_calls_with_more_inputs_are_other_calls() -> None:
    engine, source = warmed("trace")
    clicks = source.clicks(0, DAY)
    both = engine.method.call("trajectory", clicks.x)
    one = engine.method.call("trajectory", clicks.x, torch.zeros(len(clicks), dtype=torch.int64))
    torch.testing.assert_close(one, both[:, 0])


def test_functions_are_remembered_like_nets() -> None:
    engine, source = warmed("vanilla")
    x, calls = source.clicks(0, DAY).x, []

    def doubled(ids: Tensor) -> Tensor:
        calls.append(len(ids))
        return 2 * ids

    assert engine.method.call(doubled, x) is engine.method.call(doubled, x)
    assert len(calls) == 1


@pytest.mark.parametrize("name", ["trace", "gdfm"])
def test_a_net_of_features_is_computed_once_per_click_if_clicks_are_shown_again(name: str) -> None:
    engine, source = warmed(name)
    net = counted(engine, "trajectory")
    events = sum(engine.tick(source, start, start + 6 * HOUR) for start in range(SPLIT, SPLIT + DAY, 6 * HOUR))
    clicks = int((TABLE.click_ts < SPLIT + DAY).sum())
    assert 0 < sum(net.rows) <= clicks
    assert events > sum(net.rows)


def test_a_net_of_clicks_that_are_shown_once_is_computed_by_batch() -> None:
    engine, source = warmed("es_dfm")
    net = counted(engine, "delay")
    events = engine.tick(source, SPLIT, SPLIT + DAY)
    assert sum(net.rows) == events
    assert max(net.rows) <= 1.5 * engine.method.batch_size  # steps of about equal size


def test_a_net_of_more_than_features_is_computed_by_batch() -> None:
    engine, source = warmed("ulc", refresh=None)
    net = counted(engine, "later")
    assert sum(net.rows) == 0
    assert engine.tick(source, SPLIT, SPLIT + DAY) == sum(net.rows)
