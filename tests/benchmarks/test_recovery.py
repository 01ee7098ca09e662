"""Recovery on known truth: the order that theory demands of methods on a log with strong delay and drift."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import pytest


@pytest.mark.slow
def test_the_order_that_theory_demands() -> None:
    script = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "recovery.py"))
    gap: Callable[[str, int], tuple[float, float]] = script["gap"]
    unbiased = ("es_dfm", "defer", "defuse", "ddfm", "fnw", "trace", "gdfm")
    gaps = {m: mean(gap(m, seed)[0] for seed in range(2)) for m in ("oracle", "vanilla", *unbiased)}
    assert min(gaps, key=lambda m: gaps[m]) == "oracle"
    assert max(gaps, key=lambda m: gaps[m]) == "vanilla"
