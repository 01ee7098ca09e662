"""The event log: append-only, on disk before it answers, each event once."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tracecvr.base.errors import UserError
from tracecvr.online.log.event_database import EventDatabase
from tracecvr.online.log.events import CLICK, Event
from tracecvr.online.log.grid import UNBOUNDED, Grid, Reach

_INSERT = """INSERT OR IGNORE INTO events(event, kind, click, ts, user, body, score, version, model, seen)
  VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, max(?4, ?10))"""
_PUT_BACK = """INSERT OR IGNORE INTO events(pos, event, kind, click, ts, seen, user, body, score, version, model)
  VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_ALL = "SELECT pos, event, kind, click, ts, seen, user, body, score, version, model FROM events"
_CLICKS_FIRST = "FROM events WHERE seen >= ? AND seen < ? ORDER BY kind > 0, seen, ts, click"
_BETWEEN = f"SELECT kind, click, ts, seen, body {_CLICKS_FIRST}"
_ANSWERS = """SELECT click, score, version, model FROM events
  WHERE seen >= ? AND seen < ? AND kind = 0 AND score IS NOT NULL AND version IS NOT NULL"""
_ERASED = "FROM erased WHERE seen >= ? AND seen < ? ORDER BY place"
_COUNT = "INSERT INTO facts VALUES(?, ?) ON CONFLICT(name) DO UPDATE SET value = value + excluded.value"
_KEEP_AHEAD = "INSERT OR REPLACE INTO ahead(event, click, ts, user, due, content) VALUES(?, ?, ?, ?, ?, ?)"
_CONTRADICTIONS = "SELECT coalesce((SELECT max(rowid) FROM aside) - (SELECT min(rowid) FROM aside) + 1, 0)"
_RAISE = "INSERT INTO facts VALUES(?, ?) ON CONFLICT(name) DO UPDATE SET value = max(value, excluded.value)"


OF_ANOTHER_MODEL = -2
"""Instead of a version: that of another model answered."""
MOST_AHEAD, MOST_CONFLICTS = 100_000, 10_000
"""Events that are kept though they do not count: a client gone wrong must not fill the disk. The oldest are kept."""
MOST_SHOWN = 1000
"""Actions of one click that are looked at when somebody asks for it."""
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
    """The latest time that was believed."""


class Ahead(NamedTuple):
    """An event that is set aside because it is dated too far ahead."""

    number: int
    event: Event


class Reopening(NamedTuple):
    """What became of events when intervals were reopened."""

    closed: int
    moved: int
    set_aside: int


class Accepted(NamedTuple):
    """A row of the log as it is kept."""

    pos: int
    event: str
    kind: int
    click: int
    ts: int
    seen: int
    user: str | None
    body: str | None
    score: float | None
    version: int | None
    model: str | None


