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
from front import FULL, QUICK, Answer
from load import Measured

KINDS = 3 * (1 + 3 + 4) + 2
"""Of `load`, each on 3 numbers of connections: an echo, three kinds of requests, two while it learns and not."""


@pytest.mark.slow
@pytest.mark.parametrize(("benchmark", "figures"), [(load, KINDS + 3 * 3 + 1), (front, 4 + len(front.OTHERS) + 2)])
def test_the_smoke_passes_and_has_every_figure(benchmark: ModuleType, figures: int, tmp_path: Path) -> None:
    words = [sys.executable, str(benchmark.__file__), "--quick", "--out", str(tmp_path / "load.json")]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    content = json.loads((tmp_path / "load.json").read_text())
    assert len(content["figures"]) == figures


def test_a_siege_of_too_few_connections_fails() -> None:
    assert front._held(Counter(open=1150 * 5, looks=5), 1200).passed
    assert not front._held(Counter(open=900 * 5, looks=5), 1200).passed


def test_what_is_compared_is_compared_turn_by_turn() -> None:
    slow, fast = Measured(10, 400, 1, 3), Measured(10, 1000, 1, 1)
    turns: load.Turns = {("echo", "echo", 8): [fast, fast], ("now", "score", 8): [slow, slow]}
    compared = {figure.name: figure for figure in load.figures(turns, load.FULL)}
    assert compared["echo / score, 8 connections"].value == 2.5
    assert all(figure.passed for figure in compared.values())
    turns["now", "score", 8] = [slow._replace(per_cpu=399, p99_ms=3.1)] * 2
    failed = [figure.name for figure in load.figures(turns, load.FULL) if not figure.passed]
    assert failed == ["echo / score, 8 connections", "99 % of score / of echo, 8 connections"]


def test_a_pace_that_is_not_kept_fails_and_so_does_one_that_was_not_tried() -> None:
    assert front._paced(Counter({"200": 90, "429": 30}), 100).passed
    assert not front._paced(Counter({"200": 110, "429": 30}), 100).passed
    assert not front._paced(Counter({"200": 90, "429": 30, "500": 1}), 100).passed
    assert not front._paced(Counter({"200": 90}), 100).passed


def test_slow_answers_fail_and_so_does_one_that_is_missing() -> None:
    idle = [Answer(0.0, 0.010, True)] * 100
    slow = [Answer(0.0, 0.031, True)] * 100
    assert front._ratio("", [Answer(0.0, 0.029, True)] * 100, idle, "", 3.0, FULL).passed
    assert not front._ratio("", slow, idle, "", 3.0, FULL).passed
    assert front._ratio("", slow, idle, "", 3.0, QUICK).passed
    assert not front._ratio("", [*idle, Answer(0.0, 0.001, False)], idle, "", 3.0, QUICK).passed
    assert not front._ratio("", [], idle, "", 3.0, QUICK).passed
