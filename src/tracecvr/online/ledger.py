"""The ledger: the live twin of `TableSource`. Same reveals, same order, from an event log instead of a table.

It is a table that grows by an interval at a time and forgets, at its other end, what no horizon needs any more. Rows
keep their numbers. A ledger that is built anew from the log is the same ledger.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tracecvr.data.table import NEVER, ClickTable, Ints
from tracecvr.online.event_log import EventLog, Grid
from tracecvr.online.events import CLICK, Reader
from tracecvr.stream.reveal import Reveals, Schedule
from tracecvr.stream.source import TableSource

_CHUNKS = 64
"""How many sorted pieces an index may have before they are merged into one."""

BAD_VALUES = "bad_values."
"""What counts of values that could not be read begin with; then comes the column."""

MATURE = 24
"""Intervals for which clicks are kept after their labels have become final: by them a tick is judged."""


def memory_of(grid: Grid, events: int) -> int:
    """How many seconds a ledger keeps clicks, if their events take so long. Answers are asked for whole intervals."""
    return max(events, grid.d_max + MATURE * grid.interval) + grid.interval


def first_needed(grid: Grid, memory: int, done: int) -> int:
    """The interval from which on the log has to be read by a ledger that goes on after `done` intervals: for the oldest
    click that it needs, an action may have been waiting for d_max when the click came."""
    return max(0, done - 1 - -(-(memory + grid.d_max) // grid.interval))


class KnownAction(NamedTuple):
    """An action as the log tells it; ordered by when it became known."""

    seen: int
    ts: int
    kind: int
    click: int


class Ledger(TableSource):
    """Clicks that became known since `memory` seconds before the newest interval, with what is known of them."""

    def __init__(self, base: ClickTable, grid: Grid, reader: Reader, log: EventLog, memory: int) -> None:
        self.grid, self.reader, self.log, self.memory = grid, reader, log, memory
        self.counts: Counter[str] = Counter()
        self.done = 0
        """How many intervals of the stream are in it."""
        self._base = base
        self._pending: dict[int, list[KnownAction]] = {}
        self._start(0)

    def rebuild(self, done: int, rows: int, counts: dict[str, int]) -> None:
        """Become the ledger that had `done` intervals and, counting those dropped, `rows` rows in it."""
        self._start(first_needed(self.grid, self.memory, done))
        while self.done < done:
            self.advance()
        self.counts = Counter(counts)
        self.first_row = rows - len(self.table)

    def advance(self) -> None:
        """Take in the next interval."""
        start, end = self.grid.bounds(self.done)
        rows = self.log.between(start, end)
        first = len(self._columns)
        fresh = self._add([row for row in rows if row[0] == CLICK])
        self._answer(first, self.log.answers(start, end))
        actions = [KnownAction(seen, ts, kind, click) for kind, click, ts, seen, _ in rows if kind > CLICK]
        self._join(actions + [action for click in fresh for action in self._pending.pop(click, ())])
        self._expire(end)
        self.done += 1
        self._drop(end - self.memory)

    def pass_over(self, closed: int) -> None:
        """Pass over intervals up to `closed` in which nothing became known: they would leave everything as it is."""
        if self._pending:  # their time runs out with each interval
            return
        known = self.log.next_known(self.grid.bounds(self.done)[0])
        until = closed if known is None else min(closed, self.grid.number(known))
        if until > self.done:
            self.done = until
            self._drop(self.grid.bounds(until)[0] - self.memory)

    @property
    def idle(self) -> bool:
        """Whether nobody can ask for a click any more, nor could in the last interval: all are too long ago."""
        newest = self.table.arrival_ts[-1:]
        return not len(newest) or newest[0] < self.grid.bounds(self.done - 1)[0] - self.memory

    @property
    def rows(self) -> int:
        """How many clicks there have been, the base's included."""
        return self.first_row + len(self.table)

    def reveals(self, schedule: Schedule, start: int, end: int, truth: bool = False) -> Reveals:
        events = super().reveals(schedule, start, end, truth)
        erased = self._columns["erased"]
        if not erased.any():
            return events
        return events.take(torch.from_numpy(np.flatnonzero(~erased[events.row.numpy() - self.first_row])))

    def known_between(self, start: int, end: int) -> Ints:
        """Positions in the table of clicks that became known in [start, end) and were not erased."""
        first, last = self.table.rows_between(start, end)
        return first + np.flatnonzero(~self._columns["erased"][first:last])

    def converted(self, position: Ints, clock: int) -> npt.NDArray[np.bool_]:
        """Whether clicks are known to have converted at a clock."""
        return self._converted(position, np.full(len(position), clock))

    def at(self, position: Ints, clock: int) -> Reveals:
        """Clicks as they are known at a clock."""
        return self._reveal(position, np.full(len(position), clock))

    def served(self, position: Ints) -> tuple[npt.NDArray[np.float32], Ints]:
        """The log-odds that clicks were answered with, and the versions that answered; NaN and -1 of those that were
        not: clicks of the base, and those that came by `ingest` or from a broker."""
        return self._columns["score"][position], self._columns["version"][position]

    # Taking in.

    def _start(self, first: int) -> None:
        """Begin with an interval: if it is the stream's first, with the clicks of the base as known at the split. Of a
        later one, whatever is needed has become known since, and so has all that is known of it."""
        t, split = self._base, self.grid.split
        begin, end = np.searchsorted(t.arrival_ts, (split if first else split - self.memory, split))
        known = t.known_ts[begin:end] < split
        undone = np.full(end - begin, NEVER) if t.refund_ts is None else t.refund_ts[begin:end]
        self.first_row, self.done = int(begin), first
        self._columns = _Columns(
            {
                "x": np.array(t.x[begin:end]),
                "click_ts": np.array(t.click_ts[begin:end]),
                "click_id": np.array(t.click_id[begin:end]),
                "action_ts": np.where(known, t.action_ts[begin:end], NEVER),
                "known_ts": np.where(known, t.known_ts[begin:end], NEVER),
                "arrival_ts": np.array(t.arrival_ts[begin:end]),
                "refund_ts": np.where(undone < split, undone, NEVER),
                "erased": np.zeros(end - begin, np.bool_),
                "score": np.full(end - begin, np.nan, np.float32),
                "version": np.full(end - begin, -1),
            }
        )
        self._index = _Index()
        self._index.add(self._columns["click_id"], np.arange(end - begin))
        self._pending.clear()
        super().__init__(self._view())
        for action in range(len(t.schema.actions)):
            self._seen_between(action, 0, 0)  # sorts them, once

    def _add(self, clicks: list[tuple[Any, ...]]) -> tuple[int, ...]:
        """Append the clicks that are new, sorted as they are; returns their ids."""
        inside = [row for row in clicks if row[3] - row[2] <= self.grid.d_max]  # of others all is over: nobody is told
        known = self._rows_of([click for _, click, *_ in inside])
        fresh = [row for row, old in zip(inside, known, strict=True) if old < 0 or row[4] is None]
        self.counts["repeated_clicks"] += len(inside) - len(fresh)
        if not fresh:
            return ()
        _, click, ts, seen, bodies = zip(*fresh, strict=True)
        erased, first = np.array([body is None for body in bodies]), len(self._columns)
        x = np.zeros((len(fresh), len(self.schema.features)), np.int32)
        x[~erased], unreadable = self.reader.encoded_counting([body for body in bodies if body is not None])
        self.counts.update({f"{BAD_VALUES}{column}": count for column, count in unreadable.items()})
        blank = np.full((len(fresh), len(self.schema.actions)), NEVER)
        self._columns.append(
            {
                "x": x,
                "click_ts": np.array(ts, np.int64),
                "click_id": np.array(click, np.int64),
                "action_ts": blank,
                "known_ts": blank,
                "arrival_ts": np.array(seen, np.int64),
                "refund_ts": blank[:, 0],
                "erased": erased,  # their rows stay, since others are known by theirs; they are never shown
                "score": np.full(len(fresh), np.nan, np.float32),
                "version": np.full(len(fresh), -1),
            }
        )
        rows = np.arange(first, len(self._columns))
        self._index.add(np.array(click, np.int64)[~erased], rows[~erased])
        self.table = self._view()
        self.late = np.concatenate([self.late, rows[np.array(ts) != np.array(seen)]])
        return click

    def _answer(self, first: int, answers: list[tuple[int, float, int]]) -> None:
        """Note what clicks were answered, of those in the rows from `first` on."""
        known = {click: (score, version) for click, score, version in answers}
        for row, click in enumerate(self._columns["click_id"][first:].tolist() if known else (), start=first):
            if click in known:
                self._columns["score"][row], self._columns["version"][row] = known[click]

    def _join(self, actions: list[KnownAction]) -> None:
        """Give actions to their clicks: of each kind the first that became known. Those without a click wait for it."""
        ours = []
        for action, row in zip(actions, self._rows_of([action.click for action in actions]), strict=True):
            if row < 0:
                self._pending.setdefault(action.click, []).append(action)
            else:  # one that came before its click becomes known with it
                seen = max(action.seen, int(self._columns["arrival_ts"][row]))
                ours.append((action._replace(seen=seen), row))
        happened: list[list[tuple[int, int]]] = [[] for _ in self.schema.actions]
        for action, row in sorted(ours):
            if action.kind > len(self.schema.actions):
                self._take_back(row, action)
            elif self._counts(row, action):
                column = action.kind - 1
                self._columns["action_ts"][row, column] = action.ts
                self._columns["known_ts"][row, column] = action.seen
                happened[column].append((action.seen, row))
        for column, pairs in enumerate(happened):
            self._extend(column, sorted(pairs))

    def _rows_of(self, clicks: list[int]) -> list[int]:
        """The rows of clicks, -1 of those not known, and of those that are there only because none was dropped yet."""
        oldest = np.searchsorted(self.table.arrival_ts, self.grid.bounds(self.done)[1] - self.memory)
        rows = self._index.rows(np.array(clicks, np.int64))
        known_rows: list[int] = np.where(rows >= oldest, rows, -1).tolist()
        return known_rows

    def _counts(self, row: int, action: KnownAction) -> bool:
        """Whether an action changes anything; if not, why is counted."""
        delay = action.ts - int(self._columns["click_ts"][row])
        if delay < 0:
            self.counts["before_click"] += 1
        elif delay > self.grid.d_max:
            self.counts["out_of_window"] += 1
        elif self._columns["action_ts"][row, action.kind - 1] != NEVER:
            self.counts["repeated_actions"] += 1
        else:
            return True
        return False

    def _take_back(self, row: int, action: KnownAction) -> None:
        self.counts["refunds"] += 1
        undone = self._columns["refund_ts"]
        undone[row] = min(int(undone[row]), action.seen)

    def _extend(self, column: int, pairs: list[tuple[int, int]]) -> None:
        """Keep the actions in the order in which they became known: those of an interval come after all before it."""
        if pairs:
            seen, rows = (np.array(values, np.int64) for values in zip(*pairs, strict=True))
            old_rows, old_seen = self._by_seen[column]
            self._by_seen[column] = np.concatenate([old_rows, rows]), np.concatenate([old_seen, seen])

    # Forgetting.

    def _expire(self, now: int) -> None:
        """Give up on actions whose click has not come in d_max."""
        for click, waiting in list(self._pending.items()):
            kept = [action for action in waiting if now - action.seen <= self.grid.d_max]
            self.counts["orphans"] += len(waiting) - len(kept)
            if kept:
                self._pending[click] = kept
            else:
                del self._pending[click]

    def _drop(self, before: int) -> None:
        """Forget clicks that became known before a time, once they are half of what is kept: copying is not free."""
        gone = int(np.searchsorted(self.table.arrival_ts, before))
        if 2 * gone < len(self.table):
            return
        self._columns.drop(gone)
        self._index = _Index()
        kept = np.flatnonzero(~self._columns["erased"])
        self._index.add(self._columns["click_id"][kept], kept)
        self.late = self.late[self.late >= gone] - gone
        for action, (rows, seen) in self._by_seen.items():
            ours = rows >= gone
            self._by_seen[action] = rows[ours] - gone, seen[ours]
        self.first_row += gone
        self.table = self._view()

    def _view(self) -> ClickTable:
        c = self._columns
        return ClickTable(
            x=c["x"],
            click_ts=c["click_ts"],
            click_id=c["click_id"],
            action_ts=c["action_ts"],
            schema=self._base.schema,
            refund_ts=c["refund_ts"],
            late_known_ts=c["known_ts"],
            late_arrival_ts=c["arrival_ts"],
        )


