"""A process beside the service, such as the learner: it is started again if it ends, and ends with the service."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from tracecvr.base.errors import HeldError, UserError
from tracecvr.base.processes import end_with_parent

_log = logging.getLogger("tracecvr.service")
_PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before a process is started again, the longer the oftener it has ended at once."""
_STEADY_S = 60.0
"""A process that has run so long is well: what ended the one before it is no longer reported."""
_STOP_S = 5.0
"""Seconds that a process is given to finish what it is at, when it is to end."""
_LOOK_S = 0.2
_CHARACTERS = 300
"""Of a reason, which may quote anything."""


@dataclass(frozen=True)
class LearnerState:
    running: bool | None = None
    """None if this service starts none."""
    elsewhere: bool = False
    """Whether it waits, because the learner of another process has the store."""
    since: float | None = None
    restarts: int = 0
    """How often one has ended by itself, or could not be started."""
    problem: str | None = None
    """Why the last one ended; None once another has run for a minute."""


class SupervisedProcess:
    """A process that calls `work(*given)`, watched by a thread that outlives whatever happens to it."""

    def __init__(self, name: str, work: Callable[..., None], *given: Any, nice: int = 0) -> None:
        self.name, self._call = name, (nice, work, *given)
        self._state = LearnerState(running=False)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> SupervisedProcess:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def state(self) -> LearnerState:
        state = self._state
        if state.running and state.since is not None and time.time() - state.since > _STEADY_S:
            return replace(state, elsewhere=False, problem=None)
        return state

    def _watch(self) -> None:
        failures = 0
        while not self._ended.is_set():
            since = time.monotonic()
            try:
                code, problem = self._run()
            except Exception as error:  # no descriptors, processes or memory left: the next try may go well
                code, problem = None, f"could not be started: {error}"
            failures = 1 if time.monotonic() - since > _STEADY_S else failures + 1
            if not self._ended.is_set():
                self._note(code, _make_printable(problem))
                self._ended.wait(_PAUSES[min(failures, len(_PAUSES)) - 1])

    def _note(self, code: int | None, problem: str) -> None:
        if code == HeldError.code:
            self._state = replace(self._state, running=False, elsewhere=True, problem=None)
            return
        _log.error("%s: %s; it is started again", self.name, problem)
        self._state = LearnerState(False, False, None, self._state.restarts + 1, problem)

    def _run(self) -> tuple[int | None, str]:
        """Run a process until it ends or is to end; its exit code, and why it ended."""
        # A fresh interpreter, without the threads and event loops of this process.
        context = get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        with receiver:
            with sender:
                process = context.Process(target=_work, args=(sender, *self._call), daemon=True)
                process.start()
            self._state = replace(self._state, running=True, since=time.time())
            while process.is_alive() and not self._ended.is_set():
                process.join(_LOOK_S)
            process.terminate()
            process.join(_STOP_S)
            process.kill()
            process.join()
            try:
                reason = receiver.recv()
            except EOFError:
                code = process.exitcode or 0
                reason = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            return process.exitcode, reason


def _work(sender: Connection, nice: int, work: Callable[..., None], *given: Any) -> None:
    """In the process: do the work, and tell why that ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the service's to answer
    end_with_parent()
    os.nice(nice)
    try:
        work(*given)
    except Exception as error:
        known = isinstance(error, UserError | OSError)
        if not known:
            _log.exception("a process beside the service failed")
        sender.send(str(error) if known else f"{type(error).__name__}: {error}")
        sys.exit(HeldError.code if isinstance(error, HeldError) else 1)


def _make_printable(text: str) -> str:
    """On one line, without characters that a terminal or a log would obey."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))[:_CHARACTERS]
