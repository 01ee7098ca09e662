"""A constant and a logistic regression beside each method: honest, computed once, and said aloud when they win."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import madeup
from tracecvr.base import metrics
from tracecvr.base.config import DAY
from tracecvr.bench import tables
from tracecvr.bench.outcome import Outcome
from tracecvr.bench.report.sentences import summarise
from tracecvr.checks.subject import plan_for, small_log
from tracecvr.data.table import NEVER
from tracecvr.runs import reference_models
from tracecvr.runs.intervals import interval_edges
from tracecvr.stream.source import TableSource

TABLE = small_log(20_000)
PLAN = plan_for(TABLE, "mature")


def label() -> metrics.Labels:
    first, last = np.searchsorted(TABLE.arrival_ts, (PLAN.split, PLAN.until))
    return np.asarray(TABLE.label[first:last])


def test_the_constant_is_the_warm_up_rate_and_the_regression_beats_it() -> None:
    measured = reference_models.evaluate(TableSource(TABLE), PLAN)["pooled"]
    warm = np.searchsorted(TABLE.arrival_ts, PLAN.split)
    rate, seen = TABLE.label[:warm].mean(), label().mean()
    expected = -seen * np.log(rate) - (1 - seen) * np.log(1 - rate)
    assert measured["constant"]["nll"] == pytest.approx(expected, abs=1e-4)
    assert measured["constant"]["pr_auc"] == pytest.approx(seen)
    assert measured["logistic"]["nll"] < measured["constant"]["nll"] - 0.005
    assert measured["logistic"]["ne"] < 1
    assert 0.85 < measured["logistic"]["pcoc"] < 1.15


@pytest.mark.parametrize("labels", ["mature", "censored"])
def test_references_know_no_future(labels: str) -> None:
    """What happens after an interval starts changes no score of it, unless it is a label of warm-up given in full."""
    plan, cut = plan_for(TABLE, labels), PLAN.split + 3 * PLAN.interval
    action = np.array(TABLE.action_ts)
    later = (action >= cut) & (action != NEVER)
    if labels == "mature":
        later &= (TABLE.click_ts >= PLAN.split)[:, None]
    action[later] = NEVER
    altered = replace(TABLE, action_ts=action)
    before = np.searchsorted(TABLE.arrival_ts, (PLAN.split, cut))
    count = before[1] - before[0]
    one, other = (reference_models.scores(TableSource(table), plan) for table in (TABLE, altered))
    for name in one:
        assert np.array_equal(one[name][:count], other[name][:count]), name
    assert not np.array_equal(one["logistic"], other["logistic"])


def test_only_judged_clicks_count() -> None:
    later = replace(PLAN, judge_from=PLAN.split + DAY)
    first, last = later.judged_rows(TABLE)
    served = reference_models.scores(TableSource(TABLE), PLAN)["logistic"][first - last :]
    expected = metrics.evaluate(served, np.asarray(TABLE.label[first:last])).nll
    assert reference_models.evaluate(TableSource(TABLE), later)["pooled"]["logistic"]["nll"] == expected


def test_intervals_of_the_references_are_those_of_a_run() -> None:
    later = replace(PLAN, judge_from=PLAN.split + DAY)
    references = reference_models.evaluate(TableSource(TABLE), later)
    edges = interval_edges(later, TABLE)
    clicks = np.diff(edges)[np.diff(edges) > 0]
    assert 0 < len(clicks) < len(later)
    for name, losses in references["interval_nll"].items():
        assert np.average(losses, weights=clicks) == pytest.approx(references["pooled"][name]["nll"], rel=1e-12)


def test_runs_that_share_a_folder_compute_them_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = reference_models.evaluate(TableSource(TABLE), PLAN, tmp_path)
    monkeypatch.setattr(reference_models, "scores", None)
    assert reference_models.evaluate(TableSource(TABLE), PLAN, tmp_path) == first
    with pytest.raises(TypeError):
        reference_models.evaluate(TableSource(TABLE), replace(PLAN, until=PLAN.until - 3600), tmp_path)


def test_a_model_that_loses_to_the_constant_is_told_what_to_do() -> None:
    assert reference_models.advice(0.4, 1.0, 0.4, 1000) is None
    off, noise = (reference_models.advice(0.6, pcoc, 0.4, 1000) for pcoc in (2.0, 1.1))
    assert off is not None
    assert noise is not None
    assert off.startswith("NLL 0.6 is worse than 0.4, that of a constant rate")
    assert "2.00 (PCOC)" in off
    assert "learning_rate" in noise
    assert "diverged" in str(reference_models.advice(1e19, 0.0, 0.4, 1000))


def test_a_pcoc_that_is_off_beyond_noise_is_said() -> None:
    assert reference_models.advice(0.3, 1.08, 0.4, 1000) is None  # three standard errors are 9.5 %
    assert reference_models.advice(0.3, 1.02, 0.4, 10**6) is None  # beyond noise, and too little to matter
    many, few = (str(reference_models.advice(0.3, pcoc, 0.4, 10_000)) for pcoc in (1.12, 0.88))
    assert many.startswith("PCOC 1.120: it predicts 12% too many conversions, and chance explains at most 3.0%")
    assert "12% too few" in few


def with_references(out: Path, constant: float) -> Path:
    """A made-up bench whose rows have an NLL of 0.40 (Oracle) to 0.49 (Pretrain)."""
    bench = madeup.bench(out)
    frame = pl.read_parquet(bench / "results.parquet")
    frame.with_columns(constant_nll=pl.lit(constant), logistic_nll=pl.lit(0.3)).write_parquet(bench / "results.parquet")
    tables.write(bench)
    return bench


def test_tables_and_report_name_the_rows_that_lose_to_the_constant(tmp_path: Path) -> None:
    lost = with_references(tmp_path / "lost", 0.47)
    text = (lost / "table.md").read_text()
    assert "Worse than the constant in NLL: Pretrain." in text
    assert "| logistic regression |" in text
    assert [s.text for s in summarise(Outcome(lost)) if "constant rate" in s.text] == [
        "Worse than a constant rate in NLL: Pretrain. Look at PCOC, the warm-up part and learning_rate first."
    ]
    won = with_references(tmp_path / "won", 0.6)
    assert "Worse than" not in (won / "table.md").read_text()
    assert not any("constant rate" in s.text for s in summarise(Outcome(won)))


def test_a_row_is_judged_against_the_regression_by_days(tmp_path: Path) -> None:
    """Days differ far more than the two models do, so only a paired difference can tell them apart."""
    bench, gap = madeup.bench(tmp_path), {"Pretrain": 0.01, "Vanilla": 0.0, "TRACE": -0.01}
    for path in (bench / "cells").glob("*/intervals.parquet"):
        frame = pl.read_parquet(path)
        rng = np.random.default_rng(len(frame))
        days, noise = np.repeat(rng.normal(0.5, 0.1, 10), 24), rng.normal(0, 0.01, len(frame))
        ours = days + gap.get(path.parent.name.partition("~")[0], 0.0) + noise - noise.mean()
        frame.with_columns(nll=pl.Series(ours), logistic_nll=pl.Series(days)).write_parquet(path)
    rows = {row[0].text: row[2].text for row in tables.beside_logistic(Outcome(bench)).rows}
    assert [rows[name] for name in ("Pretrain", "Vanilla", "TRACE")] == ["worse", "within noise", "better"]
