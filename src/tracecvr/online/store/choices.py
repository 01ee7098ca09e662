"""What was chosen to serve (`serving.json`): a version of the store's own model, or a challenger. Learning goes on as
before: a choice changes what is served, never what is learnt.

A choice is kept in the file, for whoever reads a store without its log, and in the event log. The one with the higher
number counts, and the other is written again from it: after a crash, and if one is lost, damaged or of another time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tracecvr.base.errors import UserError
from tracecvr.base.files import locked
from tracecvr.online.log.event_database import EventDatabase
from tracecvr.online.store.file_hashes import read_hashed, write_hashed

_log = logging.getLogger("tracecvr.store")
NAME = "serving.json"
_LOCK = ".serving.lock"
_PATIENCE_S = 10.0
_ADVICE = "remove it: the next command on the store writes it again, if anything was chosen"


@dataclass(frozen=True)
class Choice:
    """Which version and which model serve. Without a choice, the newest version of the store's own model does."""

    version: int | None = None
    """Of the store's own model; None is always the newest."""
    model: str | None = None
    """The challenger that answers all clicks; None is the store's own model."""
    number: int = 0


def read(folder: Path) -> Choice:
    path = folder / NAME
    return Choice(**read_hashed(path, _ADVICE)) if path.exists() else Choice()


def change(folder: Path, alter: Callable[[Choice], Choice]) -> None:
    """Write a new choice. Commands, the service and the learner may do so at once: they take turns."""
    with _hold(folder), closing(EventDatabase(folder / "events.db")) as log:
        old = Choice(**_settle(log, folder))
        if (new := alter(old)) != old:
            _write(log, folder, asdict(replace(new, number=old.number + 1)))


def mend(log: EventDatabase, folder: Path) -> None:
    if differs(log, folder):
        with _hold(folder):  # after another process has chosen, they are the same
            _settle(log, folder)


def differs(log: EventDatabase, folder: Path) -> bool:
    """Whether the file has another choice than the log."""
    return _read_whole(folder) != log.choice()


def _settle(log: EventDatabase, folder: Path) -> dict[str, Any]:
    """The newer of the two choices, which both have then."""
    both = log.choice(), _read_whole(folder)
    newest = max((choice for choice in both if choice), key=lambda choice: int(choice["number"]), default=None)
    if newest is None:
        return {}
    if both != (newest, newest):
        _log.warning("%s or the log was damaged or older: both have choice %d now", folder / NAME, newest["number"])
        _write(log, folder, newest)
    return newest


def _write(log: EventDatabase, folder: Path, choice: dict[str, Any]) -> None:
    write_hashed(folder / NAME, choice)
    log.keep_choice(choice)


def _read_whole(folder: Path) -> dict[str, Any] | None:
    try:
        return read_hashed(folder / NAME, "")
    except UserError:  # missing, or damaged
        return None


def _hold(folder: Path) -> AbstractContextManager[None]:
    return locked(folder, "another process changes which model serves: try again", _LOCK, _PATIENCE_S)
