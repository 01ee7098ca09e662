"""Replay: predict the next interval, then learn from what was revealed in it, interval by interval."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from tracecvr.base.config import Seconds, option
from tracecvr.base.durations import duration, exact_duration
from tracecvr.base.errors import UserError
from tracecvr.data.outages import Outages, pair
from tracecvr.data.table import ClickTable, Ints
from tracecvr.learn.engine import Engine
from tracecvr.monitor.monitor import Monitor
from tracecvr.stream import WARM_LABELS
from tracecvr.stream.source import TableSource

_MOST_INTERVALS = 10_000
"""So many may be empty: it does not take long."""


@dataclass(frozen=True)
class Plan:
    """How a log is replayed; times are in seconds since the origin of the log.

    Examples
    --------
    >>> from tracecvr.checks.subject import small_log
    >>> Plan(publish_lag=1).resolve(small_log()).interval
    21600
    """

    split: Seconds | None = option(None, "start of the stream; the dataset's by default", above=0)
    interval: Seconds | None = option(None, "length of an interval; the dataset's by default", above=0)
    until: Seconds | None = option(None, "end of the stream; by default the last click that can be scored", above=0)
    judge_from: Seconds | None = option(
        None, "only clicks from this time on count in metrics; all of the stream by default", above=0
    )
    warm_labels: str = option(
        WARM_LABELS[0],
        "labels of the warm-up part: as known at the split (censored), or final, even if that is later (mature)",
        choices=WARM_LABELS,
    )
    publish_lag: int = option(0, "score with the model of so many intervals ago", low=0)
    outages: tuple[Seconds, ...] = option(
        (),
        "start and end of each time in which conversions were not recorded (14d,16d), beside those of the log",
        low=0,
    )
    hold_on_outage: bool = option(
        True, "learn nothing while conversions have stopped arriving, nor later from clicks that were open then"
    )
    alarms_by: str | None = option(None, "feature whose values are watched for alarms; the first with few values")

    def resolve(self, table: ClickTable) -> FullPlan:
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
        if len(range(*table.rows_between(split, until))) == 0:
            raise UserError(
                f"split = {exact_duration(split)} leaves no stream: clicks are judged up to {duration(max(last, 0))}: "
                f"labels end at {exact_duration(schema.observed_until)} and d_max is {exact_duration(schema.d_max)}"
                + ("" if self.until is None else f", and the replay ends at until = {exact_duration(self.until)}")
            )
        interval = schema.interval if self.interval is None else self.interval
        judge_from = split if self.judge_from is None else self.judge_from
        facts = {"split": split, "interval": interval, "until": until, "judge_from": judge_from}
        plan = FullPlan(**asdict(self) | facts | {"outages": schema.outages + pair(self.outages, "outages")})
        clicks = len(range(*plan.stream_rows(table)))
        if len(plan) > max(_MOST_INTERVALS, 10 * clicks):
            raise UserError(
                f"interval = {exact_duration(interval)} makes {len(plan):,} intervals of {clicks:,} clicks, nearly all "
                "of them empty: give a longer one; a number without a unit is in seconds, 5min and 1h are others"
            )
        first, last = plan.judged_rows(table)
        if not split <= judge_from < until or first == last:
            raise UserError(
                f"judge_from = {judge_from} s leaves no click to judge: the stream runs from split = {split} s to "
                f"{until} s; choose a time in between"
            )
        return plan


@dataclass(frozen=True)
class FullPlan:
    """A plan in which everything is decided."""

    split: int
    interval: int
    until: int
    warm_labels: str
    publish_lag: int
    judge_from: int = 0
    """Clicks that came earlier are replayed but not judged."""
    outages: Outages = ()
    hold_on_outage: bool = True
    alarms_by: str | None = None

    def stream_rows(self, table: ClickTable) -> tuple[int, int]:
        """First and last row (exclusive) of the clicks of the stream."""
        return table.rows_between(self.split, self.until)

    def judged_rows(self, table: ClickTable) -> tuple[int, int]:
        """First and last row (exclusive) of the clicks that count in metrics: the one place that decides this."""
        return table.rows_between(max(self.split, self.judge_from), self.until)

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


def replay(
    engine: Engine, source: TableSource, plan: FullPlan, first: int = 0, monitor: Monitor | None = None
) -> Iterator[Scored]:
    """Score each interval with the model as of its start, then let the engine learn from it."""
    for number in range(first, len(plan)):
        start, end = plan.bounds(number)
        clicks = source.clicks(start, min(end, plan.until))
        log_odds = engine.score(clicks.x)
        if monitor is not None and end <= plan.until:  # part of an interval would look like less traffic
            monitor.observe(source, start, clicks.x.numpy(), log_odds)
        if plan.hold_on_outage and monitor is not None:
            source.outages = plan.outages + monitor.outages(end)
        reveals = engine.tick(source, start, end)
        yield Scored(number, start, clicks.row, log_odds, reveals)
