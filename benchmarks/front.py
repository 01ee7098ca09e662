"""The service beside others: how fast events are accepted over HTTP, how long a score takes while the learner works,
and whether one sender can harm another. Every figure with its target, in a table and as JSON. Exit code 1 if one fails.

    python benchmarks/front.py             # about 3 minutes
    python benchmarks/front.py --quick     # half a minute, with wider limits: what the test suite runs

Senders, server and learner are processes of their own on one machine, so they are in each other's way, and so is other
work. Times of a good client are held against its own, beside nobody, in the same run. See docs/live_performance.md.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

import live
from measure import command, paper
from measure.report import Figure
from rawlogs import DAY
from service_client import Client
from tracecvr.base.config import HOUR
from tracecvr.base.errors import UserError
from tracecvr.data import prepared
from tracecvr.methods.trace import Trace
from tracecvr.online.dataset_events import events_of
from tracecvr.online.learner.learner import open_learner
from tracecvr.online.service.auth import new_token
from tracecvr.online.service.options import Options
from tracecvr.online.service.serve import serve
from tracecvr.online.store.store import Settings, Store

BATCH = 100
SENDERS = 2
SCOPES = ("score", "ingest", "admin")
_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(["tracecvr.online.learner.learner", "tracecvr.online.service.serve", "torch._dynamo"])


@dataclass(frozen=True)
class Size:
    """How much is measured, and how much wider limits of time are."""

    name: str
    hourly: int
    ticks: int
    sent: int
    """Hours that are sent over HTTP."""
    seconds: float
    """How long a good client is watched beside each of the others."""
    pause: float
    """Between a good client's requests: it does not ask for much."""
    pace: float
    """Requests a second of each sender: more than what is measured needs, less than one without pauses asks for."""
    crowd: tuple[int, int]
    """Connections that are held open idle, and slow ones."""
    loose: float


FULL = Size("full", paper.HOURLY, live.ALONE, 5, 8.0, 0.005, 200.0, (1_000, 200), 1.0)
QUICK = Size("quick", 200, live.ALONE, 3, 0.8, 0.02, 60.0, (300, 50), 10.0)
_STEP_S, _DRIBBLE_S = 0.1, 1.0
"""How often connections of a siege are looked at, and how often a slow one sends a byte."""


@dataclass(frozen=True)
class Answer:
    """To a good client: when it asked, how long it took, and whether it was a score."""

    at: float
    seconds: float
    scored: bool


@dataclass(frozen=True)
class Site:
    """A server, and who may ask it."""

    url: str
    good: str
    other: str
    features: dict[str, Any]
    pause: float
    crowd: tuple[int, int]


def main() -> None:
    given = command.parser(__doc__, "front", QUICK, FULL).parse_args()
    command.carry_out("front", given.size.name, given.out, lambda room: measured(given.size, room))


def measured(size: Size, room: Path) -> list[Figure]:
    """All figures, on one store and one server."""
    hours = size.ticks + size.sent
    dataset, raw = live.criteo(live.Size(size.name, size.hourly, hours, 0, 0, size.loose), room)
    prepared.prepare_to(room / "base", dataset, raw)
    store = Store.create(room / "store", room / "base", Trace(), (), Settings(lateness=60))
    events = list(events_of(dataset, raw, HOUR, 100 * DAY))
    learnt_from = [event for event in events if event["ts"] < HOUR * (1 + size.ticks)]
    features = next(event["features"] for event in events if event["type"] == "click")
    with ProcessPoolExecutor(SENDERS + 2, mp_context=_FORKED) as pool:
        pool.submit(learn, store.folder, 0).result()  # a version to serve
        with served(size, store, room, features) as site:
            good(site, 1.0)  # what a first request pays for
            idle = pool.submit(good, site, size.seconds).result()
            figures = _beside_ticks(size, pool, site, store, learnt_from, idle)
            figures += _accepting(size, pool, site, store, events[len(learnt_from) :])
            figures += [f for other in OTHERS for f in _beside(size, pool, site, other, idle)]
    return figures


