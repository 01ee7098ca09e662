"""Requests of one click: how many a second one core answers, and how fast, with the paper's net (17 features of 16,
256-256-128). Beside it, in turns in the same run: an echo of the same server, an empty route, and other code.

    git worktree add /tmp/before COMMIT
    python benchmarks/load.py --before /tmp/before     # about 5 minutes
    python benchmarks/load.py --quick                  # a smoke

Servers run on one core, the sender on another, both on the loopback interface. Other work on the machine takes its
share of both. So requests are counted per second of processor time of the server, and what is compared is measured in
short turns: a ratio is the median over rounds. The sender takes most of a core, so on two cores what several replicas
can do is told by their processor time, too. See docs/live_performance.md.
"""

from __future__ import annotations

import itertools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import live
from measure import command, paper
from measure.report import Figure
from rawlogs import DAY
from tracecvr.base.config import HOUR
from tracecvr.online.dataset_events import events_of


@dataclass(frozen=True)
class Server:
    """A port, and the processes that answer there."""

    port: int
    pids: tuple[int, ...]

    def cpu_seconds(self) -> float:
        files = [path for pid in self.pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
        return sum(int(path.read_text().split()[0]) for path in files) / 1e9


HERE = Path(__file__).resolve().parents[1]
CONNECTIONS = (1, 8, 32)
ECHO = """
import sys, uvicorn
from tracecvr.online.service.serve import Config
from tracecvr.online.service.options import Limits
BODY = b'{"version": 1, "scores": [{"probability": 0.123456, "log_odds": -1.23456}]}'
START = {"type": "http.response.start", "status": 200,
         "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]}
async def app(scope, receive, send):
    await receive()
    await send(dict(START))
    await send({"type": "http.response.body", "body": BODY})
uvicorn.Server(Config(app, Limits(), port=int(sys.argv[1]), lifespan="off")).run()
"""


@dataclass(frozen=True)
class Size:
    """How much is learnt, how often and how long each kind of request is sent, and how much wider limits are."""

    name: str
    hourly: int
    hours: int
    rounds: int
    seconds: float
    loose: float


FULL = Size("full", 2_000, 12, 9, 0.4, 1.0)
QUICK = Size("quick", 200, 20, 1, 0.3, 10.0)


class Measured(NamedTuple):
    """One turn: answers a second, per processor second, and the milliseconds in which half and 99 % came."""

    rate: float
    per_cpu: float
    p50_ms: float
    p99_ms: float


Turns = dict[tuple[str, str, int], list[Measured]]
"""By who was asked, for what, and on how many connections."""


def main() -> None:
    parser = command.parser(__doc__, "load", QUICK, FULL)
    parser.add_argument("--before", type=Path, help="a checkout of other code, to be measured in turns with this")
    given = parser.parse_args()
    command.carry_out("load", given.size.name, given.out, lambda room: measure(given.size, room, given.before))


def measure(size: Size, room: Path, before: Path | None) -> list[Figure]:
    """All figures."""
    dataset, raw = live.criteo(live.Size(size.name, size.hourly, size.hours, 0, 0, size.loose), room)
    events = list(events_of(dataset, raw, HOUR, 100 * DAY))
    clicks = [event for event in events if event["type"] == "click"]
    trees = {"now": HERE} | ({} if before is None else {"before": before.resolve()})
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for name, tree in trees.items():
        make_store(room / name, tree, raw)
    (room / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    turns: Turns = {}
    with ExitStack() as running:
        servers = {"echo": running.enter_context(start([sys.executable, "-c", ECHO], HERE))}
        servers |= {name: running.enter_context(serve(room / name / "store", tree)) for name, tree in trees.items()}
        for who in trees:  # what the first requests pay for
            for what in KINDS:
                fire(servers[who], requests_of(what, clicks), 1, size.seconds)
        for _ in range(size.rounds):
            for n, who in itertools.product(CONNECTIONS, servers):
                for what in ("echo",) if who == "echo" else KINDS:
                    take_turn(turns, (who, what, n), servers[who], clicks, size.seconds)
        with learning(room / "now" / "store", room / "events.jsonl") as learner:
            for _, n, what in itertools.product(range(size.rounds), CONNECTIONS, ("score", "clicks")):
                for who, sign in (("learns", signal.SIGCONT), ("paused", signal.SIGSTOP)):
                    learner.send_signal(sign)
                    take_turn(turns, (who, what, n), servers["now"], clicks, size.seconds)
            if learner.poll() is not None:
                raise SystemExit("the learner had too little to learn")
    for count in (1, 2):
        with serve_replicas(room / "now" / "store", count) as server:
            fire(server, scores_of(clicks), 32, size.seconds)
            for _ in range(size.rounds):
                take_turn(turns, (f"{count} replicas", "score", 32), server, clicks, size.seconds)
    return figures(turns, size)


def take_turn(
    turns: Turns, kind: tuple[str, str, int], server: Server, clicks: list[dict[str, Any]], seconds: float
) -> None:
    _, what, n = kind
    turns.setdefault(kind, []).append(fire(server, requests_of(what, clicks), n, seconds))


def figures(turns: Turns, size: Size) -> list[Figure]:
    """What was measured, then what is compared; a ratio is the median over rounds."""
    all_figures = []
    for (who, what, n), values in turns.items():
        rate, per_cpu, p50, p99 = (median(column) for column in zip(*values, strict=True))
        how = f"{rate:,.0f}/s; half in {p50:.2f} ms, 99 % in {p99:.2f} ms; {len(values)} turns"
        all_figures.append(Figure(f"{who}: {what}, {n} connections", per_cpu, "/cpu-s", how=how))

    def compare(name: str, above: tuple[str, str, int], below: tuple[str, str, int], key: str, most: float) -> None:
        pairs = list(zip(turns.get(above, ()), turns.get(below, ()), strict=False))
        if pairs:
            ratios = sorted(getattr(a, key) / getattr(b, key) for a, b in pairs)
            how = f"{ratios[len(ratios) // 4]:.2f} to {ratios[3 * len(ratios) // 4]:.2f} in half of the rounds"
            all_figures.append(Figure(name, median(ratios), "x", most, how, size.loose))

    for n in CONNECTIONS:
        echo, score, clicks = ("echo", "echo", n), ("now", "score", n), ("now", "clicks", n)
        compare(f"echo / score, {n} connections", echo, score, "per_cpu", 2.5)
        compare(f"before / now: score, {n} connections", ("before", "score", n), score, "per_cpu", 1 / 5)
        compare(f"before / now: clicks, {n} connections", ("before", "clicks", n), clicks, "per_cpu", 1 / 3)
        compare(f"99 % of score / of echo, {n} connections", score, echo, "p99_ms", 3.0)
        learns, paused = ("learns", "score", n), ("paused", "score", n)
        compare(f"99 % of score while it learns / not, {n} connections", learns, paused, "p99_ms", 2.0)
    # Each of two has a core: together they answer twice as much per second as per processor second.
    compare("one replica / two, per core", ("1 replicas", "score", 32), ("2 replicas", "score", 32), "per_cpu", 2 / 1.7)
    return all_figures


# Requests.


def request(path: str, content: Any) -> bytes:
    body = json.dumps(content).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


EMPTY = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
KINDS = ("empty", "score", "clicks")
_numbers = itertools.count(1 << 40)


def requests_of(what: str, clicks: list[dict[str, Any]]) -> Iterator[bytes]:
    """Requests of a kind, without an end. An echo is asked what the service is."""
    if what == "empty":
        return itertools.repeat(EMPTY)
    return registrations(clicks) if what == "clicks" else scores_of(clicks)


def scores_of(clicks: list[dict[str, Any]]) -> Iterator[bytes]:
    return itertools.cycle([request("/v1/score", {"features": [click["features"]]}) for click in clicks[:500]])


def registrations(clicks: list[dict[str, Any]]) -> Iterator[bytes]:
    """New clicks, of the time of the first ones."""
    for number, click in zip(_numbers, itertools.cycle(clicks[:500]), strict=False):
        content = {"click_id": number, "ts": clicks[0]["ts"], "features": click["features"]}
        yield request("/v1/clicks", {"clicks": [content]})


def fire(server: Server, requests: Iterator[bytes], connections: int, seconds: float) -> Measured:
    """Keep so many connections busy for a while."""
    selector, waited = selectors.DefaultSelector(), []
    for _ in range(connections):
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(connection, selectors.EVENT_READ, [time.perf_counter(), b""])
        connection.sendall(next(requests))
    used, since = server.cpu_seconds(), time.perf_counter()
    while (now := time.perf_counter()) < since + seconds:
        for key, _ in selector.select(5):
            key.data[1] += key.fileobj.recv(65_536)  # type: ignore[union-attr]
            if is_whole(key.data[1]):
                if not key.data[1].startswith(b"HTTP/1.1 200"):
                    raise SystemExit(f"answered {key.data[1][:300]!r}")
                now = time.perf_counter()
                waited.append(now - key.data[0])
                key.data[:] = now, b""
                key.fileobj.sendall(next(requests))  # type: ignore[union-attr]
    used = max(server.cpu_seconds() - used, 1e-3)
    for key in list(selector.get_map().values()):
        key.fileobj.close()  # type: ignore[union-attr]
    if not waited:
        raise SystemExit(f"no answer within {seconds} s: the machine is too busy to measure anything")
    p50, p99 = 1e3 * np.quantile(waited, (0.5, 0.99))
    return Measured(len(waited) / (now - since), len(waited) / used, float(p50), float(p99))


def is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return bool(end) and len(body) >= int(length or 0)


# Processes.


def make_store(room: Path, tree: Path, raw: Path) -> None:
    """A live model that has learnt its warm-up part, made by the code of a checkout; its events come closed."""
    room.mkdir()
    ends = ",".join(f"{end}s" for end in paper.HORIZONS)
    data = [f"horizons={ends}", f"d_max={paper.HORIZONS[-1]}s", "split=1h", "duplicates=keep"]
    given = [word for setting in data for word in ("--data-set", setting)]
    run(tree, "prepare", "criteo", "--source", str(raw), *given, "--out", str(room / "table"))
    words = ["--source", str(room / "table"), "--method", "telescoped", "--lateness", "60s", "--time", "log"]
    run(tree, "init", str(room / "store"), *words)
    run(tree, "tick", str(room / "store"))


def run(tree: Path, *words: str) -> None:
    command_words = [sys.executable, "-m", "tracecvr.cli", *words]
    subprocess.run(command_words, env=environment(tree), check=True, stdout=-3, preexec_fn=on_any_core)


def environment(tree: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}


def on_first_core() -> None:
    os.sched_setaffinity(0, {0})


def on_any_core() -> None:
    os.sched_setaffinity(0, range(os.cpu_count() or 1))


@contextmanager
def serve(store: Path, tree: Path, *more: str, place: Callable[[], None] = on_first_core) -> Iterator[Server]:
    """The service without a learner."""
    words = [sys.executable, "-m", "tracecvr.cli", "serve", str(store), "--no-learn", "--rate", "1e9", *more]
    with start([*words, "--port"], tree, place) as server:
        yield server


@contextmanager
def serve_replicas(store: Path, count: int) -> Iterator[Server]:
    """So many replicas that share a port, once all of them answer."""
    port = free_port()
    words = [sys.executable, "-m", "tracecvr.cli", "serve", "--replica", str(store), "--rate", "1e9", "--port"]
    options: dict[str, Any] = {"env": environment(HERE), "stderr": -3, "preexec_fn": on_any_core}
    running = [subprocess.Popen([*words, str(port)], **options) for _ in range(count)]
    try:
        await_answer(port)
        while len(listening(port)) < count:
            time.sleep(0.1)
        yield Server(port, tuple(process.pid for process in running))
    finally:
        for process in running:
            process.kill()
            process.wait()


def listening(port: int) -> list[str]:
    """The sockets that listen at a port."""
    rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return [row for row in rows if row.split()[1].endswith(f":{port:04X}") and row.split()[3] == "0A"]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def start(words: list[str], tree: Path, place: Callable[[], None] = on_first_core) -> Iterator[Server]:
    """A server, on the first core by default, once it answers. Its port is the last word of the command."""
    port = free_port()
    process = subprocess.Popen([*words, str(port)], env=environment(tree), stderr=-3, preexec_fn=place)
    try:
        await_answer(port)
        yield Server(port, (process.pid,))
    finally:
        process.kill()
        process.wait()


def await_answer(port: int) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            with socket.create_connection(("127.0.0.1", port), 10) as connection:
                connection.sendall(EMPTY)
                if connection.recv(100):
                    return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("a server does not answer")


@contextmanager
def learning(store: Path, events: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A learner on the same core, of lower priority as `serve` has it, once it has begun to learn."""
    run(HERE, "ingest", str(store), str(events))
    words = ["nice", "-n", "15", sys.executable, "-m", "tracecvr.cli", "tick", str(store)]
    before = {path.name for path in store.glob("models/*.json")}
    process = subprocess.Popen(words, env=environment(HERE), stdout=-3, stderr=-3, preexec_fn=on_first_core)
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end and {path.name for path in store.glob("models/*.json")} <= before:
            time.sleep(0.1)
        yield process
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
