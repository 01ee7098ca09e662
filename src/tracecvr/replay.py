"""Replay: predict the next interval, then learn from what was revealed in it, interval by interval."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracecvr.clicks import ClickTable, Ints
from tracecvr.config import Seconds, option
from tracecvr.engine import Engine
from tracecvr.errors import UserError
from tracecvr.source import TableSource


@dataclass(frozen=True)
class Plan:
    """How a log is replayed; times in seconds since its origin."""

    split: Seconds | None = option(None, "start of the stream; the dataset's by default", above=0)
    interval: Seconds | None = option(None, "length of an interval; the dataset's by default", above=0)
    until: Seconds | None = option(None, "end of the stream; by default the last click that can be scored", above=0)
    warm_labels: str = option(
        "mature", "labels of the warm-up part: final, or as known at the split", choices=("mature", "censored")
    )
    publish_lag: int = option(0, "score with the model of so many intervals ago", low=0)

    def resolved(self, table: ClickTable) -> FullPlan:
        """The plan with the dataset's values where none was given."""
        schema = table.schema
        split = schema.split if self.split is None else self.split
        if split < schema.split:
            raise UserError(
                f"split = {split} s: the encoder was fitted up to {schema.split} s, the stream cannot start earlier; "
                "prepare the log with that split (--data-set split=...)"
            )
        last = min(int(table.click_ts[-1]), schema.observed_until - schema.d_max) + 1
        until = last if self.until is None else min(self.until, last)
        if np.searchsorted(table.click_ts, split) == np.searchsorted(table.click_ts, max(until, split)):
            raise UserError(
                f"split = {split} s leaves no stream: clicks that can be scored end at {last - 1} s"
                + ("" if self.until is None else f", and the replay ends at until = {self.until} s")
            )
        interval = schema.interval if self.interval is None else self.interval
        return FullPlan(split, interval, until, self.warm_labels, self.publish_lag)


@dataclass(frozen=True)
class FullPlan:
    """A plan in which everything is decided."""

    split: int
    interval: int
    until: int
    warm_labels: str
    publish_lag: int

    def __len__(self) -> int:
        return -(-(self.until - self.split) // self.interval)

    def bounds(self, number: int) -> tuple[int, int]:
        """Start and end of an interval."""
        start = self.split + number * self.interval
        return start, start + self.interval


@dataclass(frozen=True, eq=False)
class Scored:
    """One interval, done: its clicks and the log-odds they were served."""

    number: int
    start: int
    row: Ints
    log_odds: npt.NDArray[np.float32]
    reveals: int


def replay(engine: Engine, source: TableSource, plan: FullPlan, first: int = 0) -> Iterator[Scored]:
    """Score each interval with the model as of its start, then let the engine learn from it."""
    for number in range(first, len(plan)):
        start, end = plan.bounds(number)
        clicks = source.clicks(start, min(end, plan.until))
        log_odds = engine.score(clicks.x)
        reveals = engine.tick(source, start, end)
        yield Scored(number, start, clicks.row, log_odds, reveals)
