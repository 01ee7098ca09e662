"""The suite `forecast`: every estimator is judged at every age, in tables and a figure."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from conftest import Call

from tracecvr.bench import engines
from tracecvr.bench.engines.local import Serial
from tracecvr.forecast.estimators import ESTIMATORS

SMALL = ("--methods", "es_dfm", "--set", "hidden=8", "--set", "warm_epochs=1", "--by", "segment")


def test_the_suite_judges_every_estimator(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "choose", lambda *_: Serial())
    out = tmp_path / "bench"
    log = "--data", "synthetic", "--data-set", "clicks=6000", "--data-set", "days=20"
    assert call("bench", "forecast", *log, *SMALL, "--out", out) == 0
    judged, one_day = (pl.read_parquet(out / name) for name in ("forecast.parquet", "forecast_day.parquet"))
    assert set(judged["estimator"]) == set(ESTIMATORS)
    middle = judged.filter(size="20 to 199 clicks")
    assert middle.filter(age_days=0, estimator="blend")["coverage"].is_between(0.7, 1).all()
    assert (middle["error"] >= middle["bias"].abs() - 1e-9).all()
    so_far = middle.filter(estimator="so_far").sort("age_days")
    assert so_far["error"].is_sorted(descending=True)
    assert (so_far["error"] + so_far["bias"]).abs().max() < 1e-9  # type: ignore[operator]
    assert one_day["so_far"].is_sorted()
    assert one_day["blend"].is_between(one_day["low"] - 1e-6, one_day["high"] + 1e-6).all()
    table = (out / "table.md").read_text()
    assert all(f"| {name} |" in table for name in (*ESTIMATORS, "coverage of blend", "mean width, conversions"))
    page = (out / "report.html").read_text()
    assert f"conversions of one day ({one_day['final'][0]:.0f} in the end)" in page
    assert f"blend, 0: {one_day['blend'][0]:.1f}" in page
