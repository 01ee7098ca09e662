"""One contract for every way in: HTTP, a NATS JetStream server and Kafka's protocol. Whatever is killed between which
steps, nothing is lost, nothing is doubled, and the weights are those of a replay, to the byte."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from conftest import Call

from crashing import each_event_once, free_port, in_batches, learn_all, replayed, send_over, small_events, small_store
from service_client import Client
from tracecvr.base.config import HOUR
from tracecvr.base.errors import UserError
from tracecvr.data.table import NEVER
from tracecvr.online.log.event_database import EventDatabase
from tracecvr.online.log.event_log import EventLog
from tracecvr.online.log.inbox import Inbox, Message
from tracecvr.online.sources import BrokerSource
from tracecvr.online.sources.pump import Pump
from tracecvr.online.store.store import Store
from tracecvr.online.upkeep.verify_log import verify_log

pytestmark = pytest.mark.scale

GUIDE = Path(__file__).parents[2] / "docs" / "brokers.md"
INTERVALS = 9
STEPS = ("pulled", "committing", "committed", "acknowledged")
"""Where a process is killed: right after a pull, inside the transaction, after it, and after the acknowledgement."""


# Who can be killed: processes that run the product's own code, with a death built in by this test alone.


def _die(step: str, wanted: str, left: list[int]) -> None:
    if step == wanted:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _mortal_log(die: Callable[[str], None], method: str) -> None:
    """Let the log's transactions die when everything is written and nothing committed, or just committed."""
    owner = Inbox if method == "take" else EventLog
    original, transaction = getattr(owner, method), EventLog._transaction
    inside: list[int] = []

    @contextmanager
    def mortal(self: EventDatabase) -> Iterator[None]:
        with transaction(self):
            yield
            if inside:
                die("committing")

    def commit(self: EventLog, *words: Any) -> Any:
        inside.append(1)
        result = original(self, *words)
        inside.pop()
        die("committed")
        return result

    EventLog._transaction = mortal  # type: ignore[method-assign]
    setattr(owner, method, commit)


def _pull(folder: Path, url: str, wanted: str, after: int) -> None:
    """`tracecvr pull`, which dies at a step when that has gone well so many times."""
    die = partial(_die, wanted=wanted, left=[after])
    connect = BrokerSource.connect

    def mortal(self: BrokerSource, client: str) -> Any:
        broker = connect(self, client)
        pull, acknowledge = broker.pull, broker.acknowledge

        def pulling(count: int, seconds: float) -> list[Message]:
            messages = pull(count, seconds)
            if messages:
                die("pulled")
            return messages

        def acknowledging(positions: Any) -> None:
            acknowledge(positions)
            die("acknowledged")

        broker.pull, broker.acknowledge = pulling, acknowledging  # type: ignore[method-assign]
        return broker

    BrokerSource.connect = mortal  # type: ignore[method-assign]
    _mortal_log(die, "take")
    _command("pull", folder, "--source", url, "--batch", "13")


def _serve(folder: Path, port: int, wanted: str, after: int) -> None:
    """`tracecvr serve`: a request that was read is what a pull is, an answer what an acknowledgement is."""
    from tracecvr.online.service.scoring import Service

    die = partial(_die, wanted=wanted, left=[after])
    commit, make_events, read = Service.commit, Service._events, Service.read

    async def committing(self: Service, events: Any) -> Any:
        die("pulled")
        return await commit(self, events)

    def making(self: Service, clicks: Any) -> Any:
        die("acknowledged")  # the request before this one was answered
        return make_events(self, clicks)

    def reading(self: Service, contents: Any) -> Any:
        die("acknowledged")
        return read(self, contents)

    Service.commit, Service._events, Service.read = committing, making, reading  # type: ignore[assignment, method-assign]
    _mortal_log(die, "append_all")
    _command("serve", folder, "--port", port, "--no-learn")


def _command(*words: object) -> None:
    from tracecvr.cli.commands import main

    sys.argv = ["tracecvr", *map(str, words)]
    main()


# The ways in.


