"""An honest and a dishonest client of one store, beside kills, wrong clocks and disks that lose files.

Two things hold whatever happens. Honest clients are not harmed: a twin store that got the honest events only gives the
same answers and the same weights, to the byte. And nothing is silent: each event of the dishonest client is refused
with a reason, or counted in a receipt, and what the log counts is what the receipts say.

The dishonest client sends what must have no effect. It does not register clicks of honest ids before their owner does,
nor conversions of honest clicks: who may send events is believed, see SECURITY.md.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from livestore import SMALL, dataset, learnt, predicted
from test_service import asked, served, until
from tracecvr.base import registry
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.errors import UserError
from tracecvr.cli.live import operate
from tracecvr.data import prepared
from tracecvr.data.dataset import Dataset
from tracecvr.online.dataset_events import events_of
from tracecvr.online.learner.archive import compact
from tracecvr.online.learner.learner import open_learner
from tracecvr.online.log.event_log import EventLog
from tracecvr.online.log.inbox import Inbox
from tracecvr.online.log.times import AskedTimes
from tracecvr.online.store.store import Settings, Store
from tracecvr.online.store.versions import Versions

ORIGIN = 1_700_000_000
MEMORY_DISK = "/dev/shm" if Path("/dev/shm").is_dir() else None
COUNTS = ("accepted", "duplicates", "late", "out_of_window", "conflicts", "future", "not_kept")


class Clock:
    """The server's clock."""

    now = 0


class Clocked(Store):
    """A store on a machine with that clock."""

    def log(self, *_: Any) -> Inbox:
        return super().log(lambda: Clock.now)


def chosen() -> Dataset:
    """A log whose events are soon over: compaction finds some."""
    return replace(dataset(), interval=2 * HOUR, d_max=6 * HOUR, horizons=(HOUR, 6 * HOUR))


@cache
def events() -> tuple[dict[str, Any], ...]:
    return tuple(events_of(chosen(), None, 3 * DAY, 7 * DAY))


@cache
def warm_store() -> tuple[TemporaryDirectory[str], Path]:
    """A store that has learnt its warm-up part only; to be copied."""
    room = TemporaryDirectory(dir=MEMORY_DISK)
    base, folder = Path(room.name) / "base", Path(room.name) / "store"
    prepared.prepare_to(base, chosen(), None)
    method, times = registry.get("method", "vanilla")(**SMALL), AskedTimes("unix", ORIGIN)
    learnt(Clocked.create(folder, base, method, (), Settings(lateness=HOUR, keep=2), times=times))
    return room, folder


