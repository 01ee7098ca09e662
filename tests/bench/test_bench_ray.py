"""Benches on Ray: what the local engine gives, whoever is lost on the way."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raycluster
from benches import FAILS, SUITE, gone, one_thread, same, until
from tracecvr.bench.outcome import is_finished

pytestmark = pytest.mark.scale

LONG = ("--data-set", "clicks=20000", "--set", "interval=10min")
"""Cells that take seconds: time to kill them."""
DEADLY = """
import os
from dataclasses import dataclass
from tracecvr.methods.vanilla import Vanilla

@dataclass
class Deadly(Vanilla):
    name = "deadly"

    def loss(self, b):
        with open(os.environ["STARTS"], "a") as starts:
            starts.write(".")
        os.kill(os.getpid(), 9)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bench")
    (out / "fails.toml").write_text(SUITE + FAILS)
    return out


@pytest.fixture(scope="module")
def cluster() -> Iterator[raycluster.Cluster]:
    with raycluster.started() as made:
        yield made


@pytest.fixture
def alone() -> Iterator[dict[str, str]]:
    with raycluster.alone() as env:
        yield env


def command(out: str, *words: str, suite: str = "fails.toml") -> list[str]:
    return [sys.executable, "-m", "tracecvr.cli", "bench", suite, "--data", "synthetic", "--out", out, *words]


