"""The benchmark of the service under load: its smoke, and that it can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

import front
import load
from load import FULL, QUICK, Answer


@pytest.mark.slow
@pytest.mark.parametrize(("benchmark", "figures"), [(load, 4 + len(load.OTHERS) + 1), (front, 3)])
def test_the_smoke_passes_and_has_every_figure(benchmark: ModuleType, figures: int, tmp_path: Path) -> None:
    words = [sys.executable, str(benchmark.__file__), "--quick", "--out", str(tmp_path / "load.json")]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    content = json.loads((tmp_path / "load.json").read_text())
    assert len(content["figures"]) == figures


def test_a_siege_of_too_few_connections_fails() -> None:
    answers = [Answer(0.0, 0.010, True)] * 100
    held = Counter(open=1150 * 5, looks=5, opened=1200)
    assert all(figure.passed for figure in front._figures(front.FULL, answers, answers, held))
    few = front._figures(front.FULL, answers, answers, Counter(open=900 * 5, looks=5, opened=1200))
    assert [figure.passed for figure in few] == [True, True, False]
    slow = front._figures(front.FULL, answers, [Answer(0.0, 0.031, True)] * 100, held)
    assert [figure.passed for figure in slow] == [True, False, True]


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