class Live:
    """A store that is served, over HTTP, and fed from files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, Clocked.open(folder)
        self._running = ExitStack()
        self.url = self._running.enter_context(served(self.store))

    def stop(self) -> None:
        self._running.close()

    def post(self, route: str, body: bytes) -> tuple[int, Any]:
        return asked(self.url, "POST", f"/v1/{route}", body)

    def ingest(self, lines: bytes) -> Counter[str] | str:
        """What a file of events came to: counts, or why it was refused."""
        path, said = self.folder / "events.jsonl", io.StringIO()
        path.write_bytes(lines)
        try:
            with patch.object(operate, "store_at", Clocked.open), redirect_stdout(said), redirect_stderr(io.StringIO()):
                operate.ingest(self.folder, path, 500)
        except UserError as error:
            return str(error)
        pairs = (pair.split(": ") for pair in said.getvalue().strip().split(", "))
        return Counter({name: int(n.replace(",", "")) for name, n in pairs})

    def accept_what_is_due(self) -> None:
        log = self.store.log()
        log.append([])
        log.close()

    def learn(self) -> None:
        learnt(self.store)
        status, _ = self.post("promote", b'{"version": null}')  # it need not wait for the next look
        assert status == 200
        newest = Versions(self.folder, 2).serving()
        until(lambda: asked(self.url, "GET", "/v1/model")[1]["version"] == newest)

    def counts(self) -> dict[str, int]:
        log = self.store.log()
        facts = log.facts()
        log.close()
        accepted = facts.get("clicks", 0) + facts.get("actions", 0)
        reached = {name: max(3 * DAY, facts.get(name, 0)) for name in ("newest", "watermark")}  # its stream starts then
        return {name: facts.get(name, 0) for name in COUNTS} | {"accepted": accepted} | reached

    def lessons(self) -> dict[str, Any]:
        """What was learnt and told, without what is counted of others."""
        manifest = Versions(self.folder, 2).latest()
        assert manifest is not None
        names = ("intervals", "weights", "sha256", "rows", "mature", "vitals")
        return {name: manifest[name] for name in names} | {"scores": predicted(self.store)}


ODD_IDS = st.sampled_from(
    (0, -1, 1 << 62, -(1 << 63) + 1, 1 << 63, 10**400, True, 1.5, None, [1], {"a": 1})
) | st.sampled_from(("777", "", " ", "\x00", "é" * 90, "\ud800", "c1", "'; --", "../../etc", "x" * 10_000))
BAD_VALUES = st.sampled_from(("n/a", "", True, False, 1 << 70, float("nan"), float("-inf"), "1e999"))
ANY_VALUES = BAD_VALUES | st.sampled_from((None, 3, 3.0, "3", [1], {"a": 1}, "\ud800", 10**400, "y" * 10_000))
WRONG_TIMES: st.SearchStrategy[Any] = st.sampled_from(
    (5 * DAY, ORIGIN - 1, 1000 * (ORIGIN + 5 * DAY), 10**18, -1, 0, 1e300, 10**400, float("inf"), float("nan"))
) | st.sampled_from((None, True, [], {}, "soon", "", "2023-11-19T00:00:00", "9999-12-31T23:59:59Z", "1700432000"))
MALFORMED = st.sampled_from((b"", b"{", b"[]", b"null", b"1", b"\xff\xfe", b"[" * 100_000, b'{"a": NaN}')) | (
    st.sampled_from((b'{"clicks": [', b'{"clicks": {}}', b'{"clicks": [{}]}', b'{"clicks": [], "clicks": []}'))
    | st.sampled_from(
        (b'{"events": [1]}', b'{"events": [{"type": "click"}]}', b'{"clicks": [{"click_id": ' + b"1" * 5_000)
    )
)
ROUTES = st.sampled_from(["clicks", "events", "file"])


def one_line(message: str) -> bool:
    return 0 < len(message) < 2_000 and len(message.splitlines()) == 1


def position_of(folder: Path) -> int:
    """How far the log of a store has come, whatever is wrong with it."""
    log = Clocked.open(folder, check=False).log()
    try:
        return log.position()
    finally:
        log.close()


class TwoClients(RuleBasedStateMachine):
    """The dishonest client's events are sent to one of two stores, the honest one's to both."""

    @initialize()
    def start(self) -> None:
        self.room, Clock.now = TemporaryDirectory(dir=MEMORY_DISK), ORIGIN + 3 * DAY
        self.ours, self.twin = (Live(self.copied(name, warm_store()[1])) for name in ("0", "twin"))
        self.left = list(events())
        self.sent: list[Any] = []
        self.held: list[Any] = []
        self.own: list[dict[str, Any]] = []
        self.receipts: Counter[str] = Counter()
        self.bad, self.kills, self.numbers, self.error, self.steps = 0, 0, 10**12, 0, 0

    def copied(self, name: str, folder: Path) -> Path:
        return Path(shutil.copytree(folder, Path(self.room.name) / name))

    def teardown(self) -> None:
        if not hasattr(self, "twin"):
            return
        try:
            self.put_the_clock_right()
            self.clock_at(max(Clock.now, ORIGIN + 8 * DAY))
            for live in (self.ours, self.twin):
                log = live.store.log()
                log.close_until(8 * DAY)
                log.close()
            self.learn(killed=False)
            counted = Versions(self.ours.folder, 2).latest()["counts"]  # type: ignore[index]
            assert sum(n for name, n in counted.items() if name.startswith("bad_values.")) == self.bad
        finally:
            self.ours.stop()
            self.twin.stop()
            self.room.cleanup()

    # The honest client.

    def both(self, events: Sequence[dict[str, Any]]) -> None:
        """To both, by HTTP: the answers are the same, scores and all."""
        unix = [event | {"ts": ORIGIN + event["ts"]} for event in events]
        clicks = [{n: v for n, v in e.items() if n != "type"} for e in unix if e["type"] == "click"]
        actions = [event for event in unix if event["type"] != "click"]
        for route, batch in (("clicks", clicks), ("events", actions)):
            if batch:
                body = json.dumps({route: batch}).encode()
                answer = self.ours.post(route, body)
                assert answer[0] == 200, answer
                assert answer == self.twin.post(route, body)

    @rule(count=st.integers(20, 150), hold=st.integers(0, 5))
    def honest_events(self, count: int, hold: int) -> None:
        batch, self.left = self.left[:count], self.left[count:]
        if not batch:
            return
        self.clock_at(ORIGIN + batch[-1]["ts"] + self.error)
        self.held += batch[:hold]
        self.sent += batch[hold:]
        self.both(batch[hold:])

    @rule()
    def honest_events_that_are_late(self) -> None:
        self.both(self.held)
        self.sent, self.held = self.sent + self.held, []

    @rule(count=st.integers(1, 30))
    def honest_retries(self, count: int) -> None:
        self.both(self.sent[-count:])

    # The dishonest client.

    def dishonest(self, route: str, events: Sequence[dict[str, Any]]) -> Counter[str] | str:
        """Send events, over HTTP or from a file; the receipt, or why they were refused. Each one is in a count."""
        if route == "file":
            told = self.ours.ingest("".join(json.dumps(event) + "\n" for event in events).encode())
        else:
            of_route = [{n: v for n, v in e.items() if n != "type" or route == "events"} for e in events]
            told = self.answered(route, json.dumps({route: of_route}).encode())
        if isinstance(told, str):
            return told
        assert told["accepted"] + told["duplicates"] + told["future"] == len(events), told
        self.receipts.update({name: told[name] for name in COUNTS})
        return told

    def answered(self, route: str, body: bytes) -> Counter[str] | str:
        status, answer = self.ours.post(route, body)
        if status == 200:
            return Counter({n: v for n, v in answer.items() if isinstance(v, int)} | {"future": answer["set_aside"]})
        assert 400 <= status < 500, (status, answer)
        assert one_line(str(answer["error"]))
        return str(answer["error"])

    def new_click(self, **changed: Any) -> dict[str, Any]:
        """A click that nobody else has."""
        self.numbers += 1
        features = {"segment": 1, "device": 1, "item": 1}
        return {"type": "click", "click_id": self.numbers, "ts": self.newest(), "features": features} | changed

    def newest(self) -> int:
        """The newest time that honest events have shown: what is dated later would close intervals earlier."""
        return ORIGIN + self.twin.counts()["newest"]

    def route_of(self, event: dict[str, Any], http: bool) -> str:
        return "file" if not http else "clicks" if event["type"] == "click" else "events"

    @rule(
        days=st.lists(st.integers(60, 20_000), min_size=1, max_size=5),
        key=ODD_IDS,
        value=ANY_VALUES,
        http=st.booleans(),
    )
    def the_far_future(self, days: list[int], key: Any, value: Any, http: bool) -> None:
        """Of its own ids, odd ones, and those of honest clicks that are yet to come."""
        features = {"segment": value, "device": value, "item": 1}
        events = [self.new_click(ts=Clock.now + n * DAY, features=features) for n in days]
        events += [self.new_click(ts=Clock.now + 90 * DAY, click_id=e["click_id"]) for e in self.left[:2]]
        for batch in (events, [self.new_click(ts=Clock.now + 99 * DAY, click_id=key)]):
            told = self.dishonest(self.route_of(batch[0], http), batch)
            assert isinstance(told, str) or told["accepted"] == 0

    @rule(ts=st.integers(0, 2 * DAY - 1), key=ODD_IDS, http=st.booleans())
    def the_far_past(self, ts: int, key: Any, http: bool) -> None:
        for event in (self.new_click(ts=ORIGIN + ts), self.new_click(ts=ORIGIN + ts, click_id=key)):
            told = self.dishonest(self.route_of(event, http), [event])
            if not isinstance(told, str):
                assert told["accepted"] == told["late"] == told["out_of_window"]
                self.own += [event] if told["accepted"] else []

    @rule(ts=WRONG_TIMES, kind=st.sampled_from(["click", "conversion"]), http=st.booleans())
    def times_of_another_unit_or_of_none(self, ts: Any, kind: str, http: bool) -> None:
        event = self.new_click(ts=ts, type=kind)
        if kind != "click":
            del event["features"]
        told = self.dishonest(self.route_of(event, http), [event])
        assert isinstance(told, str), told

    @rule(value=BAD_VALUES, column=st.sampled_from(["segment", "device"]), http=st.booleans())
    def values_of_another_type(self, value: Any, column: str, http: bool) -> None:
        """The twin gets them as missing ones."""
        wrong = self.new_click()
        right = wrong | {"features": wrong["features"] | {column: None}}
        wrong["features"] = wrong["features"] | {column: value}
        self.bad, self.own = self.bad + 1, [*self.own, wrong]
        if not http:
            lines = [json.dumps(event).encode() + b"\n" for event in (wrong, right)]
            assert self.ours.ingest(lines[0]) == self.twin.ingest(lines[1])
            return
        bodies = [{"clicks": [{n: v for n, v in e.items() if n != "type"}]} for e in (wrong, right)]
        (status, ours), (_, theirs) = (
            live.post("clicks", json.dumps(body).encode())
            for live, body in zip((self.ours, self.twin), bodies, strict=True)
        )
        assert (status, ours.pop("bad_values")) == (200, {column: 1})
        assert ours == theirs

    @rule(data=st.data(), http=st.booleans())
    def other_content_under_an_id_that_is_there(self, data: st.DataObject, http: bool) -> None:
        clicks = [e for e in self.sent if e["type"] == "click" and self.known(e)]
        known = self.own + clicks[-5:]
        if known:
            key = data.draw(st.sampled_from(known))["click_id"]
            event = self.new_click(click_id=key, features={"segment": 2, "device": 0, "item": "other"})
            told = self.dishonest(self.route_of(event, http), [event])
            assert not isinstance(told, str)
            assert told["duplicates"] == told["conflicts"] == 1

    def known(self, event: dict[str, Any]) -> bool:
        return asked(self.twin.url, "GET", f"/v1/clicks/{event['click_id']}")[0] == 200

    @rule(key=ODD_IDS, kind=st.sampled_from(["conversion", "refund", "nonsense", None, 3]), http=st.booleans())
    def actions_of_clicks_that_nobody_has(self, key: Any, kind: Any, http: bool) -> None:
        for click_id in (key, f"nobody's {self.numbers}"):
            self.numbers += 1
            event = {"type": kind, "click_id": click_id, "ts": self.newest(), "event_id": f"action {self.numbers}"}
            self.dishonest("events" if http else "file", [event])

    @rule(body=MALFORMED, route=ROUTES)
    def what_is_no_event(self, body: bytes, route: str) -> None:
        if route != "file":
            assert isinstance(self.answered(route, body), str)
        elif body:
            told = self.ours.ingest(body)
            assert isinstance(told, str)
            assert one_line(told)

    # The machine.

    def clock_at(self, now: int) -> None:
        Clock.now = now
        for live in (self.ours, self.twin):  # else whoever comes next would bring it about
            live.accept_what_is_due()

    @rule(seconds=st.integers(-2 * HOUR, 2 * HOUR))
    def the_clock_jumps(self, seconds: int) -> None:
        self.clock_at(Clock.now - self.error + seconds)
        self.error = seconds

    @rule()
    def put_the_clock_right(self) -> None:
        self.the_clock_jumps(0)

    @rule(killed=st.booleans())
    def learn(self, killed: bool) -> None:
        if killed:
            broken = patch.object(EventLog, "record", side_effect=KeyboardInterrupt)  # its version is whole by then
            with suppress(KeyboardInterrupt), open_learner(self.ours.store) as learner, broken:
                learner.tick()
        for live in (self.ours, self.twin):
            live.learn()
        assert self.ours.lessons() == self.twin.lessons()

    @rule()
    def compact(self) -> None:
        compact(self.ours.store)

    def killed(self) -> Path:
        """What a kill leaves: a copy of the files while the server has them open. It is another folder."""
        self.kills += 1
        return self.copied(str(self.kills), self.ours.folder)

    def go_on_in(self, folder: Path) -> None:
        self.ours.stop()
        shutil.rmtree(self.ours.folder)
        self.ours = Live(folder)

    @rule()
    def kill_the_server(self) -> None:
        self.go_on_in(self.killed())

    @rule(name=st.sampled_from(["base/encoder.json", "base/table.json", "store.json", "files.json", "events.db"]))
    def a_file_is_lost_or_altered(self, name: str) -> None:
        folder = self.killed()
        if name == "events.db":
            (folder / name).unlink()
        else:
            text = (folder / name).read_text()
            (folder / name).write_text(re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), text, count=1))
        self.refused(folder)
        self.put_back(folder, name)
        self.go_on_in(folder)

    @rule()
    def the_write_ahead_log_is_lost(self) -> None:
        folder = self.killed()
        for suffix in ("-wal", "-shm"):
            (folder / f"events.db{suffix}").unlink(missing_ok=True)
        if position_of(folder) != position_of(self.ours.folder):
            self.refused(folder)
        self.put_back(folder, "events.db", "events.db-wal", "events.db-shm")
        self.go_on_in(folder)

    @rule(suffix=st.sampled_from(["json", "safetensors"]), lost=st.booleans(), every=st.booleans())
    def versions_are_lost(self, suffix: str, lost: bool, every: bool) -> None:
        """They are made again."""
        folder = self.killed()
        for path in sorted((folder / "models").glob(f"*.{suffix}"))[0 if every else -1 :]:
            if lost:
                path.unlink()
            else:
                os.truncate(path, path.stat().st_size // 2)
        learnt(Clocked.open(folder))
        self.go_on_in(folder)
        self.learn(killed=False)

    def refused(self, folder: Path) -> None:
        with pytest.raises(UserError) as refusal:
            Clocked.open(folder)
        assert one_line(str(refusal.value))
        assert str(folder) in str(refusal.value)

    def put_back(self, folder: Path, *names: str) -> None:
        for name in names:
            (folder / name).unlink(missing_ok=True)
            if (self.ours.folder / name).exists():
                shutil.copyfile(self.ours.folder / name, folder / name)

    @invariant()
    def both_clients_go_on(self) -> None:
        """After each step: of the rules, Hypothesis leaves out some in each example."""
        if hasattr(self, "twin"):
            self.steps += 1
            self.honest_events(110, hold=2)
            self.the_far_future([60, 700 + self.steps], self.steps, "n/a", http=self.steps % 2 == 0)
            if self.steps % 5 == 0:
                self.honest_events_that_are_late()
                self.learn(killed=False)
                self.compact()

    @invariant()
    def all_is_counted(self) -> None:
        """What the log counts beyond the twin's is what the dishonest client was told."""
        if hasattr(self, "twin"):
            ours, theirs = self.ours.counts(), self.twin.counts()
            assert {name: ours[name] - theirs[name] for name in COUNTS} == {n: self.receipts[n] for n in COUNTS}
            assert (ours["newest"], ours["watermark"]) == (theirs["newest"], theirs["watermark"])


def test_an_honest_client_is_not_harmed_by_a_dishonest_one_and_nothing_is_silent() -> None:
    run_state_machine_as_test(TwoClients, settings=settings(max_examples=3, stateful_step_count=12, deadline=None))


@pytest.mark.slow
def test_many_encounters_of_an_honest_and_a_dishonest_client() -> None:
    run_state_machine_as_test(TwoClients, settings=settings(max_examples=150, stateful_step_count=40, deadline=None))
