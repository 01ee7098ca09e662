"""The learner beside the service: a process of its own, of lower priority, started again whenever it ends."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO

from tracecvr.base.errors import HeldError

_log = logging.getLogger("tracecvr.service")
_PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before the learner is started again, the longer the oftener it has ended at once."""
_STEADY_S = 60.0
"""A learner that has run so long is well: what ended the one before it is no longer reported."""
_LOOK_S = 0.2
_CHARACTERS = 300
"""Of a reason, which may quote anything."""


@dataclass(frozen=True)
class LearnerState:
    """How the learner is."""

    running: bool | None = None
    """None if this service starts none."""
    elsewhere: bool = False
    """Whether it waits, because the learner of another process has the store."""
    since: float | None = None
    """When it was started, in Unix seconds."""
    restarts: int = 0
    """How often one has ended by itself, or could not be started."""
    problem: str | None = None
    """Why the last one ended; None once another has run for a minute."""

    @property
    def failed(self) -> bool:
        """Whether the last one ended by itself, so that nothing may be learnt."""
        return self.problem is not None


class LearnerProcess:
    """The learner as a process, watched by a thread that outlives whatever happens to it."""

    def __init__(self, folder: Path, wanted: bool) -> None:
        self.wanted = wanted
        self.command = [sys.executable, "-m", "tracecvr.cli", "learn", str(folder), "--with-parent"]
        self._state = LearnerState(False if wanted else None)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> LearnerProcess:
        if self.wanted:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self._ended.set()
        if self.wanted:
            self._thread.join()

    def state(self) -> LearnerState:
        """How it is now."""
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
                _log.error("the learner %s", _printable(problem))
            steady = time.monotonic() - since > _STEADY_S
            failures = 1 if steady else failures + 1
            self._note(code, problem)
            self._ended.wait(_PAUSES[min(failures, len(_PAUSES)) - 1])

    def _note(self, code: int | None, problem: str) -> None:
        if code == HeldError.code:
            self._state = replace(self._state, running=False, elsewhere=True, problem=None)
            return
        restarts = self._state.restarts + (not self._ended.is_set())
        self._state = LearnerState(False, False, None, restarts, _printable(problem))

    def _run(self) -> tuple[int, str]:
        """Run a learner until it ends or is to end; its exit code, and why it ended."""
        pipe = subprocess.PIPE
        with subprocess.Popen(self.command, stdin=pipe, stderr=pipe, preexec_fn=lambda: os.nice(5)) as process:
            try:
                self._state = replace(self._state, running=True, since=time.time())
                messages = _StandardError(process.stderr)
                while process.poll() is None and not self._ended.wait(_LOOK_S):
                    messages.pass_on()
            finally:
                process.kill()
            process.wait()
            messages.pass_on()
            return process.returncode, _reason(process.returncode, messages.last)


class _StandardError:
    """What a process writes to its standard error: passed on to ours, and the last line remembered."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        assert stream is not None
        self._handle, self.last, self._begun = stream.fileno(), "", b""
        os.set_blocking(self._handle, False)

    def pass_on(self) -> None:
        try:
            while text := os.read(self._handle, 1 << 16):
                with suppress(OSError):  # nobody listens to us: that is no reason to stop a learner
                    os.write(2, text)
                *lines, self._begun = (self._begun + text).split(b"\n")
                whole = [line for line in (*lines, self._begun) if line.strip()]
                self.last = whole[-1].decode(errors="replace") if whole else self.last
                self._begun = self._begun[-_CHARACTERS * 4 :]
        except BlockingIOError:  # nothing more for now
            pass


def _reason(code: int, last: str) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return last.removeprefix("error: ") or f"ended with code {code}"


def _printable(text: str) -> str:
    """On one line, without characters that a terminal or a log would obey."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))[:_CHARACTERS]
