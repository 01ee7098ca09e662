"""The level of outputs: fitted when warm-up ends, and followed by larger steps in the stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tracecvr.base import registry
from tracecvr.base.config import DAY
from tracecvr.checks.subject import small_log
from tracecvr.learn.engine import Engine
from tracecvr.learn.level import StartingRates, best_shift, fit_level, larger_steps
from tracecvr.learn.stream_learning import StreamLearning
from tracecvr.nets.backbones import Perceptron, shift_outputs
from tracecvr.stream.source import TableSource

LOG = small_log(6000)
SOURCE = TableSource(LOG)
SPLIT = LOG.schema.split
MATURE = LOG.click_ts + LOG.schema.d_max < SPLIT


def engine(name: str, **stream: Any) -> Engine:
    method = registry.get("method", name)(hidden=(16, 8), batch_size=256, warm_epochs=1)
    return Engine(method, LOG.schema, seed=1, stream=StreamLearning(**stream))


def predicted(one: Engine, rows: Any) -> float:
    return float(torch.sigmoid(torch.from_numpy(one.score(torch.from_numpy(np.array(LOG.x[rows]))))).mean())


@pytest.mark.parametrize("labels", ["censored", "mature"])
@pytest.mark.parametrize("name", ["vanilla", "es_dfm", "oracle", "dfm", "nodef", "esdf", "fnc", "bi_defuse", "trace"])
def test_warm_up_ends_at_the_rate_of_mature_clicks(name: str, labels: str) -> None:
    one = engine(name)
    one.warm_up(SOURCE.history(SPLIT, labels))
    rows = LOG.click_ts < SPLIT if labels == "mature" else MATURE
    rate = LOG.label[rows].mean()
    before = 0.1  # a tenth off, as warm-up may be
    information = rate * (1 - rate) * rows.sum()
    allowed = before * 100 / (100 + information) + 0.02
    assert predicted(one, rows) / rate == pytest.approx(1.0, abs=allowed)


@pytest.mark.parametrize("name", ["vanilla", "telescoped", "dfm", "miss"])
def test_a_level_that_is_off_is_brought_back(name: str) -> None:
    """Whatever it was off by, the part that is left is what the prior takes away."""
    one = engine(name)
    history = SOURCE.history(SPLIT, "mature")
    one.warm_up(history)
    before = predicted(one, LOG.click_ts < SPLIT)
    with one.serving():
        shift_outputs(one.method.nets["main"], torch.full((one.method.rates or 1,), 0.5))
        one.forget()
        off = float(torch.sigmoid(one.method.log_odds(torch.from_numpy(np.array(LOG.x[LOG.click_ts < SPLIT])))).mean())
        fit_level(one.method, "main", history)
        one.forget()
    assert off > 1.05 * before
    assert predicted(one, LOG.click_ts < SPLIT) == pytest.approx(before, rel=0.3 * (off / before - 1))


def test_the_shift_of_known_outcomes_matches_their_mean() -> None:
    rng = torch.Generator().manual_seed(0)
    logit = torch.randn(200_000, 2, generator=rng, dtype=torch.float64) - 1
    outcome = torch.where(torch.rand(200_000, 2, generator=rng) < 0.3, 30.0, -30.0).double()
    outcome[:, 1] = torch.nan
    shift = best_shift(logit, outcome)
    assert torch.sigmoid(logit[:, 0] + shift[0]).mean().item() == pytest.approx(
        (outcome[:, 0] > 0).double().mean().item(), abs=1e-3
    )
    assert shift[1].isnan()


def test_posteriors_that_only_repeat_the_prior_say_nothing() -> None:
    logit = torch.randn(1000, 1).double()
    assert best_shift(logit, logit).nan_to_num(0.0).tolist() == [0.0]


def test_few_clicks_move_a_level_only_a_little() -> None:
    logit, outcome = torch.zeros(20, 1), torch.full((20, 1), 30.0)
    assert 0 < best_shift(logit, outcome).item() < 0.5


def test_larger_steps_are_those_of_a_larger_step_size() -> None:
    """For the outputs asked for, and for nothing else."""
    nets = []
    for factor, outputs in ((1.0, None), (10.0, 2)):
        torch.manual_seed(0)
        net = Perceptron(4, (5,), 3).eval()
        adam = torch.optim.Adam(net.parameters(), lr=0.01)
        net(torch.ones(2, 4)).sum().backward()
        with larger_steps(net, factor, outputs):
            adam.step()
        nets.append(net)
    torch.manual_seed(0)
    start = Perceptron(4, (5,), 3).output_layers()[0].bias
    moved = [net.output_layers()[0].bias - start for net in nets]
    assert moved[1].tolist() == pytest.approx([10 * moved[0][0].item()] * 2 + [moved[0][2].item()])
    for name, weight in nets[0].state_dict().items():
        if not name.endswith("3.bias"):
            assert torch.equal(weight, nets[1].state_dict()[name])


def test_the_stream_follows_a_level_by_steps_of_its_own() -> None:
    biases = []
    for steps in (1.0, 10.0):
        one = engine("vanilla", level_steps=steps)
        one.warm_up(SOURCE.history(SPLIT, "censored"))
        layer = one.method.nets["main"].output_layers()[0]  # type: ignore[operator]
        before = layer.bias.clone()
        one.tick(SOURCE, SPLIT, SPLIT + DAY // 4)
        biases.append((layer.bias - before).abs().item())
    assert biases[1] > 3 * biases[0]


@pytest.mark.parametrize("name", ["telescoped", "dfm"])
def test_only_the_level_of_the_rate_has_larger_steps_not_that_of_a_law(name: str) -> None:
    moved = []
    for steps in (1.0, 10.0):
        one = engine(name, level_steps=steps, batch_size=0)
        one.warm_up(SOURCE.history(SPLIT, "censored"))
        (layer,) = one.method.nets["main"].output_layers()  # type: ignore[operator]
        before = layer.bias.detach().clone()
        one.tick(SOURCE, SPLIT, SPLIT + DAY // 4)  # one step
        moved.append((layer.bias.detach() - before).tolist())
    assert moved[1][0] == pytest.approx(10 * moved[0][0], rel=1e-3)
    assert moved[1][1:] == moved[0][1:]


def test_an_output_starts_at_the_rate_of_all_clicks_where_mature_ones_have_one_outcome() -> None:
    """Forty mature clicks that all converted say nothing of how many do."""
    one = engine("vanilla")
    (history,) = SOURCE.history(SPLIT, "censored").batches(10_000, None)
    mature = (history.mature & (history.truth > 0)).nonzero()[:40, 0]
    others = (~history.mature).nonzero()[:, 0]
    assert len(mature) == 40
    sample = history.take(torch.cat([mature, others]))
    rates = StartingRates()
    rates.add("method", one.method, sample)
    rates.start(1.0)
    (layer,) = one.method.nets["main"].output_layers()  # type: ignore[operator]
    rate = torch.sigmoid(layer.bias.detach()[0]).item()
    assert rate == pytest.approx(sample.truth.mean().item(), abs=0.01)
