"""Metrics: equal to scikit-learn's, never NaN, and by hand where scikit-learn has none."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn import metrics as sk

from tracecvr.base.metrics import Metrics, average, evaluate, nll, probability

scored = st.lists(st.tuples(st.floats(-8, 8, width=32), st.booleans()), min_size=1, max_size=60)


def arrays(pairs: list[tuple[float, bool]]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    return np.array([s for s, _ in pairs], np.float32), np.array([y for _, y in pairs])


@given(scored)
def test_equal_to_scikit_learn(pairs: list[tuple[float, bool]]) -> None:
    s, y = arrays(pairs)
    assume(0 < y.sum() < len(y))
    metrics, p = evaluate(s, y), 1 / (1 + np.exp(-s.astype(float)))
    precision, recall, _ = sk.precision_recall_curve(y, s)
    assert metrics.auc == pytest.approx(sk.roc_auc_score(y, s), abs=1e-12)
    assert metrics.ap == pytest.approx(sk.average_precision_score(y, s), abs=1e-12)
    assert metrics.pr_auc == pytest.approx(sk.auc(recall, precision), abs=1e-12)
    assert metrics.nll == pytest.approx(sk.log_loss(y, p), rel=1e-9)
    assert metrics.pcoc == pytest.approx(p.mean() / y.mean())


@given(scored)
def test_never_nan(pairs: list[tuple[float, bool]]) -> None:
    s, y = arrays(pairs)
    for name, value in vars(evaluate(s, y)).items():
        assert value is None or np.isfinite(value), name


def test_one_class_leaves_some_undefined() -> None:
    no_positive = evaluate(np.array([0.0, 1.0]), np.array([False, False]))
    assert (no_positive.auc, no_positive.pr_auc, no_positive.ap, no_positive.pcoc) == (None, None, None, None)
    no_negative = evaluate(np.array([0.0, 1.0]), np.array([True, True]))
    assert no_negative.auc is None
    assert no_negative.ap == 1.0
    assert no_negative.pcoc == pytest.approx((0.5 + 1 / (1 + np.exp(-1))) / 2)


def test_calibration_errors_by_hand() -> None:
    # Two clicks at .02 (bin 0), one converts; two at .9: bin 13 of 15, bin 9 of 10, both convert.
    p = np.array([0.02, 0.02, 0.9, 0.9])
    metrics = evaluate(np.log(p / (1 - p)), np.array([True, False, True, True]))
    assert metrics.ece == pytest.approx(0.5 * 0.48 + 0.5 * 0.1)
    assert metrics.mce == pytest.approx(0.48)
    assert metrics.ece_gdfm == pytest.approx((abs(0.5 - 0.05) + abs(1 - 0.95)) / 2)


def test_calibration_errors_of_bins_of_unequal_size() -> None:
    """By count, not by bin: one click is far off, nine are near. The bins' edges are fifteenths."""
    p = np.array([0.065, *[0.068] * 9])  # below and above 1/15, in one bin of 10
    metrics = evaluate(np.log(p / (1 - p)), np.array([True, *[False] * 9]))
    assert metrics.ece == pytest.approx(0.1 * 0.935 + 0.9 * 0.068)
    assert metrics.mce == pytest.approx(0.935)
    assert metrics.ece_gdfm == pytest.approx(abs(0.1 - 0.05))


@given(
    st.lists(st.tuples(st.floats(-8, 8, width=32), st.booleans(), st.integers(1, 4)), min_size=2, max_size=40).filter(
        lambda clicks: 0 < sum(y for _, y, _ in clicks) < len(clicks)
    )
)
def test_weights_of_any_kind_count_like_so_many_clicks(clicks: list[tuple[float, bool, int]]) -> None:
    """Weights that depend on the label alone cancel in the AUC: these differ inside a class."""
    s, y = arrays([(s, y) for s, y, _ in clicks])
    times = np.array([n for _, _, n in clicks])
    weighed = asdict(evaluate(s, y, times.astype(float)))
    assert weighed == pytest.approx(asdict(evaluate(np.repeat(s, times), np.repeat(y, times))), rel=1e-9, abs=1e-12)


def test_a_weighted_auc_by_hand() -> None:
    """One positive between two negatives, of which the lower one counts three times: 3 of 4 pairs are in order."""
    s, y = np.array([-1.0, 0.0, 1.0]), np.array([False, True, False])
    assert evaluate(s, y).auc == pytest.approx(0.5)
    assert evaluate(s, y, np.array([3.0, 1.0, 1.0])).auc == pytest.approx(0.75)


def test_a_click_without_weight_changes_nothing_wherever_it_ranks() -> None:
    s, y = np.array([-1.0, 0.0, 1.0]), np.array([False, True, False])
    for score in (-2.0, 0.5, 2.0):
        weight = np.array([1.0, 1.0, 1.0, 0.0])
        assert evaluate(np.append(s, score), np.append(y, True), weight) == pytest.approx(evaluate(s, y, weight[:3]))


def test_conversions_without_weight_alone_rank_nothing() -> None:
    s, y = np.array([-1.0, 0.0, 1.0]), np.array([False, True, False])
    assert evaluate(s, y, np.array([1.0, 0.0, 1.0])).auc is None
    assert evaluate(s, y, np.array([0.0, 1.0, 0.0])).auc is None


def test_extreme_log_odds_stay_finite() -> None:
    s = np.array([-800.0, 800.0])
    assert probability(s).tolist() == [0.0, 1.0]
    assert nll(s, np.array([True, False])).tolist() == [800.0, 800.0]


@given(st.lists(scored, min_size=1, max_size=6))
def test_interval_nll_equals_pooled_nll(intervals: list[list[tuple[float, bool]]]) -> None:
    parts = [evaluate(*arrays(pairs)) for pairs in intervals]
    mean = average(parts, [len(pairs) for pairs in intervals])
    pooled = evaluate(*arrays([pair for pairs in intervals for pair in pairs]))
    assert mean["nll"] == pytest.approx(pooled.nll, rel=1e-9)
    assert mean["skipped"]["nll"] == 0


def test_undefined_intervals_are_skipped_and_counted() -> None:
    defined = Metrics(0.8, 0.5, 0.5, 0.3, 0.1, 0.1, 0.1, 1.0)
    undefined = Metrics(None, None, None, 0.1, 0.0, 0.0, 0.0, None)
    mean = average([defined, undefined], [100, 300])
    assert mean["auc"] == 0.8
    assert mean["nll"] == pytest.approx(0.15)
    assert mean["skipped"] == {"auc": 1, "pr_auc": 1, "ap": 1, "nll": 0, "ece": 0, "pcoc": 1}
    assert average([undefined], [300])["auc"] is None
