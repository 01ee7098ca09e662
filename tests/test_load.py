"""The benchmark of the service under load: its smoke, and that it can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import load
from load import FULL, QUICK, Answer


def test_the_smoke_passes_and_has_every_figure(tmp_path: Path) -> None:
    words = [sys.executable, load.__file__, "--quick", "--out", str(tmp_path / "load.json")]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    found = json.loads((tmp_path / "load.json").read_text())
    assert len(found["figures"]) == 4 + len(load.OTHERS) + 2


def test_slow_answers_fail_and_so_does_one_that_is_missing() -> None:
    idle = [Answer(0.0, 0.010, True)] * 100
    slow = [Answer(0.0, 0.031, True)] * 100
    assert load._ratio("", [Answer(0.0, 0.029, True)] * 100, idle, "", 3.0, FULL).passed
    assert not load._ratio("", slow, idle, "", 3.0, FULL).passed
    assert load._ratio("", slow, idle, "", 3.0, QUICK).passed
    assert not load._ratio("", [*idle, Answer(0.0, 0.001, False)], idle, "", 3.0, QUICK).passed
    assert not load._ratio("", [], idle, "", 3.0, QUICK).passed
