"""The service under kills: what was answered with success is there, once, whatever was killed when; and what was learnt
from it is what a replay learns, to the byte."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest

from crashing import OVER_HTTP, Toll, free_port, replayed, send_over, small_events, small_store, survived
from service_client import Client
from tracecvr.base.config import HOUR
from tracecvr.online.service.options import Options
from tracecvr.online.store.store import Store
from tracecvr.online.upkeep.verify_log import verify_log

# Kills.


def test_six_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    toll = killed_over_http(tmp_path, kills=6, intervals=18, seed=1)
    assert toll.kills.total() == 6


@pytest.mark.slow
def test_100_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    toll = killed_over_http(tmp_path, kills=100, intervals=200, seed=2)
    assert min(toll.kills[who] for who in ("server", "learner")) > 25
    assert toll.unheard, "no kill hit between a commit and its answer"


def killed_over_http(room: Path, kills: int, intervals: int, seed: int) -> Toll:
    """Events come less than an hour late, and within a batch clicks go first: an hour is left for that."""
    toll = survived(room, kills, intervals, seed, HOUR, OVER_HTTP, ("server", "learner"))
    every_answer_is_in_the_log(room)
    return toll


def every_answer_is_in_the_log(room: Path) -> None:
    """However often a click was sent, and whichever server answered: it was told one score, the log's."""
    log = Store.open(room / "killed").log()
    lines = [line for name in ("answers", "answers_again") for line in (room / name).read_text().splitlines()]
    heard: dict[int, set[tuple[float, int]]] = {}
    for answer in map(json.loads, lines):
        for click, (score, version) in zip(answer["clicks"], answer["scores"], strict=True):
            heard.setdefault(click, set()).add((score, version))
    for click, answers in heard.items():
        row = log.events_of_click(click)[0]
        assert answers == {(row.score, row.version)}
    assert len(heard) == log.facts()["clicks"]


# The command itself.


@contextmanager
def command(store: Store, port: int) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-m", "tracecvr.cli", "serve", str(store.folder), "--port", str(port)]
    server = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        yield server
    finally:
        server.kill()
        server.wait()


def children(pid: int) -> list[int]:
    """Processes beside it, not those that Python starts for itself."""
    pids = [child for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]
    return [int(pid) for pid in pids if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def runs(pid: int) -> bool:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_it_says_where_it_listens_once_it_does(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", 6)
    words = [sys.executable, "-m", "tracecvr.cli", "serve", str(store.folder), "--port", "0", "--no-learn"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            said = [server.stderr.readline().split() for _ in range(2)]
            assert [word for word, _ in said] == ["listening:", "dashboard:"]
            url = said[0][1]
            assert said[1][1] == f"{url}/"
            with urlopen(f"{url}/healthz", timeout=20) as answer:
                assert answer.read() == b"ok"
        finally:
            server.kill()


@pytest.mark.parametrize(
    ("address", "url"),
    [
        (Options(), "http://127.0.0.1:81"),
        (Options(host="::1"), "http://[::1]:81"),
        (Options(host="a.example", certificate=Path("c"), key=Path("k")), "https://a.example:81"),
    ],
)
def test_its_address_is_one_to_be_called(address: Options, url: str) -> None:
    assert replace(address, port=81).url == url


@pytest.mark.slow
def test_a_second_server_shares_the_store_and_its_learner_takes_over_when_the_first_is_killed(tmp_path: Path) -> None:
    store, events, ports = small_store(tmp_path / "store", 6), small_events(6), (free_port(), free_port())
    half = len(events) // 2
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(Client(f"http://127.0.0.1:{port}", retries=40, timeout=60)) for port in ports
        )
        server = stack.enter_context(command(store, ports[0]))
        assert first.model()["version"] == 0
        (learner,) = children(server.pid)
        stack.enter_context(command(store, ports[1]))
        for number, event in enumerate(events[:half]):
            list(send_over((first, second)[number % 2], [event]))
        until(lambda: second.status()["intervals"]["learnt"] == store.log().closed() > 0)
        server.send_signal(signal.SIGKILL)
        until(lambda: not runs(learner), 5.0)
        for event in events[half:]:
            list(send_over(second, [event]))
        until(lambda: second.status()["intervals"]["learnt"] == store.log().closed() > 2)
        assert second.status()["learner"]["running"]
    facts = store.log().facts()
    assert facts["clicks"] + facts["actions"] == len(events)
    assert "duplicates" not in facts
    relived = verify_log(store)
    assert relived.same
    assert relived.weights == replayed(store, store.base, relived.intervals)
