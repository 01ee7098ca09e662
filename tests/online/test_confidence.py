"""The interval for the difference of two models: valid at every look, and narrow enough to tell them apart."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracecvr.base.metrics import Floats, nll
from tracecvr.online.challengers.confidence import CLIP, FEWEST_UNITS, Difference, PairedDifferences

HOURS = 720
SEGMENTS = 20


def month(rng: np.random.Generator, worse: float = 0.0, error: float = 0.4, clicks: int = 60) -> Iterator[Floats]:
    """Differences of the clicks of each hour of a month, of two models whose errors have the same law.

    Clicks of an hour depend on each other: both models' errors are by segment, and the rate of the hour goes up and
    down. Hours depend on each other, too: errors and rates are autocorrelated. Traffic has a daily course. `worse` is
    how much more NLL per click the first model has in the mean: it adds that to every click.
    """
    base = -3.5 + rng.normal(0, 0.8, SEGMENTS)
    errors, rate = rng.normal(0, error, (2, SEGMENTS)), 0.0
    for hour in range(HOURS):
        errors = 0.8 * errors + math.sqrt(1 - 0.8**2) * rng.normal(0, error, (2, SEGMENTS))
        rate = 0.7 * rate + math.sqrt(1 - 0.7**2) * rng.normal(0, 0.3)
        count = rng.poisson(clicks * (1 + 0.8 * math.sin(2 * math.pi * hour / 24)))
        segment = rng.integers(0, SEGMENTS, count)
        truth = base[segment]
        label = rng.random(count) < 1 / (1 + np.exp(-(truth + rate)))
        first, second = (nll(truth + e[segment], label) for e in errors)
        yield first - second + worse


def verdicts(differences: Iterator[Floats]) -> list[str]:
    """What is said each hour."""
    pairs, said = PairedDifferences(), []
    for hour, difference in enumerate(differences):
        pairs.add(hour, difference)
        said.append(pairs.difference().verdict)
    return said


def called(months: int, seed: int = 0, **how: float) -> tuple[int, int]:
    """In how many months the first model was called better, and worse, at any hour."""
    rng = np.random.default_rng(seed)
    said = [set(verdicts(month(rng, **how))) for _ in range(months)]  # type: ignore[arg-type]
    return sum("better" in s for s in said), sum("worse" in s for s in said)


def test_of_two_equal_models_none_is_called_better_though_one_looks_every_hour() -> None:
    better, worse = called(months=25)
    assert better + worse <= 2


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"error": 1.5}, {"clicks": 5}, {"clicks": 300}], ids=str)
def test_in_200_months_an_equal_model_is_called_better_in_no_more_than_5_percent(how: dict[str, float]) -> None:
    better, worse = called(200, seed=1, **how)
    assert better <= 10
    assert worse <= 10


def test_a_model_that_is_worse_by_a_hundredth_is_told_apart_within_days() -> None:
    rng = np.random.default_rng(3)
    for _ in range(4):
        said = verdicts(month(rng, worse=0.01))
        assert said.index("worse") < 24 * 10
        assert said[-1] == "worse"
        assert "better" not in said


def test_looking_at_usual_intervals_every_hour_would_call_many_equal_models_better() -> None:
    """Or the test above would show nothing: an interval for one look misses far more often at 720."""
    rng, missed = np.random.default_rng(0), 0
    for _ in range(25):
        sums = np.array([d.sum() for d in month(rng)])
        spread = [1.96 * sums[:t].std() * math.sqrt(t) for t in range(FEWEST_UNITS, HOURS)]
        missed += bool((np.abs(sums.cumsum()[FEWEST_UNITS:]) > spread).any())
    assert missed > 10


# The sums.


@st.composite
def units(draw: st.DrawFn) -> list[Floats]:
    seed, count = draw(st.integers(0, 1 << 30)), draw(st.integers(FEWEST_UNITS + 1, 90))
    rng = np.random.default_rng(seed)
    return [rng.normal(0.1, 1, draw(st.integers(0, 5))) for _ in range(count)] + [rng.normal(0, 1, 3)] * 2


@settings(max_examples=25, deadline=None)
@given(units())
def test_the_interval_is_what_the_formula_says_of_the_whole_series(series: list[Floats]) -> None:
    pairs = PairedDifferences()
    for number, difference in enumerate(series):
        pairs.add(number, difference)
        pairs = PairedDifferences.of(json.loads(json.dumps(pairs.state())))  # as between two starts of a learner
    closed = [difference for difference in series[:-1] if len(difference)]
    assert pairs.difference().units == len(closed)
    told, expected = pairs.difference(), direct(closed)
    for name in ("clicks", "units", "mean", "low", "high"):
        value = getattr(expected, name)
        assert getattr(told, name) == (value if value is None else pytest.approx(value, rel=1e-9, abs=1e-12))


def direct(series: list[Floats]) -> Difference:
    d, n = np.array([x.sum() for x in series]), np.array([len(x) for x in series])
    t, mean = len(series), d.sum() / n.sum()
    if t < FEWEST_UNITS:
        return Difference(int(n.sum()), t, mean, None, None)
    residual, lags = d - mean * n, math.isqrt(t)
    covariance = [float(residual[k:] @ residual[: t - k]) / (t - 1) for k in range(lags + 1)]
    long_run = covariance[0] + 2 * sum((1 - k / (lags + 1)) * covariance[k] for k in range(1, lags + 1))
    freedom = 1.5 * t / lags
    variance = max(covariance[0], long_run) * freedom / (freedom - 2)
    alpha, narrowest = 0.05, 168
    h = narrowest / (-2 * math.log(alpha) + math.log(1 - 2 * math.log(alpha)))
    spread = math.sqrt(variance * (t + h) * math.log((t + h) / (h * alpha**2))) / n.sum()
    return Difference(int(n.sum()), t, mean, mean - spread, mean + spread)


def test_nothing_is_said_too_early_and_one_extreme_click_is_cut_off() -> None:
    pairs = PairedDifferences()
    for unit in range(FEWEST_UNITS):
        pairs.add(unit, np.array([1e6, -0.5]))
        assert pairs.difference().verdict == "too early"
    pairs.add(FEWEST_UNITS, np.zeros(1))
    assert pairs.difference().verdict == "worse"
    assert pairs.difference().mean == pytest.approx((CLIP - 0.5) / 2)