class _Columns:
    """Arrays that grow at the end, in place as long as there is room."""

    def __init__(self, columns: dict[str, npt.NDArray[Any]]) -> None:
        self._held, self._size = columns, len(columns["click_ts"])

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._held[name][: self._size]

    def append(self, rows: dict[str, npt.NDArray[Any]]) -> None:
        size = self._size + len(rows["click_ts"])
        for name, column in self._held.items():
            if size > len(column):
                grown = np.empty((max(size, 3 * len(column) // 2), *column.shape[1:]), column.dtype)
                grown[: self._size] = column[: self._size]
                self._held[name] = grown
            self._held[name][self._size : size] = rows[name]
        self._size = size

    def drop(self, rows: int) -> None:
        self._held = {name: np.array(self[name][rows:]) for name in self._held}
        self._size -= rows


class _Index:
    """From click ids to rows, in sorted pieces: one large one, and a small one for each interval since."""

    def __init__(self) -> None:
        self._pieces: list[tuple[Ints, Ints]] = []

    def add(self, ids: Ints, rows: Ints) -> None:
        order = np.argsort(ids, kind="stable")
        self._pieces.append((ids[order], rows[order]))
        if len(self._pieces) > _CHUNKS:
            ids, rows = (np.concatenate(parts) for parts in zip(*self._pieces, strict=True))
            self._pieces = []
            self.add(ids, rows)

    def rows(self, ids: Ints) -> Ints:
        """The row of each click, -1 if there is none."""
        result = np.full(len(ids), -1, np.int64)
        for known, rows in self._pieces:
            if len(known):
                at = np.minimum(np.searchsorted(known, ids), len(known) - 1)
                result = np.where(known[at] == ids, rows[at], result)
        return result
