"""Progress of a run or of `prepare`: a bar with rate and time left on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from contextlib import ExitStack
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_REFRESH_S, _LINE_S = 0.1, 10.0


class Display(ExitStack):
    """Callable as the engine's progress; a context manager so that the terminal is left clean."""

    def __init__(self, console: Console, title: str = "") -> None:
        super().__init__()
        self.console, self.title = console, title
        texts, times = TextColumn("{task.description}"), (TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
        self.bars = Progress(texts, BarColumn(), MofNCompleteColumn(), *times, console=console, transient=True)
        self.tasks: dict[str, TaskID] = {}
        self.shown = 0.0 if console.is_terminal else time.monotonic()
        self.since: dict[str, tuple[float, int]] = {}

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self.enter_context(self.bars)
        return self

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if stage not in self.since:
            self.since[stage] = now, done
        wait = _REFRESH_S if self.console.is_terminal else _LINE_S
        if done < total and now - self.shown < wait:
            return
        self.shown = now
        started, first = self.since[stage]
        speed = (done - first) / max(now - started, 1e-9)
        rate = f"{speed:,.0f}/s"
        if self.console.is_terminal:
            if stage not in self.tasks:
                self.tasks[stage] = self.bars.add_task(f"{self.title}{stage}", total=total, rate="")
            self.bars.update(self.tasks[stage], completed=done, total=total, rate=rate)
        elif done < total:
            left = f", {timedelta(seconds=round((total - done) / speed))} left" if speed else ""
            self.console.print(f"{self.title}{stage}: {done:,} of {total:,} ({rate}{left})", highlight=False)
