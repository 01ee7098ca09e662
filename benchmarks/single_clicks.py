"""Requests of one click: how many a second one core answers, and how fast, with the paper's net (17 features of 16,
256-256-128). Beside it, in turns in the same run: an echo of the same server, an empty route, and other code.

    git worktree add /tmp/before COMMIT
    python benchmarks/single_clicks.py --before /tmp/before     # some minutes
    python benchmarks/single_clicks.py --quick                  # a smoke

Servers run on one core, the sender on another. Other work on the machine takes its share of both. So requests are also
counted per second of processor time of the server, and what is compared is measured in turns. The sender takes most of
a core, so on two cores what several workers can do is told by their processor time, too. See docs/live_performance.md.
"""

from __future__ import annotations

import itertools
import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import live
from measure import command, paper
from measure.report import Figure
from rawlogs import DAY
from tracecvr.base.config import HOUR
from tracecvr.online.dataset_events import events_of

HERE = Path(__file__).resolve().parents[1]
CONNECTIONS = (1, 8, 32)
ECHO = """
import sys, uvicorn
from tracecvr.online.service.connections import Config
from tracecvr.online.service.limits import Limits
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
    name: str
    hourly: int
    hours: int
    rounds: int
    seconds: float
    loose: float


FULL = Size("full", 2_000, 12, 5, 2.0, 1.0)
QUICK = Size("quick", 200, 6, 1, 0.5, 10.0)


@dataclass
class Tally:
    """Of one kind of request, over rounds: answers a second, per second of processor time, and 99th percentiles."""

    rate: list[float] = field(default_factory=list)
    per_cpu: list[float] = field(default_factory=list)
    slow_ms: list[float] = field(default_factory=list)


def main() -> None:
    parser = command.parser(__doc__, "single_clicks", QUICK, FULL)
    parser.add_argument("--before", type=Path, help="a checkout of other code, to be measured in turns with this")
    given = parser.parse_args()
    command.carry_out("single_clicks", given.size.name, given.out, lambda room: measure(given.size, room, given.before))


def measure(size: Size, room: Path, before: Path | None) -> list[Figure]:
    """All figures."""
    dataset, raw = live.criteo(live.Size(size.name, size.hourly, size.hours, 0, 0, size.loose), room)
    events = list(events_of(dataset, raw, HOUR, 100 * DAY))
    clicks = [event for event in events if event["type"] == "click"]
    trees = {"now": HERE} | ({} if before is None else {"before": before.resolve()})
    tallies: dict[tuple[str, str, int], Tally] = {}
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for name, tree in trees.items():
        make_store(room / name, tree, raw, events)
    for _ in range(size.rounds):
        with serve_echo() as (port, pid):
            for n in CONNECTIONS:
                note(tallies, "echo", "echo", n, fire(port, pid, scores_of(clicks), n, size.seconds))
        for name, tree in trees.items():
            with serve(room / name / "store", tree) as (port, pid):
                for n in CONNECTIONS:
                    note(tallies, name, "empty", n, fire(port, pid, itertools.repeat(EMPTY), n, size.seconds / 2))
                    note(tallies, name, "score", n, fire(port, pid, scores_of(clicks), n, size.seconds))
                    note(tallies, name, "clicks", n, fire(port, pid, registrations(clicks), n, size.seconds))
    with serve(room / "now" / "store", HERE) as (port, pid), learning(room / "now" / "store") as learner:
        while learner.poll() is None:
            note(tallies, "now", "score while it learns", 8, fire(port, pid, scores_of(clicks), 8, size.seconds))
    for count in (1, 2):
        with serve_workers(room / "now" / "store", count) as (port, pids):
            for _ in range(size.rounds):
                note(
                    tallies,
                    "now",
                    f"score by {count} workers",
                    32,
                    fire(port, pids, scores_of(clicks), 32, size.seconds),
                )
    return figures(tallies, size)


def figures(tallies: dict[tuple[str, str, int], Tally], size: Size) -> list[Figure]:
    """What was measured, then what is compared; a ratio is the median over rounds."""
    ratios = [
        Figure(
            f"{who}: {what}, {n} connections",
            median(tally.per_cpu),
            "/cpu-s",
            how=f"{median(tally.rate):,.0f}/s, 99 % below {median(tally.slow_ms):.1f} ms, {len(tally.rate)} rounds",
        )
        for (who, what, n), tally in tallies.items()
    ]

    def ratio(name: str, target: float, above: list[float], below: list[float], how: str) -> Figure:
        return Figure(name, median([a / b for a, b in zip(above, below, strict=False)]), "x", target, how, size.loose)

    for n in CONNECTIONS:
        echo, score = tallies["echo", "echo", n], tallies["now", "score", n]
        ratios.append(ratio(f"echo / score, {n} connections", 2.5, echo.per_cpu, score.per_cpu, "per processor second"))
        for what, target in (("score", 1 / 5), ("clicks", 1 / 3)) if ("before", "score", n) in tallies else ():
            old, new = tallies["before", what, n], tallies["now", what, n]
            how = f"per processor second; by the clock {median(old.rate) / median(new.rate):.2f}"
            ratios.append(ratio(f"before / now: {what}, {n} connections", target, old.per_cpu, new.per_cpu, how))
    one, two = (tallies["now", f"score by {count} workers", 32] for count in (1, 2))
    how = f"per processor second of both; by the clock {median(one.rate) / median(two.rate):.2f}"
    ratios.append(ratio("one worker / two", 1 / 1.7, one.per_cpu, [2 * value for value in two.per_cpu], how))
    eight = tallies["now", "score", 8]
    ratios.append(ratio("99 % of score / of echo, 8", 3, eight.slow_ms, tallies["echo", "echo", 8].slow_ms, "times"))
    if ("now", "score while it learns", 8) in tallies:
        busy = tallies["now", "score while it learns", 8].slow_ms
        ratios.append(
            ratio("99 % of score while it learns / not, 8", 2, [median(busy)], [median(eight.slow_ms)], "times")
        )
    return ratios


def note(tallies: dict[tuple[str, str, int], Tally], who: str, what: str, n: int, one: tuple[float, ...]) -> None:
    tally = tallies.setdefault((who, what, n), Tally())
    for values, value in zip((tally.rate, tally.per_cpu, tally.slow_ms), one, strict=True):
        values.append(value)


# Requests.


def request(path: str, content: Any) -> bytes:
    body = json.dumps(content).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


EMPTY = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
_numbers = itertools.count(1 << 40)


def scores_of(clicks: list[dict[str, Any]]) -> Iterator[bytes]:
    return itertools.cycle([request("/v1/score", {"features": [click["features"]]}) for click in clicks[:500]])


def registrations(clicks: list[dict[str, Any]]) -> Iterator[bytes]:
    """New clicks, of the time of the first ones."""
    for number, click in zip(_numbers, itertools.cycle(clicks[:500]), strict=False):
        content = {"click_id": number, "ts": clicks[0]["ts"], "features": click["features"]}
        yield request("/v1/clicks", {"clicks": [content]})


def fire(
    port: int, pid: int | list[int], requests: Iterator[bytes], connections: int, seconds: float
) -> tuple[float, ...]:
    """Keep so many connections busy: answers a second, per processor second of the servers, and the 99th percentile."""
    selector, waited = selectors.DefaultSelector(), []
    for _ in range(connections):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(connection, selectors.EVENT_READ, [time.perf_counter(), b""])
        connection.sendall(next(requests))
    used, since = cpu_seconds(pid), time.perf_counter()
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
    used = cpu_seconds(pid) - used
    for key in list(selector.get_map().values()):
        key.fileobj.close()  # type: ignore[union-attr]
    if not waited:
        raise SystemExit(f"no answer within {seconds} s: the machine is too busy to measure anything")
    return len(waited) / (now - since), len(waited) / max(used, 0.01), 1e3 * float(np.quantile(waited, 0.99))


def is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return bool(end) and len(body) >= int(length or 0)


def cpu_seconds(pid: int | list[int]) -> float:
    if isinstance(pid, list):
        return sum(map(cpu_seconds, pid))
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


# Processes.


def make_store(room: Path, tree: Path, raw: Path, events: list[dict[str, Any]]) -> None:
    """A live model that has learnt its warm-up part, made by the code of a checkout; its events come closed."""
    room.mkdir()
    ends = ",".join(f"{end}s" for end in paper.HORIZONS)
    data = [f"horizons={ends}", f"d_max={paper.HORIZONS[-1]}s", "split=1h", "duplicates=keep"]
    given = [word for setting in data for word in ("--data-set", setting)]
    words = ["--data", "criteo", "--source", str(raw), "--method", "telescoped", "--lateness", "60s", "--time", "log"]
    run(tree, "init", str(room / "store"), *words, *given)
    run(tree, "tick", str(room / "store"))
    if tree == HERE:
        (room / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))


def run(tree: Path, *words: str) -> None:
    subprocess.run([sys.executable, "-m", "tracecvr.cli", *words], env=environment(tree), check=True, stdout=-3)


def environment(tree: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}


def on_first_core() -> None:
    os.sched_setaffinity(0, {0})


def on_any_core() -> None:
    os.sched_setaffinity(0, range(os.cpu_count() or 1))


@contextmanager
def serve(store: Path, tree: Path) -> Iterator[tuple[int, int]]:
    config = store.parent / "serve.toml"
    config.write_text("rate = 1e9\n")
    words = [sys.executable, "-m", "tracecvr.cli", "serve", str(store), "--no-learn", "--config", str(config)]
    with started(words, tree) as server:
        yield server


@contextmanager
def serve_workers(store: Path, count: int) -> Iterator[tuple[int, list[int]]]:
    """The port that so many scoring workers share, once all of them answer, and their processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    more = ["--workers", str(count), "--scoring-port", str(port)]
    words = [sys.executable, "-m", "tracecvr.cli", "serve", str(store), "--no-learn", *more]
    with started([*words, "--config", str(store.parent / "serve.toml")], HERE, on_any_core) as (_, pid):
        await_answer(port)
        while len(listening(port)) < count:
            time.sleep(0.1)
        children = {int(p) for path in Path(f"/proc/{pid}/task").glob("*/children") for p in path.read_text().split()}
        yield port, [p for p in sorted(children) if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()]


def listening(port: int) -> list[str]:
    """The sockets that listen at a port."""
    rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return [row for row in rows if row.split()[1].endswith(f":{port:04X}") and row.split()[3] == "0A"]


@contextmanager
def serve_echo() -> Iterator[tuple[int, int]]:
    with started([sys.executable, "-c", ECHO], HERE) as server:
        yield server


@contextmanager
def started(words: list[str], tree: Path, place: Callable[[], None] = on_first_core) -> Iterator[tuple[int, int]]:
    """A server, on the first core by default, once it answers: its port and process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    port_words = [str(port)] if "-c" in words else ["--port", str(port)]
    process = subprocess.Popen([*words, *port_words], env=environment(tree), stderr=-3, preexec_fn=place)
    try:
        await_answer(port)
        yield port, process.pid
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
def learning(store: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A learner on the same core, of lower priority as `serve` has it, with some hours to learn."""
    run(HERE, "ingest", str(store), str(store.parent / "events.jsonl"))
    words = ["nice", "-n", "5", sys.executable, "-m", "tracecvr.cli", "tick", str(store)]
    process = subprocess.Popen(words, env=environment(HERE), stdout=-3, stderr=-3, preexec_fn=on_first_core)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
