"""What a supervised process may do: functions of a module of their own, which a new interpreter imports at once."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from tracecvr.base.errors import UserError
from tracecvr.base.files import locked


def refuse() -> None:
    sys.stderr.write("interval 1\n")
    raise UserError("the \x1b[31mdisk is full" + "x" * 1000)


def divide() -> None:
    sys.stderr.write(str(1 / 0))


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    sys.exit(7)


def fail_once(bad: Path) -> None:
    """Fail as long as a file is there, which is removed; then run on."""
    if bad.exists():
        bad.unlink()
        divide()
    time.sleep(60)


def hold(folder: Path) -> None:
    with locked(folder):
        time.sleep(60)
