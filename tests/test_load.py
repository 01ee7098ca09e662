"""The benchmark of the service under load: its smoke, and that it can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import load
from load import FULL, QUICK, Answer


def test_the_smoke_passes_and_has_every_figure(tmp_path: Path) -> None:
    words = [sys.executable, load.__file__, "--quick", "--out", str(tmp_path / "load.json")]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    found = json.loads((tmp_path / "load.json").read_text())
    assert len(found["figures"]) == 4 + len(load.OTHERS) + 1


def test_a_pace_that_is_not_kept_fails_and_so_does_one_that_was_not_tried() -> None:
    assert load._paced(Counter({"200": 90, "429": 30}), 100).passed
    assert not load._paced(Counter({"200": 110, "429": 30}), 100).passed
    assert not load._paced(Counter({"200": 90, "429": 30, "500": 1}), 100).passed
    assert not load._paced(Counter({"200": 90}), 100).passed


def test_slow_answers_fail_and_so_does_one_that_is_missing() -> None:
    idle = [Answer(0.0, 0.010, True)] * 100
    slow = [Answer(0.0, 0.031, True)] * 100
    assert load._ratio("", [Answer(0.0, 0.029, True)] * 100, idle, "", 3.0, FULL).passed
    assert not load._ratio("", slow, idle, "", 3.0, FULL).passed
    assert load._ratio("", slow, idle, "", 3.0, QUICK).passed
    assert not load._ratio("", [*idle, Answer(0.0, 0.001, False)], idle, "", 3.0, QUICK).passed
    assert not load._ratio("", [], idle, "", 3.0, QUICK).passed
