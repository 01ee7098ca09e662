"""Engines of benches, as far as no cluster is needed: which there are, and what a node must have to run cells."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Call

from benches import SUITE
from tracecvr.base.files import is_locked, locked, sha256
from tracecvr.bench import runner, suite
from tracecvr.bench.engines import ray as rays
from tracecvr.bench.outcome import is_finished
from tracecvr.bench.runner import Bench, Request, hold_bench, run_cell
from tracecvr.runs.run import versions


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    (tmp_path / "small.toml").write_text(SUITE)
    request = Request(suite.load(str(tmp_path / "small.toml")), "synthetic", methods=("pretrain",))
    with hold_bench(request, tmp_path / "bench") as held:
        yield held


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--engine", "spark"), "--engine spark: choose one of local, ray"),
        (("--address", "auto"), "--address auto is for --engine ray"),
        (("--engine", "ray", "--workers", "2"), "--workers is for --engine local"),
    ],
)
def test_what_an_engine_does_not_take_is_told(
    words: tuple[str, ...], told: str, tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("bench", "quick", "--data", "synthetic", "--out", tmp_path / "bench", *words) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "bench").exists()


def test_without_ray_the_extra_is_named(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracecvr.bench.engines.find_spec", lambda _: None)
    assert call("bench", "quick", "--data", "synthetic", "--out", tmp_path / "bench", "--engine", "ray") == 2
    assert "pip install 'tracecvr[ray]'" in capsys.readouterr().err


# A node.


def test_a_node_must_see_what_the_bench_sees(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a task goes to where the bench was started
    (cell,) = bench.cells
    place = rays.Place(bench.out, bench.data, bench.log, tmp_path, sha256(bench.out / "bench.json"), versions())

    def refused(**changes: object) -> str:
        with pytest.raises(rays.UnfitError) as raised:
            rays.run_on_node(cell, replace(place, **changes))  # type: ignore[arg-type]
        assert not (bench.out / "cells" / cell.name).exists()
        return str(raised.value)

    assert f"does not see {tmp_path / 'elsewhere'}: all nodes need" in refused(out=tmp_path / "elsewhere")
    assert f"does not see {bench.out}" in refused(bench_sha256="of another bench")
    assert f"does not see {tmp_path / 'log'}" in refused(log=tmp_path / "log")
    assert "has torch " in refused(versions=versions() | {"torch": "1.0"})
    other = tmp_path / "other"  # the same files, but nobody holds them: as a mount without locks
    other.mkdir()
    (other / "bench.json").write_bytes((bench.out / "bench.json").read_bytes())
    assert "not that it is locked" in refused(out=other)
    assert rays.run_on_node(cell, place) is None
    assert is_finished(bench.out / "cells" / cell.name)


def test_memory_is_declared_above_every_peak_that_was_measured(tmp_path: Path) -> None:
    for table_mb, peak_mb in ((4, 476), (176, 1080), (353, 1286), (1403, 3860)):
        with (tmp_path / "x.npy").open("wb") as column:
            column.truncate(table_mb * 2**20)
        assert peak_mb + 110 <= rays.memory_of(tmp_path) / 2**20 <= 2 * peak_mb  # Ray's own part is 110


def test_a_cluster_without_room_is_told(caplog: pytest.LogCaptureFixture) -> None:
    small = {"Alive": True, "Resources": {"CPU": 8.0, "memory": 2.0**30}}
    gone = {"Alive": False, "Resources": {"CPU": 8.0, "memory": 2.0**33}}
    rays.warn_if_nothing_fits([small, gone], 2**30)
    assert not caplog.records
    rays.warn_if_nothing_fits([small, gone], 2**31)
    assert "no node offers 1 CPU and 2048 MB" in caplog.text


# A directory that a process still has which was given up.


def test_a_cell_waits_for_its_directory(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    (cell,) = bench.cells
    folder = bench.out / "cells" / cell.name
    folder.mkdir()
    assert not is_locked(folder)
    with locked(folder):
        assert is_locked(folder)
        monkeypatch.setattr(runner, "_FREE_S", 0.2)
        failure = run_cell(cell, bench.out, bench.data, bench.log)
        assert failure is not None
        assert "is in use by another process" in failure
        monkeypatch.setattr(runner, "_FREE_S", 60.0)
        failures: list[str | None] = []

        def work() -> None:
            failures.append(run_cell(cell, bench.out, bench.data, bench.log))

        worker = threading.Thread(target=work)
        worker.start()
        time.sleep(0.3)
        assert not failures
    worker.join()
    assert failures == [None]
    assert is_finished(folder)
