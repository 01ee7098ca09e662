"""What is seen of a bench while it runs: a table on a terminal, a line for each finished cell elsewhere."""

from __future__ import annotations

from contextlib import ExitStack

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from tracecvr.base.durations import duration
from tracecvr.bench.runner import State


class Board(ExitStack):
    """Callable as the runner's watch; a context manager so that the terminal is left clean."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        self.reported: set[str] | None = None
        self.live = Live(console=console, transient=True, refresh_per_second=4)

    def __enter__(self) -> Board:
        if self.console.is_terminal:
            self.enter_context(self.live)
        return self

    def __call__(self, state: State) -> None:
        if self.console.is_terminal:
            self.live.update(_board(state))
        if self.reported is None:
            self.reported = set(state.done)  # in an earlier session
            self._say(summary(state))
        for name in (*state.done, *state.failed):
            if name not in self.reported:
                self.reported.add(name)
                self._say(f"{name}: {state.failed.get(name, 'done')} ({summary(state)})")

    def _say(self, line: str) -> None:
        if not self.console.is_terminal:
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def summary(state: State) -> str:
    failed = f", {len(state.failed)} failed" if state.failed else ""
    left = state.seconds_left()
    time = "" if left is None else f", about {duration(left)} left"
    return f"{len(state.done)} of {len(state.cells)} cells done{failed}{time}"


def _board(state: State) -> RenderableType:
    table = Table("cell", "stage", "", "", box=None, pad_edge=False)
    for name, (stage, done, total) in state.at.items():
        table.add_row(name, stage, ProgressBar(total=max(total, 1), completed=done, width=24), f"{done:,}/{total:,}")
    return Group(table, summary(state))