def ended(folder: Path, out: str, *words: str, env: dict[str, str], code: int = 0, **more: Any) -> str:
    """Run a bench to its end; what it said."""
    process = subprocess.run(
        command(out, *words, **more), cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert process.returncode == code, process.stdout + process.stderr
    return process.stdout + process.stderr


@pytest.fixture(scope="module")
def local(folder: Path) -> Path:
    ended(folder, "local", *LONG, env=one_thread(), code=1)
    return folder / "local"


class Bench:
    """A bench that runs in a process of its own."""

    def __init__(self, folder: Path, out: str, *words: str, env: dict[str, str], **more: Any) -> None:
        self.out = folder / out
        with (folder / f"{out}.log").open("wb") as log:
            self.process = subprocess.Popen(command(out, *words, **more), cwd=folder, env=env, stdout=log, stderr=log)

    def streaming(self, node: subprocess.Popen[bytes]) -> tuple[str, int] | None:
        """A cell that has come past its warm-up below a process, and the process that runs it."""
        assert self.process.poll() is None, self.output()
        for pid in raycluster.below(node.pid):
            cell = raycluster.task(pid)
            folder = self.out / "cells" / str(cell)
            if cell is not None and (folder / "run.json").exists() and not is_finished(folder):
                return cell, pid
        return None

    def output(self) -> str:
        return self.out.with_suffix(".log").read_text()


@pytest.fixture
def start(folder: Path) -> Iterator[Any]:
    """What a test leaves running when it fails is ended."""
    begun: list[Bench] = []

    def begin(*words: Any, **more: Any) -> Bench:
        begun.append(Bench(folder, *words, **more))
        return begun[-1]

    yield begin
    for bench in begun:
        bench.process.kill()
        bench.process.wait()


def test_a_lost_node_and_a_lost_worker_change_nothing(
    folder: Path, local: Path, cluster: raycluster.Cluster, start: Any
) -> None:
    """Two nodes; on the first the worker of a cell is killed, then all of the second. What fails by itself is told."""
    second = cluster.joined()
    env = cluster.env | {"RAY_ADDRESS": cluster.address}  # else `auto` might find a cluster that is not ours
    bench = start("lost", *LONG, "--engine", "ray", "--address", "auto", env=env)
    streaming: list[Any] = []

    def both_stream() -> bool:
        streaming[:] = bench.streaming(cluster.head), bench.streaming(second)
        return None not in streaming

    until(both_stream)
    (_, victim), (lost, _) = streaming
    os.kill(victim, signal.SIGKILL)
    raycluster.kill(second)
    assert not is_finished(bench.out / "cells" / lost)
    assert bench.process.wait(timeout=300) == 1, bench.output()
    same(local, bench.out)
    failed = json.loads((bench.out / "failed.json").read_text())
    assert failed == json.loads((local / "failed.json").read_text())
    assert list(failed) == ["dfsn~window=9d~seed0"]
    assert is_finished(bench.out / "cells" / lost)


def test_begun_by_one_engine_and_killed_it_is_finished_by_the_other(
    folder: Path, local: Path, start: Any, alone: dict[str, str]
) -> None:
    """A Ray of the bench's own ends with it, however it ends."""
    bench = start("either", *LONG, "--engine", "ray", env=alone)
    until(lambda: bench.streaming(bench.process) is not None)
    workers = [pid for pid in raycluster.below(bench.process.pid) if raycluster.task(pid)]
    bench.process.kill()
    bench.process.wait()
    assert workers
    until(lambda: all(gone(pid) for pid in workers), seconds=60)
    again = start("either", *LONG, "--workers", "1", env=one_thread())
    until(lambda: len(list(again.out.glob("cells/*/result.json"))) >= 2)
    again.process.kill()
    again.process.wait()
    ended(folder, "either", *LONG, "--engine", "ray", env=alone, code=1)
    same(local, again.out)


def test_ctrl_c_through_a_client_leaves_nobody_at_work(
    folder: Path, local: Path, cluster: raycluster.Cluster, start: Any
) -> None:
    address = ("--engine", "ray", "--address", f"ray://127.0.0.1:{cluster.client_port}")
    bench = start("stopped", *LONG, *address, env=cluster.env)
    until(lambda: bench.streaming(cluster.head) is not None)
    _, worker = bench.streaming(cluster.head)
    bench.process.send_signal(signal.SIGINT)
    assert bench.process.wait(timeout=60) == 130
    until(lambda: gone(worker), seconds=10)
    assert bench.output().splitlines()[-1].startswith("stopped; ")
    assert "Traceback" not in bench.output()
    ended(folder, "stopped", *LONG, *address, env=cluster.env, code=1)
    same(local, bench.out)


def test_a_cell_that_kills_its_workers_is_given_up(folder: Path, alone: dict[str, str]) -> None:
    """The method is a file, given from where the command runs."""
    (folder / "deadly.py").write_text(DEADLY)
    (folder / "deadly.toml").write_text(SUITE.split("[[row]]")[0] + '[[row]]\nmethod = ["vanilla", "deadly.py"]\n')
    starts = folder / "starts"
    env = alone | {"STARTS": str(starts)}
    methods = ("--methods", "vanilla,deadly.py")  # a suite alone does not get a file executed
    output = ended(folder, "deadly", *methods, "--engine", "ray", env=env, code=1, suite="deadly.toml")
    assert "deadly~seed0: its worker was lost 6 times (WorkerCrashedError); out of memory, perhaps" in output
    assert is_finished(folder / "deadly" / "cells" / "vanilla~seed0")
    assert starts.read_text() == "." * 6


def test_a_node_that_is_not_fit_ends_the_bench(folder: Path, cluster: raycluster.Cluster) -> None:
    """As if another torch were here than there."""
    code = """
import sys
from tracecvr.bench.engines import ray as rays
from tracecvr.cli import main
here = rays.versions() | {"torch": "1.0"}
rays.versions = lambda: here
main()
"""
    words = command("unfit", "--engine", "ray", "--address", cluster.address)[3:]
    process = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=folder, env=cluster.env, capture_output=True, text=True, check=False
    )
    assert process.returncode == 2, process.stdout + process.stderr
    assert re.search(
        r"^error: \S+ has torch 2\.\S+, here is 1\.0: install the same versions", process.stderr, re.MULTILINE
    )
    assert "Traceback" not in process.stderr
    assert not list((folder / "unfit" / "cells").iterdir())
