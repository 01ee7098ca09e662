"""Processes on one store, killed at random moments and started again; and the same without that.

A writer and a learner, or a client, a server and a learner. The writer calls what `tracecvr ingest` calls, the client
asks the server; both note what was acknowledged, on disk. Server and learner are the commands themselves. To import
torch takes seconds, so all are forked by a process that has imported everything and done nothing: neither torch nor
polars has started a thread there that a fork would lose.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, TextIO

from livestore import predicted
from service_client import Client
from tracecvr.authoring.method import Method
from tracecvr.base.config import DAY, HOUR, MINUTE
from tracecvr.base.errors import UserError
from tracecvr.data import prepared
from tracecvr.data.table import NEVER, ClickTable
from tracecvr.datasets.synthetic import Synthetic
from tracecvr.methods.trace import Trace
from tracecvr.online.dataset_events import events_of
from tracecvr.online.learner.learner import open_learner
from tracecvr.online.log.event_log import EventLog
from tracecvr.online.log.events import Event
from tracecvr.online.log.times import AskedTimes
from tracecvr.online.store.store import Settings, Store
from tracecvr.online.store.versions import Versions
from tracecvr.online.upkeep.verify_log import verify_log, write_table
from tracecvr.stream.source import TableSource

Batches = list[list[dict[str, Any]]]

LATENESS = 2 * HOUR
_PATIENCE = 120.0
"""Seconds within which something has to happen."""
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        "tracecvr.cli",
        "tracecvr.online.learner.learner",
        "tracecvr.online.service.serve",
        "uvicorn.lifespan.on",
        "uvicorn.protocols.http.auto",
        "tracecvr.methods.trace",
        "torch._dynamo",
    ]
)
"""The last is imported by the first optimiser of a process: a second or more."""


ORIGIN = int(time.time()) - 2 * DAY
"""Second 0 of all stores. By default it follows from the moment at which a store is made, and a forecast from where its
days end: two stores that are to be compared need one origin."""


def small_store(folder: Path, intervals: int, hourly: int = 12, method: type[Method] = Trace, **settings: Any) -> Store:
    """A store with small nets that starts from two days of clicks; its log goes on for so many hours."""
    dataset = _dataset(intervals, hourly)
    base = folder.parent / f"base_{intervals}_{hourly}"
    if not base.exists():
        prepared.prepare_to(base, dataset, None)
    chosen = method(hidden=(16, 8), batch_size=256, warm_epochs=1, warm_batch_size=256)
    return Store.create(
        folder, base, chosen, (), Settings(lateness=LATENESS, **settings), times=AskedTimes(origin=ORIGIN)
    )


def small_events(intervals: int, hourly: int = 12) -> list[dict[str, Any]]:
    """The events of the stream of such a store, in order."""
    return list(events_of(_dataset(intervals, hourly), None, 2 * DAY, 2 * DAY + intervals * HOUR))


def _dataset(intervals: int, hourly: int) -> Synthetic:
    days = 2 + -(-intervals // 24)
    horizons = (15 * MINUTE, HOUR, 6 * HOUR, 12 * HOUR)
    return Synthetic(
        clicks=24 * days * hourly, days=days, split=2 * DAY, d_max=12 * HOUR, horizons=horizons, interval=HOUR
    )


def in_batches(events: Sequence[dict[str, Any]], seed: int, lateness: int = LATENESS) -> Batches:
    """All events in random batches, out of order by less than `lateness`, some of them more than once."""
    rng = random.Random(seed)
    shuffled = sorted(events, key=lambda event: event["ts"] + rng.uniform(0, lateness - 1))
    batches: Batches = []
    while shuffled:
        size = rng.randint(1, 10)
        again = rng.sample(batches[-1], min(3, len(batches[-1]))) if batches and rng.random() < 0.3 else []
        batches.append(shuffled[:size] + again)
        del shuffled[:size]
    return batches


def send(log: EventLog, store: Store, batch: Sequence[dict[str, Any]]) -> None:
    log.append([store.reader.read(event) for event in batch])


def undisturbed(store: Store, batches: Batches) -> Store:
    """Accept everything, then learn everything, in this process."""
    log = store.log()
    for batch in batches:
        send(log, store, batch)
    log.close()
    learn_all(store)
    return store


def learn_all(store: Store) -> str:
    """Learn what is closed; the fingerprint of the engine."""
    with open_learner(store) as learner:
        while learner.tick() is not None:
            pass
        return learner.engine.fingerprint()


def replayed(store: Store, table: ClickTable, intervals: int) -> str:
    """The fingerprint after so many intervals of a table, without the log."""
    engine, source, grid = store.engine(), TableSource(table), store.grid
    engine.warm_up(source.history(grid.split, store.settings.warm_labels))
    for number in range(intervals):
        engine.tick(source, *grid.bounds(number))
    return engine.fingerprint()


@dataclass
class Toll:
    """What the kills hit."""

    kills: Counter[str] = field(default_factory=Counter)
    half_snapshots: int = 0
    """Kills that left the temporary file of a snapshot or of its manifest, or a snapshot without manifest."""
    unheard: int = 0
    """Kills after a batch was on disk and before that was acknowledged."""


@dataclass
class Disturbance:
    """Starts processes, kills one of the victims again and again, then lets all finish."""

    store: Store
    batches: Batches
    room: Path
    rng: random.Random
    roles: Mapping[str, Role]
    victims: Sequence[str]
    port: int = field(default_factory=lambda: free_port())
    toll: Toll = field(default_factory=Toll)
    _running: dict[str, ForkServerProcess] = field(default_factory=dict)

    def run(self, kills: int) -> Toll:
        _write_lines(self.room / "batches", [json.dumps(batch) for batch in self.batches])
        try:
            for who in self.roles:
                self._start(who)
            while self.toll.kills.total() < kills:
                victim = self.rng.choice(self.victims)
                self._await_moment(victim)
                self._kill(victim)
                self._look(victim)
                self._start(victim)
            self._finish()
        finally:
            for process in self._running.values():
                process.kill()
                process.join()
        return self.toll

    def _start(self, who: str) -> None:
        target, words = self.roles[who]
        given = (self.room, who, target, words(self))
        self._running[who] = _SERVER.Process(target=_in_child, args=given)
        self._running[who].start()

    def _await_moment(self, victim: str) -> None:
        """A random moment: now and then while it starts, as a rule at work, when it has brought something about."""
        if self.rng.random() < 0.2:
            time.sleep(self.rng.uniform(0, 0.3))
            return
        before, deadline = self._done(victim), time.monotonic() + _PATIENCE
        while self._done(victim) == before and not self._over():
            self._alive()
            assert time.monotonic() < deadline, f"the {victim} does not get on"
            time.sleep(0.01)
        time.sleep(self.rng.uniform(0, 0.2))

    def _done(self, who: str) -> int:
        """How far it has come: batches or versions."""
        if who != "learner":
            return _acknowledged(self.room)
        return max((int(path.stem) for path in (self.store.folder / "models").glob("*.json")), default=-1)

    def _over(self) -> bool:
        """Whether everything is accepted and everything that is closed is learnt."""
        if _acknowledged(self.room) < len(self.batches):
            return False
        log = self.store.log()
        try:
            return self._done("learner") == log.closed()
        finally:
            log.close()

    def _kill(self, victim: str) -> None:
        self._alive()
        process = self._running[victim]
        process.kill()
        process.join()
        self.toll.kills[victim] += 1

    def _alive(self) -> None:
        """None may end by itself."""
        for who, process in self._running.items():
            if not process.is_alive():
                raise AssertionError(f"{who} ended with {process.exitcode}: {(self.room / who).read_text()}")

    def _look(self, victim: str) -> None:
        """What a kill left behind. Whatever was acknowledged is there, at any time: also while others go on, so what
        was acknowledged is read first."""
        models, log = self.store.folder / "models", self.store.log()
        states, manifests = ({path.stem for path in models.glob(f"[!.]*.{kind}")} for kind in ("safetensors", "json"))
        self.toll.half_snapshots += bool(states - manifests) or any(models.glob(".*.tmp"))
        heard, facts = _distinct(self.batches[: _acknowledged(self.room)]), log.facts()
        accepted = facts.get("clicks", 0) + facts.get("actions", 0)
        assert accepted >= heard, "an event was acknowledged and is lost"
        self.toll.unheard += accepted > heard and victim != "learner"  # whose end no acknowledgement waits for
        log.close()

    def _finish(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not self._over():
            self._alive()
            assert time.monotonic() < deadline, "they do not get on"
            time.sleep(0.05)


def survived(
    room: Path,
    kills: int,
    intervals: int,
    seed: int,
    lateness: int = LATENESS,
    roles: Mapping[str, Role] | None = None,
    victims: Sequence[str] = ("writer", "learner"),
) -> Toll:
    """Kill, then hold what is left against the same events undisturbed."""
    events = small_events(intervals)
    batches = in_batches(events, seed, lateness)
    store = small_store(room / "killed", intervals)
    toll = Disturbance(store, batches, room, random.Random(seed), roles or LOCAL, victims).run(kills)
    weights = learn_all(store)  # nothing is left to learn; what was not recorded any more is
    each_event_once(store, events)
    in_order = lateness <= LATENESS
    calm = undisturbed(small_store(room / "calm", intervals), [[e] for e in events] if in_order else batches)
    same_in_the_end(store, calm)
    relived = verify_log(store)
    assert relived.same
    assert relived.weights == weights
    closed = store.log().closed()
    assert closed > 0.8 * intervals
    assert replayed(store, write_table(store, room / "table"), closed) == weights
    assert (replayed(store, store.base, closed) == weights) == in_order
    assert (store.log().facts().get("late", 0) == 0) == in_order
    return toll


def each_event_once(store: Store, events: list[dict[str, Any]]) -> None:
    """The log holds the events, all of them, none twice, as they were sent; and so say its counts."""
    log = store.log()
    accepted = [Event(*row[1:5], *row[6:8]) for row in log.before(NEVER)]  # whatever they were answered
    assert sorted(accepted) == sorted(store.reader.read(event) for event in events)
    clicks = sum(event["type"] == "click" for event in events)
    facts = log.facts()
    assert (facts["clicks"], facts["actions"]) == (clicks, len(events) - clicks)


def same_in_the_end(store: Store, calm: Store) -> None:
    """Weights, live metrics, scores and the records of ticks."""
    one, other = (Versions(s.folder, s.settings.keep).latest() for s in (store, calm))
    assert one is not None
    assert other is not None
    for name in ("intervals", "weights", "sha256", "rows", "counts"):
        assert one[name] == other[name], name
    for name in ("mature", "recent", "vitals"):  # which version answered a click depends on when it was killed
        assert one[name]["prequential"] == other[name]["prequential"], name
    assert predicted(store) == predicted(calm)
    ticks, others = (s.log().ticks() for s in (store, calm))
    assert [number for number, _ in ticks] == list(range(one["intervals"]))
    assert [record["weights"] for _, record in ticks] == [record["weights"] for _, record in others]


@contextmanager
def process(target: Callable[..., None], *words: Any) -> Iterator[ForkServerProcess]:
    """A process of its own, killed in the end; it has imported everything before."""
    started = _SERVER.Process(target=target, args=words)
    started.start()
    try:
        yield started
    finally:
        started.kill()
        started.join()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _distinct(batches: Batches) -> int:
    return len({json.dumps(event) for batch in batches for event in batch})


def _acknowledged(room: Path) -> int:
    notes = room / "notes"
    return notes.read_text().count("\n") if notes.exists() else 0


def _write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines))


# In the children.


def _in_child(room: Path, who: str, target: Callable[..., None], words: tuple[Any, ...]) -> None:
    with (room / who).open("w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    target(*words)


def _write(folder: Path, room: Path, seed: int) -> None:
    store = Store.open(folder)
    log = store.log()
    _send_all(room, random.Random(seed), lambda batch: send(log, store, batch))


def _send_all(room: Path, rng: random.Random, sent: Callable[[list[dict[str, Any]]], None]) -> None:
    """Send batches from a little before the last that was acknowledged, then old ones for ever."""
    batches, done = _read_batches(room), _acknowledged(room)
    with (room / "notes").open("a") as notes:
        for number in _numbers(rng, done, len(batches)):
            sent(batches[number])
            if number >= done:
                time.sleep(rng.uniform(0, 0.05))  # on disk, and nobody was told: long enough for kills to hit it
                notes.write(f"{number}\n")
                notes.flush()
                os.fsync(notes.fileno())
            time.sleep(rng.uniform(0, 0.1))


def _read_batches(room: Path) -> Batches:
    return [json.loads(line) for line in (room / "batches").read_text().splitlines()]


def _ask(room: Path, url: str, seed: int) -> None:
    """Send everything over HTTP; in another thread, send again what was acknowledged."""
    rng = random.Random(seed)
    threading.Thread(target=_repeat, args=(room, url, rng.getrandbits(32)), daemon=True).start()
    with Client(url, retries=2) as client, (room / "answers").open("a") as answers:
        _send_all(room, rng, lambda batch: _noted(answers, send_over(client, batch)))


def _noted(file: TextIO, answers: Iterable[dict[str, Any]]) -> None:
    for answer in answers:
        file.write(json.dumps(answer) + "\n")
        file.flush()


def send_over(client: Client, batch: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Send a batch, again and again until it is answered with success; what clicks were answered, by their ids."""
    clicks = [{k: v for k, v in event.items() if k != "type"} for event in batch if event["type"] == "click"]
    actions = [event for event in batch if event["type"] != "click"]
    if clicks:
        answer = _insisted(lambda: client.clicks(clicks))
        scores = [(score["log_odds"], score["version"]) for score in answer["scores"]]
        yield {"clicks": [click["click_id"] for click in clicks], "scores": scores}
    if actions:
        _insisted(lambda: client.events(actions))


