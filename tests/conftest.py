"""Shared set-up: one thread per test process and files in memory, so that nothing waits for anything else."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start
settings.register_profile("tracecvr", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("tracecvr")

pytest_plugins = ("browsing", "livestore")

MEMORY_DISK = Path("/dev/shm")


def memory_for_files() -> None:
    """Keep temporary files in memory, where a sync costs nothing: runs and live models sync often.

    Tests of crashes are as good there: they kill processes, and files in memory outlive a process. Files stay on disk
    if there is no such place or little room in it, as in many containers, or if TMPDIR says where they go. The
    directory, for files that are outside a test's `tmp_path`, is removed when pytest ends: after multiprocessing has
    removed what it keeps there, which it does with a priority of -100.
    """
    if "TMPDIR" in os.environ or not MEMORY_DISK.is_dir() or shutil.disk_usage(MEMORY_DISK).free < 2 * 2**30:
        return
    room = Path(tempfile.mkdtemp(prefix="tracecvr_tests_", dir=MEMORY_DISK))
    room.chmod(0o755)  # as /tmp: tests of a read-only disk enter it as another user
    tempfile.tempdir = str(room)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(MEMORY_DISK)
    Finalize(None, shutil.rmtree, (room,), {"ignore_errors": True}, exitpriority=-200)


memory_for_files()

SHARED = Path(os.environ.get("TRACECVR_DATA", Path(__file__).parents[2] / "shared" / "data"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many method x check pairs ran: a green run that checked nothing must not look like one that did."""
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, [])]
    pairs = sum("test_everything_found_keeps_every_promise" in r.nodeid for r in reports)
    terminalreporter.write_line(f"{pairs} method x check pairs ran")


@pytest.fixture(autouse=True, scope="session")
def _one_core() -> Iterator[None]:
    """Commands take as many threads as there are cores; threads that wait for each other beside other tests crawl."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "cpu_count", lambda: 1)
        yield


class Call(Protocol):
    """Calls the command line in this process and returns its exit code."""

    def __call__(self, *words: object) -> int: ...


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Call:
    from tracecvr.cli.commands import main

    def run(*words: object) -> int:
        monkeypatch.setattr(sys, "argv", ["tracecvr", *map(str, words)])
        try:
            main()
        except SystemExit as leaving:
            return int(leaving.code or 0)
        return 0

    return run


@pytest.fixture
def few_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tracecvr check` with two of its checks: tests/checks has all of them, for every method."""
    from tracecvr import checks

    few = {name: check for name, check in checks.all_checks().items() if name in ("no_future", "scoring_is_pure")}
    monkeypatch.setattr(checks, "all_checks", lambda: few)


@pytest.fixture
def real_log() -> object:
    """Finds a real log by file name; the test is skipped where there is none."""

    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"{name} is not at hand (set TRACECVR_DATA)")
        return path

    return find
