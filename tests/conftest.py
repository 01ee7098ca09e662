"""Shared set-up: one thread per test process, so that parallel tests do not slow each other down."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("tracecvr", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("tracecvr")

pytest_plugins = ("browsing", "livestore")

SHARED = Path(os.environ.get("TRACECVR_DATA", Path(__file__).parents[2] / "shared" / "data"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many method x check pairs ran: a green run that checked nothing must not look like one that did."""
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, [])]
    pairs = sum("test_everything_found_keeps_every_promise" in r.nodeid for r in reports)
    terminalreporter.write_line(f"{pairs} method x check pairs ran")


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
def real_log() -> object:
    """Finds a real log by file name; the test is skipped where there is none."""

    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"{name} is not at hand (set TRACECVR_DATA)")
        return path

    return find
