"""Warm-up that fits its log: nets start at the base rate, and small logs are read in small batches, several times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tracecvr.authoring.method import Method
from tracecvr.base import registry
from tracecvr.base.config import DAY
from tracecvr.base.metrics import nll
from tracecvr.base.seeds import generator
from tracecvr.checks.subject import small_log
from tracecvr.learn import warm_up
from tracecvr.learn.engine import Engine
from tracecvr.nets.backbones import Perceptron, start_at
from tracecvr.stream.reveal import LabelledReveals
from tracecvr.stream.source import TableSource

LOG = small_log(3000)
HISTORY = TableSource(LOG).history(LOG.schema.split, "mature")
LABEL = LOG.label[: len(HISTORY)]


def engine(name: str, **options: Any) -> Engine:
    method: Method = registry.get("method", name)(**({"hidden": (16, 8), "batch_size": 256} | options))
    return Engine(method, LOG.schema, seed=1)


def whole() -> LabelledReveals:
    return next(HISTORY.batches(len(HISTORY), np.random.default_rng(0)))


def outputs(one: Engine, part: str, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean logits of a net before it has learnt, and those of the rates that it starts at."""
    owner, b = one._parts[part], whole()
    start = owner.base_rates(name, b)
    assert start is not None
    net = owner.nets[name].train()
    logits = net(*start[0])
    events = start[1].flatten(1)
    count = (~events.isnan()).sum(0)
    rates = ((events.nansum(0) + 0.5) / (count + 1)).where(count > 0, torch.nan)  # half an event more of each kind
    return logits.reshape(len(logits), -1).mean(0)[: len(rates)], torch.logit(rates)


@pytest.mark.parametrize("backbone", ["blend", "wide_deep", "mlp", "dcn_v2"])
def test_every_net_of_every_method_starts_at_its_rates(backbone: str) -> None:
    for name in registry.available("method"):
        one = engine(name, backbone=backbone)
        one._warm_up.look_through(HISTORY)
        for owner, part in one._parts.items():
            for net in part.nets:
                means, rates = outputs(one, owner, net)
                given = rates.isfinite()
                assert given.any(), (name, net)
                assert torch.allclose(means[given], rates[given], atol=0.15), (name, net, means, rates)


def test_the_served_rate_starts_where_history_is() -> None:
    """Also where it is put together from several outputs."""
    for name in ("vanilla", "trace", "bi_defuse", "dfsn", "miss", "fnc", "mhol"):
        one = engine(name)
        one._warm_up.look_through(HISTORY)
        one._train(True)
        served = torch.sigmoid(one.method.log_odds(whole().x)).mean().item()
        assert abs(served / LABEL.mean() - 1) < 0.3, name  # logits vary, so means of rates are a little higher


