"""Runs: what they write, that they repeat to the byte, and that nothing stops them from being finished later."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from quick import flags
from saving import save_prepared
from tracecvr.api.replays import load_result
from tracecvr.base import metrics
from tracecvr.base.config import DAY, HOUR, values
from tracecvr.base.errors import UserError
from tracecvr.base.metrics import probability
from tracecvr.data import prepared
from tracecvr.datasets.synthetic import Synthetic
from tracecvr.learn.checkpoint import Checkpoints, digest
from tracecvr.methods.trace import Trace
from tracecvr.methods.vanilla import Vanilla
from tracecvr.runs.replay import Plan
from tracecvr.runs.run import Spec, load, run
from tracecvr.stream.source import TableSource

DATA = Synthetic(clicks=6000, days=6, split=3 * DAY, d_max=2 * DAY, horizons=(HOUR, DAY, 2 * DAY), interval=6 * HOUR)
COMPARED = ("scores.parquet", "intervals.parquet", "encoder.json", "run.json")


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    yield
    torch.set_num_threads(1)


def spec(**changes: Any) -> Spec:
    plain = Spec(
        method=Trace(hidden=(16, 8), batch_size=256, warm_epochs=1, warm_batch_size=256),
        plugins=(),
        data="synthetic",
        data_options=values(DATA),
        open_log=lambda _: prepared.open_log(DATA, None),
        plan=Plan(),
        seed=3,
        threads=1,
    )
    return replace(plain, **changes)


def same_bytes(one: Path, other: Path) -> None:
    for name in COMPARED:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    for path in (one / "checkpoint").glob("*.safetensors"):
        assert path.read_bytes() == (other / "checkpoint" / path.name).read_bytes(), path.name
    assert timeless(one) == timeless(other)


def timeless(out: Path) -> dict[str, Any]:
    """The result without what depends on the clock and the process."""
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    for name in ("prepare_s", "warm_up_s", "stream_s", "peak_rss_mb"):
        result["cost"].pop(name)
    return result


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "whole"
    run(spec(), out)
    return out


def test_the_result_says_what_was_done(undisturbed: Path) -> None:
    result = json.loads((undisturbed / "result.json").read_text())
    assert result["method"] == "trace"
    assert result["plugins"] == []
    assert result["config"]["method"]["lam"] == 0.1
    assert set(result["metrics"]["interval"]) == {*metrics.INTERVAL_METRICS, "intervals", "skipped"}
    assert set(result["metrics"]["pooled"]) == {"auc", "pr_auc", "ap", "nll", "ece", "ece_gdfm", "mce", "pcoc", "ne"}
    cost = {"prepare_s", "warm_up_s", "stream_s", "clicks", "reveals", "steps", "skipped_events", "peak_rss_mb"}
    assert set(result["cost"]) == cost | {"clipped_weights", "conversions", "shared_warm_up_s"}
    assert result["data"]["fingerprint"] == DATA.prepare(None)[0].fingerprint
    counts = result["data"]["counts"]
    assert counts["warm_up"] + counts["scored"] + counts["not_scored"] == counts["clicks"] == 6000
    assert result["plan"]["split"] == 3 * DAY
    assert set(result["versions"]) >= {"tracecvr", "torch", "python"}


def test_the_model_of_a_run_can_be_loaded(undisturbed: Path) -> None:
    engine = load(undisturbed)
    source = TableSource(DATA.prepare(None)[0])
    events = source.known_at(5 * DAY, 4 * DAY, 5 * DAY)
    posterior = probability(engine.posterior(events))
    assert ((posterior > 0) & (posterior < 1)).all()
    assert posterior[events.converted.numpy()].mean() > posterior[events.open.numpy()].mean()
    (state,) = (undisturbed / "checkpoint").glob("*.safetensors")
    again = undisturbed.parent / "again.safetensors"
    engine.snapshot(again)
    assert again.read_bytes() == state.read_bytes()


def test_scores_and_intervals_hold_the_metrics(undisturbed: Path) -> None:
    result = json.loads((undisturbed / "result.json").read_text())
    scores, intervals = (pl.read_parquet(undisturbed / f"{name}.parquet") for name in ("scores", "intervals"))
    pooled = metrics.evaluate(scores["log_odds"].to_numpy(), scores["label"].to_numpy())
    assert asdict(pooled) == pytest.approx(result["metrics"]["pooled"])
    weighted = np.average(intervals["nll"].to_numpy(), weights=intervals["clicks"].to_numpy())
    assert weighted == pytest.approx(result["metrics"]["interval"]["nll"])
    assert weighted == pytest.approx(result["metrics"]["pooled"]["nll"])
    assert intervals["clicks"].sum() == len(scores) == result["cost"]["clicks"]
    third = scores.filter(scores["click_ts"] // (6 * HOUR) == 12 + 2)
    assert intervals["conversions"][2] == third["label"].sum()


def test_only_clicks_from_judge_from_on_count(undisturbed: Path, tmp_path: Path) -> None:
    """The replay is the same; metrics are those of later clicks; of an interval that is cut, the later part counts."""
    start = 4 * DAY + 3 * HOUR  # in the middle of an interval
    result = run(spec(plan=Plan(judge_from=start)), tmp_path / "judged")
    whole = json.loads((undisturbed / "result.json").read_text())
    scores, everything = (pl.read_parquet(out / "scores.parquet") for out in (tmp_path / "judged", undisturbed))
    assert scores.equals(everything.filter(pl.col("click_ts") >= start))
    assert 0 < len(scores) < len(everything)
    pooled = metrics.evaluate(scores["log_odds"].to_numpy(), scores["label"].to_numpy())
    assert asdict(pooled) == pytest.approx(result["metrics"]["pooled"])
    assert result["judged"] == {"clicks": len(scores), "conversions": scores["label"].sum()}
    assert result["plan"]["judge_from"] == start
    assert result["cost"]["clicks"] == whole["cost"]["clicks"] == len(everything)  # cost is of the whole stream
    assert result["cost"]["steps"] == whole["cost"]["steps"]
    assert result["data"]["counts"]["not_judged"] == len(everything) - len(scores)
    intervals = pl.read_parquet(tmp_path / "judged" / "intervals.parquet")
    assert intervals["clicks"].sum() == len(scores)
    assert intervals["start"].to_list()[:2] == [start, 4 * DAY + 6 * HOUR]
    assert result["metrics"]["interval"]["intervals"] == len(intervals)


@pytest.mark.parametrize("judge_from", [2 * DAY, 6 * DAY, 60 * DAY])
def test_judge_from_lies_in_the_stream(judge_from: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="leaves no click to judge: the stream runs from split = 259200 s"):
        run(spec(plan=Plan(judge_from=judge_from)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_same_run_twice_gives_the_same_bytes(undisturbed: Path, tmp_path: Path) -> None:
    run(spec(), tmp_path / "again")
    same_bytes(undisturbed, tmp_path / "again")


def test_another_seed_gives_other_scores(undisturbed: Path, tmp_path: Path) -> None:
    run(spec(seed=4), tmp_path / "other")
    assert (undisturbed / "scores.parquet").read_bytes() != (tmp_path / "other" / "scores.parquet").read_bytes()


@pytest.mark.parametrize(
    "stop", [("warm-up: model", 0.0), ("warm-up: completer", 0.0), ("stream", 0.0), ("stream", 0.6), ("stream", 1.0)]
)
@pytest.mark.parametrize("checkpoint_every", [0.0, 1e9])
def test_a_stopped_run_resumes_to_the_same_bytes(
    stop: tuple[str, float], checkpoint_every: float, undisturbed: Path, tmp_path: Path
) -> None:
    def crash(stage: str, done: int, total: int) -> None:
        if stage == stop[0] and done >= stop[1] * total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(spec(), tmp_path / "run", progress=crash, checkpoint_every=checkpoint_every)
    run(spec(), tmp_path / "run", resume=True)
    same_bytes(undisturbed, tmp_path / "run")


def test_resuming_a_finished_run_only_reads_it(undisturbed: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*") if path.name != ".lock"}
    result = run(spec(open_log=lambda _: pytest.fail("the log was opened")), undisturbed, resume=True)
    assert result == json.loads((undisturbed / "result.json").read_text())
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_directory_with_another_run_is_refused(undisturbed: Path) -> None:
    with pytest.raises(UserError, match="--resume"):
        run(spec(), undisturbed)
    with pytest.raises(UserError, match="seed is 3 there, 9 here"):
        run(spec(seed=9), undisturbed, resume=True)
    with pytest.raises(UserError, match="method is 'trace' there, 'vanilla' here"):
        run(spec(method=Vanilla()), undisturbed, resume=True)
    with pytest.raises(UserError, match=r"config\.method\.lam is 0\.1 there, 0\.2 here"):
        run(
            spec(method=Trace(hidden=(16, 8), batch_size=256, warm_epochs=1, warm_batch_size=256, lam=0.2)),
            undisturbed,
            resume=True,
        )


@pytest.mark.parametrize("name", ["run.json", "result.json", "checkpoint"])
def test_files_of_another_format_are_refused_in_one_line(name: str, undisturbed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(undisturbed, tmp_path / "run"))
    path = max((folder / name).glob("*.json")) if name == "checkpoint" else folder / name
    content = json.loads(path.read_text()) | {"format": 99}
    if name == "checkpoint":
        del content["manifest"]
        content["manifest"] = digest(content)
    path.write_text(json.dumps(content))
    opened: dict[str, Callable[[], Any]] = {
        "run.json": lambda: run(spec(), folder, resume=True),
        "result.json": lambda: load_result(folder),
        "checkpoint": lambda: load(folder),
    }
    with pytest.raises(UserError, match="format 99, expected 1: another version of tracecvr wrote it"):
        opened[name]()


def test_a_directory_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        run(spec(), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_another_log_under_the_same_name_is_refused(tmp_path: Path) -> None:
    def crash(stage: str, done: int, total: int) -> None:
        if stage == "stream":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(spec(), tmp_path / "run", progress=crash)
    other = replace(DATA, log_seed=5)
    with pytest.raises(UserError, match="fingerprint"):
        run(spec(open_log=lambda _: prepared.open_log(other, None)), tmp_path / "run", resume=True)


def test_what_a_killed_process_was_writing_is_swept_away(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    (out / "checkpoint").mkdir(parents=True)
    (out / ".lock").touch()
    (out / ".run.json.123.tmp").write_text("{")
    (out / "checkpoint" / ".000000000.safetensors.123.tmp").write_text("half")
    (out / "checkpoint" / "x").touch()
    with pytest.raises(UserError, match="not empty"):
        run(spec(), out)
    (out / "checkpoint" / "x").unlink()
    (out / "checkpoint").rmdir()
    (out / ".run.json.123.tmp").write_text("{")
    run(spec(), out)
    same_bytes(undisturbed, out)


def test_a_directory_that_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match="window"):
        run(spec(method=Vanilla(window=-1)), tmp_path / "mine")
    assert list((tmp_path / "mine").iterdir()) == []


def test_two_processes_do_not_share_a_directory(tmp_path: Path) -> None:
    def second(stage: str, done: int, total: int) -> None:
        with pytest.raises(UserError, match="in use"):
            run(spec(), tmp_path / "run", resume=True)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(spec(), tmp_path / "run", progress=second)


def test_a_damaged_checkpoint_is_not_used(undisturbed: Path, tmp_path: Path) -> None:
    def crash(stage: str, done: int, total: int) -> None:
        if stage == "stream" and done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(spec(), tmp_path / "run", progress=crash, checkpoint_every=0)
    (weights,) = (tmp_path / "run" / "checkpoint").glob("*.safetensors")
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    assert Checkpoints(weights.parent).latest() is None
    run(spec(), tmp_path / "run", resume=True)  # from the start, then
    same_bytes(undisturbed, tmp_path / "run")


def test_a_prepared_log_gives_the_same_result(undisturbed: Path, tmp_path: Path) -> None:
    save_prepared(prepared.open_log(DATA, None), DATA, tmp_path / "table")
    run(spec(open_log=lambda _: prepared.load(tmp_path / "table")), tmp_path / "run")
    same_bytes(undisturbed, tmp_path / "run")


# Real processes: killed, and out of disk.

COMMAND = [
    *(sys.executable, "-m", "tracecvr.cli", "run", "--method", "trace", "--data", "synthetic", "--seed", "3"),
    *(
        "--threads",
        "1",
        *flags("--set", "hidden=16,8", "batch_size=256", "warm_epochs=1", "warm_batch_size=256"),
        "--checkpoint-every",
        "0",
    ),
    *("--data-set", "clicks=6000", "--data-set", "days=6", "--data-set", "split=3d", "--data-set", "d_max=2d"),
    *("--data-set", "horizons=1h,1d,2d", "--data-set", "interval=6h"),
]


def test_killed_and_resumed_from_the_command_line(undisturbed: Path, tmp_path: Path) -> None:
    """Early, and in the middle of the stream; a run that a command began may be finished by anybody."""
    out = tmp_path / "run"
    for intervals in (0, 5):
        process = subprocess.Popen([*COMMAND, "--out", out, "--resume"], stderr=subprocess.DEVNULL)
        while process.poll() is None and newest(out) < intervals:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert 5 <= newest(out) < 12
    run(spec(), out, resume=True)
    same_bytes(undisturbed, out)


def newest(out: Path) -> int:
    """How many intervals the last checkpoint has learnt from; -1 if there is none."""
    return max((int(path.stem) for path in (out / "checkpoint").glob("*.json")), default=-1)


def test_a_full_disk_is_one_line_and_the_run_can_go_on(undisturbed: Path, tmp_path: Path) -> None:
    def no_file_over_200_kb() -> None:  # the columns of the log are smaller
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    out = tmp_path / "run"
    failed = subprocess.run(
        [*COMMAND, "--out", out], capture_output=True, text=True, preexec_fn=no_file_over_200_kb, check=False
    )
    assert failed.returncode == 2
    (line,) = failed.stderr.splitlines()
    assert line.startswith("error: ")
    assert "safetensors" in line
    run(spec(), out, resume=True)
    same_bytes(undisturbed, out)


def test_oracle_and_pretrain_bracket_on_a_log_that_drifts(tmp_path: Path) -> None:
    """A small honest ranking: what knows more serves better."""
    from tracecvr.methods.oracle import Oracle
    from tracecvr.methods.pretrain import Pretrain

    data = Synthetic(clicks=60_000, days=16, split=6 * DAY, interval=6 * HOUR)
    log = prepared.open_log(data, None)
    nll = {}
    for method in (Pretrain, Oracle):
        one = method(hidden=(32, 16), batch_size=256, learning_rate=3e-3, warm_epochs=3)
        out = tmp_path / one.name
        nll[one.name] = run(spec(method=one, open_log=lambda _: log), out)["metrics"]["pooled"]["nll"]
    assert nll["oracle"] < nll["pretrain"]
    assert np.isfinite(list(nll.values())).all()
