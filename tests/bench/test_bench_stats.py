"""Statistics of benches: against scipy and scikit-learn, and on cases worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from tracecvr.base.config import DAY, HOUR
from tracecvr.bench import stats
from tracecvr.bench.text_tables import Table, Text

figures = st.floats(-1, 1).map(lambda x: round(x, 3))


def test_a_spread_has_no_deviation_with_one_seed() -> None:
    assert stats.spread([0.5]) == stats.Spread(0.5, None, 1)
    spread = stats.spread([0.80, 0.82, 0.87])
    assert spread.mean == pytest.approx(0.83)
    assert spread.sd == pytest.approx(0.0360555, abs=1e-6)  # sqrt((.03^2 + .01^2 + .04^2) / 2)


def test_paired_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, error 1 / sqrt(3), t(2) quantile 4.302653."""
    difference = stats.compare_pairs({0: 2.0, 1: 4.0, 2: 6.0}, {0: 1.0, 1: 2.0, 2: 3.0})
    assert difference is not None
    assert (difference.mean, difference.n, difference.over) == (2.0, 3, "seeds")
    assert difference.low == pytest.approx(2 - 4.302653 / 3**0.5, abs=1e-5)
    assert difference.high == pytest.approx(2 + 4.302653 / 3**0.5, abs=1e-5)
    assert difference.p == pytest.approx(0.0741799, abs=1e-6)
    assert not difference.clear


@given(st.lists(st.tuples(figures, figures), min_size=2, max_size=9))
def test_paired_is_scipys(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = ({seed: pair[side] for seed, pair in enumerate(pairs)} for side in (0, 1))
    difference = stats.compare_pairs(ours, theirs)
    assert difference is not None
    if np.std([a - b for a, b in pairs]) < 1e-9:
        assert difference.low == pytest.approx(difference.mean)
        return
    known = scipy_stats.ttest_rel(*zip(*pairs, strict=True))
    interval = known.confidence_interval(0.95)
    assert difference.p == pytest.approx(known.pvalue, abs=1e-9)
    assert (difference.low, difference.high) == pytest.approx((interval.low, interval.high), abs=1e-9)


def test_paired_uses_shared_seeds_only() -> None:
    difference = stats.compare_pairs({0: 1.0, 1: 5.0, 7: 9.0}, {1: 4.0, 0: 0.5, 3: 0.0})
    assert difference is not None
    assert (difference.mean, difference.n) == (0.75, 2)
    assert stats.compare_pairs({0: 1.0}, {1: 1.0}) is None
    single = stats.compare_pairs({0: 1.0}, {0: 0.5})
    assert single == stats.Difference(0.5, None, None, None, 1)
    assert not single.clear


def test_equal_differences_are_certain() -> None:
    always = stats.compare_pairs({0: 0.5, 1: 0.75}, {0: 0.25, 1: 0.5})
    never = stats.compare_pairs({0: 0.5, 1: 0.75}, {0: 0.5, 1: 0.75})
    assert always is not None
    assert never is not None
    assert (always.p, never.p) == (0.0, 1.0)


def test_both_scales_of_relative_improvement() -> None:
    pretrain, vanilla, oracle, method = 0.70, 0.75, 0.80, 0.79
    assert stats.improvement(method, pretrain, oracle) == pytest.approx(0.9)
    assert stats.improvement(method, vanilla, oracle) == pytest.approx(0.8)
    assert stats.improvement(0.40, 0.50, 0.30) == pytest.approx(0.5)  # of a loss, where Oracle is lower
    assert stats.improvement(0.5, 0.6, 0.6) is None


def test_a_bootstrap_over_days() -> None:
    start = np.arange(0, 20 * DAY, 6 * HOUR)
    clicks, rng = np.full(len(start), 10.0), np.random.default_rng(0)
    noise = np.repeat(rng.normal(0, 0.01, 20), 4)
    difference = stats.over_days(start, clicks, 0.7 + 0.02 + noise, np.full(len(start), 0.7))
    assert difference is not None
    assert (difference.over, difference.n) == ("days", 20)
    assert difference.mean == pytest.approx(0.02 + noise.mean())
    assert difference.clear
    assert difference.low is not None
    assert difference.high is not None
    width, known = (
        difference.high - difference.low,
        2 * 1.96 * noise.std() / 20**0.5,
    )  # intervals of a day are one draw, not four
    assert width == pytest.approx(known, rel=0.15)
    gaps = np.where(np.arange(len(start)) % 3, 0.7, np.nan)
    skipped = stats.over_days(start, clicks, gaps, np.full(len(start), 0.6))
    assert skipped is not None
    assert skipped.mean == pytest.approx(0.1)
    assert stats.over_days(start[:16], clicks[:16], gaps[:16], gaps[:16]) is None  # four days


def test_tables_are_written_in_markdown() -> None:
    table = Table("Rates, 50 %", ["method", "AUC ↑"], [[Text("es_dfm"), Text("0.5", bold=True)]])
    table.rows.append([Text("a|b"), Text("0.4", underline=True)])
    assert "| es_dfm | **0.5** |" in table.markdown()
    assert "| a\\|b | <u>0.4</u> |" in table.markdown()