@contextmanager
def served(size: Size, store: Store, room: Path, features: dict[str, Any]) -> Iterator[Site]:
    """A server, without a learner beside it, that knows two senders."""
    (good_token, good_hash), (other_token, other_hash) = new_token(), new_token()
    entries = [
        f"[[token]]\nname = {name!r}\nsha256 = {digest!r}\nscopes = {list(SCOPES)!r}\n"
        for name, digest in (("good", good_hash), ("other", other_hash))
    ]
    (room / "tokens.toml").write_text("".join(entries))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = (store, Options(port=port, tokens=room / "tokens.toml", rate=size.pace))
    server = _FORKED.Process(target=serve, args=given, daemon=True)
    server.start()
    site = Site(f"http://127.0.0.1:{port}", good_token, other_token, features, size.pause, size.crowd)
    try:
        with Client(site.url, site.good) as client:
            client.model()
        yield site
    finally:
        server.kill()
        server.join()


# What is measured.


def _accepting(
    size: Size, pool: ProcessPoolExecutor, site: Site, store: Store, events: Sequence[dict[str, Any]]
) -> list[Figure]:
    """Clicks, which are scored, too, and actions, as fast as two senders can, while hours that are over are learnt."""
    batches = [events[first : first + BATCH] for first in range(0, len(events), BATCH)]
    learner: Future[list[tuple[float, float]]] = pool.submit(learn, store.folder, size.sent - 1)
    since = time.monotonic()
    sent = [pool.submit(send, site, batches[n::SENDERS]) for n in range(SENDERS)]
    waited = 1e3 * np.array([seconds for future in sent for seconds in future.result()])
    end = time.monotonic()
    took = (end - since) / len(events)
    meanwhile = sum(start < end for start, _ in learner.result())
    clicks = sum(event["type"] == "click" for event in events)
    how = (
        f"{1 / took:,.0f}/s; {clicks:,} clicks, scored and registered, {len(events) - clicks:,} actions, by {BATCH}; "
        f"{meanwhile} ticks meanwhile"
    )
    middle, worst = np.quantile(waited, (0.5, 0.99))
    batch = f"{SENDERS} senders at once; 99 % below {worst:.0f} ms, longest {waited.max():.0f} ms"
    return [
        Figure("to accept an event over HTTP while it learns", 1e6 * took, "us", 200.0, how, size.loose),
        Figure(f"a batch of {BATCH} over HTTP, median", float(middle), "ms", how=batch),
    ]


def _beside_ticks(
    size: Size,
    pool: ProcessPoolExecutor,
    site: Site,
    store: Store,
    events: Sequence[dict[str, Any]],
    idle: list[Answer],
) -> list[Figure]:
    log = store.log()
    log.append([store.reader.read(event) for event in events])
    log.close_until(HOUR * (1 + size.ticks))
    learner: Future[list[tuple[float, float]]] = pool.submit(learn, store.folder, size.ticks)
    answers: list[Answer] = []
    while not learner.done():
        answers += pool.submit(good, site, 0.5).result()
    ticks = learner.result()
    during = [a for a in answers if any(start <= a.at <= end for start, end in ticks)]
    alone = np.quantile(_times(idle), (0.5, 0.99))
    how = f"median {alone[0]:.1f} ms, {len(idle):,} requests of one click, nobody else"
    return [
        Figure("a score, 99 % below", float(alone[1]), "ms", how=how),
        _ratio("a score during ticks / alone, 99 % below", during, idle, f"{len(ticks)} ticks", 3.0, size),
    ]


def _beside(size: Size, pool: ProcessPoolExecutor, site: Site, name: str, idle: list[Answer]) -> list[Figure]:
    other = pool.submit(OTHERS[name], site, size.seconds + 1.0)
    time.sleep(0.5)
    answers = pool.submit(good, site, size.seconds).result()
    statuses = other.result()
    how = ", ".join(f"{word} {n:,}" for word, n in sorted(statuses.items()))
    figures = [_ratio(f"a score beside {name} / alone, 99 % below", answers, idle, how, 3.0, size)]
    if name == "a siege":
        figures.append(_held(statuses, sum(size.crowd)))
    if name == "too many requests":
        allowed = size.pace * (size.seconds + 1.0 + 2.0)  # and the burst
        figures.append(_paced(statuses, allowed))
    return figures


