"""TableSource: clicks and reveals of any interval as slices of a table sorted by time.

Training sees a log through a source only. A source hands out what is inside the interval asked for, as it was
known at that moment; the table itself stays here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from tracecvr.data.outages import Outages, hides
from tracecvr.data.table import NEVER, ClickTable, Ints, Schema
from tracecvr.stream.reveal import (
    After,
    LabelledReveals,
    On,
    Reveals,
    Schedule,
    Trigger,
    add_outcomes,
    is_refunded,
    reveal,
)


@dataclass(frozen=True, eq=False)
class Clicks:
    """Clicks to be scored: features and nothing of what follows."""

    row: Ints
    x: torch.Tensor

    def __len__(self) -> int:
        return len(self.row)


class TableSource:
    """A log as the engine sees it: a prepared table here, a live ledger in the online service. `first_row` is what the
    first row of the table is called outside: not 0 if rows before it have been dropped."""

    first_row = 0
    outages: Outages = ()
    """Events that one of them makes false are not shown, and their clicks are in no history."""

    def __init__(self, table: ClickTable) -> None:
        self.table, self.outages = table, table.schema.outages
        late = None if table.late_arrival_ts is None else np.flatnonzero(table.late_arrival_ts != table.click_ts)
        self.late = np.empty(0, np.int64) if late is None else late
        self._by_seen: dict[int, tuple[Ints, Ints]] = {}

    @property
    def schema(self) -> Schema:
        return self.table.schema

    def clicks(self, start: int, end: int) -> Clicks:
        """Clicks that became known in [start, end): as a rule, that happened in it. Their rows are consecutive."""
        first, last = self.table.rows_between(start, end)
        x = torch.as_tensor(np.array(self.table.x[first:last]))
        return Clicks(np.arange(first, last, dtype=np.int64) + self.first_row, x)

    def reveals(self, schedule: Schedule, start: int, end: int, truth: bool = False) -> Reveals:
        """Events that fire in [start, end), ordered by (fire time, click, trigger)."""
        fired = [self._fire(trigger, start, end) for trigger in schedule]
        row = np.concatenate([f[0] for f in fired]) if fired else np.empty(0, np.int64)
        clock = np.concatenate([f[1] for f in fired]) if fired else np.empty(0, np.int64)
        trigger = np.repeat(np.arange(len(fired), dtype=np.int64), [len(f[0]) for f in fired])
        # Each trigger's events are in order already: one key and a stable sort, which is good at merging such runs.
        order = np.argsort((clock - start) * len(self.table) + row, kind="stable")
        if self.outages:
            order = order[~hides(self.outages, self.table.click_ts[row[order]], clock[order])]
        return self._reveal(row[order], clock[order], trigger[order], truth)

    def arrivals(self, start: int, end: int) -> Reveals:
        """Conversions that become known in [start, end), whether or not an outage hides what they teach."""
        row, clock = self._fire(On(0), start, end)
        return self._reveal(row, clock)

    def known_at(self, clock: int, start: int, end: int) -> Reveals:
        """Every click of [start, end) as it is known at one clock: for posteriors of open clicks."""
        first, last = self.table.rows_between(start, min(end, clock + 1))
        row = np.arange(first, last, dtype=np.int64)
        return self._reveal(row, np.full(len(row), clock, dtype=np.int64))

    def history(self, end: int, labels: str, start: int = 0) -> History:
        """Clicks of [start, end), labelled in full (`mature`) or as known at the end (`censored`)."""
        first, last = self.table.rows_between(start, end)
        history = History(self, np.arange(first, last, dtype=np.int64), end, censored=labels == "censored")
        if not self.outages:
            return history
        click_ts = self.table.click_ts[first:last]
        hidden = hides(self.outages, click_ts, history.clock(click_ts))
        return replace(history, rows=history.rows[~hidden])

    def _fire(self, trigger: Trigger, start: int, end: int) -> tuple[Ints, Ints]:
        """Rows and clocks of one trigger's events in [start, end)."""
        if isinstance(trigger, After):
            return self._fire_after(trigger, start, end)
        return self._fire_on(trigger, start, end)

    def _fire_after(self, trigger: After, start: int, end: int) -> tuple[Ints, Ints]:
        first, last = self.table.rows_between(start - trigger.seconds, end - trigger.seconds)
        row = np.arange(first, last, dtype=np.int64)
        fire = self.table.click_ts[first:last] + trigger.seconds
        if len(late := self._late_between(trigger.seconds, start, end)):
            row, fire = self._with_late(late, trigger.seconds, row, fire, start, end)
        if trigger.seen is not None:
            converted = self._converted(row, fire)
            row, fire = row[converted == trigger.seen], fire[converted == trigger.seen]
        return row, fire

    def _late_between(self, seconds: int, start: int, end: int) -> Ints:
        """Clicks that came late: all that matter to what fires in [start, end), so long after the click; or more."""
        return self.late

    def _with_late(self, late: Ints, seconds: int, row: Ints, fire: Ints, start: int, end: int) -> tuple[Ints, Ints]:
        """Clicks that came late are not where their time says; what is overdue by then fires when they come."""
        t = self.table
        due = np.maximum(t.click_ts[late] + seconds, t.arrival_ts[late])
        now, on_time = (start <= due) & (due < end), t.arrival_ts[row] == t.click_ts[row]
        return np.concatenate([row[on_time], late[now]]), np.concatenate([fire[on_time], due[now]])

    def _fire_on(self, trigger: On, start: int, end: int) -> tuple[Ints, Ints]:
        table = self.table
        row = self._seen_between(trigger.action, start, end)
        fire = table.known_ts[row, trigger.action]
        wait = fire - table.click_ts[row]
        delay = table.action_ts[row, trigger.action] - table.click_ts[row]
        keep = (wait > trigger.later_than) & (delay <= table.schema.d_max)
        if trigger.action == 0 and table.refund_ts is not None:  # taken back in the same second: never visible
            keep &= self._converted(row, fire)
        return row[keep], fire[keep]

    def _converted(self, row: Ints, clock: Ints) -> npt.NDArray[np.bool_]:
        """Whether a conversion within d_max is known at a clock, and still stands."""
        t, d_max = self.table, self.table.schema.d_max
        delay = t.action_ts[row, 0] - t.click_ts[row]
        known: npt.NDArray[np.bool_] = (delay <= d_max) & (t.known_ts[row, 0] <= clock)
        return known if t.refund_ts is None else known & ~is_refunded(t.refund_ts[row], t.click_ts[row], clock, d_max)

    def _seen_between(self, action: int, start: int, end: int) -> Ints:
        if action not in self._by_seen:
            happened = np.flatnonzero(self.table.known_ts[:, action] != NEVER)
            seen = self.table.known_ts[happened, action]
            order = np.argsort(seen, kind="stable")
            self._by_seen[action] = happened[order], seen[order]
        rows, seen = self._by_seen[action]
        first, last = np.searchsorted(seen, (start, end))
        return rows[first:last]

    def _reveal(
        self,
        row: Ints,
        clock: Ints,
        trigger: Ints | None = None,
        truth: bool = False,
        known_ts: Ints | None = None,
    ) -> Reveals:
        t = self.table
        undone = None if t.refund_ts is None else t.refund_ts[row]
        events = reveal(
            x=t.x[row],
            click_ts=t.click_ts[row],
            action_ts=t.action_ts[row],
            known_ts=t.known_ts[row] if known_ts is None else known_ts,
            clock=clock,
            d_max=t.schema.d_max,
            row=row + self.first_row,
            trigger=trigger,
            refund_ts=undone,
            arrival_ts=t.arrival_ts[row],
        )
        return add_outcomes(events, t.click_ts[row], t.action_ts[row], t.schema.d_max, undone) if truth else events


