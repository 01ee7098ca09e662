"""What was chosen: which version serves (`serving.json`), and which model answers (`traffic.json`).

A choice is kept twice: in a file, for whoever reads a store without its log, and in the event log. Each choice has a
number. The newer one counts, and the other is written again from it: after a crash between the two writes, and if one
is lost, damaged or of another time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

from tracecvr.base.errors import UserError
from tracecvr.base.files import locked
from tracecvr.online.log.event_database import EventDatabase
from tracecvr.online.store.file_hashes import read_hashed, write_hashed

_log = logging.getLogger("tracecvr.store")
SERVING, TRAFFIC = "serving.json", "traffic.json"
_LOCK = ".traffic.lock"
_PATIENCE_S = 10.0
_ADVICE = "remove it: the next command on the store writes it again, if anything was chosen"

Choice = dict[str, Any]


def read(path: Path) -> Choice | None:
    """What was chosen; None if nothing was."""
    return _unnumbered(read_hashed(path, _ADVICE)) if path.exists() else None


def change(path: Path, alter: Callable[[Choice | None], Choice]) -> Choice:
    """Write a new choice. Commands, the service and the learner may do so at once: they take turns."""
    with _hold(path), closing(EventDatabase(path.parent / "events.db")) as log:
        old = _settle(log, path)
        new = alter(_unnumbered(old))
        if new != _unnumbered(old):
            numbered = new | {"number": old["number"] + 1 if old else 1}
            write_hashed(path, numbered)
            log.keep_choice(path.name, numbered)
        return new


def mend(log: EventDatabase, folder: Path) -> None:
    """Let files and log have the same choices."""
    for path in list_different(log, folder):
        with _hold(path):  # after another process has chosen, they are the same
            _settle(log, path)


def list_different(log: EventDatabase, folder: Path) -> list[Path]:
    """Files that have another choice than the log."""
    return [path for name in (SERVING, TRAFFIC) if _read_whole(path := folder / name) != log.choice(name)]


def _settle(log: EventDatabase, path: Path) -> Choice | None:
    """The newer of the two choices, which both have then."""
    both = log.choice(path.name), _read_whole(path)
    newest = max((choice for choice in both if choice), key=lambda choice: int(choice["number"]), default=None)
    if newest is not None and both != (newest, newest):
        _log.warning("%s or the log was damaged or older: both have choice %d now", path, newest["number"])
        write_hashed(path, newest)
        log.keep_choice(path.name, newest)
    return newest


def _read_whole(path: Path) -> Choice | None:
    try:
        return read_hashed(path, "")
    except UserError:  # missing, or damaged
        return None


def _unnumbered(choice: Choice | None) -> Choice | None:
    return None if choice is None else {name: value for name, value in choice.items() if name != "number"}


def _hold(path: Path) -> AbstractContextManager[None]:
    return locked(path.parent, "another process changes which model serves: try again", _LOCK, _PATIENCE_S)