@dataclass
class Way:
    """A way into a store: a child process that takes events in, and somebody who sends them."""

    store: Store
    child: Callable[..., None]
    words: tuple[Any, ...]
    send: Callable[[Sequence[dict[str, Any]]], object]
    broker: Any = None
    _running: ForkServerProcess | None = None

    def start(self, step: str = "", after: int = 0) -> None:
        context = multiprocessing.get_context("forkserver")
        self._running = context.Process(target=_quietly, args=(self.child, self.store.folder, *self.words, step, after))
        self._running.start()

    def died(self) -> bool:
        assert self._running is not None
        self._running.join(60)
        return self._running.exitcode == -signal.SIGKILL

    def kill(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running.join()


def _quietly(child: Callable[..., None], *words: Any) -> None:
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    child(*words)


@pytest.fixture(params=["http", "nats", "kafka"])
def way(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Way]:
    store = small_store(tmp_path / "store", INTERVALS)
    if request.param == "http":
        port = free_port()
        learn_all(store)  # a click is answered with a score: there has to be a version
        with Client(f"http://127.0.0.1:{port}", retries=2) as client:
            one_way = Way(store, _serve, (port,), lambda batch: deque(send_over(client, batch), 0))
            yield one_way
            one_way.kill()
        return
    broker = request.getfixturevalue(request.param)

    def send(batch: Sequence[dict[str, Any]]) -> None:
        broker.publish([json.dumps(event).encode() for event in batch], [event["click_id"] for event in batch])

    one_way = Way(store, _pull, (broker.url,), send, broker)
    yield one_way
    one_way.kill()


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[Any]:
    from brokers import Nats

    (tmp_path / "nats").mkdir()
    broker = Nats(tmp_path / "nats", free_port())
    yield broker
    broker.close()


@pytest.fixture
def kafka() -> Iterator[Any]:
    from brokers import Kafka

    broker = Kafka()
    yield broker
    broker.close()


@pytest.fixture(params=["nats", "kafka"])
def broker(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not come about"
        time.sleep(0.02)


def accepted(store: Store) -> int:
    log = store.log()
    facts = log.facts()
    log.close()
    return facts.get("clicks", 0) + facts.get("actions", 0)


# The contract.


def nothing_lost_nothing_doubled(way: Way, events: Sequence[dict[str, Any]], sent: int) -> None:
    """Each event is in the log once; each message was counted once; what is learnt is what a replay learns."""
    each_event_once(way.store, list(events))
    if way.broker is not None:
        (facts,) = way.store.log().sources().values()
        assert (facts["messages"], facts["set_aside"], facts["lost"]) == (sent, 0, 0)
        assert way.store.log().facts().get("duplicates", 0) == sent - len(events), "a message came into the log twice"
    assert way.store.log().facts().get("late", 0) == 0
    weights = learn_all(way.store)
    assert verify_log(way.store).same
    closed = way.store.log().closed()
    assert closed > 0.5 * INTERVALS
    assert replayed(way.store, way.store.base, closed) == weights


def test_kills_between_each_two_steps_lose_and_double_nothing(way: Way) -> None:
    events = small_events(INTERVALS)
    batches = in_batches(events, seed=3, lateness=HOUR)
    with sending(way, batches):
        for step in STEPS:
            way.start(step, after=1)
            assert way.died(), f"{step}: it was not hit"
        way.start()
    until(lambda: accepted(way.store) == len(events))
    all_is_dealt_with(way, sum(map(len, batches)))
    way.kill()
    nothing_lost_nothing_doubled(way, events, sum(map(len, batches)))


@pytest.mark.parametrize("way", ["nats", "kafka"], indirect=True)  # HTTP's are in test_service_crash.py
def test_kills_at_random_moments_lose_and_double_nothing(way: Way) -> None:
    events, rng, kills = small_events(INTERVALS), random.Random(5), 0
    batches = in_batches(events, seed=4, lateness=HOUR)
    with sending(way, batches, pause=0.1) as sent:
        while not sent() or kills < 5:
            way.start()
            time.sleep(rng.uniform(0.2, 1.0))
            way.kill()
            kills += 1
    way.start()
    until(lambda: accepted(way.store) == len(events))
    all_is_dealt_with(way, sum(map(len, batches)))
    way.kill()
    nothing_lost_nothing_doubled(way, events, sum(map(len, batches)))


@contextmanager
def sending(way: Way, batches: Sequence[Sequence[dict[str, Any]]], pause: float = 0.0) -> Iterator[Callable[[], bool]]:
    """Somebody sends everything meanwhile; whether that was done."""

    def send() -> None:
        for batch in batches:
            way.send(batch)
            time.sleep(pause)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    yield lambda: not thread.is_alive()
    thread.join(120)
    assert not thread.is_alive()


def all_is_dealt_with(way: Way, messages: int) -> None:
    """Nothing is left, and the broker was told so."""
    if way.broker is None:
        return
    inbox = way.store.log()
    until(lambda: [facts["messages"] for facts in inbox.sources().values()] == [messages])
    until(lambda: [facts["lag"] for facts in inbox.sources().values()] == [0])
    until(lambda: way.broker.acknowledged(pump(way.store, way.broker).client) == messages)


# Brokers.


def pump(store: Store, broker: Any, batch: int = 50, **more: Any) -> Pump:
    return Pump(store, BrokerSource.of(broker.url, **more), batch, wait=0.2)


def times(store: Store) -> list[int]:
    return sorted(row.ts for row in store.log().before(NEVER))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return small_store(tmp_path / "store", 6)


@cache
def sent() -> list[dict[str, Any]]:
    return small_events(6)


def test_poison_is_set_aside_and_all_else_goes_on(broker: Any, store: Store) -> None:
    payloads = [json.dumps(event).encode() for event in sent()]
    lacking = {k: v for k, v in sent()[0].items() if k != "ts"} | {"type": "click", "click_id": "x", "ts": 5}
    planted = [b"", b"\xff", json.dumps(lacking | {"features": {}}).encode(), b"[7]"]
    for at, bad in zip((3, 4, 20, len(payloads)), planted, strict=True):
        payloads.insert(at, bad)
    broker.publish(payloads)
    one = pump(store, broker)
    assert one.drain() == len(payloads)
    (facts,) = one.log.sources().values()
    assert (facts["messages"], facts["set_aside"], facts["waiting"]) == (len(payloads), 4, 4)
    each_event_once(store, sent())
    first = 1 if "nats" in broker.url else 0
    unread = [(int(a.name.rpartition(":")[2]) - first, a.content, a.text) for a in one.log.aside()]
    assert [(at, payload) for at, payload, _ in unread] == [
        (at, payload) for at, payload in enumerate(payloads) if payload in planted
    ]
    assert all(f"/0 at {at + first}: " in reason for at, _, reason in unread)
    assert "feature 'device' is missing" in unread[2][2]


def test_a_source_starts_where_it_is_told_to(broker: Any, store: Store) -> None:
    broker.publish([json.dumps(event).encode() for event in sent()])
    for number, (start, expected) in enumerate({"earliest": 0, "latest": len(sent())}.items()):
        other = Store.open(Path(shutil.copytree(store.folder, store.folder.with_name(f"store{number}"))))
        pump(other, broker, start=start).drain()
        assert times(other) == sorted(event["ts"] for event in sent()[expected:]), start


def test_a_stream_that_is_not_there_is_told_of(broker: Any, store: Store) -> None:
    url = broker.url.replace("/EVENTS", "/NOTHING").replace("/events", "/nothing")
    with pytest.raises(UserError, match=r"(not found|Unknown topic).*"):
        Pump(store, BrokerSource.of(url)).drain()


@pytest.mark.parametrize("url", ["nats://127.0.0.1:{}/E", "kafka://127.0.0.1:{}/E"])
def test_a_broker_that_is_not_there_is_told_of_in_time(url: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nats", "kafka"):
        monkeypatch.setattr(f"tracecvr.online.sources.{name}._SECONDS", 1.0)
    since = time.monotonic()
    with pytest.raises(UserError, match=r"127\.0\.0\.1"):
        Pump(store, BrokerSource.of(url.format(free_port()))).drain()
    assert time.monotonic() - since < 15


def test_a_nats_server_that_is_killed_and_started_again_is_read_on(nats: Any, store: Store) -> None:
    payloads = [json.dumps(event).encode() for event in sent()]
    third = len(payloads) // 3
    way = Way(store, _pull, (nats.url,), lambda _: None, nats)
    way.start()
    try:
        for number in range(3):
            nats.publish(payloads[number * third : (number + 1) * third if number < 2 else None])
            until(lambda number=number: accepted(store) >= (number + 1) * third)  # type: ignore[misc]
            nats.kill()
            until(lambda: bool(store.log().sources()["nats:EVENTS"]["problem"]))
            nats.start()
            until(lambda: store.log().sources()["nats:EVENTS"]["problem"] is None)
    finally:
        way.kill()
    each_event_once(store, sent())
    assert "duplicates" not in store.log().facts()


def test_a_nats_consumer_that_somebody_deleted_is_made_again(nats: Any, store: Store) -> None:
    payloads = [json.dumps(event).encode() for event in sent()]
    nats.publish(payloads[:10])
    way = Way(store, _pull, (nats.url,), lambda _: None, nats)
    way.start()
    try:
        until(lambda: accepted(store) == 10)
        assert nats.ask(lambda js: js.delete_consumer("EVENTS", pump(store, nats).client))
        nats.publish(payloads[10:])
        until(lambda: accepted(store) == len(sent()))
    finally:
        way.kill()
    each_event_once(store, sent())


def test_a_nats_stream_that_was_made_anew_is_refused_until_forgotten(nats: Any, store: Store) -> None:
    payloads = [json.dumps(event).encode() for event in sent()]
    nats.publish(payloads[:10])
    pump(store, nats).drain()
    nats.ask(lambda js: js.delete_stream("EVENTS"))
    nats.ask(lambda js: js.add_stream(name="EVENTS", subjects=["events"]))
    nats.publish(payloads)
    with pytest.raises(UserError, match="not the one that this store has read"):
        pump(store, nats).drain()
    again = pump(store, nats)
    again.forget()
    again.drain()
    each_event_once(store, sent())


def test_a_nats_stream_that_drops_what_was_acknowledged_is_refused(nats: Any, store: Store) -> None:
    nats.ask(lambda js: js.add_stream(name="WORK", subjects=["work"], retention="workqueue"))
    with pytest.raises(UserError, match=r"retention workqueue.*use one with retention limits"):
        Pump(store, BrokerSource.of(nats.url.replace("EVENTS", "WORK"))).drain()


def test_nats_credentials_come_from_the_file(tmp_path: Path, store: Store) -> None:
    from brokers import Nats

    (tmp_path / "nats").mkdir()
    server = Nats(tmp_path / "nats", free_port(), 'authorization { user: "me", password: "secret" }\n')
    config = tmp_path / "nats.toml"
    try:
        for content, message in (
            ("# no credentials\n", "Authorization Violation"),
            ('user = "me"\npassword = "secret"\n', "stream not found"),
            ('pasword = "secret"\n', "unknown 'pasword'"),
        ):
            config.write_text(content)
            with pytest.raises(UserError, match=f"(?i){message}") as raised:
                Pump(store, BrokerSource.of(server.url, config=config)).drain()
            assert "secret" not in str(raised.value)
    finally:
        server.close()


def test_kafka_settings_come_from_the_file_but_for_those_that_promises_depend_on(
    tmp_path: Path, kafka: Any, store: Store
) -> None:
    config = tmp_path / "kafka.toml"
    config.write_text('group.id = "others"\nfetch.min.bytes = 1\n')
    kafka.publish([json.dumps(sent()[0]).encode()])
    assert pump(store, kafka, config=config).drain() == 1
    for content, message in (
        ("enable.auto.commit = true", "not to be chosen"),
        ("no.such = 1", "No such configuration"),
    ):
        config.write_text(content)
        with pytest.raises(UserError, match=message):
            pump(store, kafka, config=config).drain()


def test_several_topics_are_one_source(kafka: Any, store: Store) -> None:
    """Clicks in one topic, actions in another, all of the clicks published first: time waits for the actions."""
    from brokers import Kafka

    kinds = {"events": [e for e in sent() if e["type"] == "click"], "more": [e for e in sent() if e["type"] != "click"]}
    assert isinstance(kafka, Kafka)
    for kafka.topic, events in kinds.items():
        kafka.publish([json.dumps(event).encode() for event in events], [event["click_id"] for event in events])
    kafka.url += ",more"
    assert pump(store, kafka).drain() == len(sent())
    each_event_once(store, sent())
    assert store.log().facts().get("late", 0) == 0
    assert list(store.log().sources()) == ["kafka:events", "kafka:more"]
    assert learn_all(store) == replayed(store, store.base, store.log().closed())


# The guide and the service.


def test_the_guide_to_brokers_runs(
    nats: Any, store: Store, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = next(event for event in sent() if event["type"] == "click") | {"click_id": "x"}
    lacking["features"] = {name: value for name, value in lacking["features"].items() if name != "device"}
    nats.publish([json.dumps(event).encode() for event in [*sent(), lacking]])
    monkeypatch.chdir(store.folder.parent)
    blocks = re.findall(r"```shell\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (commands,) = [block for block in blocks if "tracecvr pull" in block]
    said = []
    for line in commands.splitlines():
        assert call(*shlex.split(line.replace("4222", str(nats.port)))[1:]) == 0, line
        said.append(capsys.readouterr().out)
    pulled, listed, aside, dropped = said
    assert pulled == f"pulled: {len(sent()) + 1} messages\n"
    assert "nats:EVENTS.waiting: 1" in listed
    assert "feature 'device' is missing" in aside
    assert dropped == "dropped: 1\n"
    for option in ("from", "source-config"):
        assert f"--{option}" in GUIDE.read_text()


def test_a_server_tells_of_what_is_pulled_beside_it(broker: Any, store: Store) -> None:
    broker.publish([json.dumps(event).encode() for event in sent()])
    port = free_port()
    commands = (["serve", str(store.folder), "--port", str(port)], ["pull", str(store.folder), "--source", broker.url])
    running = [
        subprocess.Popen([sys.executable, "-m", "tracecvr.cli", *words], stderr=subprocess.DEVNULL)
        for words in commands
    ]
    try:
        with Client(f"http://127.0.0.1:{port}", retries=20, timeout=60) as client:
            until(lambda: accepted(store) == len(sent()))
            closed = store.log().closed()
            until(lambda: client.status()["intervals"]["learnt"] == closed > 2)
            (facts,) = client.status()["sources"].values()
            assert (facts["messages"], facts["lag"], facts["problem"]) == (len(sent()), 0, None)
    finally:
        for process in running:
            process.terminate()
            process.wait(30)
    each_event_once(store, sent())
