"""The learner beside the service: it is started again whatever happens, and why it ended is told."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any

import pytest

import endings
from livestore import Made, learnt
from test_service import asked, served
from test_service_crash import children, runs, until
from tracecvr.base.files import locked
from tracecvr.online.service import processes
from tracecvr.online.service.processes import LearnerState, SupervisedProcess


def state(watched: SupervisedProcess, wanted: Callable[[LearnerState], bool]) -> LearnerState:
    for _ in range(1500):
        if wanted(now := watched.state()):
            return now
        time.sleep(0.02)
    raise AssertionError(now)


@pytest.mark.parametrize(
    ("work", "problem"),
    [
        (endings.refuse, "the  [31mdisk is full"),
        (endings.divide, "ZeroDivisionError: division by zero"),
        (endings.kill_itself, "killed by SIGKILL"),
        (endings.leave, "ended with code 7"),
    ],
)
def test_why_it_ended_is_told_and_it_is_started_again(
    work: Callable[[], None], problem: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with SupervisedProcess("it", work) as watched:
        ended = state(watched, lambda s: s.restarts >= 2)
        assert ended.problem is not None
        assert ended.problem.startswith(problem)
        assert len(ended.problem) <= 300
        assert ended.problem
    if work is endings.refuse:
        assert capfd.readouterr().err.count("interval 1") >= 2, "what it says is heard"


def test_one_that_has_run_for_a_while_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_STEADY_S", 2.0)
    (tmp_path / "bad").touch()
    with SupervisedProcess("it", endings.fail_once, tmp_path / "bad") as watched:
        state(watched, lambda s: s.problem is not None)
        well = state(watched, lambda s: s.running is True and not s.problem)
        assert (well.problem, well.restarts, well.elsewhere) == (None, 1, False)
        assert well.since is not None
        assert abs(well.since - time.time()) < 30


def test_no_descriptors_for_a_moment_do_not_end_who_watches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, calls = SpawnContext.Pipe, 0

    def scarce(*given: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls <= 2:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return plain(*given, **more)

    monkeypatch.setattr(SpawnContext, "Pipe", scarce)
    with SupervisedProcess("it", endings.fail_once, tmp_path / "none") as watched:
        failed = state(watched, lambda s: s.problem is not None)
        assert "Too many open files" in (failed.problem or "")
        assert state(watched, lambda s: s.running is True).restarts == 2


def test_watching_leaks_no_descriptors() -> None:
    with SupervisedProcess("it", endings.leave) as watched:
        state(watched, lambda s: s.restarts >= 1)
        before = len(list(Path("/proc/self/fd").iterdir()))
        state(watched, lambda s: s.restarts >= 3)
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 3  # of the one that may run now


def test_it_ends_with_who_watches_it() -> None:
    watching = (
        "import endings, time, sys; from pathlib import Path; from tracecvr.online.service.processes import *\n"
        "with SupervisedProcess('it', endings.fail_once, Path('none')) as watched:\n"
        "    while not watched.state().running: time.sleep(0.01)\n"
        "    print('runs', flush=True); time.sleep(60)"
    )
    path = {"PYTHONPATH": os.pathsep.join((str(Path(endings.__file__).parent), os.environ.get("PYTHONPATH", "")))}
    with subprocess.Popen([sys.executable, "-c", watching], stdout=subprocess.PIPE, env=os.environ | path) as watcher:
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == b"runs\n"
        (process,) = children(watcher.pid)
        watcher.kill()
        until(lambda: not runs(process), 20.0)


def test_a_learner_whose_store_another_one_has_is_no_failure(tmp_path: Path) -> None:
    with locked(tmp_path), SupervisedProcess("it", endings.hold, tmp_path) as watched:
        waiting = state(watched, lambda s: s.elsewhere)
        assert not waiting.problem
        assert waiting.restarts == 0


def test_status_and_readiness_tell_of_a_learner_that_fails(made: Made) -> None:
    store = made("vanilla")
    learnt(store)
    now = LearnerState(True, since=5.0)
    with served(store, learner=lambda: now) as url:
        assert asked(url, "GET", "/readyz") == (200, "version 0")
        now = LearnerState(False, since=None, restarts=3, problem="the disk is full")
        status, said = asked(url, "GET", "/readyz")
        assert status == 200  # scores go on
        assert said == "version 0; the learner fails: see /v1/status"
        told = asked(url, "GET", "/v1/status")[1]["learner"]
        assert told == {
            "running": False,
            "elsewhere": False,
            "since": None,
            "restarts": 3,
            "problem": "the disk is full",
        }
        for _ in range(100):
            if "tracecvr_learner_restarts 3.0" in (text := asked(url, "GET", "/metrics")[1]):
                break
            time.sleep(0.05)
        assert "tracecvr_learner_restarts 3.0" in text
        assert "tracecvr_learner_up 0.0" in text
