"""The ledger: the live twin of `TableSource`. Same reveals, same order, from an event log instead of a table.

It is a table that grows by an interval at a time and forgets what no horizon needs any more. Rows keep their numbers.
An action finds its click by the event log, which has an index of ids. A learner builds it from the log when it starts,
when it is found to be damaged and when something was erased: it is always the same ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from tracecvr.base.devices import array_of
from tracecvr.data.table import NEVER, TURNS, ClickTable, Ints
from tracecvr.online.ledger.open_clicks import ROWS, OpenClicks
from tracecvr.online.ledger.payments import UNKNOWN, KnownAction, Payment, find_turns
from tracecvr.online.log.event_log import Accepted, EventLog
from tracecvr.online.log.events import CLICK, Reader, amount_of
from tracecvr.online.log.times import Grid
from tracecvr.stream.reveal import Reveals, Schedule
from tracecvr.stream.source import TableSource

BAD_VALUES = "bad_values."
"""What counts of values that could not be read begin with; then comes the column."""

MATURE = 24
"""Intervals for which clicks are kept after their labels have become final: by them a tick is judged."""


def memory_of(grid: Grid, events: int) -> int:
    """How many seconds a ledger keeps clicks, if their events take so long. Answers are asked for whole intervals."""
    return max(events, grid.d_max + MATURE * grid.interval) + grid.interval


def first_held(grid: Grid, memory: int, done: int) -> int:
    """The interval of the oldest click that a ledger needs which goes on after `done` intervals."""
    return max(0, done - 1 - -(-memory // grid.interval))


class Ledger(TableSource):
    """Clicks that became known since `memory` seconds before the newest interval, with what is known of them. With a
    folder for its file, call `begin` or `rebuild` first."""

    def __init__(
        self, base: ClickTable, grid: Grid, reader: Reader, log: EventLog, memory: int, folder: Path | None = None
    ) -> None:
        self.grid, self.reader, self.log, self.memory = grid, reader, log, memory
        self.counts: Counter[str] = Counter()
        self.done = self.first_row = self.erasures = 0
        """How many intervals of the stream are in it, what its first row is called, and erasures that it knows of."""
        self._base, self._base_rows, self._in_base = base, 0, BaseClicks(base, grid.split, memory)
        schema = base.schema
        self.database = OpenClicks(folder, len(schema.features), len(schema.actions))
        self._erased = cast("npt.NDArray[np.bool_]", self.database.column("erased"))
        self.table = self._view()
        if folder is None:
            log.refuse_damage()
            self.begin()

    def rebuild(self, done: int, rows: int, counts: dict[str, int]) -> None:
        """Become, from the log alone, the ledger that had `done` intervals and, counting those dropped, `rows` rows."""
        # An action may have been waiting for d_max when the oldest click came.
        self.begin(first_held(self.grid, self.memory + self.grid.d_max, done))
        self.advance_to(done)
        self.counts = Counter(counts)
        self.first_row = rows - len(self.table)

    def advance_to(self, done: int) -> None:
        while self.done < done:
            if not self.advance():
                self.pass_over(done)

    def advance(self) -> bool:
        """Take in the next interval. Whether anything became known in it."""
        start, end = self.grid.bounds(self.done)
        rows = self.log.between(start, end)
        fresh = self._add(self._select_fresh([row for row in rows if row.kind == CLICK]))
        actions = [KnownAction(r.seen, r.ts, r.kind, r.click, amount_of(r.body)) for r in rows if r.kind > CLICK]
        waited = self.database.take_waiting(fresh)
        self._join(actions + waited)
        self.counts["orphans"] += self.database.give_up(end - self.grid.d_max)  # their clicks have not come in d_max
        self.done += 1
        self._drop(end - self.memory)
        self.database.flush()
        return bool(rows)

    def pass_over(self, closed: int) -> None:
        """Pass over intervals up to `closed` in which nothing became known: they would leave everything as it is."""
        now = self.grid.bounds(self.done)[0]
        if self.database.has_waiting():  # their time runs out with each interval
            return
        known = self.log.next_known(now)
        until = closed if known is None else min(closed, self.grid.number(known))
        if until > self.done:
            self.done = until
            self._drop(self.grid.bounds(until)[0] - self.memory)

    @property
    def idle(self) -> bool:
        """Whether nobody can ask for a click any more, nor could in the last interval: all are too long ago."""
        newest = self.table.arrival_ts[len(self.table) - 1 :]
        return not len(newest) or bool(newest[0] < self.grid.bounds(self.done - 1)[0] - self.memory)

    @property
    def rows(self) -> int:
        return self.first_row + len(self.table)

    def apply_erasures(self) -> bool:
        """Forget what was erased from the log since: build the ledger again from it. Returns whether anything was."""
        if self.erasures == self.log.facts().get("erasures", 0):
            return False
        self.rebuild(self.done, self.rows, dict(self.counts))
        return True

    # Asking.

    def reveals(self, schedule: Schedule, start: int, end: int, truth: bool = False) -> Reveals:
        events = super().reveals(schedule, start, end, truth)
        erased = self._erased[array_of(events.row) - self.first_row]
        return events.take(torch.as_tensor(np.flatnonzero(~erased))) if erased.any() else events

    def known_between(self, start: int, end: int) -> Ints:
        """Positions in the table of clicks that became known in [start, end) and were not erased."""
        first, last = self.table.rows_between(start, end)
        return first + np.flatnonzero(~self._erased[first:last])

    def changed_between(self, start: int, end: int) -> Ints:
        """Positions of clicks that came in [start, end), or whose conversion came, was taken back or regained in it."""
        first, last = self.table.rows_between(start, end)
        actions = len(self.schema.actions)
        kinds = (0, *range(actions, actions + len(TURNS)))
        return np.unique(np.concatenate([np.arange(first, last), *(self._seen_between(k, start, end) for k in kinds)]))

    def newest_between(self, start: int, end: int, count: int) -> Ints:
        """The last of them, at most so many: however many there are, no more are looked at than that takes."""
        first, last = self.table.rows_between(start, end)
        newest = np.empty(0, np.int64)
        while last > first and len(newest) < count:
            at = max(first, last - count)
            newest = np.concatenate([at + np.flatnonzero(~self._erased[at:last]), newest])
            last = at
        return newest[-count:]

    def has_converted(self, position: Ints, clock: int) -> npt.NDArray[np.bool_]:
        return self._converted(position, np.full(len(position), clock))

    def at(self, position: Ints, clock: int) -> Reveals:
        return self._reveal(position, np.full(len(position), clock))

    def answers_of(self, position: Ints) -> npt.NDArray[np.float32]:
        """The log-odds that clicks were answered with; NaN without an answer."""
        score: npt.NDArray[np.float32] = self.database.column("score")[position]
        return score

    def _late_between(self, seconds: int, start: int, end: int) -> Ints:
        """Late clicks that happened in, or came in, [start, end) less so many seconds, or came in it."""
        happened = self.database.late_between(start - seconds, end - seconds) - self.database.first
        parts = [happened[happened >= 0]]
        for since, until in ((start, end), (start - seconds, end - seconds)):
            first, last = self.table.rows_between(since, until)
            parts.append(first + np.flatnonzero(self.table.arrival_ts[first:last] != self.table.click_ts[first:last]))
        return np.unique(np.concatenate(parts))

    def _seen_between(self, action: int, start: int, end: int) -> Ints:
        rows = self.database.seen_between(action + 1, start, end)
        position: Ints = rows[rows >= self.database.first] - self.database.first
        return position

    # Taking in.

    def begin(self, first: int = 0) -> None:
        """Begin with an interval: before the stream's first, with the clicks of the base as known at the split."""
        end = self._in_base.end
        begin = end if first else self._in_base.first
        self.database.clear()
        self.erasures = self.log.facts().get("erasures", 0)
        self.first_row, self.done, self._base_rows = begin, first, end - begin
        for start in range(begin, end, ROWS):
            self._take_over(slice(start, min(start + ROWS, end)))
            self.database.flush()

    def _take_over(self, part: slice) -> None:
        t, split = self._base, self.grid.split
        size = part.stop - part.start
        blank = {"erased": np.zeros(size, np.bool_), "score": np.full(size, np.nan)}
        block = blank | {name: getattr(t, name)[part] for name in ("x", "click_ts", "click_id", "arrival_ts")}
        number = self.database.append(block)
        late = block["arrival_ts"] != block["click_ts"]
        self.database.note_late(block["click_ts"][late], number[late])
        row, column = np.nonzero(t.known_ts[part] < split)
        ts, seen = t.action_ts[part][row, column], t.known_ts[part][row, column]
        self.database.note(number[row], column + 1, ts, seen)
        bought = zip(number[row].tolist(), seen.tolist(), ts.tolist(), column.tolist(), strict=True)
        self.database.pay((r, Payment(s, at, False, UNKNOWN)) for r, s, at, kind in bought if kind == 0)
        if t.refund_ts is not None:
            turns = t.refund_ts[part]
            row, which = np.nonzero(turns < split)
            at = turns[row, which]
            self.database.note(number[row], len(t.schema.actions) + 1 + which, at, at)
            turned = zip(number[row].tolist(), at.tolist(), which.tolist(), strict=True)
            self.database.pay((r, Payment(s, s, w % 2 == 0, UNKNOWN)) for r, s, w in turned)

    def _view(self) -> ClickTable:
        """The database as a table. Its columns tell what they hold now."""
        names = ("x", "click_ts", "click_id", "action_ts", "refund_ts")
        columns: dict[str, Any] = {name: self.database.column(name) for name in names}
        columns |= {f"late_{name}": self.database.column(name) for name in ("known_ts", "arrival_ts")}
        return ClickTable(schema=self._base.schema, **columns)

    def _select_fresh(self, clicks: Sequence[Accepted]) -> list[Accepted]:
        """The clicks of the next interval that get a row: not those after their d_max, nor those of the base."""
        inside = [row for row in clicks if row.seen - row.ts <= self.grid.d_max]
        end = self.grid.bounds(self.done)[1]
        known = self._in_base.rows_of(np.array([row.click for row in inside], np.int64), end)
        fresh = [row for row, old in zip(inside, known.tolist(), strict=True) if old < 0 or row.body is None]
        self.counts["repeated_clicks"] += len(inside) - len(fresh)
        return fresh

    def _add(self, fresh: Sequence[Accepted]) -> Ints:
        """Append clicks, sorted as they are; returns the ids of those that are not erased."""
        if not fresh:
            return np.empty(0, np.int64)
        erased = np.array([row.body is None for row in fresh])
        x = np.zeros((len(fresh), len(self.schema.features)), np.int32)
        x[~erased], unreadable = self.reader.encode_and_count([row.body for row in fresh if row.body is not None])
        self.counts.update({f"{BAD_VALUES}{column}": count for column, count in unreadable.items()})
        ids, times, came = np.array([(row.click, row.ts, row.seen) for row in fresh], np.int64).T
        block = {
            "x": x,
            "click_ts": times,
            "click_id": ids,
            "arrival_ts": came,
            "erased": erased,  # their rows stay, since others are known by theirs; they are never shown
            "score": np.array([row.answer_for(self.log.model) for row in fresh], np.float32),
        }
        number = self.database.append(block)
        self.database.note_late(times[times != came], number[times != came])
        kept: Ints = ids[~erased]
        return kept

    def _join(self, actions: list[KnownAction]) -> None:
        """Give actions to their clicks: of each kind the first that became known. Those without a click wait for it."""
        if not actions:
            return
        number = self._rows_of([action.click for action in actions], self.grid.bounds(self.done)[1])
        self.database.wait(sorted(action for action, row in zip(actions, number.tolist(), strict=True) if row < 0))
        rows = np.unique(number[number >= 0])
        known, place = self.database.known(rows), np.searchsorted(rows, number).tolist()
        arrival, clicked = (self.database.gather(name, rows) for name in ("arrival_ts", "click_ts"))
        first = known.action_ts.copy()
        ours = [  # one that came before its click becomes known with it
            (action._replace(seen=max(action.seen, int(arrival[at]))), at)
            for action, at, row in zip(actions, place, number.tolist(), strict=True)
            if row >= 0
        ]
        noted, paid = list[tuple[int, int, int, int]](), list[tuple[int, Payment]]()
        for action, at in sorted(ours):
            refund = action.kind > len(self.schema.actions)
            if not refund and not self._is_in_window(action.ts - int(clicked[at])):
                continue
            if refund or action.kind == 1:
                paid.append((int(rows[at]), Payment(action.seen, action.ts, refund, action.amount)))
            if not refund and first[at, action.kind - 1] == NEVER:
                first[at, action.kind - 1] = action.ts
                noted.append((int(rows[at]), action.kind, action.ts, action.seen))
            else:
                self.counts["refunds" if refund else "repeated_actions"] += 1
        turns = self._find_turns(paid, dict(zip(rows.tolist(), known.refund_ts, strict=True)))
        if noted or turns:
            self.database.note(*np.array([*noted, *turns]).T)

    def _is_in_window(self, delay: int) -> bool:
        self.counts["before_click"] += delay < 0
        self.counts["out_of_window"] += delay > self.grid.d_max
        return 0 <= delay <= self.grid.d_max

    def _find_turns(self, paid: list[tuple[int, Payment]], known: dict[int, Ints]) -> list[tuple[int, int, int, int]]:
        """Keep conversions and refunds of clicks; returns the turns of the clicks that they make."""
        self.database.pay(paid)
        turns = []
        for row, payments in self.database.payments({row for row, _ in paid}).items():
            for which, seen in enumerate(find_turns(payments)):
                if known[row][which] == NEVER:
                    self.counts["conversions_after_refund"] += which % 2
                    self.counts["repeated_actions"] -= which % 2
                    turns.append((row, len(self.schema.actions) + 1 + which, seen, seen))
        return turns

    def _rows_of(self, clicks: Sequence[int], end: int) -> Ints:
        """The numbers of clicks in the database, -1 of those not known when an interval ends, or too old by then."""
        ids = np.array(clicks, np.int64)
        in_base = self._in_base.rows_of(ids, end)
        held = (in_base >= 0) & bool(self._base_rows)
        number = np.where(held, in_base - (self._in_base.end - self._base_rows), -1)
        came = self.log.arrivals(np.unique(ids[in_base < 0]).tolist(), end - self.memory, end)
        asked = np.flatnonzero((in_base < 0) & np.isin(ids, np.array(list(came), np.int64)))
        number[asked] = self.database.find(ids[asked], np.array([came[key] for key in ids[asked].tolist()], np.int64))
        return number

    def _drop(self, before: int) -> None:
        first = self.database.first
        self.database.drop(before)
        self.first_row += self.database.first - first


class BaseClicks:
    """Clicks of the log that a store started from, by id: known at the split, and at most `memory` seconds before."""

    def __init__(self, table: ClickTable, split: int, memory: int) -> None:
        self.table, self.memory = table, memory
        self.first, self.end = (int(row) for row in np.searchsorted(table.arrival_ts, (split - memory, split)))

    def rows_of(self, ids: Ints, now: int) -> Ints:
        """The rows of clicks; -1 of those that are not there, or are too old by now."""
        oldest = int(np.searchsorted(self.table.arrival_ts, now - self.memory))
        if oldest >= self.end or not len(ids):
            return np.full(len(ids), -1)
        keys, rows = self._index
        after = np.searchsorted(keys, ids, "right")
        hit = (after > 0) & (keys[np.maximum(after, 1) - 1] == ids)
        row = np.where(hit, rows[np.maximum(after, 1) - 1], -1)
        return np.where(row >= oldest, row, -1)

    @cached_property
    def _index(self) -> tuple[Ints, Ints]:
        ids = np.array(self.table.click_id[self.first : self.end])
        order = np.argsort(ids, kind="stable")
        return ids[order], self.first + order
