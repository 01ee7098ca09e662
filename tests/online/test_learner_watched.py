"""The learner beside the service: it is started again whatever happens, and why it ended is told."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from livestore import Made, learnt
from test_service import asked, served
from tracecvr.base.errors import HeldError
from tracecvr.base.files import locked
from tracecvr.online.service import learner_process
from tracecvr.online.service.learner_process import LearnerProcess, LearnerState


def scripted(script: str) -> LearnerProcess:
    """A learner that is a script."""
    found = LearnerProcess(Path("nowhere"), True)
    found.command = [sys.executable, "-S", "-c", script]
    return found


def state(watched: LearnerProcess, wanted: Callable[[LearnerState], bool]) -> LearnerState:
    for _ in range(400):
        found = watched.state()
        if wanted(found):
            return found
        time.sleep(0.02)
    raise AssertionError(found)


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (
            "import sys; sys.stderr.write('interval 1\\nerror: the \\x1b[31mdisk is full\\n'); sys.exit(2)",
            "disk is full",
        ),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("import sys; sys.exit(7)", "ended with code 7"),
        ("import sys; sys.stderr.write('x' * 300_000); sys.exit(1)", "xxx"),
    ],
)
def test_why_it_ended_is_told_and_it_is_started_again(
    script: str, problem: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with scripted(script) as watched:
        found = state(watched, lambda s: s.restarts >= 2)
        assert found.problem is not None
        assert problem in found.problem
        assert "\x1b" not in found.problem
        assert len(found.problem) <= 300
        assert found.failed
    if "disk" in script:
        assert capfd.readouterr().err.count("interval 1") >= 2  # it is passed on


def test_one_that_has_run_for_a_while_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LearnerProcess(Path("nowhere"), False).state().running is None
    monkeypatch.setattr(learner_process, "_STEADY_S", 0.5)
    (tmp_path / "bad").touch()
    bad = f"from pathlib import Path; bad = Path({str(tmp_path / 'bad')!r})"
    with scripted(f"{bad}\nif bad.exists(): bad.unlink(); 1 / 0\nimport time; time.sleep(60)") as watched:
        state(watched, lambda s: s.problem is not None)
        found = state(watched, lambda s: s.running is True and not s.failed)
        assert (found.problem, found.restarts, found.elsewhere) == (None, 1, False)
        assert found.since is not None
        assert abs(found.since - time.time()) < 30


def test_no_descriptors_for_a_moment_do_not_end_who_watches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, calls = subprocess.Popen, 0

    def scarce(*given: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls <= 2:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return plain(*given, **more)

    monkeypatch.setattr(subprocess, "Popen", scarce)
    with scripted("import time; time.sleep(60)") as watched:
        found = state(watched, lambda s: s.problem is not None)
        assert "Too many open files" in (found.problem or "")
        assert state(watched, lambda s: s.running is True).restarts == 2


def test_watching_leaks_no_descriptors() -> None:
    with scripted("pass") as watched:
        state(watched, lambda s: s.restarts >= 1)
        before = len(list(Path("/proc/self/fd").iterdir()))
        state(watched, lambda s: s.restarts >= 3)
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 3  # of the one that may run now


def learner(folder: Path) -> tuple[int, str]:
    """Exit code and messages of a learner of a store, of which somebody holds the standard input."""
    words = [sys.executable, "-m", "tracecvr.cli", "learn", str(folder), "--with-parent"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        return process.wait(60), process.stderr.read()


def test_a_failed_learner_ends_with_one_line(tmp_path: Path) -> None:
    code, said = learner(tmp_path)
    assert code == 2
    assert said == f"error: {tmp_path}: not a store; create one with `tracecvr init`\n"  # no `Fatal Python error`


def test_a_learner_whose_store_another_one_has_is_no_failure(made: Made) -> None:
    store = made("vanilla")
    with locked(store.folder / "models"):
        code, said = learner(store.folder)
    assert code == HeldError.code
    assert "in use by another process" in said
    with scripted(f"import sys; sys.exit({code})") as watched:
        found = state(watched, lambda s: s.elsewhere)
        assert not found.failed
        assert found.restarts == 0


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