@dataclass(frozen=True, eq=False)
class History:
    """Warm-up clicks with their labels: rows of a table. If censored, nothing later than `end` is known, not even as
    truth."""

    source: TableSource
    rows: Ints
    end: int
    censored: bool

    def __len__(self) -> int:
        return len(self.rows)

    def batches(self, size: int, rng: np.random.Generator | None) -> Iterator[LabelledReveals]:
        """All clicks once, shuffled by `rng` (in time order without it), cut into batches."""
        rows = self.rows if rng is None else self.rows[rng.permutation(len(self))]
        for start in range(0, len(self), size):
            yield self._batch(rows[start : start + size], rng)

    def split_off(self, share: float) -> tuple[History, History]:
        """This history without its last clicks, and the last ones: a share of all."""
        cut = len(self) - round(share * len(self))
        return replace(self, rows=self.rows[:cut]), replace(self, rows=self.rows[cut:])

    def clock(self, click_ts: Ints) -> Ints:
        """When clicks are looked at."""
        mature = click_ts + self.source.table.schema.d_max
        return np.minimum(mature, self.end - 1) if self.censored else mature  # what comes at the end is the next's

    def _batch(self, row: Ints, rng: np.random.Generator | None) -> LabelledReveals:
        table = self.source.table
        clock = self.clock(table.click_ts[row])
        action_ts = known_ts = table.action_ts[row]  # in full, whenever it became known
        undone = None if table.refund_ts is None else table.refund_ts[row]
        if self.censored:
            known_ts = table.known_ts[row]
            action_ts = np.where(known_ts <= clock[:, None], action_ts, NEVER)
            undone = None if undone is None else np.where(undone <= clock[:, None], undone, NEVER)
        events = replace(self.source._reveal(row, clock, known_ts=known_ts), rng=rng)
        span = torch.as_tensor(self.end - table.click_ts[row])
        return add_outcomes(events, table.click_ts[row], action_ts, table.schema.d_max, undone, span)
