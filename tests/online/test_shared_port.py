"""Replicas that share a port: all swap versions, and one that is killed is not missed."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import Call

from crashing import free_port
from livestore import Made, send
from test_replica import EVENTS, learn_all, scores
from test_service import asked, until
from tracecvr.online.store.store import Store
from tracecvr.online.store.versions import Versions

COUNT = 2


@contextmanager
def serve_replicas(store: Store) -> Iterator[tuple[list[subprocess.Popen[bytes]], str]]:
    """Processes that score, and their address."""
    port = free_port()
    words = [sys.executable, "-m", "tracecvr.cli", "serve", "--replica", str(store.folder), "--port", str(port)]
    running = [subprocess.Popen(words, stderr=subprocess.DEVNULL) for _ in range(COUNT)]
    try:
        yield running, f"http://127.0.0.1:{port}"
    finally:
        for process in running:
            process.kill()
            process.wait()


def versions(url: str) -> set[Any]:
    """The versions that answer on many connections: each is given to one of the processes."""
    return {scores(url)["version"] for _ in range(16)}


def answers(url: str) -> bool:
    try:
        return asked(url, "GET", "/readyz")[0] == 200
    except OSError:
        return False


def listening(port: int) -> int:
    """How many sockets listen at a port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


def test_replicas_that_share_a_port_follow_versions_and_do_without_one_that_is_killed(made: Made) -> None:
    store = made("vanilla")
    learn_all(store)
    with serve_replicas(store) as (running, url):
        port = int(url.rpartition(":")[2])
        until(lambda: answers(url) and listening(port) == COUNT, 120)
        assert asked(url, "POST", "/v1/clicks", b"{}")[0] == 405, "they accept nothing"

        send(store, EVENTS[:300])
        learn_all(store)
        since, wanted = time.monotonic(), Versions(store.folder, store.settings.keep).serving()
        until(lambda: versions(url) == {wanted})
        assert time.monotonic() - since < 10, "a look each half second, on a machine that may be busy"

        running[0].kill()
        running[0].wait()
        for _ in range(10):
            assert scores(url)["version"] == wanted, "the other one answers"


def test_the_port_of_a_writer_is_its_own(made: Made, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    store = made("vanilla")
    learn_all(store)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert call("serve", store.folder, "--no-learn", "--port", port) == 2
    assert f"--port {port} cannot be listened at" in capsys.readouterr().err
