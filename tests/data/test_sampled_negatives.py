"""Logs of which only a share of the clicks without a conversion was kept: odds and metrics are those of all clicks."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tracecvr.base import metrics
from tracecvr.base.config import DAY
from tracecvr.base.errors import UserError
from tracecvr.checks.subject import Subject, plan_for, small_log
from tracecvr.data.table import ClickTable, Schema
from tracecvr.datasets.synthetic import Synthetic
from tracecvr.learn.engine import Engine
from tracecvr.runs.replay import FullPlan, replay


def sampled(table: ClickTable, kept: float, seed: int = 5) -> ClickTable:
    """The log without so many of its clicks that never convert."""
    stay = table.label | (np.random.default_rng(seed).random(len(table)) < kept)
    columns = {name: column[stay] for name, column in table.columns.items()}
    schema = replace(table.schema, negatives_kept=kept)
    return replace(table, **columns, schema=schema)  # type: ignore[arg-type]


@given(st.floats(0.01, 1))
def test_odds_are_corrected_exactly(kept: float) -> None:
    table = small_log()
    plain = Subject("vanilla").engine(table.schema)
    ours = Subject("vanilla").engine(replace(table.schema, negatives_kept=kept))
    x = torch.from_numpy(np.array(table.x[:50]))
    expected = plain.score(x).astype(float) + np.log(kept)
    assert ours.score(x) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    odds = np.exp(ours.score(x).astype(float) - plain.score(x))
    assert odds == pytest.approx(kept, rel=1e-4)


@given(
    st.lists(st.tuples(st.floats(-6, 6, width=32), st.booleans()), min_size=2, max_size=40).filter(
        lambda pairs: 0 < sum(y for _, y in pairs) < len(pairs)
    ),
    st.integers(2, 5),
)
def test_a_weighted_click_counts_like_so_many(pairs: list[tuple[float, bool]], copies: int) -> None:
    s, y = np.array([s for s, _ in pairs]), np.array([y for _, y in pairs])
    times = np.where(y, 1, copies)
    weighted = asdict(metrics.evaluate(s, y, metrics.population_weight(y, 1 / copies)))
    all_of_them = asdict(metrics.evaluate(np.repeat(s, times), np.repeat(y, times)))
    assert weighted == pytest.approx(all_of_them, rel=1e-9, abs=1e-12)


def test_all_clicks_kept_means_no_weights() -> None:
    assert metrics.population_weight(np.array([True, False]), 1.0) is None
    with pytest.raises(UserError, match="negatives_kept = 0"):
        replace(small_log().schema, negatives_kept=0.0)
    one = replace(small_log().schema, negatives_kept=0.25)
    assert Schema.from_json(one.to_json()) == one


def test_calibration_on_all_clicks_is_recovered() -> None:
    """Learnt from a fifth of the negatives, served to every click: as many conversions as happen, within noise. Rates
    that drift would be missed by any model."""
    horizons = (3600, DAY, 2 * DAY)
    log = Synthetic(clicks=30_000, days=8, split=4 * DAY, d_max=2 * DAY, horizons=horizons, interval=DAY // 2, drift=0)
    whole = log.prepare(None)[0]
    part = sampled(whole, 0.2)
    plan = plan_for(part, "mature")
    engine, source = Subject("wait").warmed(part, plan)
    scores = np.concatenate([done.log_odds for done in replay(engine, source, plan)])
    label = part.label[slice(*np.searchsorted(part.click_ts, (plan.split, plan.until)))]
    weighed = metrics.evaluate(scores, label, metrics.population_weight(label, 0.2))
    assert weighed.pcoc == pytest.approx(1, abs=0.15)
    assert pcoc(engine, whole, plan) == pytest.approx(1, abs=0.15)
    engine.schema = whole.schema  # what it would be without
    assert pcoc(engine, whole, plan) > 1.8


def pcoc(engine: Engine, table: ClickTable, plan: FullPlan) -> float:
    """Mean prediction over mean label of every click of the stream."""
    rows = slice(*np.searchsorted(table.click_ts, (plan.split, plan.until)))
    p = metrics.probability(engine.score(torch.from_numpy(np.array(table.x[rows]))))
    return float(p.mean() / table.label[rows].mean())
