"""Benches: the same results however many workers there are and however often they are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import polars as pl
import pytest
from conftest import Call

from benches import FAILS, SUITE, children, gone, one_thread, same, until
from tracecvr.api import comparisons
from tracecvr.base import config
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.errors import UserError
from tracecvr.bench import engines, suite, tables, tuned
from tracecvr.bench.engines.local import Serial
from tracecvr.bench.outcome import SCHEMA
from tracecvr.bench.runner import Request, hold_bench, run_cells
from tracecvr.learn.stream_learning import AS_WARM_UP, StreamLearning


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bench")
    (out / "small.toml").write_text(SUITE)
    (out / "fails.toml").write_text(SUITE + FAILS)
    return out


def request_for(folder: Path, name: str = "small", **changes: Any) -> Request:
    return replace(Request(suite.load(str(folder / f"{name}.toml")), "synthetic"), **changes)


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> Path:
    """In this process, with one more row that fails."""
    out = folder / "undisturbed"
    with hold_bench(request_for(folder, "fails"), out) as bench:
        state = run_cells(bench, Serial())
        tables.write(out)
    assert len(state.done) == 4
    return out


def command(folder: Path, out: Path) -> list[str]:
    words = [sys.executable, "-m", "tracecvr.cli", "bench", str(folder / "fails.toml"), "--data", "synthetic"]
    return [*words, "--out", str(out), "--workers", "2"]


# What is written.


def test_results_have_every_column_and_one_row_per_cell(undisturbed: Path) -> None:
    frame = pl.read_parquet(undisturbed / "results.parquet")
    assert frame.schema == pl.Schema(SCHEMA)
    assert frame["label"].to_list() == ["Pretrain", "Vanilla", "TRACE", "Oracle"]
    assert frame["role"].to_list() == ["lower", "zero", "ours", "upper"]
    trace = frame.row(2, named=True)
    result = json.loads((undisturbed / "cells" / trace["cell"] / "result.json").read_text())
    assert trace["auc"] == result["metrics"]["pooled"]["auc"]
    assert trace["interval_nll"] == result["metrics"]["interval"]["nll"]
    assert trace["steps_per_click"] == result["cost"]["steps"] / result["cost"]["clicks"]
    assert trace["events_per_click"] == pytest.approx(3, abs=0.1)
    assert trace["time_stream_s"] > 0
    assert frame["time_shared_warm_up_s"].to_list()[1] > 0  # the served net's start is everybody's
    assert json.loads(trace["settings"])["hidden"] == "16,8"


def test_the_tables_say_what_there_is(undisturbed: Path) -> None:
    text = (undisturbed / "table.md").read_text()
    assert "| **" in text
    assert "RI of AUC, Pretrain = 0" in text
    assert "One seed: there is no standard deviation" in text
    assert "1 cells are not finished" in text
    assert "paper" not in text  # its numbers are of other logs


def test_a_cell_that_fails_is_told_and_stops_nobody(undisturbed: Path) -> None:
    failed = json.loads((undisturbed / "failed.json").read_text())
    assert list(failed) == ["dfsn~window=9d~seed0"]
    assert "expected satellite_window < window <= d_max" in failed["dfsn~window=9d~seed0"]
    assert len(list((undisturbed / "cells").iterdir())) == 4


def test_another_bench_in_the_directory_is_refused(folder: Path, undisturbed: Path) -> None:
    for changes, message in (
        ({"seeds": (1,)}, "holds another bench: seeds is"),
        ({"settings": {"passes": "2"}}, "settings"),
        ({"methods": ("trace",)}, "methods"),
        ({"data_settings": ("clicks=5",)}, "data_settings"),
        ({"suite": suite.load("quick")}, "suite"),
    ):
        with pytest.raises(UserError, match=message), hold_bench(request_for(folder, "fails", **changes), undisturbed):
            pass
    (folder / "other").mkdir()
    (folder / "other" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"), hold_bench(request_for(folder), folder / "other"):
        pass
    again = request_for(folder, "fails")
    with hold_bench(again, undisturbed), pytest.raises(UserError, match="in use"), hold_bench(again, undisturbed):
        pass


def test_the_papers_table_is_learnt_as_in_the_paper_or_as_we_do(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engines, "choose", lambda *_: Serial())
    log = ["clicks=1500", "days=6", "split=3d", "d_max=2d", "horizons=1h,1d,2d", "interval=6h"]
    data = [word for pair in log for word in ("--data-set", pair)]
    words = ["bench", "table1", "--data", "synthetic", *data, "--methods", "vanilla", "--set", "hidden=8"]
    kinds: dict[str, list[str]] = {
        "paper": [],
        "ours": ["--learning", "ours"],
        "tuned": ["--tuned", str(tmp_path / "tuned.toml")],
        "both": ["--tuned", str(tmp_path / "tuned.toml"), "--learning", "paper"],
    }
    expected = {
        "paper": AS_WARM_UP,
        "ours": StreamLearning(),
        "tuned": StreamLearning(average=2 * DAY),
        "both": replace(AS_WARM_UP, average=2 * DAY),
    }
    for kind, more in kinds.items():
        out = tmp_path / kind
        if kind == "tuned":  # on the first quarter of a day of the stream of the same log
            log_hash = json.loads((tmp_path / "paper" / "bench.json").read_text())["fingerprint"]
            period = tuned.Period("synthetic", log_hash, 3 * DAY, 3 * DAY + 6 * HOUR, [7])
            tuned.write(tmp_path / "tuned.toml", {"vanilla": {"stream.average": "2d"}}, period)
        assert call(*words, *more, "--out", str(out)) == 0
        learning = "paper" if kind in ("paper", "both") else "ours"
        assert json.loads((out / "bench.json").read_text())["suite"]["learning"] == learning
        run = json.loads((next((out / "cells").iterdir()) / "run.json").read_text())
        assert run["config"]["stream"] == config.values(expected[kind])
        said = "Learning settings: the paper's (" if learning == "paper" else "Learning settings: ours ("
        assert said in (out / "table.md").read_text()
        report = (out / "report.html").read_text()
        assert f"--learning {learning}" in report
        assert ("newest weights served" in report) == (learning == "paper")
    capsys.readouterr()
    assert call(*words, "--learning", "their", "--out", str(tmp_path / "none")) == 2
    assert "choose one of ours, paper" in " ".join(capsys.readouterr().err.split())
    assert call(*words, "--learning", "ours", "--out", str(tmp_path / "paper")) == 2
    assert "suite.learning is 'paper' there, 'ours' here" in " ".join(capsys.readouterr().err.split())


# Processes.


def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(
    folder: Path, undisturbed: Path, start: Start, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker while cells run, then the parent; whoever is left of a killed parent ends by itself."""
    out = folder / "killed"
    process = start(out)
    until(lambda: bool(list(out.glob("cells/*/run.json"))))
    before = children(process.pid)
    os.kill(before[-1], signal.SIGKILL)
    until(lambda: bool(set(children(process.pid)) - set(before)))  # another takes over
    workers = children(process.pid)
    process.kill()
    process.wait()
    assert len(workers) >= 2
    until(lambda: all(gone(pid) for pid in workers))

    assert call(*command(folder, out)[3:]) == 1
    output = capsys.readouterr().out
    assert "| Oracle |" in output
    assert "failed: dfsn~window=9d~seed0: satellite_window" in output
    assert "the same command again tries the failed cells once more" in output
    assert f"report: {out / 'report.html'}" in output
    same(undisturbed, out)


