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


def explain(error: Exception, path: Path | None = None) -> str:
    """An error in one line; one of the system in words that say what to do."""
    name = path or getattr(error, "filename", None) or ""
    if isinstance(error, IsADirectoryError):
        return f"{name}: a folder is in place of a file: move it away, and put the file back if you have it"
    if isinstance(error, NotADirectoryError | FileExistsError):
        return f"{name}: a file is in place of a folder: move it away, and put the folder back if you have it"
    if isinstance(error, PermissionError):
        return f"{name}: no permission: let this user read and write it"
    reason = getattr(error, "strerror", None)
    return f"{name}: {reason}".lstrip(": ") if reason else str(error)
