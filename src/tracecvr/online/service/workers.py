"""Processes that run one function side by side. One that ends is started again; all end with their parent."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from multiprocessing import connection, get_context, parent_process
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any

_log = logging.getLogger("tracecvr.service")
_PAUSE_S = 0.5
"""Seconds before a worker is started again."""
_STOP_S = 5.0
"""Seconds that workers are given to finish what they are at, when they are to end."""


class Workers:
    """So many processes that call `work(*given)`, watched by a thread."""

    def __init__(self, count: int, work: Callable[..., None], *given: Any) -> None:
        self._given = (work, *given)
        self._processes: list[SpawnProcess | None] = [None] * count
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Workers:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.is_set():
            for place, process in enumerate(self._processes):
                if process is None or not process.is_alive():
                    self._start(place, process)
            connection.wait([one.sentinel for one in self._processes if one is not None], timeout=0.2)
        running = [process for process in self._processes if process is not None]
        for process in running:
            process.terminate()
        for process in running:
            process.join(_STOP_S)
            process.kill()
            process.join()

    def _start(self, place: int, before: SpawnProcess | None) -> None:
        if before is not None:
            _log.error("worker %d ended with code %s; it is started again", place, before.exitcode)
            self._ended.wait(_PAUSE_S)
        # A fresh interpreter: threads and event loops of this process are none of its business.
        process = get_context("spawn").Process(target=_work, args=self._given, daemon=True)
        process.start()
        self._processes[place] = process


def _work(work: Callable[..., None], *given: Any) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work(*given)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
