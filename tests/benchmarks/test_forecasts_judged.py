"""Forecasts of a run, judged: every estimator, at every age."""

from __future__ import annotations

from pathlib import Path

import forecasts
import tracecvr as tc
from tracecvr.forecast.estimators import ESTIMATORS


def test_every_estimator_is_judged(tmp_path: Path) -> None:
    log = tc.dataset("synthetic", clicks=6000, days=20)
    tc.replay(log, "es_dfm", hidden=[8], warm_epochs=1, threads=1, progress=False, out=tmp_path / "run")
    frame = forecasts.judge_run(tmp_path / "run", "segment")
    assert set(frame["estimator"]) == set(ESTIMATORS)
    assert frame.filter(age_days=0, estimator="blend", size="20 to 199 clicks")["coverage"].is_between(0.7, 1).all()
    errors, intervals = forecasts.tables(frame)[-2:]
    assert errors.title == "Error of forecasts, cells of 20 to 199 clicks"
    assert errors.row_count == len(ESTIMATORS)
    assert intervals.title == "90% intervals of blend, cells of 20 to 199 clicks"
