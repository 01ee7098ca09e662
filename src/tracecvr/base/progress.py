"""Progress of long work: how it is reported."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with a stage, how much of it is done, and its total, which may be an estimate."""


def no_progress(stage: str, done: int, total: int) -> None:
    """Progress that is not shown."""
