"""Child processes: with their own environment, without Ctrl-C, and ended when the parent ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from types import ModuleType
from typing import Any


def start_process(target: Callable[..., None], args: tuple[Any, ...], environment: Mapping[str, str]) -> SpawnProcess:
    """A new process that calls `target`, which begins by `end_with_parent`. Whoever ends it kills it: what it was
    writing is whole or not there."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=args, daemon=True)
    resource_tracker.ensure_running()  # the first process starts it, which would unblock Ctrl-C below
    # Libraries read the environment when they are imported, so it has to be there from the start.
    with _main_for(target), _environment(environment):
        # Ctrl-C is ours to answer. A process inherits what is blocked, so none reaches it even while it imports.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    return process


def thread_settings(count: int) -> dict[str, str]:
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), str(count))


@contextmanager
def _main_for(target: Callable[..., None]) -> Iterator[None]:
    """Hide the script that this process runs, unless it is what has the target: a new process would run it again, and
    start processes of its own."""
    main = sys.modules["__main__"]
    if target.__module__ == "__main__":
        yield
        return
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _environment(environment: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
