"""Scoring processes that share a port: all swap versions, one that is killed is replaced, none is left behind."""

from __future__ import annotations

import os
import signal
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
from test_service_crash import children
from tracecvr.online.store.store import Store
from tracecvr.online.store.versions import Versions

COUNT = 2


@contextmanager
def serve_with_workers(store: Store) -> Iterator[tuple[subprocess.Popen[bytes], str, str]]:
    """The command: its process, and the addresses of the writer and of the workers."""
    port, scoring = free_port(), free_port()
    words = ["serve", str(store.folder), "--port", port, "--no-learn", "--workers", COUNT, "--scoring-port", scoring]
    command = [sys.executable, "-m", "tracecvr.cli", *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            yield process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{scoring}"
        finally:
            process.kill()


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


def test_workers_follow_versions_are_replaced_and_end_with_the_service(made: Made) -> None:
    store = made("vanilla")
    learn_all(store)
    with serve_with_workers(store) as (process, writer, url):
        port = int(url.rpartition(":")[2])
        until(lambda: answers(writer) and answers(url) and listening(port) == COUNT, 120)
        assert scores(url) == scores(writer)
        assert asked(url, "POST", "/v1/clicks", b"{}")[0] == 405, "they accept nothing"
        first = children(process.pid)
        assert len(first) == COUNT

        send(store, EVENTS[:300])
        learn_all(store)
        since, wanted = time.monotonic(), Versions(store.folder, store.settings.keep).serving()
        until(lambda: versions(url) == {wanted})
        assert time.monotonic() - since < 10, "a look each half second, on a machine that may be busy"

        os.kill(first[0], signal.SIGKILL)
        for _ in range(10):
            assert scores(url)["version"] == wanted, "the other one answers"
        until(lambda: listening(port) == COUNT and first[0] not in children(process.pid), 120)
        assert versions(url) == {wanted}

        left = children(process.pid)
        process.kill()
        process.wait()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))


@pytest.mark.parametrize(
    ("shared", "words"),
    [(1, ("--port",)), (0, ("--port", 0, "--workers", 1, "--scoring-port"))],
    ids=["of the writer", "of workers"],
)
def test_a_port_that_is_taken_is_named(
    made: Made, call: Call, capsys: pytest.CaptureFixture[str], shared: int, words: tuple[str | int, ...]
) -> None:
    store = made("vanilla")
    learn_all(store)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert call("serve", store.folder, "--no-learn", *words, port) == 2
    assert f"--port {port} cannot be listened at" in capsys.readouterr().err
