"""The event log: append-only, on disk before it answers, each event once."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tracecvr.base.errors import UserError
from tracecvr.online.log.event_database import EventDatabase
from tracecvr.online.log.events import CLICK, Event
from tracecvr.online.log.times import UNBOUNDED, Grid

_INSERT = """INSERT OR IGNORE INTO events(event, kind, click, ts, user, body, score, version, model, seen)
  VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, max(?4, ?10))"""
_ALL = "SELECT pos, event, kind, click, ts, seen, user, body, score, version, model FROM events"
_CLICKS_FIRST = "WHERE seen >= ? AND seen < ? ORDER BY kind > 0, seen, ts, click"
_ERASED = "FROM erased WHERE seen >= ? AND seen < ? ORDER BY place"
_COUNT = "INSERT INTO facts VALUES(?, ?) ON CONFLICT(name) DO UPDATE SET value = value + excluded.value"
_RAISE = "INSERT INTO facts VALUES(?, ?) ON CONFLICT(name) DO UPDATE SET value = max(value, excluded.value)"

AHEAD, SOON, CONTRADICTION, UNREAD = "ahead", "soon", "contradiction", "unread"
"""Why something is set aside: an event that is dated too far ahead; one that is so by a little, and is accepted once
the clock has come to it; one that contradicts an earlier one of the same id; a message that could not be read."""
MOST_ASIDE = 100_000
"""What is kept though it does not count, for each reason: a client gone wrong must not fill the disk."""
MOST_SHOWN = 1000
"""Actions of one click that are looked at when it is asked for."""
_AT_ONCE = 500
"""Events whose time has come that are accepted together with others."""


@dataclass
class Receipt:
    """What became of a batch. All of it is on disk, but for what `not_kept` counts; `duplicates` were there before."""

    accepted: int = 0
    duplicates: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    """Of the accepted: `clicks`, `actions`, and `late` and `out_of_window` ones. Of the duplicates: `conflicts`. Of the
    others: `future`, set aside; and of those that are set aside, `not_kept`."""
    answers: dict[str, tuple[float, int, str | None]] = field(default_factory=dict)
    """Of clicks that were there before, by event: the score that they were answered with, its version and model."""
    limit: int = UNBOUNDED


class Aside(NamedTuple):
    reason: str
    name: str
    ts: int | None
    text: str
    content: bytes


class Accepted(NamedTuple):
    pos: int
    event: str
    kind: int
    click: int
    ts: int
    seen: int
    user: str | None
    body: str | None
    score: float | None = None
    version: int | None = None
    model: str | None = None

    def answer_for(self, model: str | None) -> float:
        """The log-odds of the answer, NaN without one. For the store's own model, all answers count; for a challenger,
        its own do."""
        return math.nan if self.score is None or model not in (None, self.model) else self.score


class EventLog(EventDatabase):
    """One connection to the log of a store. Threads that share it take turns."""

    model: str | None = None
    """The challenger that reads it; None is the store's own model."""

    def __init__(self, path: Path, grid: Grid, clock: Callable[[], float] = time.time) -> None:
        self.grid, self.clock = grid, clock
        super().__init__(path)

    # Writing.

    def append(self, events: Sequence[Event]) -> Receipt:
        """Accept a batch, all of it or none: when this returns, it is on disk. Then close what is over."""
        return self.append_all([events])[0]

    def append_all(self, batches: Sequence[Sequence[Event]]) -> list[Receipt]:
        """Accept batches of several senders together: what takes time is to wait for the disk, and that is once."""
        with self._transaction():
            return self._append(batches)

    def _append(self, batches: Sequence[Sequence[Event]], limit: int | None = None) -> list[Receipt]:
        entered = self._enter(batches, limit)
        newest = [event.ts for _, fresh in entered for event in fresh]
        if newest:
            self._close(max(newest) - self.grid.lateness)
        return [receipt for receipt, _ in entered[len(entered) - len(batches) :]]

    def _enter(
        self, batches: Sequence[Sequence[Event]], limit: int | None = None
    ) -> list[tuple[Receipt, Sequence[Event]]]:
        """Put batches in and count them, inside a transaction: of each, its receipt and which of its events are new.
        Before them, events that were set aside and whose time has come. `limit` is the latest time that is believed."""
        closed_until, (clock, before, since) = self.grid.bounds(self.closed())[0], self._now()
        limit = self.grid.limit(before, since, clock) if limit is None else limit
        soon = self.grid.limit(before, since, max(clock, since)) + self.grid.lateness
        newest = before
        waiting = bool(self._one("SELECT EXISTS(SELECT 1 FROM aside)"))
        due = self._take_back(SOON, limit, _AT_ONCE) if waiting else []
        entered = []
        for batch in (due, *batches) if due else batches:
            limit = self.grid.raise_limit(limit, (event.ts for event in batch))
            beyond = [event for event in batch if event.ts > limit]
            receipt, fresh = self._accept([e for e in batch if e.ts <= limit] if beyond else batch, closed_until)
            receipt.limit = limit
            if waiting:
                names = [(event.event,) for event in fresh]
                self._db.executemany("DELETE FROM aside WHERE reason IN ('ahead', 'soon') AND name = ?", names)
            if beyond:
                self._keep_ahead(self._refuse_known(beyond, receipt), soon, receipt)
                waiting = True
            newest = max((newest, *(event.ts for event in fresh)))
            entered.append((receipt, fresh))
        counts = sum((receipt.counts for receipt, _ in entered), Counter[str]())
        self._count({"duplicates": sum(receipt.duplicates for receipt, _ in entered), **counts})
        if newest > before:
            self._store_facts({"newest": newest, "newest_at": clock})
        return entered

    def _accept(self, events: Sequence[Event], closed_until: int) -> tuple[Receipt, Sequence[Event]]:
        before, changes = self.position(), self._db.total_changes()
        self._db.executemany(_INSERT, [(*event, closed_until) for event in events])
        accepted = self._db.total_changes() - changes
        receipt, fresh = Receipt(accepted, len(events) - accepted), events
        if receipt.duplicates:
            fresh = self._drop_duplicates(events, before, receipt)
        for event in fresh:
            receipt.counts["clicks" if event.kind == CLICK else "actions"] += 1
            receipt.counts["late"] += event.ts < closed_until
            too_late = event.kind == CLICK and closed_until - event.ts > self.grid.d_max
            receipt.counts["out_of_window"] += too_late
        return receipt, fresh

    def _drop_duplicates(self, events: Sequence[Event], before: int, receipt: Receipt) -> list[Event]:
        """The events that were new. Of the others, the receipt has the answers, and contradictions are set aside."""
        fresh: dict[str, Event] = {}
        conflicts = []
        for event in events:
            known = self._select("WHERE event = ?", (event.event,))
            if not known:  # the index has it
                raise self._damaged("table events")
            row = known[0]
            if row.pos > before and event.event not in fresh:
                fresh[event.event] = event
                continue
            if row.score is not None and row.version is not None:
                receipt.answers[event.event] = row.score, row.version, row.model
            if (row.kind, row.click, row.ts, row.user, row.body) != event[1:6]:  # whatever it was answered with
                conflicts.append(event)
        if conflicts:
            receipt.counts["conflicts"] += len(conflicts)
            text = "contradicts an earlier one of the same id"
            receipt.counts["not_kept"] += self._keep_aside(CONTRADICTION, text, conflicts)
        return list(fresh.values())

    def _now(self) -> tuple[int, int, int]:
        """What the clock shows, the newest time in the log, and what the clock showed when that was accepted."""
        clock, facts, grid = int(self.clock()), self.facts(), self.grid
        newest = max(grid.split, facts.get("newest", 0))
        return clock, newest, facts.get("newest_at", clock if grid.origin is None else grid.origin + newest)

    def _count(self, counts: dict[str, int]) -> None:
        self._change("facts")
        self._db.executemany(_COUNT, [(name, n) for name, n in counts.items() if n])

    def _store_facts(self, facts: dict[str, int]) -> None:
        self._change("facts")
        self._db.executemany("INSERT OR REPLACE INTO facts VALUES(?, ?)", list(facts.items()))

    # What is set aside.

    def _refuse_known(self, events: Sequence[Event], receipt: Receipt) -> list[Event]:
        """Events that are not there yet: the others are duplicates, whatever their date."""
        query = "SELECT EXISTS(SELECT 1 FROM events WHERE event = ?)"
        known = [event for event in events if self._one(query, (event.event,))]
        receipt.duplicates += len(known)
        self._drop_duplicates(known, self.position(), receipt)
        return [event for event in events if event not in known]

    def _keep_ahead(self, events: Sequence[Event], soon: int, receipt: Receipt) -> None:
        """Events that are dated too far ahead. In a log whose time is its own, no clock comes to them."""
        receipt.counts["future"] += len(events)
        near = [event for event in events if event.ts <= soon and self.grid.advance is None]
        for reason, ours in ((SOON, near), (AHEAD, [event for event in events if event not in near])):
            if ours:
                receipt.counts["not_kept"] += self._keep_aside(reason, "dated too far ahead", ours)

    def _keep_aside(self, reason: str, text: str, events: Sequence[Event]) -> int:
        """Keep events as long as there is room; one that comes again replaces itself. How many were not kept."""
        room, not_kept = MOST_ASIDE - self.count_aside(reason), 0
        known = "SELECT EXISTS(SELECT 1 FROM aside WHERE reason = ? AND name = ?)"
        for event in events:
            fresh = not self._one(known, (reason, event.event))
            if fresh and room <= 0:
                not_kept += 1
                continue
            room -= fresh
            content = json.dumps(event).encode()
            self._set_aside((reason, event.event, event.click, event.ts, event.user, text, content))
        return not_kept

    def _take_back(self, reason: str, until: int, count: int = -1) -> list[Event]:
        """Events that are set aside no longer."""
        rows = self._read_aside("WHERE reason = ? AND ts <= ? ORDER BY ts, number LIMIT ?", (reason, until, count))
        self._db.executemany("DELETE FROM aside WHERE number = ?", [row[:1] for row in rows])
        return [Event(*json.loads(row[7])) for row in rows]

    def count_aside(self, *reasons: str) -> int:
        """How much is set aside for some reasons; for all by default."""
        counts = dict(self._rows("SELECT reason, count(*) FROM aside GROUP BY reason"))
        return sum(n for reason, n in counts.items() if not reasons or reason in reasons)

    def aside(self, *reasons: str) -> list[Aside]:
        rows = self._read_aside()
        return [Aside(row[1], row[2], row[4], row[6], row[7]) for row in rows if not reasons or row[1] in reasons]

    def accept_ahead(self, until: int | None = None) -> Receipt:
        """Accept events that were set aside and are dated up to a time; by default, up to what is believed now."""
        with self._transaction():
            clock, newest, since = self._now()
            latest = self.grid.limit(newest, since, clock) if until is None else until
            events = [*self._take_back(SOON, latest), *self._take_back(AHEAD, latest)]
            (receipt,) = self._append([sorted(events, key=lambda event: event.ts)], limit=UNBOUNDED)
        return receipt

    def drop_aside(self) -> int:
        with self._transaction():
            count = self.count_aside()
            self._db.execute("DELETE FROM aside")
        self._truncate()
        return count

    # Closing.

    def close_until(self, time: int) -> int:
        """Close every interval that ends by a time, whatever the watermark says; how many are closed now."""
        with self._transaction():
            clock, newest, since = self._now()
            if self.grid.advance is None and time > self.grid.limit(newest, since, clock):
                raise UserError("that time is in the future: an interval is closed once it is over")
            if time > newest:
                self._store_facts({"newest": time, "newest_at": clock})
            self._close(time)
            return self.closed()

    def _close(self, watermark: int) -> None:
        self._change("facts")
        self._db.execute(_RAISE, ("watermark", watermark))
        last = self.grid.closed(watermark)
        if last > self.closed():
            self._change("closings")
            self._db.execute("INSERT INTO closings(number, pos) VALUES(?, ?)", (last - 1, self.position()))

    def closed(self) -> int:
        return int(self._one("SELECT coalesce(max(number) + 1, 0) FROM closings"))

    # Reading.

    def between(self, start: int, end: int) -> list[Accepted]:
        """What became known in an interval: clicks first. A click that was erased later has no body."""
        rows = self._select(_CLICKS_FIRST, (start, end))
        for seen, ts, place in self._rows(f"SELECT * {_ERASED}", (start, end)):
            rows.insert(place, Accepted(0, "", CLICK, -1, ts, seen, None, None))
        return rows

    def next_known(self, time: int) -> int | None:
        """When something became known for the first time since a time; None if nothing has."""
        times = [self._one(f"SELECT min(seen) FROM {table} WHERE seen >= ?", (time,)) for table in ("events", "erased")]
        return min((seen for seen in times if seen is not None), default=None)

    def events_of_click(self, click: int) -> list[Accepted]:
        """A click, if it has come, and its actions; of very many, those that came first."""
        of_click = self._select("WHERE event = ?", (f"c{click}",))
        condition = "WHERE click = ? AND kind > 0 ORDER BY pos LIMIT ?"
        return of_click + self._select(condition, (click, MOST_SHOWN)) if of_click else []

    def arrivals(self, clicks: Sequence[int], start: int, end: int) -> dict[int, int]:
        """When clicks became known, of those that did in a range of time."""
        query = """SELECT click, seen FROM events
          WHERE click IN (SELECT value FROM json_each(?)) AND kind = 0 AND seen >= ? AND seen < ?"""
        return dict(self._rows(query, (json.dumps(list(clicks)), start, end)))

    def facts(self) -> dict[str, int]:
        """Counts of what was accepted, the watermark, and the newest event with the clock when it was accepted."""
        return dict(self._rows("SELECT name, value FROM facts"))

    def _select(self, condition: str, values: tuple[Any, ...]) -> list[Accepted]:
        return [Accepted(*row) for row in self._rows(f"{_ALL} {condition}", values)]

    # Forgetting.

    def before(self, time: int) -> list[Accepted]:
        return self._select("WHERE seen < ? ORDER BY pos", (time,))

    def portion(self, time: int, count: int) -> int:
        """The end of as many intervals as have no more than so many events, at least one; at most a time."""
        beyond = self._one("SELECT seen FROM events WHERE seen < ? ORDER BY seen LIMIT 1 OFFSET ?", (time, count))
        if beyond is None:
            return time
        first = self.grid.number(self._one("SELECT min(seen) FROM events"))
        return self.grid.bounds(max(self.grid.number(beyond), first + 1))[0]

    def erase(self, user: str) -> tuple[int, int]:
        """Delete all events of a user and all actions of his clicks; how many clicks and actions."""
        with self._transaction():
            self._change("erased")
            clicks = self._rows("SELECT pos, click, ts, seen FROM events WHERE user = ? AND kind = 0", (user,))
            closed_until = self.grid.bounds(self.closed())[0]
            for pos, _, ts, seen in clicks:
                if seen < closed_until:  # rows of the ledger are known by their number: this one's stays, empty
                    self._db.execute("INSERT INTO erased VALUES(?, ?, ?)", (seen, ts, self._find_place(pos, seen)))
                self._db.execute("DELETE FROM events WHERE pos = ?", (pos,))
            changes = self._db.total_changes()
            theirs = [(click,) for _, click, *_ in clicks]
            self._db.executemany("DELETE FROM events WHERE click = ?", theirs)
            self._db.execute("DELETE FROM events WHERE user = ?", (user,))
            actions = self._db.total_changes() - changes
            theirs += self._rows("SELECT click FROM aside WHERE user = ?", (user,))
            self._db.executemany("DELETE FROM aside WHERE click = ?", theirs)
            for ascii_only in (True, False):  # whoever wrote a message may have escaped the name or not
                name = json.dumps(user, ensure_ascii=ascii_only).encode()
                self._db.execute("DELETE FROM aside WHERE reason = ? AND instr(content, ?)", (UNREAD, name))
            self._count({"erased_clicks": len(clicks), "erased_actions": actions, "erasures": 1})
            self._db.execute("UPDATE sqlite_sequence SET seq = seq + 1")  # acknowledged: an older log is missed
        self._truncate()
        return len(clicks), actions

    def _find_place(self, pos: int, seen: int) -> int:
        """Where a click is among those of its interval, places left by others included."""
        bounds = self.grid.bounds(self.grid.number(seen))
        order = [position for (position,) in self._rows(f"SELECT pos FROM events {_CLICKS_FIRST}", bounds)]
        for (place,) in self._rows(f"SELECT place {_ERASED}", bounds):
            order.insert(place, -1)
        return order.index(pos)
