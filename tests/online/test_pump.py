"""The pump and the inbox, with a broker made of lists: what is killed when, told twice or cannot be read, the log has
each message once. The same with real brokers is in `test_sources.py`."""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import Call
from hypothesis import given
from hypothesis import strategies as st

from livestore import Made, learnt, replayed, the_events
from test_event_log import GRID, READER
from tracecvr.base.errors import UserError
from tracecvr.data.table import NEVER
from tracecvr.online.log.inbox import Inbox, Message, Parsed, parse
from tracecvr.online.sources import BrokerSource
from tracecvr.online.sources.pump import Pump
from tracecvr.online.store.store import Store
from tracecvr.online.upkeep.status import status_of


def click(key: int, ts: int, **more: Any) -> dict[str, Any]:
    return {"type": "click", "click_id": key, "ts": ts, "features": {"a": "v", "n": 1}, **more}


def packed(*events: object) -> bytes:
    return json.dumps(events[0] if len(events) == 1 else events).encode()


# Messages.


def read(payload: bytes) -> Parsed:
    return parse(READER, Message("kafka:t/0", 7, payload))


def test_a_message_is_one_event_or_a_list_of_them() -> None:
    assert [e.click for e in read(packed(click(1, 5))).events] == [1]
    assert [e.click for e in read(packed(click(1, 5), click(2, 6))).events] == [1, 2]
    assert read(b"[]") == Parsed(Message("kafka:t/0", 7, b"[]"), [])


