"""Progress of long work: how it is reported, and how often."""

from __future__ import annotations

import time
from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with a stage, how much of it is done, and its total, which may be an estimate."""


def no_progress(stage: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


class ThrottledProgress:
    """A run's progress, told on now and then."""

    def __init__(self, tell: Callable[[tuple[str, int, int]], object], every_s: float) -> None:
        self.tell, self.every_s, self.last_call = tell, every_s, 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.last_call >= self.every_s:
            self.last_call = now
            self.tell((stage, done, total))