class EventLog(EventDatabase):
    """One connection to the log of a store. Threads that share it take turns."""

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

    def _append(self, batches: Sequence[Sequence[Event]], trusted: bool = False) -> list[Receipt]:
        entered = self._put(batches, trusted)
        newest = [event.ts for _, fresh in entered for event in fresh]
        if newest:
            self._close(max(newest) - self.grid.lateness)
        return [receipt for receipt, _ in entered[len(entered) - len(batches) :]]

    def _put(self, batches: Sequence[Sequence[Event]], trusted: bool = False) -> list[tuple[Receipt, Sequence[Event]]]:
        """Batches put in and counted, inside a transaction: of each, its receipt and which of its events are new.
        Before them, events that were set aside and whose time has come. If `trusted`, no date is too far ahead."""
        clock, closed_until = int(self.clock()), self.grid.bounds(self.closed())[0]
        reach, waiting = self._reach(clock), self._any_ahead()
        before = reach.newest
        if trusted:
            reach.limit = UNBOUNDED
        due = self._due(clock) if waiting else []
        entered = []
        for batch in (due, *batches) if due else batches:
            believed, beyond = reach.divided(batch)
            receipt, fresh = self._accept(believed, closed_until)
            receipt.limit = reach.limit
            if waiting:
                self._db.executemany("DELETE FROM ahead WHERE event = ?", [(event.event,) for event in fresh])
            if beyond:
                self._set_aside(self._unknown(beyond, receipt), reach.soon, receipt)
                waiting = True
            reach.move(fresh)
            entered.append((receipt, fresh))
        counts = sum((receipt.counts for receipt, _ in entered), Counter[str]())
        self._count({"duplicates": sum(receipt.duplicates for receipt, _ in entered), **counts})
        self._note_reach(reach.newest, before, clock)
        return entered

    def _accept(self, events: Sequence[Event], closed_until: int) -> tuple[Receipt, Sequence[Event]]:
        """A batch put in, and which of its events are new."""
        before, changes = self.position(), self._db.total_changes()
        self._db.executemany(_INSERT, [(*event, closed_until) for event in events])
        accepted = self._db.total_changes() - changes
        receipt, fresh = Receipt(accepted, len(events) - accepted), events
        if receipt.duplicates:
            fresh = self._without_duplicates(events, before, receipt)
        receipt.counts += self._tally(fresh, closed_until)
        return receipt, fresh

    # How far time may go.

    def _reach(self, clock: int) -> Reach:
        """How far time has come and may go now."""
        facts, grid = self.facts(), self.grid
        newest, since = max(grid.split, facts.get("newest", 0)), facts.get("newest_at")
        if since is None:
            since = clock if grid.origin is None else grid.origin + newest
        reach = Reach(newest, grid.limit(newest, since, clock), grid.advance)
        if grid.advance is None:
            reach.soon = grid.limit(newest, since, max(clock, since)) + grid.lateness
        return reach

    def _note_reach(self, newest: int, before: int, clock: int) -> None:
        """Note the newest event and when it was accepted. A clock that was wrong is forgotten once it is put back."""
        if newest > before:
            self._set({"newest": newest, "newest_at": clock})
        elif self.grid.advance is not None and clock < self.facts().get("newest_at", clock):
            self._set({"newest_at": clock})

    def _set(self, facts: dict[str, int]) -> None:
        self._db.executemany("INSERT OR REPLACE INTO facts VALUES(?, ?)", list(facts.items()))

    def _any_ahead(self) -> bool:
        return bool(self._one("SELECT EXISTS(SELECT 1 FROM ahead)"))

    def _unknown(self, events: Sequence[Event], receipt: Receipt) -> list[Event]:
        """Events that are not there yet: the others are duplicates, whatever their date."""
        query = "SELECT EXISTS(SELECT 1 FROM events WHERE event = ?)"
        known = [event for event in events if self._one(query, (event.event,))]
        receipt.duplicates += len(known)
        self._without_duplicates(known, self.position(), receipt)
        return [event for event in events if event not in known]

    def _set_aside(self, events: Sequence[Event], soon: int, receipt: Receipt) -> None:
        """Keep events that are dated too far ahead, as long as there is room; one that comes again replaces itself."""
        room = MOST_AHEAD - int(self._one("SELECT count(*) FROM ahead"))
        receipt.counts["future"] += len(events)
        for event in events:
            if self._one("SELECT EXISTS(SELECT 1 FROM ahead WHERE event = ?)", (event.event,)):
                self._db.execute("DELETE FROM ahead WHERE event = ?", (event.event,))
            elif room > 0:
                room -= 1
            else:
                receipt.counts["not_kept"] += 1
                continue
            self._keep_ahead(event, event.ts if event.ts <= soon else None)

    def _keep_ahead(self, event: Event, due: int | None = None) -> None:
        row = (event.event, event.click, event.ts, event.user, due, json.dumps(event))
        self._db.execute(_KEEP_AHEAD, row)

    def _due(self, clock: int) -> list[Event]:
        """Events that were set aside and that the clock has reached since."""
        if self.grid.origin is None or self.grid.advance is not None:
            return []
        query = "SELECT number, content FROM ahead WHERE due <= ? ORDER BY due, number LIMIT ?"
        return self._take_back(self._rows(query, (clock - self.grid.origin, _AT_ONCE)))

    def _take_back(self, rows: Sequence[tuple[int, str]]) -> list[Event]:
        """Events that are set aside no longer."""
        self._db.executemany("DELETE FROM ahead WHERE number = ?", [(number,) for number, _ in rows])
        return [Event(*json.loads(content)) for _, content in rows]

    def ahead(self) -> list[Ahead]:
        """Events that are dated too far ahead, in the order in which they came."""
        rows = self._rows("SELECT number, content FROM ahead ORDER BY number")
        return [Ahead(number, Event(*json.loads(content))) for number, content in rows]

    def accept_ahead(self, until: int | None = None) -> Receipt:
        """Accept events that were set aside and are dated up to a time; by default, up to what is believed now."""
        with self._transaction():
            latest = self._reach(int(self.clock())).limit if until is None else until
            query = "SELECT number, content FROM ahead WHERE ts <= ? ORDER BY ts, number"
            (receipt,) = self._append([self._take_back(self._rows(query, (latest,)))], trusted=True)
        return receipt

    def drop_aside(self) -> tuple[int, int]:
        """Delete events that are set aside: how many dated too far ahead, and how many contradictions."""
        with self._transaction():
            counts = tuple(int(self._one(f"SELECT count(*) FROM {table}")) for table in ("ahead", "aside"))
            for table in ("ahead", "aside"):
                self._db.execute(f"DELETE FROM {table}")
        self._truncate()
        return counts[0], counts[1]

    def contradictions(self) -> list[tuple[str, str]]:
        """Events that contradicted earlier ones of the same id, and their content."""
        return self._rows("SELECT event, content FROM aside ORDER BY rowid")

    # Closing.

    def close_until(self, time: int) -> int:
        """Close every interval that ends by a time, whatever the watermark says; how many are closed now."""
        with self._transaction():
            clock = int(self.clock())
            self._note_reach(time, self._reach(clock).newest, clock)
            self._close(time)
            return self.closed()

    def _close(self, watermark: int) -> None:
        self._db.execute(_RAISE, ("watermark", watermark))
        last = self.grid.closed(watermark)
        if last > self.closed():
            self._db.execute("INSERT INTO closings(number, pos) VALUES(?, ?)", (last - 1, self.position()))

    def runs(self) -> list[tuple[int, int]]:
        """Runs of intervals that were closed at once, oldest first: the first of each, and the first after it."""
        ends = [0, *(last + 1 for (last,) in self._rows("SELECT max(number) FROM closings GROUP BY pos ORDER BY pos"))]
        return list(pairwise(ends))

    def reopen(self, number: int, until: int | None = None) -> Reopening:
        """Undo the closings from an interval on, then accept what came since once more, in the same order.

        Events that were late because of these closings get their place; those dated too far ahead, or after `until`,
        are set aside. Inside a transaction: all of it or nothing.
        """
        with self._transaction():
            closed, start = self.closed(), self.grid.bounds(number)[0]
            if not 0 <= number < closed:
                raise UserError(f"interval {number} is not closed: {closed} are, 0 to {closed - 1}")
            position = self.position(number - 1) if number else 0
            self._db.execute("DELETE FROM closings WHERE number >= ?", (number,))
            if number:
                self._db.execute("INSERT OR REPLACE INTO closings VALUES(?, ?)", (number - 1, position))
            rows = self._accepted_rows("WHERE seen >= ? ORDER BY pos", (start,))
            limit = self._limit_since(start, rows) if until is None else until
            beyond = [row for row in rows if row.ts > limit]
            moved = self._place_again([row for row in rows if row.ts <= limit], number, position)
            for row in beyond:
                self._db.execute("DELETE FROM events WHERE pos = ?", (row.pos,))
                self._keep_ahead(_event(row))
            clicks = sum(row.kind == CLICK for row in beyond)
            self._count({"future": len(beyond), "clicks": -clicks, "actions": clicks - len(beyond), "reopened": 1})
            self._forget_after(number)
            facts = (int(self.clock()), number, closed, self.position(), moved, len(beyond))
            self._db.execute("INSERT INTO reopenings VALUES(?, ?, ?, ?, ?, ?)", facts)
            return Reopening(self.closed(), moved, len(beyond))

    def _limit_since(self, start: int, rows: Sequence[Accepted]) -> int:
        """The latest time that is believed of events that were accepted since the time was `start`."""
        clock = int(self.clock())
        reach = Reach(start, self.grid.limit(start, clock, clock), self.grid.advance)
        reach.divided([_event(row) for row in rows])
        return reach.limit

    def _place_again(self, rows: Sequence[Accepted], number: int, position: int) -> int:
        """Let events become known when they would have, had the intervals from `number` on not been closed, and close
        what is over; how many that changed. None becomes known later: a batch is in before it closes anything."""
        newest, closed, moved = self.grid.bounds(number)[0], number, 0
        counts: Counter[str] = Counter()
        for row in rows:
            seen = min(row.seen, max(row.ts, self.grid.bounds(closed)[0]))
            if seen != row.seen:
                self._db.execute("UPDATE events SET seen = ? WHERE pos = ?", (seen, row.pos))
                moved += 1
                counts["late"] -= seen == row.ts
                counts["out_of_window"] -= row.kind == CLICK and row.seen - row.ts > self.grid.d_max >= seen - row.ts
            newest = max(newest, row.ts)
            if (over := self.grid.closed(newest - self.grid.lateness)) > closed:
                closed = over
                self._db.execute("INSERT INTO closings(number, pos) VALUES(?, ?)", (closed - 1, max(row.pos, position)))
        self._count(counts)
        self._set({"watermark": newest - self.grid.lateness, "newest": newest, "newest_at": int(self.clock())})
        self._db.execute("UPDATE positions SET newest = min(newest, ?)", (newest,))
        return moved

    def _forget_after(self, number: int) -> None:
        """Forget what was learnt and told of intervals that were reopened."""
        for table in ("ticks", "challenger_ticks"):
            self._db.execute(f"DELETE FROM {table} WHERE number >= ?", (number,))
        # Places of erased clicks are for those who know the rows after them by number: nobody does any more.
        self._db.execute("DELETE FROM erased WHERE seen >= ?", (self.grid.bounds(number)[0],))
        self._db.execute("UPDATE facts SET value = min(value, ?) WHERE name = 'announced'", (number,))

    def _tally(self, fresh: Sequence[Event], closed_until: int) -> Counter[str]:
        tally: Counter[str] = Counter()
        for event in fresh:
            tally["clicks" if event.kind == CLICK else "actions"] += 1
            tally["late"] += event.ts < closed_until
            tally["out_of_window"] += event.kind == CLICK and closed_until - event.ts > self.grid.d_max
        return tally

    def _without_duplicates(self, events: Sequence[Event], before: int, receipt: Receipt) -> list[Event]:
        """The events that were new. The receipt is told what the others were answered when they were; of these, those
        are set aside that contradict what is there."""
        fresh: dict[str, Event] = {}
        for event in events:
            row = self._accepted_rows("WHERE event = ?", (event.event,))[0]
            if row.pos > before and event.event not in fresh:
                fresh[event.event] = event
                continue
            if row.score is not None and row.version is not None:
                receipt.answers[event.event] = row.score, row.version, row.model
            if (row.kind, row.click, row.ts, row.user, row.body) != event[1:6]:  # whatever it was answered with
                receipt.counts["conflicts"] += 1
                receipt.counts["not_kept"] += not self._keep_contradiction(event)
        return list(fresh.values())

    def _keep_contradiction(self, event: Event) -> bool:
        """Keep an event that contradicts an earlier one, as long as there is room."""
        if int(self._one(_CONTRADICTIONS)) >= MOST_CONFLICTS:
            return False
        reason = "another event of the same id was there before"
        kept = (event.event, event.user, reason, json.dumps(event[1:6]))
        self._db.execute("INSERT INTO aside VALUES(?, ?, ?, ?)", kept)
        return True

    def _count(self, counts: dict[str, int]) -> None:
        self._db.executemany(_COUNT, [(name, n) for name, n in counts.items() if n])

    def record(self, number: int, content: dict[str, Any], model: str | None = None) -> None:
        """What came of learning an interval; said again after a crash, it is the same."""
        row = (number, json.dumps(content))
        with self._transaction():
            if model is None:
                self._db.execute("INSERT OR REPLACE INTO ticks VALUES(?, ?)", row)
            else:
                self._db.execute("INSERT OR REPLACE INTO challenger_ticks VALUES(?, ?, ?)", (model, *row))

    def forget_model(self, model: str) -> None:
        """Forget what came of learning by a challenger. Which clicks it has answered stays in the log."""
        with self._transaction():
            self._db.execute("DELETE FROM challenger_ticks WHERE model = ?", (model,))

    # Reading.

    def ticks(self, last: int = -1, model: str | None = None) -> list[tuple[int, dict[str, Any]]]:
        """What came of learning the last intervals, oldest first; of all by default; of a challenger if it is named."""
        if model is None:
            rows = self._rows("SELECT number, content FROM ticks ORDER BY number DESC LIMIT ?", (last,))
        else:
            query = "SELECT number, content FROM challenger_ticks WHERE model = ? ORDER BY number DESC LIMIT ?"
            rows = self._rows(query, (model, last))
        return [(number, json.loads(content)) for number, content in reversed(rows)]

    def tick(self, number: int) -> dict[str, Any] | None:
        """What came of learning an interval by the store's own model."""
        rows = self._rows("SELECT content FROM ticks WHERE number = ?", (number,))
        tick: dict[str, Any] | None = json.loads(rows[0][0]) if rows else None
        return tick

    def closed(self) -> int:
        """How many intervals are closed."""
        return int(self._one("SELECT coalesce(max(number) + 1, 0) FROM closings"))

    def between(self, start: int, end: int) -> list[tuple[Any, ...]]:
        """(kind, click, ts, seen, body) of what became known in an interval: clicks first, in their order. Of a click
        that was erased after its interval was closed, its place is left, without a body."""
        rows = self._rows(_BETWEEN, (start, end))
        for seen, ts, place in self._rows(f"SELECT * {_ERASED}", (start, end)):
            rows.insert(place, (CLICK, -1, ts, seen, None))
        return rows

    def erased_between(self, start: int, end: int) -> list[int]:
        """When clicks became known, in a range of time, that were erased after their intervals were closed."""
        return [seen for (seen,) in self._rows("SELECT seen FROM erased WHERE seen >= ? AND seen < ?", (start, end))]

    def has(self, click: int, kind: int, ts: int) -> bool:
        """Whether an event is there."""
        query = "SELECT EXISTS(SELECT 1 FROM events WHERE click = ? AND kind = ? AND ts = ?)"
        return bool(self._one(query, (click, kind, ts)))

    def next_known(self, time: int) -> int | None:
        """When something became known for the first time since a time; None if nothing has."""
        times = [self._one(f"SELECT min(seen) FROM {table} WHERE seen >= ?", (time,)) for table in ("events", "erased")]
        return min((seen for seen in times if seen is not None), default=None)

    def answers(self, start: int, end: int, model: str | None = None) -> list[tuple[int, float, int]]:
        """(click, log-odds, version) as they were answered, of clicks that became known in an interval and were; as
        they count for a model."""
        return answers_for(model, self._rows(_ANSWERS, (start, end)))

    def since(self, position: int, count: int) -> list[Accepted]:
        """Accepted events after a position, in their order."""
        return self._accepted_rows("WHERE pos > ? ORDER BY pos LIMIT ?", (position, count))

    def events_of_click(self, click: int) -> list[Accepted]:
        """A click, if it has come, and its actions; of very many, those that came first."""
        of_click = self._accepted_rows("WHERE event = ?", (f"c{click}",))
        condition = "WHERE click = ? AND kind > 0 ORDER BY pos LIMIT ?"
        return of_click + self._accepted_rows(condition, (click, MOST_SHOWN)) if of_click else []

    def arrivals(self, clicks: Sequence[int], start: int, end: int) -> dict[int, int]:
        """When clicks became known, of those that did in a range of time."""
        query = """SELECT click, seen FROM events
          WHERE click IN (SELECT value FROM json_each(?)) AND kind = 0 AND seen >= ? AND seen < ?"""
        return dict(self._rows(query, (json.dumps(list(clicks)), start, end)))

    def has_click(self, click: int) -> bool:
        """Whether a click has come."""
        return bool(self._one("SELECT EXISTS(SELECT 1 FROM events WHERE event = ?)", (f"c{click}",)))

    # Forgetting.

    def before(self, time: int) -> list[Accepted]:
        """Accepted events that became known before a time."""
        return self._accepted_rows("WHERE seen < ? ORDER BY pos", (time,))

    def portion(self, time: int, count: int) -> int:
        """The end of as many intervals as have no more than so many events, or of the first that has any; at most a
        time, with which an interval starts."""
        beyond = self._one("SELECT seen FROM events WHERE seen < ? ORDER BY seen LIMIT 1 OFFSET ?", (time, count))
        if beyond is None:
            return time
        first = self.grid.number(self._one("SELECT min(seen) FROM events"))
        return self.grid.bounds(max(self.grid.number(beyond), first + 1))[0]

    def prune(self, time: int) -> int:
        """Delete what became known before a time: it is kept elsewhere. Returns how much that was."""
        with self._transaction():
            changes = self._db.total_changes()
            self._db.execute("DELETE FROM events WHERE seen < ?", (time,))
            gone = self._db.total_changes() - changes
            self._db.execute("DELETE FROM erased WHERE seen < ?", (time,))
        self._truncate()
        return gone

    def put_back(self, rows: Sequence[Accepted]) -> None:
        """Put events back that were pruned, as they were."""
        with self._transaction():
            self._db.executemany(_PUT_BACK, rows)

    def erase(self, user: str) -> tuple[int, int]:
        """Delete all events of a user and all actions of his clicks; how many clicks and actions."""
        with self._transaction():
            clicks = self._rows("SELECT pos, click, ts, seen FROM events WHERE user = ? AND kind = 0", (user,))
            closed_until = self.grid.bounds(self.closed())[0]
            for pos, _, ts, seen in clicks:
                if seen < closed_until:  # rows of the ledger are known by their number: this one's stays, empty
                    self._db.execute("INSERT INTO erased VALUES(?, ?, ?)", (seen, ts, self._place(pos, seen)))
                self._db.execute("DELETE FROM events WHERE pos = ?", (pos,))
            changes = self._db.total_changes()
            theirs = [(click,) for _, click, *_ in clicks]
            self._db.executemany("DELETE FROM events WHERE click = ?", theirs)
            self._db.execute("DELETE FROM events WHERE user = ?", (user,))
            actions = self._db.total_changes() - changes
            theirs += self._rows("SELECT click FROM ahead WHERE user = ?", (user,))
            self._db.executemany("DELETE FROM ahead WHERE click = ?", theirs)
            self._db.execute("DELETE FROM aside WHERE user = ?", (user,))
            for ascii_only in (True, False):  # whoever wrote the message may have escaped the name or not
                name = json.dumps(user, ensure_ascii=ascii_only).encode()
                self._db.execute("DELETE FROM unread WHERE instr(payload, ?)", (name,))
            self._count({"erased_clicks": len(clicks), "erased_actions": actions, "erasures": 1})
        self._truncate()
        return len(clicks), actions

    def _place(self, pos: int, seen: int) -> int:
        """Where a click is among those of its interval, places left by others included."""
        bounds = self.grid.bounds(self.grid.number(seen))
        order = [position for (position,) in self._rows(f"SELECT pos {_CLICKS_FIRST}", bounds)]
        for (place,) in self._rows(f"SELECT place {_ERASED}", bounds):
            order.insert(place, -1)
        return order.index(pos)

    def facts(self) -> dict[str, int]:
        """Counts of what was accepted, the watermark, and the newest event with the clock when it was accepted."""
        return dict(self._rows("SELECT name, value FROM facts"))

    def _accepted_rows(self, condition: str, values: tuple[Any, ...]) -> list[Accepted]:
        return [Accepted(*row) for row in self._rows(f"{_ALL} {condition}", values)]


def _event(row: Accepted) -> Event:
    """A row as the event that it was."""
    return Event(row.event, row.kind, row.click, row.ts, row.user, row.body, row.score, row.version, row.model)


def answers_for(model: str | None, rows: Sequence[tuple[int, float, int, str | None]]) -> list[tuple[int, float, int]]:
    """Answers as they count for a model. For the store's own, all that clicks were answered with; the versions of
    challengers are not its own. For a challenger, its own answers."""
    ours = [row for row in rows if model is None or row[3] == model]
    return [(click, score, version if by == model else OF_ANOTHER_MODEL) for click, score, version, by in ours]
