"""Event log and ledger: each event once, on disk before it is answered, and known exactly when it came."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tracecvr.base.errors import UserError
from tracecvr.data.encoder import Binned, Encoder, Hashed, click_key
from tracecvr.data.table import NEVER, ClickTable, Feature, Schema
from tracecvr.online.ledger import open_clicks
from tracecvr.online.ledger.ledger import Ledger
from tracecvr.online.log import page_checksums
from tracecvr.online.log.committer import Committer
from tracecvr.online.log.event_log import EventLog, Receipt
from tracecvr.online.log.events import Event, Reader
from tracecvr.online.log.times import Grid
from tracecvr.stream.reveal import After, On, Reveals, Schedule, Trigger

D_MAX = 30
SCHEMA = Schema(
    "test",
    (Feature("a", 50, "a"), Feature("n", 8, "n")),
    ("conversion", "cart"),
    (5, 12, D_MAX),
    D_MAX,
    split=100,
    interval=10,
    observed_until=10_000,
)
ENCODER = Encoder((Hashed("a", 50), Binned("n", 8, low=0.0, high=8.0)))
READER = Reader(SCHEMA, ENCODER)
GRID = Grid(split=100, interval=10, lateness=5, d_max=D_MAX)
SCHEDULE: Schedule = (After(5), After(12, seen=False), After(D_MAX), On(0), On(1, later_than=3))


def base() -> ClickTable:
    """Three clicks before the split; what happens to them afterwards is in the table but not known yet."""
    click_ts = np.array([80, 90, 99])
    action_ts = np.array([[95, NEVER], [105, 92], [NEVER, 101]])
    x = np.array([[1, 1], [2, 2], [3, 3]], np.int32)
    return ClickTable(x, click_ts, np.array([-1, -2, -3]), action_ts, SCHEMA)


def click(click_id: int | str, ts: int, **more: Any) -> Event:
    return READER.read({"type": "click", "click_id": click_id, "ts": ts, "features": {"a": "v", "n": 1}, **more})


def action(click_id: int | str, ts: int, kind: str = "conversion", **more: Any) -> Event:
    return READER.read({"type": kind, "click_id": click_id, "ts": ts, **more})


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    return EventLog(tmp_path / "events.db", GRID)


# Events.


def test_a_log_of_another_format_is_refused(tmp_path: Path) -> None:
    EventLog(tmp_path / "events.db", GRID).close()
    db = page_checksums.connect(tmp_path / "events.db")
    for number in (0, 99):
        db.execute(f"PRAGMA user_version = {number}")
        with pytest.raises(UserError, match=f"format {number}, expected 6: another version of tracecvr wrote it"):
            EventLog(tmp_path / "events.db", GRID)
    db.close()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "expected a JSON object"),
        ({"type": "click", "click_id": 1, "ts": 1, "feature": {}}, "did you mean 'features'"),
        ({"type": "sale", "click_id": 1, "ts": 1}, "expected one of click, conversion, cart, refund"),
        ({"type": "cart", "click_id": 1.5, "ts": 1}, "click_id is 1.5"),
        ({"type": "cart", "click_id": True, "ts": 1}, "click_id is True"),
        ({"type": "cart", "click_id": "", "ts": 1}, "click_id is ''"),
        ({"type": "cart", "click_id": 1, "ts": "now"}, "expected whole seconds"),
        ({"type": "cart", "click_id": 1, "ts": -1}, "expected whole seconds"),
        ({"type": "cart", "click_id": 1, "ts": 1, "user": 5}, "user is 5"),
        ({"type": "cart", "click_id": 1, "ts": 1, "event_id": 5}, "event_id is 5"),
        ({"type": "cart", "click_id": 1, "ts": 1, "features": {}}, "belong to its click"),
        ({"type": "cart", "click_id": 1, "ts": 1, "amount": 1}, "only a conversion or a refund has one"),
        ({"type": "refund", "click_id": 1, "ts": 1, "amount": "1"}, "amount is '1': expected a number"),
        ({"type": "refund", "click_id": 1, "ts": 1, "amount": float("nan")}, "amount is nan: expected a number"),
        ({"type": "click", "click_id": 1, "ts": 1}, "needs its features"),
        ({"type": "click", "click_id": 1, "ts": 1, "features": {"a": 1}}, "'n' is missing"),
        ({"type": "click", "click_id": 1, "ts": 1, "features": {"a": 1, "n": 1, "b": 1}}, "no feature 'b'"),
        ({"type": "click", "click_id": 1, "ts": 1, "features": {"a": [], "n": 1}}, "feature 'a' is"),
        ({"type": "click", "click_id": 1, "ts": 1, "features": {"a": 1 << 70, "n": 1}}, "feature 'a' is"),
        ({"type": "click", "click_id": 1, "ts": 1, "features": {"a": float("nan"), "n": 1}}, "finite"),
    ],
)
def test_a_bad_event_is_told_what_is_wrong_with_it(content: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        READER.read(content)


VALUES = {
    "text": st.lists(st.one_of(st.none(), st.text()), min_size=1, max_size=8),
    "whole": st.lists(st.one_of(st.none(), st.integers(-(2**63) + 1, 2**63 - 1)), min_size=1, max_size=8),
    "number": st.lists(st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)), min_size=1, max_size=8),
}


@given(st.one_of(*VALUES.values()), st.data())
def test_features_become_the_ids_that_prepare_makes_of_the_same_column(column: list[Any], data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.floats(-5, 20), min_size=len(column), max_size=len(column)))
    bodies = []
    for a, n in zip(column, numbers, strict=True):
        content = {"type": "click", "click_id": 1, "ts": 1, "features": {"a": a, "n": n}}
        bodies.append(READER.read(json.loads(json.dumps(content))).body or "")
    expected = ENCODER.encode(pl.DataFrame({"a": column, "n": numbers}))
    assert READER.encode_and_count(bodies)[0].tolist() == expected.tolist()


def test_click_ids_are_numbers_as_they_are_and_texts_by_their_hash() -> None:
    assert click_key(-5) == -5
    assert click_key("5") != 5
    assert 0 <= click_key("abc") < 1 << 63
    assert click_key("abc") == click_key("abc") != click_key("abd")


# The log.


def test_what_was_accepted_is_there_for_another_process_and_only_once(log: EventLog, tmp_path: Path) -> None:
    events = [click(1, 103), action(1, 104), click("one", 105)]
    assert log.append(events).accepted == 3
    again = log.append([events[1], click(2, 106), events[0], click(2, 106)])
    assert (again.accepted, again.duplicates) == (1, 3)
    other = EventLog(tmp_path / "events.db", GRID)
    assert [row[1] for row in other.before(NEVER)] == ["c1", "a1:1:104", f"c{click_key('one')}", "c2"]
    assert {name: other.facts()[name] for name in ("clicks", "actions", "duplicates")} == {
        "clicks": 3,
        "actions": 1,
        "duplicates": 3,
    }


def test_threads_that_share_a_connection_take_turns(log: EventLog) -> None:
    log.append([Event(f"c{n}", 0, n, 100, None, "[]") for n in range(2000)])

    def reads() -> None:
        for n in range(200):
            assert len(log.events_of_click(n)) == 1
            assert len(log.before(NEVER)) == 2000

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(reads) for _ in range(8)]:
            done.result()


def test_actions_of_one_second_are_one_unless_their_ids_say_otherwise(log: EventLog) -> None:
    assert log.append([action(1, 104), action(1, 104), action(1, 104, "cart")]).accepted == 2
    assert log.append([action(1, 104, event_id="x"), action(1, 104, event_id="y")]).accepted == 2


def test_an_event_that_contradicts_an_earlier_one_is_set_aside_and_counted(log: EventLog) -> None:
    log.append([click(1, 103)])
    assert log.append([click(1, 104)]).duplicates == 1
    assert log.facts()["conflicts"] == 1
    assert log.append([click(1, 103)]).duplicates == 1  # the same again is no contradiction
    assert log.facts()["conflicts"] == 1
    assert log.before(NEVER)[0][4] == 103


def test_intervals_close_when_the_watermark_has_passed_and_what_comes_later_is_late(log: EventLog) -> None:
    assert log.append([click(1, 101), click(2, 114)]).counts["late"] == 0
    assert log.closed() == 0
    log.append([click(3, 115)])
    assert (log.closed(), log.position(0)) == (1, 3)
    late = log.append([click(4, 109), click(5, 110), action(1, 75)])
    assert (late.counts["late"], late.counts["out_of_window"]) == (2, 0)
    assert [row[5] for row in log.before(NEVER)[3:]] == [110, 110, 110]  # known since the first open interval began
    log.append([click(6, 145)])
    assert log.closed() == 4
    assert log.append([click(7, 105)]).counts["out_of_window"] == 1


def test_a_batch_is_in_before_the_intervals_that_it_closes(log: EventLog) -> None:
    log.append([click(1, 500), click(2, 101)])
    assert log.before(NEVER)[1][5] == 101
    assert log.facts().get("late", 0) == 0


def test_the_future_moves_nothing_and_is_accepted_when_it_has_come(tmp_path: Path) -> None:
    now = 200.0
    log = EventLog(tmp_path / "events.db", replace(GRID, origin=0), lambda: now)
    assert log.append([click(1, 5_000), click(2, 101), click(3, 262)]).counts["future"] == 2
    assert log.closed() == 0
    now = 262.0
    assert log.append([click(4, 102)]).accepted == 1
    assert log.closed() == 15
    assert [row.event for row in log.before(NEVER)] == ["c2", "c3", "c4"]
    now = 6_000.0
    log.append([click(5, 103)])
    assert [e.name for e in log.aside()] == ["c1"], "it was too far ahead: somebody has to say so"


def test_batches_that_are_sent_at_once_share_commits_and_have_receipts_of_their_own(tmp_path: Path) -> None:
    commits = []

    class Counting(EventLog):
        def append_all(self, batches: Sequence[Sequence[Event]]) -> list[Receipt]:
            commits.append(len(batches))
            time.sleep(0.01)  # a slow disk
            return super().append_all(batches)

    with Committer(lambda: Counting(tmp_path / "events.db", GRID)) as committer:
        threads = [
            threading.Thread(
                target=lambda k=k: receipts.append(committer.submit([click(k, 101), click(0, 101)]).result())
            )
            for k in range(1, 41)
        ]
        receipts: list[Receipt] = []
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(commits) == 40
    assert len(commits) < 30
    assert sum(receipt.accepted for receipt in receipts) == 41
    assert sum(receipt.duplicates for receipt in receipts) == 39
    assert len(EventLog(tmp_path / "events.db", GRID).before(NEVER)) == 41


def test_what_cannot_be_committed_is_the_senders_to_know(tmp_path: Path) -> None:
    class Full(EventLog):
        def append_all(self, batches: Sequence[Sequence[Event]]) -> list[Receipt]:
            raise UserError("disk full")

    with Committer(lambda: Full(tmp_path / "events.db", GRID)) as committer:
        futures = [committer.submit([click(k, 101)]) for k in range(3)]
        for future in futures:
            with pytest.raises(UserError, match="disk full"):
                future.result(timeout=10)


# The ledger, against a model that keeps everything in a list.


@dataclass
class Known:
    """A click as a person with a notebook would keep it."""

    key: int
    ts: int
    arrival: int
    actions: dict[int, tuple[int, int]] = field(default_factory=dict)  # kind: (happened, seen)
    paid: set[tuple[int, int, int]] = field(default_factory=set)  # (seen, happened, +1 or -1)

    def is_undone(self, by: int) -> bool:
        """Whether all that was bought has been taken back, as far as three changes of that tell."""
        turns, stood = [], True
        for now in sorted({seen for seen, *_ in self.paid}):
            known = [(ts, n) for seen, ts, n in self.paid if seen <= now]
            first, level = min((ts for ts, n in known if n > 0), default=None), 0
            for second in sorted({ts for ts, _ in known if first is not None and ts >= first}):
                level = max(0, level + sum(n for ts, n in known if ts == second))
            if (first is None or level > 0) != stood:
                stood = not stood
                turns.append(now)
        return sum(turn <= by for turn in turns[:3]) % 2 == 1


class Notebook:
    """Applies the rules one event at a time: in words, they are in the package's docstring."""

    def __init__(self) -> None:
        self.clicks: dict[int, Known] = {}
        t = base()
        for row in range(len(t)):
            known = Known(int(t.click_id[row]), int(t.click_ts[row]), int(t.click_ts[row]))
            for kind in range(2):
                if t.action_ts[row, kind] < GRID.split:
                    known.actions[kind] = (int(t.action_ts[row, kind]),) * 2
                    known.paid |= {(*known.actions[kind], 1)} if kind == 0 else set()
            self.clicks[known.key] = known
        self.events: list[tuple[int, Event]] = []  # (seen, event), in order of acceptance
        self.ids: set[str] = set()
        self.closed = self.done = 0
        self.rows = len(t)
        self.waiting: list[tuple[int, Event]] = []

    def accept(self, batch: list[Event]) -> None:
        until = GRID.bounds(self.closed)[0]
        fresh = [
            e for i, e in enumerate(batch) if e.event not in self.ids and e.event not in {b.event for b in batch[:i]}
        ]
        self.ids |= {e.event for e in fresh}
        self.events += [(max(e.ts, until), e) for e in fresh]
        if fresh:
            self.close(max(e.ts for e in fresh) - GRID.lateness)

    def close(self, watermark: int) -> None:
        self.closed = max(self.closed, GRID.closed(watermark))

    def advance(self) -> None:
        start, end = GRID.bounds(self.done)
        now = [(seen, e) for seen, e in self.events if start <= seen < end]
        for seen, e in now:
            if e.kind == 0 and seen - e.ts <= D_MAX and not self._remembered(e.click, end):
                self.clicks[e.click] = Known(e.click, e.ts, seen)
                self.rows += 1
        self.waiting += [(seen, e) for seen, e in now if e.kind]
        for seen, e in sorted(self.waiting, key=lambda w: (self._since(*w), w[1].ts, w[1].kind, w[1].click)):
            if self._remembered(e.click, end):
                self._join(self.clicks[e.click], self._since(seen, e), e)
        kept = [(seen, e) for seen, e in self.waiting if not self._remembered(e.click, end)]
        self.waiting = [(seen, e) for seen, e in kept if end - seen <= D_MAX]
        self.done += 1

    def _remembered(self, key: int, now: int) -> bool:
        return key in self.clicks and self.clicks[key].arrival >= now - MEMORY

    def _since(self, seen: int, e: Event) -> int:
        return max(seen, self.clicks[e.click].arrival) if e.click in self.clicks else seen  # the others wait on

    def _join(self, known: Known, seen: int, e: Event) -> None:
        if e.kind == 3:
            known.paid.add((seen, e.ts, -1))
        elif 0 <= e.ts - known.ts <= D_MAX:
            known.actions.setdefault(e.kind - 1, (e.ts, seen))
            known.paid |= {(seen, e.ts, 1)} if e.kind == 1 else set()

    def reveals(self, start: int, end: int) -> list[tuple[Any, ...]]:
        fired = []
        for c in sorted(self.clicks.values(), key=lambda c: (c.arrival, c.ts, c.key)):
            for number, trigger in enumerate(SCHEDULE):
                fire = self._fires(c, trigger)
                if fire is not None and start <= fire < end:
                    fired.append((fire, c.arrival, c.ts, c.key, number, self._seen(c, fire)))
        return [(came, fire - ts, number, ages) for fire, came, ts, _, number, ages in sorted(fired)]

    def _fires(self, c: Known, trigger: Trigger) -> int | None:
        if isinstance(trigger, After):
            fire = max(c.ts + trigger.seconds, c.arrival)
            converted = self._seen(c, fire)[0] <= D_MAX
            return fire if trigger.seen in (None, converted) else None
        if not isinstance(trigger, On) or trigger.action not in c.actions:
            return None
        at, seen = c.actions[trigger.action]
        stands = trigger.action > 0 or self._seen(c, seen)[0] <= D_MAX
        return seen if seen - c.ts > trigger.later_than and at - c.ts <= D_MAX and stands else None

    def _seen(self, c: Known, clock: int) -> tuple[int, ...]:
        ages = [c.actions[k][0] - c.ts if k in c.actions and c.actions[k][1] <= clock else NEVER for k in range(2)]
        if c.is_undone(min(clock, c.ts + D_MAX)):
            ages[0] = NEVER
        return tuple(ages)