def _insisted(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    while True:
        try:
            return ask()
        except UserError as error:
            if ": 503: " not in str(error):
                raise
            time.sleep(0.02)


def _repeat(room: Path, url: str, seed: int) -> None:
    rng, batches = random.Random(seed), _read_batches(room)
    with Client(url, retries=2) as client, (room / "answers_again").open("a") as answers:
        while True:
            if done := _acknowledged(room):
                batch = batches[rng.randrange(done)]
                _noted(answers, send_over(client, batch))
                if known := [event["features"] for event in batch if event["type"] == "click"]:
                    _insisted(partial(client.score, known))
            time.sleep(rng.uniform(0, 0.05))


def _numbers(rng: random.Random, done: int, count: int) -> Iterator[int]:
    yield from range(max(0, done - rng.randint(0, 3)), count)
    while True:
        yield rng.randrange(count)


def _learn(folder: Path) -> None:
    from tracecvr.cli.commands import main

    sys.argv = ["tracecvr", "learn", str(folder), "--poll", "0.01"]
    main()


def serving(folder: Path, port: int) -> None:
    """A service without a learner, as the command runs it."""
    from tracecvr.cli.commands import main

    sys.argv = ["tracecvr", "serve", str(folder), "--port", str(port), "--no-learn"]
    main()


Role = tuple[Callable[..., None], Callable[[Disturbance], tuple[Any, ...]]]
"""What a process runs, and what it is given."""

LOCAL: dict[str, Role] = {
    "writer": (_write, lambda d: (d.store.folder, d.room, d.rng.getrandbits(32))),
    "learner": (_learn, lambda d: (d.store.folder,)),
}
OVER_HTTP: dict[str, Role] = {
    "server": (serving, lambda d: (d.store.folder, d.port)),
    "learner": LOCAL["learner"],
    "client": (_ask, lambda d: (d.room, f"http://127.0.0.1:{d.port}", d.rng.getrandbits(32))),
}
