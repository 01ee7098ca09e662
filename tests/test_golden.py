"""Golden fixed points: p = 0.2, pi_dp = 0.12, by the expected gradient and by SGD on a million simulated events."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tracecvr.checks.loss import gradient, root
from tracecvr.checks.subject import Cell, Subject
from tracecvr.engine import Engine
from tracecvr.reveal import After, Schedule

CELL = Cell()
ROOTS = {"vanilla": 0.0800, "vanilla_dup": 0.1786, "wait": 0.2, "oracle": 0.2, "trace": 0.2, "es_dfm": 0.2}
EVENTS_PER_CLICK = {
    "pretrain": 0.0,
    "vanilla": 1.0,
    "vanilla_dup": 1.12,
    "wait": 1.0,
    "oracle": 1.0,
    "trace": 3.0,
    "es_dfm": 1.12,
}


def engine_of(method: str, logit: float = 0.0) -> Engine:
    engine = CELL.engine(Subject(method), logit)
    engine.plugins = ()
    return engine


@pytest.mark.parametrize(("method", "rate"), ROOTS.items())
def test_expected_gradient_vanishes_at(method: str, rate: float) -> None:
    engine = engine_of(method)
    assert root(engine, CELL.events(engine)) == pytest.approx(rate, abs=2e-4)


@pytest.mark.parametrize(("method", "rate"), ROOTS.items())
def test_sgd_reaches(method: str, rate: float) -> None:
    """Decaying steps over a million events of clicks that are drawn at random."""
    rng = np.random.default_rng(5)
    engine = engine_of(method, logit=0.5)
    clicks = round(1_000_000 / EVENTS_PER_CLICK[method])
    early, late, _ = rng.multinomial(clicks, [0.08, 0.12, 0.8])
    drawn = Cell(conversions=((CELL.conversions[0][0], early), (CELL.conversions[1][0], late)), clicks=clicks)
    events = drawn.events(engine)
    (value,) = engine.method.nets["main"].parameters()
    for step, index in enumerate(torch.from_numpy(rng.permutation(len(events))).split(5000)):
        slopes = gradient(engine, events.take(index), value.detach().clone())
        with torch.no_grad():
            value.sub_(8.0 / (1 + 0.1 * step) * slopes)
    engine.method.forget()
    assert torch.sigmoid(engine.method.log_odds(events.x[:1])).item() == pytest.approx(rate, abs=0.005)


@pytest.mark.parametrize(("method", "expected"), EVENTS_PER_CLICK.items())
def test_events_per_click(method: str, expected: float) -> None:
    assert len(CELL.events(engine_of(method))) / CELL.clicks == pytest.approx(expected)


@pytest.mark.parametrize("method", ["vanilla", "vanilla_dup", "wait"])
@pytest.mark.parametrize("logit", [-2.0, -0.3, 1.1])
def test_without_late_conversions_the_gradient_is_the_oracles(method: str, logit: float) -> None:
    prompt = Cell(conversions=((CELL.window // 2, 200),))
    slopes = []
    for name in (method, "oracle"):
        engine = prompt.engine(Subject(name))
        slopes.append(gradient(engine, prompt.events(engine), logit).item())
    rate = 1 / (1 + np.exp(-logit))
    assert slopes[0] == pytest.approx(slopes[1], abs=1e-6)
    assert slopes[1] == pytest.approx(rate - 0.2, abs=1e-6)


def test_a_wrong_schedule_has_another_root() -> None:
    """The test can tell: waiting a quarter of the window sees no conversion at all, and the rate runs to zero."""
    engine = engine_of("vanilla")
    hasty: Schedule = (After(CELL.window // 4),)
    engine.schedule = hasty
    assert root(engine, CELL.events(engine)) < 1e-4