@pytest.mark.slow
def test_killed_at_random_many_times(folder: Path, undisturbed: Path, start: Start) -> None:
    """Parents and workers, after any number of seconds, until the bench is done all the same."""
    out, dice = folder / "often", random.Random(11)
    for _ in range(6):
        process = start(out)
        time.sleep(dice.uniform(2, 15))
        victims = [process.pid, *children(process.pid)[1:]]  # the first is Python's own tracker of resources
        os.kill(dice.choice(victims), signal.SIGKILL)
        time.sleep(dice.uniform(0, 5))
        workers = children(process.pid)
        process.kill()
        process.wait()
        until(lambda workers=workers: all(gone(pid) for pid in workers))  # type: ignore[misc]
    subprocess.run(command(folder, out), capture_output=True, env=one_thread(), check=False)
    same(undisturbed, out)


def test_forecasts_need_a_feature_and_others_take_none(folder: Path) -> None:
    request = Request(suite.load("quick"), "synthetic")
    with pytest.raises(UserError, match="--by FEATURE goes with the suite forecast"):
        comparisons.carry_out(request, folder / "no", Serial(), by="device", progress=False)


def test_ctrl_c_ends_with_a_word_on_how_to_go_on(folder: Path, start: Start) -> None:
    out = folder / "stopped"
    process = start(out, stderr=subprocess.PIPE, start_new_session=True)
    until(lambda: bool(list(out.glob("cells/*/.lock"))))
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 130
    assert stderr.decode().splitlines()[-1].startswith("stopped; ")
    assert "the bench goes on when it is started again" in stderr.decode()
    assert "Traceback" not in stderr.decode()


class Start(Protocol):
    """Starts the command in a process of its own."""

    def __call__(self, out: Path, **more: Any) -> subprocess.Popen[bytes]: ...


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """What a test leaves running when it fails is ended."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(out: Path, **more: Any) -> subprocess.Popen[bytes]:
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": one_thread()}
        started.append(subprocess.Popen(command(folder, out), **(quiet | more)))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
