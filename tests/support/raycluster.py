"""Real nodes of Ray on this machine, each a `ray start` of its own, to run things on and to lose."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benches import children, gone, one_thread, until
from crashing import free_port

_RAY = [sys.executable, "-m", "ray.scripts.scripts"]


class Cluster:
    """A head node of one CPU, and others that join it. A home of its own: Ray keeps its token and its address there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.client_port = folder, free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.env = one_thread() | {"HOME": str(folder), "RAY_TMPDIR": str(folder), "RAY_AUTH_MODE": "token"}
        self.env.pop("RAY_ADDRESS", None)
        self.nodes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """The head, and a token that all who come to it need."""
        subprocess.run([*_RAY, "get-auth-token", "--generate"], env=self.env, check=True, capture_output=True)
        self.head = self._started(
            "--head",
            *(f"--port={self.port}", f"--ray-client-server-port={self.client_port}"),
            *("--include-dashboard=false", f"--temp-dir={self.folder}"),
        )

    def joined(self) -> subprocess.Popen[bytes]:
        """One more node of one CPU."""
        return self._started(f"--address={self.address}")

    def _started(self, *words: str) -> subprocess.Popen[bytes]:
        output = self.folder / f"node{len(self.nodes)}.log"
        common = ("--num-cpus=1", "--object-store-memory=100000000", "--disable-usage-stats", "--block")
        for _ in range(3):  # Ray gives a node 30 s to start, which a busy machine may exceed
            with output.open("wb") as log:
                node = subprocess.Popen([*_RAY, "start", *words, *common], env=self.env, stdout=log, stderr=log)
            self.nodes.append(node)
            until(lambda node=node: b"Ray runtime started." in output.read_bytes() or node.poll() is not None)  # type: ignore[misc]
            if node.poll() is None:
                return node
        raise AssertionError(output.read_text())

    def close(self) -> None:
        """End what is left of it."""
        for node in reversed(self.nodes):
            kill(node)


@contextmanager
def started() -> Iterator[Cluster]:
    """A cluster while it lasts."""
    with _short_folder() as folder:
        cluster = Cluster(folder)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.close()


@contextmanager
def alone() -> Iterator[dict[str, str]]:
    """An environment for commands that start a Ray of their own."""
    with _short_folder() as folder:
        yield one_thread() | {"HOME": str(folder), "RAY_TMPDIR": str(folder)}


@contextmanager
def _short_folder() -> Iterator[Path]:
    """Ray's sockets need a short path, which pytest's folders are not."""
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def kill(node: subprocess.Popen[bytes]) -> None:
    """As when a machine is switched off: all processes of a node at once."""
    pids = [node.pid, *below(node.pid)]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    node.wait()
    until(lambda: all(gone(pid) for pid in pids))


def below(pid: int) -> list[int]:
    """The descendants of a process."""
    return [one for child in children(pid) for one in (child, *below(child))]


def task(pid: int) -> str | None:
    """The task that a process works at, of which Ray makes the title of the process."""
    with suppress(FileNotFoundError, ProcessLookupError):
        title = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0 ")
        if title.startswith("ray::") and "~seed" in title:
            return title.removeprefix("ray::")
    return None