class Bare(torch.nn.Module):
    """A net that does not declare its output layers."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.inner = torch.nn.Linear(4, 2, bias=False), torch.nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(self.inner(x))
        return scores


def test_a_net_that_declares_no_output_layers_stays_as_it_is() -> None:
    net = Bare()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    start_at(net, torch.tensor([1.0, 2.0]))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_before_a_small_log_is_learnt_clicks_hardly_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    spread = []
    for large in (10**9, 1):
        monkeypatch.setattr(warm_up, "LARGE", large)
        one = engine("pretrain")
        one._warm_up.look_through(HISTORY)
        one._train(True)
        spread.append(one.method.logit(whole().x).std().item())
    assert spread[0] == pytest.approx(warm_up.SPREAD * spread[1], rel=1e-3)


def test_outputs_that_are_no_rates_stay_as_they_are() -> None:
    net = Perceptron(3, (5,), 3)
    inner, out = torch.nn.Linear(3, 5), net.output_layers()[0]
    net[0] = inner
    first, last = inner.bias.tolist(), out.bias.tolist()
    start_at(net, torch.tensor([-2.0, torch.nan]))
    assert inner.bias.tolist() == first
    assert out.bias.tolist() == [-2.0, *last[1:]]


def scripted(losses: list[float]) -> tuple[int, int]:
    """The number of passes chosen, and the number tried, where held-back clicks have these losses."""
    said: Iterator[float] = iter(losses)
    tried: list[int] = []
    return warm_up.best_passes(tried.append, lambda: next(said), usual=5), len(tried)


@pytest.mark.parametrize(
    ("losses", "chosen"),
    [
        ([9.0, 3.0, 2.0, 1.0, 1.5], (3, 4)),
        ([0.5, 3.0, 4.0], (1, 2)),  # worse than before it learnt: one pass all the same
        ([9.0, 3.0, 3.0], (1, 2)),
        ([0.0, 0.0], (5, 1)),  # they ask nothing of these clicks
        ([9.0, *np.linspace(8, 1, 20)], (20, 20)),
    ],
)
def test_passes_go_on_while_held_back_clicks_gain(losses: list[float], chosen: tuple[int, int]) -> None:
    assert scripted(losses) == chosen


def test_a_large_log_is_read_once_in_full_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam over shuffled batches, nothing held back."""
    monkeypatch.setattr(warm_up, "LARGE", 2)
    one, twin = engine("pretrain", backbone="wide_deep"), engine("pretrain", backbone="wide_deep")
    one.warm_up(HISTORY)
    assert one.resolve_options()["method"]["warm_up"] == {"main": {"passes": 1, "batch_size": 256}}
    twin._warm_up.look_through(HISTORY)
    net = twin.method.nets["main"].train()
    adam = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-6, fused=True)
    for b in HISTORY.batches(256, generator(1, "warm up", "model", 0)):
        adam.zero_grad()
        twin.method.warm_loss(b).backward()
        adam.step()
        twin.forget()
    for name, value in one.method.nets["main"].state_dict().items():
        assert torch.equal(value, net.state_dict()[name]), name


def test_a_small_log_is_read_in_small_batches_and_learnt_whole(tmp_path: Path) -> None:
    """What was chosen is a setting like any other: set by hand, it gives the same bits; a restored engine knows it."""
    chosen = engine("es_dfm")
    chosen.warm_up(HISTORY)
    used = chosen.resolve_options()["method"]
    assert used["warm_batch_size"] == 16
    assert used["warm_epochs"] == used["warm_up"]["main"]["passes"] > 1
    epochs = {"warm_epochs": used["warm_epochs"], "helper_epochs": used["warm_up"]["delay"]["passes"]}
    fixed = engine("es_dfm", warm_batch_size=16, **epochs)
    fixed.warm_up(HISTORY)
    assert fixed.fingerprint() == chosen.fingerprint()
    chosen.snapshot(tmp_path / "state")
    restored = engine("es_dfm")
    restored.restore(tmp_path / "state")
    assert restored.resolve_options() == chosen.resolve_options()


def test_held_back_clicks_are_the_last_ones() -> None:
    earlier, last = HISTORY.split_off(0.1)
    rows = [next(part.batches(len(part), None)).row for part in (earlier, last)]
    assert len(last) == round(0.1 * len(HISTORY))
    assert len(earlier) + len(last) == len(HISTORY)
    assert rows[0].max() <= rows[1].min()


def test_at_defaults_a_small_log_beats_its_base_rate() -> None:
    table = small_log(20_000)
    one, source = Engine(registry.get("method", "pretrain")(), table.schema), TableSource(table)
    one.warm_up(source.history(table.schema.split, "mature"))
    later = source.clicks(table.schema.split, table.schema.split + DAY)
    label, rate = table.label[later.row], table.label[: later.row[0]].mean()
    constant = nll(np.full(len(label), np.log(rate / (1 - rate))), label).mean()
    assert nll(one.score(later.x).astype(float), label).mean() < constant - 0.005