def _held(seen: Counter[str], count: int) -> Figure:
    """Fails if too few connections were held to be a siege."""
    missing = count - seen["open"] / max(1, seen["looks"])
    return Figure("connections of the siege not held, on average", missing, "", 0.1 * count, f"of {count:,}")


def _paced(statuses: Counter[str], allowed: float) -> Figure:
    """Fails if a request was neither served nor refused with 429, and if too few came to tell."""
    name, other = "requests let through / allowed by the pace", statuses.total() - statuses["200"] - statuses["429"]
    if other or statuses.total() <= allowed:
        return Figure(name, None, "x", 1.0, f"{statuses.total():,} came, {allowed:,.0f} were allowed; {other} failed")
    return Figure(name, statuses["200"] / allowed, "x", 1.0, f"the other {statuses['429']:,} were answered 429")


def _ratio(name: str, answers: list[Answer], idle: list[Answer], how: str, most: float, size: Size) -> Figure:
    """A figure that fails if a good client was not answered, however fast."""
    failed = sum(not answer.scored for answer in answers)
    if not answers or failed:
        return Figure(name, None, "x", most, f"{failed} of {len(answers)} requests were not served; {how}")
    middle, worst = np.quantile(_times(answers), (0.5, 0.99))
    details = f"{worst:.1f} ms, median {middle:.1f} ms of {len(answers):,}; {how}"
    return Figure(name, float(worst / np.quantile(_times(idle), 0.99)), "x", most, details, size.loose)


def _times(answers: list[Answer]) -> npt.NDArray[np.float64]:
    return 1e3 * np.array([answer.seconds for answer in answers])


# In processes of their own.


def good(site: Site, seconds: float) -> list[Answer]:
    """Ask for the score of one click, again and again, at an easy pace."""
    given, end = [], time.monotonic() + seconds
    with Client(site.url, site.good, retries=0) as client:
        while (at := time.monotonic()) < end:
            try:
                scored = len(client.score([site.features])["scores"]) == 1
            except UserError:
                scored = False
            given.append(Answer(at, time.monotonic() - at, scored))
            time.sleep(site.pause)
    return given


def send(site: Site, batches: Sequence[Sequence[dict[str, Any]]]) -> list[float]:
    """Clicks to one route, actions to the other; the time that each batch took."""
    seconds = []
    with Client(site.url, site.other) as client:
        for batch in batches:
            since = time.monotonic()
            clicks = [{k: v for k, v in event.items() if k != "type"} for event in batch if event["type"] == "click"]
            actions = [event for event in batch if event["type"] != "click"]
            if clicks:
                client.clicks(clicks)
            if actions:
                client.events(actions)
            seconds.append(time.monotonic() - since)
    return seconds


def learn(folder: Path, ticks: int) -> list[tuple[float, float]]:
    """Learn so many intervals, as the learner beside a server does; when each began and ended."""
    if ticks:
        os.nice(15)  # as `serve` has it; the warm-up is in nobody's way
    times: list[tuple[float, float]] = []
    with open_learner(Store.open(folder)) as learner:
        while len(times) < ticks:
            since = time.monotonic()
            if learner.tick() is not None:
                times.append((since, time.monotonic()))
            else:
                time.sleep(0.05)
    return times


