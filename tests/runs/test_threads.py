"""How many threads a run has by default: one where steps are small, never more than the process may use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import tracecvr as tc
from tracecvr.learn.stream_learning import StreamLearning
from tracecvr.methods.vanilla import Vanilla
from tracecvr.runs import run
from tracecvr.runs.run import usable_cores, usual_threads


@pytest.fixture
def _four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.usefixtures("_four_cores")
@pytest.mark.parametrize(
    ("options", "stream", "warm_up", "interval", "threads"),
    [
        ({}, {}, 300_000, 1_200, 4),
        ({}, {}, 50_000, 1_200, 1),  # batches of 256 fit the log
        ({}, {}, 300_000, 60, 1),  # an interval has few clicks
        ({"warm_batch_size": 4096}, {}, 50_000, 1_200, 4),
        ({}, {"batch_size": 128}, 300_000, 1_200, 1),
        ({}, {"batch_size": 0}, 50_000, 1_200, 4),
    ],
)
def test_one_thread_for_small_steps(
    options: dict[str, int], stream: dict[str, int], warm_up: int, interval: float, threads: int
) -> None:
    method, learning = Vanilla(**options), StreamLearning(**stream)  # type: ignore[arg-type]
    assert usual_threads(method, learning, warm_up, interval) == threads


@pytest.mark.usefixtures("_four_cores")
@pytest.mark.parametrize(("given", "cores"), [("2", 2), ("2,1", 2), ("9", 3), ("0", 3), ("many", 3), (None, 3)])
def test_the_environment_and_the_affinity_limit_threads(
    given: str | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 3}, raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert usable_cores() == cores


def test_a_resumed_run_keeps_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, few = tc.dataset("synthetic", clicks=600, interval="1d"), {"hidden": [4], "warm_epochs": 1, "progress": False}
    given: dict[str, Any] = {**few, "out": tmp_path / "run"}

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tc.replay(log, "vanilla", on_interval=stop, checkpoint_every=0, threads=1, **given)
    monkeypatch.setattr(run, "usual_threads", lambda *_: 2)
    tc.replay(log, "vanilla", resume=True, **given)
    assert torch.get_num_threads() == 1