MEMORY_DISK = "/dev/shm" if Path("/dev/shm").is_dir() else None
MEMORY = D_MAX + 2 * GRID.interval
CLOCK = 1_000_000
"""Later than anything honest."""


def shown(events: Reveals) -> list[tuple[Any, ...]]:
    ages = [tuple(row) for row in events.age.tolist()]
    return list(zip(events.arrival.tolist(), events.elapsed.tolist(), events.trigger.tolist(), ages, strict=True))


class Interleavings(RuleBasedStateMachine):
    """Any batches in any order, late, early and repeated, and dates that nobody believes; ledgers that live long and
    ledgers that are built anew."""

    @initialize()
    def start(self) -> None:
        self.small = mock.patch.multiple(open_clicks, ROWS=3, _CACHED=200)
        self.small.start()
        self.room = TemporaryDirectory(dir=MEMORY_DISK)  # a thousand commits: a disk would take minutes
        self.log = EventLog(Path(self.room.name) / "events.db", replace(GRID, origin=0), lambda: CLOCK)
        self.ledger = Ledger(base(), GRID, READER, self.log, MEMORY, Path(self.room.name))
        self.ledger.begin()
        self.past = {0: (self.ledger.rows, dict(self.ledger.counts))}
        self.notebook, self.sent = Notebook(), [click(1, 100)]

    def teardown(self) -> None:
        self.log.close()
        self.room.cleanup()
        self.small.stop()

    def now(self) -> int:
        return GRID.bounds(self.notebook.closed)[0]

    @rule(offsets=st.lists(st.tuples(st.integers(-45, 14), st.integers(-3, 12), st.integers(0, 3)), max_size=8))
    def send(self, offsets: list[tuple[int, int, int]]) -> None:
        kinds = ("click", "conversion", "cart", "refund")
        batch = []
        for offset, key, kind in offsets:
            ts = max(0, self.now() + offset)
            batch.append(click(key, ts) if kind == 0 else action(key, ts, kinds[kind]))
        self.sent += batch
        self.accept(batch)

    @rule(wait=st.integers(0, 45), before=st.integers(0, 30), kind=st.sampled_from(("conversion", "cart", "refund")))
    def send_an_action_before_its_click(self, wait: int, before: int, kind: str) -> None:
        key, ts = 1000 + len(self.sent), self.now()
        self.sent += [action(key, ts, kind), click(key, ts - before)]
        self.accept(self.sent[-2:-1])
        if wait:
            self.time_passes(wait)
        self.learn()
        self.accept(self.sent[-1:])

    @rule(beyond=st.integers(GRID.skew + 1, 1 << 40), key=st.integers(-3, 12), kind=st.sampled_from((0, 1, 3)))
    def send_the_future(self, beyond: int, key: int, kind: int) -> None:
        ts = CLOCK + beyond
        wrong = click(key, ts) if kind == 0 else action(key, ts, ("", "conversion", "", "refund")[kind])
        receipt = self.log.append([wrong])
        assert (receipt.accepted, receipt.duplicates + receipt.counts["future"]) == (0, 1)

    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        self.accept(data.draw(st.lists(st.sampled_from(self.sent), max_size=5)))

    def accept(self, batch: list[Event]) -> None:
        before = len(self.notebook.ids)
        self.notebook.accept(batch)
        receipt = self.log.append(batch)
        assert receipt.accepted == len(self.notebook.ids) - before
        assert receipt.duplicates == len(batch) - receipt.accepted

    @rule(ahead=st.integers(1, 40))
    def time_passes(self, ahead: int) -> None:
        until = self.now() + ahead
        self.notebook.close(until)
        assert self.log.close_until(until) == self.notebook.closed

    @rule()
    def learn(self) -> None:
        while self.ledger.done < self.log.closed():
            bounds = GRID.bounds(self.ledger.done)
            self.ledger.advance()
            self.notebook.advance()
            assert shown(self.ledger.reveals(SCHEDULE, *bounds)) == self.notebook.reveals(*bounds)
            assert self.ledger.rows == self.notebook.rows
            self.past[self.ledger.done] = self.ledger.rows, dict(self.ledger.counts)

    @rule()
    def build_anew(self) -> None:
        """From the log alone, in memory: the same clicks under the same numbers, and the same of them still waiting."""
        fresh = Ledger(base(), GRID, READER, self.log, MEMORY)
        fresh.rebuild(self.ledger.done, self.ledger.rows, dict(self.ledger.counts))
        first = int(np.searchsorted(self.ledger.table.arrival_ts, GRID.bounds(self.ledger.done)[0] - MEMORY))
        for name in ("click_id", "click_ts", "arrival_ts", "action_ts", "known_ts", "refund_ts", "x"):
            ours = getattr(self.ledger.table, name)[first:]
            theirs = getattr(fresh.table, name)[len(fresh.table) - len(ours) :]
            assert ours.tolist() == theirs.tolist(), name
        assert fresh.rows == self.ledger.rows

    @rule(back=st.integers(0, 6))
    def restart(self, back: int) -> None:
        """Killed, with a version that is older, by some intervals, than the ledger."""
        done = self.ledger.done
        version = max(0, done - back)
        self.ledger.database.close()
        self.ledger = Ledger(base(), GRID, READER, self.log, MEMORY, Path(self.room.name))
        self.ledger.rebuild(version, *self.past[version])
        while self.ledger.done < done:
            self.ledger.advance()
            assert (self.ledger.rows, dict(+self.ledger.counts)) == (
                self.past[self.ledger.done][0],
                dict(+Counter(self.past[self.ledger.done][1])),
            )
        self.build_anew()

    @invariant()
    def as_many_as_in_the_notebook(self) -> None:
        if hasattr(self, "log"):
            assert self.log.closed() == self.notebook.closed
            assert len(self.log.before(NEVER)) == len(self.notebook.ids)


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
