"""Processes of their own: what is measured in one neither inherits memory from another nor leaves it any.

The kernel counts the peak memory of the process that starts a child to the child as well, so whoever imports this room
stays light: no torch, no polars.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).parents[1]
_CALL = "import json, sys, {module}; print(json.dumps({module}.{function}(**json.loads(sys.argv[1]))))"


class ChildError(Exception):
    """A child ended with an error; the message is the last thing it said."""


@dataclass(frozen=True)
class Ended:
    """How a child came out."""

    wall_s: float
    processor_s: float
    peak_gb: float
    output: str


@dataclass
class Child:
    """A command under way; `name` is for messages."""

    name: str
    command: list[str]
    _out: IO[str] = field(init=False, repr=False)
    _err: IO[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._out, self._err = _sink(), _sink()
        paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._since = time.perf_counter()
        self._process = subprocess.Popen(
            self.command, stdout=self._out, stderr=self._err, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        )

    def wait(self) -> Ended:
        """Wall time until now that it is waited for, and the peak of its memory."""
        try:
            _, status, usage = os.wait4(self._process.pid, 0)
        except BaseException:  # Ctrl-C: leave nothing running
            self._process.kill()
            self._process.wait()
            raise
        wall = time.perf_counter() - self._since
        self._process.returncode = os.waitstatus_to_exitcode(status)
        output, errors = _read(self._out), _read(self._err)
        if self._process.returncode:
            said = errors.strip().splitlines() or [f"exit code {self._process.returncode}"]
            raise ChildError(f"{self.name}: {said[-1]}")
        return Ended(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e9, output)


def tracecvr(*words: object) -> Child:
    """The command line."""
    return Child(f"tracecvr {words[0]}", [sys.executable, "-m", "tracecvr.cli", *map(str, words)])


def together(children: list[Child]) -> list[Ended]:
    """Wait for all; if one failed, say so once none is left running."""
    ended: list[Ended | ChildError] = []
    for child in children:
        try:
            ended.append(child.wait())
        except ChildError as failure:
            ended.append(failure)
    for outcome in ended:
        if isinstance(outcome, ChildError):
            raise outcome
    return [outcome for outcome in ended if isinstance(outcome, Ended)]


def call(module: str, function: str, **given: Any) -> Any:
    """What a function of this package returns, called in a process of its own; all by JSON."""
    code = _CALL.format(module=f"measure.{module}", function=function)
    child = Child(f"{module}.{function}", [sys.executable, "-c", code, json.dumps(given)])
    return json.loads(child.wait().output)


def _sink() -> IO[str]:
    # A file, because a pipe that nobody empties would stop the child; it is gone once it is closed or forgotten.
    return tempfile.TemporaryFile("w+")


def _read(file: IO[str]) -> str:
    with file:
        file.seek(0)
        return file.read()
