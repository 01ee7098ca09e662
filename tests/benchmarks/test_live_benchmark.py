"""The benchmark of the live learner: its smoke, and that it can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import live
from live import ALONE, QUICK


@pytest.mark.slow
def test_the_smoke_passes_and_has_every_figure(tmp_path: Path) -> None:
    words = [sys.executable, live.__file__, "--quick", "--out", str(tmp_path / "live.json")]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    content = json.loads((tmp_path / "live.json").read_text())
    assert len(content["figures"]) == 7
    assert all(figure["value"] > 0 for figure in content["figures"])


def test_only_appends_during_ticks_count_and_slow_ones_fail() -> None:
    ticks = [{"start": 10.0 * n, "end": 10.0 * n + 5, "clicks": 9, "events": 50} for n in range(ALONE + 2)]
    first = ticks[ALONE]["start"]
    inside = [{"start": first + n, "read": first + n + 0.5, "end": first + n + 1.0, "processor": 0.1} for n in range(4)]
    outside = [{"start": first + 6.0, "read": first + 6.0, "end": first + 6.0}]
    figures = live._traffic_figures(QUICK, ticks, inside + outside)
    assert [(f.value, f.passed) for f in figures] == [(1e4, False), (500, True), (500, True), (5, True), (5, True)]


def test_memory_that_grows_fails() -> None:
    samples = [{"peak_mb": 100.0 + n} for n in range(101)]
    assert not live._flat("learner", samples, live.FULL).passed
    assert live._flat("learner", [{"peak_mb": 100.0}] * 101, live.FULL).passed
