"""The service under kills: what was answered with success is there, once, whatever was killed when; and what was learnt
from it is what a replay learns, to the byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crashing import OVER_HTTP, Toll, survived
from tracecvr.config import HOUR
from tracecvr.online.store import Store

# Kills.


def test_six_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    toll = killed_over_http(tmp_path, kills=6, intervals=14, seed=1)
    assert toll.kills.total() == 6


@pytest.mark.slow
def test_100_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    toll = killed_over_http(tmp_path, kills=100, intervals=200, seed=2)
    assert min(toll.kills[who] for who in ("server", "learner")) > 25
    assert toll.unheard, "no kill hit between a commit and its answer"


def killed_over_http(room: Path, kills: int, intervals: int, seed: int) -> Toll:
    """Events come less than an hour late, and within a batch clicks go first: an hour is left for that."""
    toll = survived(room, kills, intervals, seed, HOUR, OVER_HTTP, ("server", "learner"))
    every_answer_is_in_the_log(room)
    return toll


def every_answer_is_in_the_log(room: Path) -> None:
    """Of each click, the log has one of the answers that were given or, if that one was not heard, a version's."""
    log, heard = Store.open(room / "killed").log(), {}
    for line in (room / "answers").read_text().splitlines():
        answer = json.loads(line)
        for click, score in zip(answer["clicks"], answer["scores"], strict=True):
            heard.setdefault(click, set()).add((score, answer["version"]))
    unheard = 0
    for click, answers in heard.items():
        row = log.of_click(click)[0]
        assert row.score is not None
        unheard += (row.score, row.version) not in answers
    assert len(heard) == log.facts()["clicks"]
    assert unheard < 0.1 * len(heard)
