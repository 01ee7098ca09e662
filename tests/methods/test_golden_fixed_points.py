"""Golden fixed points: p = 0.2, pi_dp = 0.12, by the expected gradient and by SGD on a million simulated events."""

from __future__ import annotations

import numpy as np
import pytest

from simulated import CELL, engine_of, rate_after_sgd
from tracecvr.checks.loss import gradient, root
from tracecvr.checks.subject import KnownLaw, Subject
from tracecvr.stream.reveal import After, Schedule

ROOTS = {
    "vanilla": 0.0800,
    "vanilla_dup": 0.1786,
    "wait": 0.2,
    "oracle": 0.2,
    "trace": 0.2,
    "fnw": 0.2,
    "fnc": 0.2,
    "fsiw": 0.2,
    "ulc": 0.2,
    "es_dfm": 0.2,
    "defer": 0.2,
    "defuse": 0.2,
    "bi_defuse": 0.2,
    "ddfm": 0.2,
    "gdfm": 0.2,
}
EVENTS_PER_CLICK = {
    "pretrain": 0.0,
    "vanilla": 1.0,
    "vanilla_dup": 1.12,
    "wait": 1.0,
    "oracle": 1.0,
    "trace": 3.0,
    "fnw": 1.2,
    "fnc": 1.2,
    "dfm": 1.92,
    "nodef": 1.92,
    "esdf": 1.92,
    "fsiw": 1.0,
    "ulc": 1.0,
    "es_dfm": 1.12,
    "defer": 2.0,
    "defuse": 1.12,
    "bi_defuse": 1.12,
    "ddfm": 1.92,
    "gdfm": 3.0,
    "tesla_cvr": 1.12,
    "mhol": 4.0,
}


@pytest.mark.parametrize(("method", "rate"), ROOTS.items())
def test_expected_gradient_vanishes_at(method: str, rate: float) -> None:
    engine = engine_of(method)
    assert root(engine, CELL.events(engine)) == pytest.approx(rate, abs=2e-4)


@pytest.mark.parametrize(("method", "rate"), ROOTS.items())
def test_sgd_reaches(method: str, rate: float) -> None:
    """Decaying steps over a million events of clicks that are drawn at random."""
    assert rate_after_sgd(engine_of(method, logit=0.5)) == pytest.approx(rate, abs=0.005)


@pytest.mark.parametrize(("method", "expected"), EVENTS_PER_CLICK.items())
def test_events_per_click(method: str, expected: float) -> None:
    assert len(CELL.events(engine_of(method))) / CELL.clicks == pytest.approx(expected)


@pytest.mark.parametrize("method", ["vanilla", "vanilla_dup", "wait", "fsiw", "ulc"])
@pytest.mark.parametrize("logit", [-2.0, -0.3, 1.1])
def test_without_late_conversions_the_gradient_is_the_oracles(method: str, logit: float) -> None:
    prompt = KnownLaw(conversions=((CELL.window // 2, 200),))
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