def besiege(site: Site, seconds: float) -> Counter[str]:
    """Hold connections on which nothing, half a head, or a body byte by byte is sent; open again what is closed."""
    asking = f"Host: localhost\r\nAuthorization: Bearer {site.other}\r\nContent-Length: 9999\r\n\r\n"
    idle, slow = site.crowd
    heads = {
        b"": idle,
        b"GET / HTTP/1.1\r\nx: ": slow // 2,
        b"POST /v1/score HTTP/1.1\r\n" + asking.encode(): slow - slow // 2,
    }
    wanted = [head for head, count in heads.items() for _ in range(count)]
    seen, end, dribble = Counter[str](), time.monotonic() + seconds, 0.0
    with selectors.DefaultSelector() as held:
        while time.monotonic() < end:
            for head in wanted:
                held.register(_open(site, head), selectors.EVENT_READ, head)
            seen["opened"] += len(wanted)
            if time.monotonic() > dribble:
                dribble = time.monotonic() + _DRIBBLE_S
                _dribble(held)
            wanted = _take_closed(held, _STEP_S)
            seen["open"] += len(held.get_map())
            seen["looks"] += 1
        for key in list(held.get_map().values()):
            _close(held, key)
    return seen


def _open(site: Site, head: bytes) -> socket.socket:
    where = urlsplit(site.url)
    connection = socket.create_connection((where.hostname or "", where.port or 80), timeout=20)
    with suppress(OSError):
        connection.sendall(head)
    connection.setblocking(False)
    return connection


def _dribble(held: selectors.BaseSelector) -> None:
    for key in held.get_map().values():
        if key.data:
            with suppress(OSError):
                key.fileobj.send(b"a")  # type: ignore[union-attr]


def _take_closed(held: selectors.BaseSelector, seconds: float) -> list[bytes]:
    """What was sent on those that were answered or closed, and are closed here, too."""
    heads = []
    for key, _ in held.select(seconds):
        heads.append(key.data)
        _close(held, key)
    time.sleep(seconds)  # closed in one moment, they are not opened again in one
    return heads


def _close(held: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    held.unregister(key.fileobj)
    key.fileobj.close()  # type: ignore[union-attr]


def nonsense(site: Site, seconds: float) -> Counter[str]:
    """Requests that are wrong in several ways, without a pause."""
    bodies = [b"{", b"[]", b'{"features": [{"nothing": 1}]}', b'{"features": [' + b"[" * 500, b"\xff" * 100]
    return _flood(site, seconds, bodies, site.other)


def strangers(site: Site, seconds: float) -> Counter[str]:
    """Requests without a valid token, without a pause."""
    return _flood(site, seconds, [b'{"features": []}'], "nobody")


def huge(site: Site, seconds: float) -> Counter[str]:
    """Bodies at the limit of what is read, and beyond: numbers, mistakes, and no JSON at all."""
    most = Options().body_bytes
    mistakes = b'{"features": [' + b"[]," * (most // 3 - 10) + b"[]]}"
    return _flood(site, seconds, [b"[" + b"1," * (most // 2 - 2) + b"1]", mistakes, b"x" * (8 * most)], site.other)


def large(site: Site, seconds: float) -> Counter[str]:
    """The largest batches that are allowed, without a pause."""
    most = Options()
    count = min(most.batch, most.body_bytes // len(json.dumps([site.features])) - 1)
    return _flood(site, seconds, [json.dumps({"features": [site.features] * count}).encode()], site.other)


def too_many(site: Site, seconds: float) -> Counter[str]:
    """Good requests that cost little, without a pause."""
    return _flood(site, seconds, [None], site.other)


def _flood(site: Site, seconds: float, bodies: Sequence[bytes | None], token: str) -> Counter[str]:
    """How often each status was answered."""
    where, end, statuses = urlsplit(site.url), time.monotonic() + seconds, Counter[str]()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection = HTTPConnection(where.hostname or "", where.port, timeout=20)
    number = 0
    while time.monotonic() < end:
        number += 1
        try:
            body = bodies[number % len(bodies)]
            connection.request(*(("GET", "/v1/model") if body is None else ("POST", "/v1/score")), body, headers)
            response = connection.getresponse()
            response.read()
            statuses[str(response.status)] += 1
        except (OSError, HTTPException):
            statuses["cut off"] += 1
            connection.close()
    connection.close()
    return statuses


OTHERS: dict[str, Callable[[Site, float], Counter[str]]] = {
    "a siege": besiege,
    "bad requests": nonsense,
    "strangers": strangers,
    "huge bodies": huge,
    "large batches": large,
    "too many requests": too_many,
}


if __name__ == "__main__":
    main()
