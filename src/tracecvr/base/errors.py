"""The one exception whose message is written for the user: the CLI prints it on one line and exits with code 2."""

from __future__ import annotations

from pathlib import Path


class UserError(Exception):
    """Bad input: the message says what is wrong, where, and what to do about it."""


class DivergedError(UserError):
    """Training left the finite numbers: a user's learning rate, as a rule; a live learner undoes the tick."""


class HeldError(UserError):
    """Another process works on it. A learner that is watched ends with this code then: it may take over later."""

    code = 75


def explain(error: OSError, path: Path | None = None) -> str:
    """An error of the system in words that say what to do."""
    name = path or error.filename
    if isinstance(error, IsADirectoryError):
        return f"{name}: a folder is in place of a file: move it away, and put the file back if you have it"
    if isinstance(error, PermissionError):
        return f"{name}: no permission: let this user read and write it"
    return f"{name or ''}: {error.strerror}".lstrip(": ") if error.strerror else str(error)