def test_columns_that_are_unknown_here_are_left_out_and_counted() -> None:
    extra = click(1, 5, campaign=7) | {"features": {"a": "v", "n": 1, "b": 2, "c": None}}
    content = read(packed(extra, {"type": "cart", "click_id": 1, "ts": 6, "features": {}, "price": 2}))
    assert content.unknown_columns == 5
    assert content.events == read(packed(click(1, 5), {"type": "cart", "click_id": 1, "ts": 6})).events


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"\xff\xfe{}", "codec can't decode|Expecting value"),
        (b"[" * 100_000, "recursion|RecursionError"),
        (b'{"ts": ' + b"9" * 5000 + b"}", "Exceeds the limit"),
        (b"7", "expected a JSON object, found int"),
        (packed(click(1, 5) | {"features": {"a": 1}}), "feature 'n' is missing"),
        (packed(click(1, 5), click(2, 6) | {"features": {}}), "event 1: feature 'a' is missing"),
        (packed(click(1, 5) | {"features": None}), "needs its features"),
        (packed({"type": "sale", "click_id": 1, "ts": 1}), "type is 'sale'"),
        (b'{"type": "cart", "click_id": "\\ud800", "ts": 1}', "not valid Unicode"),
        (b'{"type": "cart", "click_id": 1, "ts": 1, "user": "\\ud800"}', "not valid Unicode"),
        (packed(click(1, 5) | {"features": {"a": "\ud800", "n": 1}}), "not valid Unicode"),
        (packed(click(1, 5, user="u" * (1 << 20))), "at most 1,048,576 are read"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_position(payload: bytes, reason: str) -> None:
    content = read(payload)
    assert not content.events
    assert content.reason.startswith("kafka:t/0 at 7: ")
    assert re.search(reason, content.reason)
    assert len(content.reason) <= 500


@given(st.one_of(st.binary(max_size=60), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(packed)))
def test_no_payload_stops_the_pump(payload: bytes) -> None:
    content = read(payload)
    assert bool(content.reason) or not content.events


# Addresses.


def test_an_address_names_hosts_and_topics() -> None:
    source = BrokerSource.of("kafka://a:1,b:2/views,clicks")
    assert (source.hosts, source.sources) == ("a:1,b:2", ("kafka:clicks", "kafka:views"))
    assert str(source) == "kafka://a:1,b:2/clicks,views"


@pytest.mark.parametrize(
    ("url", "start", "message"),
    [
        ("redis://h/t", "earliest", "expected nats://HOST/STREAM"),
        ("redis://me:secret@h/t", "earliest", r"redis://\.\.\.@h"),
        ("kafka://me:secret@h/t", "earliest", "others see command lines"),
        ("kafka://h", "earliest", "expected kafka://HOST:PORT/NAME"),
        ("kafka:///t", "earliest", "expected kafka://HOST:PORT/NAME"),
        ("nats://h/a/b", "earliest", "expected nats://HOST:PORT/NAME"),
        ("nats://h/a,b", "earliest", "one stream"),
        ("nats://h/a", "yesterday", "--from yesterday: choose one of earliest, latest"),
    ],
)
def test_a_wrong_address_is_told_what_is_wrong_and_no_password(url: str, start: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        BrokerSource.of(url, start)
    assert "secret" not in str(raised.value)


def test_credentials_come_from_a_file_and_are_never_shown(tmp_path: Path) -> None:
    config = tmp_path / "kafka.toml"
    config.write_text('security.protocol = "sasl_ssl"\n[sasl]\nusername = "me"\npassword = "secret"\n')
    source = BrokerSource.of("kafka://h/t", config=config)
    assert source.settings == {"security.protocol": "sasl_ssl", "sasl.username": "me", "sasl.password": "secret"}
    assert "secret" not in repr(source) + str(source)
    config.write_text("= 1")
    with pytest.raises(UserError, match=r"not readable as TOML"):
        BrokerSource.of("kafka://h/t", config=config)


# A broker made of lists.


@dataclass
class Shelf:
    """Messages by partition, and what is known of who reads them."""

    partitions: dict[str, list[bytes]]
    identity: str = "one"
    first: dict[str, int] = field(default_factory=dict)
    """Messages before this one are gone."""
    acknowledged: dict[str, int] = field(default_factory=dict)
    away: bool = False

    @classmethod
    def of(cls, events: Sequence[object], count: int = 1) -> Shelf:
        """Events spread over partitions by their clicks."""
        partitions: dict[str, list[bytes]] = {f"kafka:t/{n}": [] for n in range(count)}
        for event in events:
            key = event["click_id"] if isinstance(event, dict) else 0
            partitions[f"kafka:t/{key % count}"].append(packed(event))
        return cls(partitions)


@dataclass
class Reader:
    """One connection. `forgetful`: it goes on where it was acknowledged, wherever it is told to."""

    shelf: Shelf
    forgetful: bool = False
    at: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    arrived: list[str] = field(default_factory=list)
    """Partitions whose messages have come; all if there are none of these."""
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def identities(self) -> Mapping[str, str]:
        if self.shelf.away:
            raise UserError("nobody answers")
        return {"kafka:t": self.shelf.identity}

    def bounds(self) -> Mapping[str, tuple[int, int]]:
        return {name: (self.shelf.first.get(name, 0), len(all_)) for name, all_ in self.shelf.partitions.items()}

    def seek(self, following: Mapping[str, int]) -> None:
        self.at = dict(following)
        if self.forgetful:
            self.at = {name: self.shelf.acknowledged.get(name, -1) + 1 for name in following}
        self.lag(ask=True)

    def pull(self, count: int, seconds: float) -> list[Message]:
        if self.shelf.away:
            raise UserError("nobody answers")
        messages: list[Message] = []
        names = self.arrived or sorted(self.at)
        for name in self.rng.sample(names, len(names)):  # a partition at a time, as brokers do
            for position in range(self.at[name], min(len(self.shelf.partitions[name]), self.at[name] + count)):
                if len(messages) < count:
                    messages.append(Message(name, position, self.shelf.partitions[name][position]))
                    self.at[name] = position + 1
        return messages

    def lag(self, ask: bool = False) -> Mapping[str, int]:
        """What is left; who does not ask is told of old times."""
        if ask:
            self.ends = {name: len(self.shelf.partitions[name]) for name in self.at}
        return {name: max(0, self.ends.get(name, 0) - at) for name, at in self.at.items()}

    def acknowledge(self, positions: Mapping[str, int]) -> None:
        self.shelf.acknowledged.update(positions)

    def close(self) -> None: ...


@contextmanager
def beside(pump: Pump) -> Iterator[None]:
    """Pull in a thread of its own, as long as the context lasts."""
    stop = threading.Event()
    thread = threading.Thread(target=pump.run, args=(stop,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        pump.log.close()


class KilledError(BaseException):
    """As if the process had been killed there."""


def killed(*_: object) -> None:
    raise KilledError


@dataclass(frozen=True)
class Listed(BrokerSource):
    """A source whose broker is a shelf."""

    shelf: Shelf = field(default_factory=lambda: Shelf({}))
    forgetful: bool = False

    def check(self) -> None: ...

    def connect(self, client: str) -> Reader:
        return Reader(self.shelf, self.forgetful)


def source(shelf: Shelf, forgetful: bool = False, start: str = "earliest") -> Listed:
    return Listed("kafka", "h", ("t",), start, {}, shelf, forgetful)


def pump(store: Store, shelf: Shelf, batch: int = 100, **more: Any) -> Pump:
    return Pump(store, source(shelf, **more), batch, wait=0.001)


def each_once(store: Store, shelf: Shelf) -> None:
    """The log has the shelf's events, and has counted its messages once; none of them was a duplicate to it."""
    log = store.log()
    facts = log.sources()["kafka:t"]
    count = sum(map(len, shelf.partitions.values()))
    assert log.facts()["clicks"] + log.facts()["actions"] == count
    assert log.facts().get("duplicates", 0) == 0, "an event came into the log twice, and only its id saved us"
    assert (facts["messages"], facts["lag"], facts["lost"]) == (count, 0, 0)
    assert facts["positions"] == {name: len(all_) - 1 for name, all_ in shelf.partitions.items()}


def test_a_source_gives_the_weights_of_a_replay_however_its_partitions_are_read(made: Made) -> None:
    store, shelf = made(), Shelf.of(the_events(), 4)
    assert pump(store, shelf).drain() == len(the_events())
    each_once(store, shelf)
    assert store.log().facts().get("late", 0) == 0
    weights, intervals = learnt(store)
    assert intervals == store.log().closed() > 20
    assert replayed(store) == weights


KILLS = [("pull", "before"), ("pull", "after"), ("take", "inside"), ("take", "after"), ("acknowledge", "after")]


@pytest.mark.parametrize("forgetful", [False, True], ids=["seeks", "tells again what was not acknowledged"])
@pytest.mark.parametrize(("step", "when"), KILLS, ids=[" ".join(reversed(kill)) for kill in KILLS])
def test_killed_between_any_two_steps_it_goes_on_and_nothing_is_lost_or_doubled(
    step: str, when: str, forgetful: bool, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, shelf = made(), Shelf.of(the_events()[:300], 2)
    owner = Inbox if step == "take" else Reader
    original, closing = getattr(owner, step), Inbox._close
    calls = kills = 0

    def dying(self: Any, *words: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 3 == 0 and when != "after":
            if when == "before":
                killed()
            monkeypatch.setattr(Inbox, "_close", killed)  # all is written by then, and not yet committed
        result = original(self, *words)
        if calls % 3 == 0:
            killed()
        return result

    monkeypatch.setattr(owner, step, dying)
    for _ in range(30):
        try:
            pump(store, shelf, batch=20, forgetful=forgetful).drain()
            break
        except KilledError:
            kills += 1
            monkeypatch.setattr(Inbox, "_close", closing)
    assert kills > 3
    each_once(store, shelf)
    repeated = store.log().sources()["kafka:t"]["repeated"]
    assert (repeated > 0) == (forgetful and (step, when) == ("take", "after"))


def test_a_message_that_is_told_again_changes_nothing_though_its_events_have_other_ids(made: Made) -> None:
    """The position alone decides: here the broker's second telling would be new events."""
    store = made()
    events = [dict(e) for e in the_events()[:40] if e["type"] == "click"]
    shelf = Shelf.of(events)
    pump(store, shelf).drain()
    before = store.log().before(NEVER)
    shelf.acknowledged.clear()
    shelf.partitions["kafka:t/0"] = [packed(e | {"click_id": f"again-{e['click_id']}"}) for e in events]
    one = Pump(store, source(shelf, forgetful=True), 100, 0.001)
    one.drain()
    assert store.log().before(NEVER) == before
    assert store.log().sources()["kafka:t"]["repeated"] == len(events) == len(before)


def test_within_one_pull_a_message_counts_once(tmp_path: Path) -> None:
    log = Inbox(tmp_path / "events.db", GRID)
    log.begin({"kafka:t": "one"}, {"kafka:t/0": 0}, {})
    messages = [Message("kafka:t/0", n, packed(click(k, 101))) for k, n in enumerate((0, 1, 0, 1, 2))]
    receipt, _ = log.take([parse(READER, m) for m in messages], {"kafka:t/0": 0})
    assert (receipt.accepted, log.sources()["kafka:t"]["repeated"]) == (3, 2)
    assert [row.click for row in log.before(NEVER)] == [0, 1, 4]


def test_a_partition_with_messages_left_holds_time_back(tmp_path: Path) -> None:
    log = Inbox(tmp_path / "events.db", GRID)
    a, b, c = (f"kafka:t/{n}" for n in range(3))
    log.begin({"kafka:t": "one"}, {a: 0, b: 0, c: 0}, {})

    def take(partition: str, position: int, ts: int, left: dict[str, int]) -> int:
        log.take([parse(READER, Message(partition, position, packed(click(ts, ts))))], left)
        return log.closed()

    assert take(a, 0, 500, {a: 0, b: 2, c: 0}) == 0, "nobody knows how old the second's are"
    assert take(b, 0, 125, {a: 0, b: 1, c: 0}) == 2, "as far as the second has come, less the lateness"
    assert take(a, 1, 510, {a: 1, b: 1, c: 0}) == 2, "the slowest counts"
    assert take(b, 1, 150, {a: 1, b: 1, c: 1}) == 2, "there is a third, and nobody knows how old its are"
    assert take(c, 0, 140, {a: 1, b: 1, c: 1}) == 3
    assert log.take([], {a: 0, b: 0, c: 0})[0].accepted == 0
    assert log.closed() == 40, "nothing is left: the newest counts"
    assert take(b, 2, 160, {a: 0, b: 0, c: 0}) == 40


def test_time_waits_for_a_partition_that_nobody_knew_had_messages_by_now(made: Made) -> None:
    """Messages come in a burst while the pump looks on: of one partition it has them, of the other it only could."""
    store, shelf = made(), Shelf({"kafka:t/0": [], "kafka:t/1": []})
    one, broker = pump(store, shelf, batch=5000), Reader(shelf)
    one._go_on(broker)
    one.step(broker)
    shelf.partitions.update(Shelf.of(the_events(), 2).partitions)
    broker.arrived = ["kafka:t/0"]
    one.step(broker)
    assert one.log.closed() == 0
    broker.arrived = ["kafka:t/1"]
    one.step(broker)
    assert one.log.closed() > 20
    each_once(store, shelf)
    assert store.log().facts().get("late", 0) == 0


# What cannot be read.


def test_poison_is_set_aside_counted_and_printed_to_be_mended(
    made: Made, call: Call, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    store, events = made(), the_events()[:60]
    payloads = [packed(event) for event in events]
    first = next(e for e in events if e["type"] == "click")
    lacking = first | {"click_id": 10**9, "user": "u-ü", "features": dict(list(first["features"].items())[1:])}
    for at, bad in ((5, b"{"), (20, packed(lacking)), (21, packed(7))):
        payloads.insert(at, bad)
    shelf = Shelf({"kafka:t/0": payloads})
    pump(store, shelf, batch=10).drain()
    facts = store.log().sources()["kafka:t"]
    assert (facts["messages"], facts["set_aside"], facts["waiting"]) == (63, 3, 3)
    assert len(store.log().before(NEVER)) == 60
    assert "kafka:t/0: message 20 and 1 others set aside" in caplog.text
    assert "u-ü" not in caplog.text
    assert call("aside", "list", store.folder) == 0
    reasons = capsys.readouterr().out.splitlines()
    name = next(iter(first["features"]))
    assert [line.split(",")[0] for line in reasons] == [f"name: kafka:t/0:{at}" for at in (5, 20, 21)]
    assert f"feature {name!r} is missing" in reasons[1]
    assert call("aside", "list", store.folder, "--payload") == 0
    printed = capsys.readouterr().out.splitlines()
    assert (printed[0], json.loads(printed[1]), printed[2]) == ("{", lacking, "7")
    assert call("aside", "drop", store.folder) == 0
    assert "dropped: 3" in capsys.readouterr().out
    facts = store.log().sources()["kafka:t"]
    assert (facts["set_aside"], facts["waiting"]) == (3, 0)


def test_a_flood_of_poison_stops_reading_and_loses_nothing(
    made: Made, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracecvr.online.log.event_log.MOST_ASIDE", 3)
    store, events = made(), the_events()[:40]
    shelf = Shelf({"kafka:t/0": [payload for event in events for payload in (b"{", packed(event))][: 2 * 5 + 1]})
    shelf.partitions["kafka:t/0"] += [packed(event) for event in events[5:]]
    log = store.log()
    with pytest.raises(UserError, match=r"3 messages .* are set aside, and there are more"):
        pump(store, shelf, batch=2).drain()
    assert len(log.before(NEVER)) == 3
    with beside(Pump(store, source(shelf))):
        until(lambda: "reading has stopped" in (log.sources()["kafka:t"]["problem"] or ""))
        log.drop_aside()
        until(lambda: len(log.before(NEVER)) == 40)
        until(lambda: log.sources()["kafka:t"]["problem"] is None)
    facts = log.sources()["kafka:t"]
    assert (facts["messages"], facts["set_aside"], facts["waiting"]) == (46, 6, 3)


@pytest.mark.parametrize("escaped", [True, False])
def test_a_users_messages_that_were_set_aside_are_erased_with_him(tmp_path: Path, escaped: bool) -> None:
    log = Inbox(tmp_path / "events.db", GRID)
    log.begin({"kafka:t": "one"}, {"kafka:t/0": 0}, {})
    bad = [json.dumps({"user": user, "type": "?"}, ensure_ascii=escaped).encode() for user in ("ü-1", "ü-12")]
    log.take([parse(READER, Message("kafka:t/0", n, m)) for n, m in enumerate(bad)], {})
    log.erase("ü-1")
    assert [aside.name for aside in log.aside()] == ["kafka:t/0:1"]


# Where it starts, and what the broker may have lost.


def test_a_start_at_the_end_is_the_same_after_a_crash(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    store, events = made(), the_events()[:30]
    shelf = Shelf.of(events[:10])
    with monkeypatch.context() as patch:
        patch.setattr(Reader, "pull", killed)
        with pytest.raises(KilledError):
            pump(store, shelf, start="latest").drain()
    shelf.partitions["kafka:t/0"] += [packed(e) for e in events[10:]]
    pump(store, shelf, start="latest").drain()
    assert [e.ts for e in store.log().before(NEVER)] == [e["ts"] for e in events[10:]]


def test_a_new_partition_of_a_topic_is_read_from_its_start(made: Made) -> None:
    store, events = made(), the_events()[:30]
    shelf = Shelf.of(events[:10])
    pump(store, shelf, start="latest").drain()
    shelf.partitions["kafka:t/1"] = [packed(e) for e in events[10:]]
    pump(store, shelf, start="latest").drain()
    assert len(store.log().before(NEVER)) == 20


def test_messages_that_were_gone_before_they_were_read_are_counted(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    store, shelf = made(), Shelf.of(the_events()[:30])
    shelf.partitions["kafka:t/0"], later = shelf.partitions["kafka:t/0"][:10], shelf.partitions["kafka:t/0"][10:]
    pump(store, shelf).drain()
    shelf.partitions["kafka:t/0"] += later
    shelf.first["kafka:t/0"] = 14
    pump(store, shelf).drain()
    assert store.log().sources()["kafka:t"]["lost"] == 4
    assert "4 messages were gone before they were read" in caplog.text
    assert len(store.log().before(NEVER)) == 26


def test_another_stream_of_the_same_name_is_refused_until_the_first_is_forgotten(made: Made) -> None:
    store, events = made(), the_events()[:30]
    pump(store, Shelf.of(events[:20])).drain()
    with pytest.raises(UserError, match=r"has read up to 19: the broker lost messages, or it is another"):
        pump(store, Shelf.of(events[:5])).drain()
    other = Shelf.of(events)
    other.identity = "two"
    with pytest.raises(UserError, match=r"not the one that this store has read \(that was one, this is two\)"):
        pump(store, other).drain()
    assert len(store.log().before(NEVER)) == 20
    again = pump(store, other)
    again.forget()
    again.drain()
    assert len(store.log().before(NEVER)) == 30
    assert store.log().facts()["duplicates"] == 20


def test_stores_of_the_same_name_have_names_of_their_own_at_the_broker(made: Made, tmp_path: Path) -> None:
    one = made()
    other = Store.open(Path(shutil.copytree(one.folder, tmp_path / "elsewhere" / "store")))
    names = [pump(store, Shelf({})).client for store in (one, other, one)]
    assert names[0] == names[2] != names[1]
    assert all(name.startswith("tracecvr-store-") for name in names)
    assert "reader" not in status_of(one)["events"]


# As a thread.


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_PAUSES", (0.01, 0.01)), ("_PARTITIONS_S", 0.0)):
        monkeypatch.setattr(f"tracecvr.online.sources.pump.{name}", value)


def until(condition: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(1000):
        if condition():
            return
        waiting.wait(0.01)
    raise AssertionError("it does not come about")


def test_a_broker_that_is_away_is_told_of_and_read_when_it_is_back(made: Made, impatient: None) -> None:
    store, shelf = made(), Shelf.of(the_events()[:50])
    shelf.partitions["kafka:t/0"], later = shelf.partitions["kafka:t/0"][:20], shelf.partitions["kafka:t/0"][20:]
    log = store.log()
    shelf.away = True
    with beside(Pump(store, source(shelf))):
        until(lambda: status_of(store).get("sources", {}).get("kafka:t", {}).get("problem") == "nobody answers")
        shelf.away = False
        until(lambda: len(log.before(NEVER)) == 20)
        shelf.away = True
        until(lambda: status_of(store)["sources"]["kafka:t"]["problem"] == "nobody answers")
        shelf.partitions["kafka:t/0"] += later
        shelf.away = False
        until(lambda: len(log.before(NEVER)) == 50)
        assert status_of(store)["sources"]["kafka:t"]["problem"] is None
        shelf.partitions["kafka:t/1"] = [packed(e) for e in the_events()[50:60]]  # a new one, while it reads
        until(lambda: len(log.before(NEVER)) == 60)


def test_a_second_pump_waits_until_the_first_ends(made: Made, impatient: None) -> None:
    store, shelf, other = made(), Shelf.of(the_events()[:20]), Shelf.of(the_events()[:40])
    log = store.log()
    first = beside(Pump(store, source(shelf)))
    first.__enter__()
    until(lambda: len(log.before(NEVER)) == 20)
    with pytest.raises(UserError, match="one reader of brokers"):
        pump(store, other).drain()
    with pytest.raises(UserError, match="one reader of brokers"):
        pump(store, other).forget()
    with beside(Pump(store, source(other))):
        assert not threading.Event().wait(0.1)
        assert len(log.before(NEVER)) == 20
        assert log.sources()["kafka:t"]["problem"] is None
        first.__exit__(None, None, None)
        until(lambda: len(log.before(NEVER)) == 40)


def test_a_full_disk_is_waited_for(made: Made, impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    store, shelf = made(), Shelf.of(the_events()[:50])
    original, failures = Inbox.take, iter(range(3))

    def full(self: Inbox, *words: Any) -> Any:
        if next(failures, None) is not None:
            raise UserError("disk full")
        return original(self, *words)

    monkeypatch.setattr(Inbox, "take", full)
    with beside(Pump(store, source(shelf))):
        until(lambda: len(store.log().before(NEVER)) == 50)
    each_once(store, shelf)


# Extras.


def test_a_client_that_is_not_installed_is_named(
    made: Made, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made()
    monkeypatch.setitem(sys.modules, "nats", None)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    for scheme in ("nats", "kafka"):
        assert call("pull", store.folder, "--source", f"{scheme}://h/t") == 2
        assert f"pip install 'tracecvr[{scheme}]'" in capsys.readouterr().err


def test_what_there_is_to_be_told_is_in_status_and_metrics(
    made: Made, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    from tracecvr.online.service.gauges import Gauges
    from tracecvr.online.upkeep.status import status_of

    store, shelf = made(), Shelf.of([*the_events()[:20], 7], 2)
    pump(store, shelf).drain()
    text = Gauges(lambda: status_of(store)).text().decode()
    assert 'tracecvr_source_messages{kind="set_aside",source="kafka:t"} 1.0' in text
    assert 'tracecvr_source_up{source="kafka:t"} 1.0' in text
    assert call("status", store.folder) == 0
    said = capsys.readouterr().out
    assert "kafka:t.messages: 21" in said
    assert "kafka:t.lag: 0" in said
