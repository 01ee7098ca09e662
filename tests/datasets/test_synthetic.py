"""The synthetic log: its truth is what its clicks do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracecvr.base.config import DAY, HOUR
from tracecvr.data.table import NEVER
from tracecvr.datasets.synthetic import LAWS, Delay, Synthetic
from truth import Truth, cdf

TABLE = Synthetic(clicks=200_000).prepare(None)[0]
TRUTH = Truth(TABLE)
WINDOW = HOUR


def within_noise(share: float, expected: float, n: int) -> bool:
    """Whether a share of n draws is within five standard errors of its expectation."""
    return bool(abs(share - expected) < 5 * np.sqrt(max(expected * (1 - expected), 1e-4) / n))


@pytest.mark.parametrize("segment", range(8))
def test_rates_and_delays_are_the_stated_ones(segment: int) -> None:
    mine = TABLE.truth["segment"] == segment
    converted, n = mine & TABLE.label, int(mine.sum())
    delay = TABLE.action_ts[:, 0] - TABLE.click_ts
    assert within_noise(converted.sum() / n, TRUTH.p[mine].mean(), n)
    for end in TABLE.schema.horizons:
        share = (delay[converted] <= end).mean()
        assert within_noise(share, TRUTH.converted_by(end)[mine].mean(), int(converted.sum())), end
    delayed = (converted & (delay > WINDOW)).sum() / n
    assert within_noise(delayed, TRUTH.delayed(WINDOW)[mine].mean(), n)
    waiting = mine & ~(TABLE.label & (delay <= WINDOW))
    negative = (waiting & ~TABLE.label).sum() / waiting.sum()
    assert within_noise(negative, TRUTH.real_negative(WINDOW)[waiting].mean(), int(waiting.sum()))


def test_exact_quantities_fit_together() -> None:
    p, dp = TRUTH.p, TRUTH.delayed(WINDOW)
    np.testing.assert_allclose(TRUTH.delay_share(WINDOW), dp / p)
    np.testing.assert_allclose(TRUTH.real_negative(WINDOW), (1 - p) / (1 - p + dp))
    np.testing.assert_allclose(TRUTH.converted_by(TABLE.schema.d_max), 1.0)
    assert (p >= 0.02).all()
    assert (p <= 0.6).all()


@pytest.mark.parametrize("outcome", [0, 1])
def test_action_states_given_the_outcome(outcome: int) -> None:
    mine = np.flatnonzero(TABLE.label == bool(outcome))
    psi = TRUTH.states(TABLE.schema.horizons)[mine, outcome].mean(0)  # (H, K)
    delay = np.where(TABLE.action_ts == NEVER, NEVER, TABLE.action_ts - TABLE.click_ts[:, None])[mine]
    for h, end in enumerate(TABLE.schema.horizons):
        for k in range(3):
            assert within_noise((delay[:, k] <= end).mean(), psi[h, k], len(mine)), (end, k)


@given(st.sampled_from([c for law in LAWS for c in law]), st.integers(0, 8 * DAY))
def test_delay_laws_are_distributions(component: Delay, t: int) -> None:
    at, later = (cdf(component, s, 7 * DAY) for s in (t, t + 60))
    assert 0 <= at <= later <= 1
    assert cdf(component, 7 * DAY, 7 * DAY) == pytest.approx(1)


def test_ids_appear_that_warm_up_never_saw() -> None:
    raw = Synthetic(clicks=50_000).read(None).frame
    warm = set(raw.filter(raw["click_ts"] < 10 * DAY)["item"])
    assert len(set(raw["item"]) - warm) > 100


def test_rates_drift_and_jump() -> None:
    raw = Synthetic(clicks=300_000).read(None).frame
    still = Synthetic(clicks=300_000, drift=0.0).read(None).frame
    early, late = (raw.filter((raw["segment"] == 1) & (raw["click_ts"] // DAY == day)) for day in (15, 16))
    assert late["p"].mean() > early["p"].mean() * 1.2  # type: ignore[operator]
    by_day = [still.filter(still["click_ts"] // DAY == day)["p"].mean() for day in (2, 15, 16)]
    assert max(by_day) - min(by_day) < 0.03  # type: ignore[operator,type-var]


def test_a_log_is_its_seed_and_a_longer_one_is_of_the_same_world() -> None:
    again, other = (Synthetic(clicks=2000, log_seed=s).prepare(None)[0] for s in (0, 1))
    assert Synthetic(clicks=2000).prepare(None)[0].fingerprint == again.fingerprint != other.fingerprint
    small, large = (Synthetic(clicks=n, drift=0.0).read(None).frame for n in (20_000, 40_000))
    rates = [
        dict(f.select("segment", "device", "item", "p").rows_by_key(["segment", "device", "item"]))
        for f in (small, large)
    ]
    shared = rates[0].keys() & rates[1].keys()
    assert len(shared) > 500
    assert all(rates[0][key][0] == rates[1][key][0] for key in shared)
