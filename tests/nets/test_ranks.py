"""Several workers compute what one computes: gradients, weights, statistics, whole runs; and how they end."""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Call
from torch import Tensor, nn

import ranked
from grown import FORMS
from ranked import Case, Taken
from tracecvr.base import registry
from tracecvr.base.errors import UserError
from tracecvr.base.progress import no_progress
from tracecvr.distributed.workers import run_workers
from tracecvr.nets.ranks import Ranks, shared, sharing_batches
from tracecvr.runs.run import Job, Launch, Spec, run
from tracecvr.runs.spec import spec_of

METHODS: dict[str, Any] = dict(registry.available("method"))
EVERY: list[Case] = [(name, () if method.contains else ("completer", "rehearsal")) for name, method in METHODS.items()]
FOUR: list[Case] = [
    ("trace", ()),
    *((name, plugins) for name in ("es_dfm", "defuse", "gdfm") for plugins in ((), ("completer",))),
]
BY_ROWS = ("lazy_adam", "row_adagrad")
BACKBONES: list[str] = sorted(set(registry.available("backbone")) - {"mlp"})


def jobs(two: bool) -> dict[Any, Any]:
    """What is computed by one process and by several: by two everything, by three what shows rows that are left over:
    of batches of 4 and of 2, the third has none."""
    by_name: dict[Any, Any] = {"odd nets": ranked.odd_nets, "refused": ranked.refused}
    by_name |= {name: partial(ranked.by_rows, name) for name in BY_ROWS}
    by_name |= {("growing", form): partial(ranked.growing, form) for form in FORMS}
    for size, case in [*product([4], FOUR), (2, FOUR[0])]:
        by_name[size, case] = partial(ranked.gradients, case, torch.float64, hourly=1, batch_size=size)
    if two:
        by_name |= {("gradients", case): partial(ranked.gradients, case, torch.float64) for case in EVERY}
        by_name |= {("single", case): partial(ranked.gradients, case, torch.float32) for case in FOUR}
        by_name |= {("trained", case): partial(ranked.trained, case, torch.float64) for case in FOUR}
        for name in BACKBONES:
            by_name["backbone", name] = partial(ranked.gradients, ("es_dfm", ()), torch.float64, backbone=name)
    return by_name


Compute = Callable[[str, Callable[[], Any]], Any]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Compute:
    """Computes what several tests look at once, however many processes the tests run in: the others wait for it."""
    own = tmp_path_factory.getbasetemp()
    room = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def compute(name: str, make: Callable[[], Any]) -> Any:
        with (room / f"{name}.lock").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            path = room / f"{name}.pickle"
            if not path.exists():
                path.write_bytes(pickle.dumps(make()))
            return pickle.loads(path.read_bytes())

    return compute


@pytest.fixture(scope="module")
def alone(once: Compute) -> Any:
    return once("alone", lambda: ranked.all_of(jobs(two=True), no_progress))


@pytest.fixture(scope="module")
def two(once: Compute) -> Any:
    return once("two", lambda: run_workers(partial(ranked.all_of, jobs(two=True)), 2))


@pytest.fixture(scope="module")
def three(once: Compute) -> Any:
    return once("three", lambda: run_workers(partial(ranked.all_of, jobs(two=False)), 3))


def assert_gradients_close(ours: Taken, theirs: Taken, share: float) -> None:
    """Every step's gradient is within a share of its norm."""
    assert len(theirs.steps) == theirs.taken >= 5
    assert ours.missing == theirs.missing
    for a, b in zip(ours.steps, theirs.steps, strict=True):
        assert np.linalg.norm(a - b) <= share * np.linalg.norm(b)


def distance(ours: Taken, theirs: Taken, name: str = "") -> float:
    """How far states are apart, as a share of their norm, in tensors whose names contain this."""
    assert ours.state.keys() == theirs.state.keys()
    a, b = (np.concatenate([v.ravel() for n, v in taken.state.items() if name in n]) for taken in (ours, theirs))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.scale
@pytest.mark.parametrize("case", EVERY, ids=str)
def test_gradients_are_those_of_one_process(case: Case, alone: dict[Any, Any], two: list[dict[Any, Any]]) -> None:
    for rank in two:
        ours, theirs = rank["gradients", case], alone["gradients", case]
        assert_gradients_close(ours, theirs, 1e-9)
        assert distance(ours, theirs) < 1e-9
        assert distance(ours, theirs, "running") < 1e-9
        np.testing.assert_allclose(ours.scores, theirs.scores, rtol=1e-5, atol=1e-7)


@pytest.mark.scale
@pytest.mark.parametrize("name", BACKBONES)
def test_so_they_are_of_every_backbone(name: str, alone: dict[Any, Any], two: list[dict[Any, Any]]) -> None:
    for rank in two:
        assert_gradients_close(rank["backbone", name], alone["backbone", name], 1e-9)


@pytest.mark.scale
@pytest.mark.parametrize("case", FOUR, ids=str)
def test_in_single_precision_they_are_near(case: Case, alone: dict[Any, Any], two: list[dict[Any, Any]]) -> None:
    for rank in two:
        assert_gradients_close(rank["single", case], alone["single", case], 1e-3)


@pytest.mark.scale
@pytest.mark.parametrize("case", FOUR, ids=str)
def test_weights_stay_together_for_a_hundred_steps(
    case: Case, alone: dict[Any, Any], two: list[dict[Any, Any]]
) -> None:
    theirs = alone["trained", case]
    assert theirs.taken >= 100
    for rank in two:
        assert distance(rank["trained", case], theirs, ".net.") < 1e-9
    assert two[0]["trained", case].fingerprint == two[1]["trained", case].fingerprint


@pytest.mark.scale
@pytest.mark.parametrize("optimiser", BY_ROWS)
def test_gradients_of_some_rows_are_those_of_one_process(
    optimiser: str, alone: dict[Any, Any], two: list[dict[Any, Any]], three: list[dict[Any, Any]]
) -> None:
    for several in (two, three):
        for rank in several:
            assert distance(rank[optimiser], alone[optimiser], f"{optimiser}.embedding") < 1e-9
            assert distance(rank[optimiser], alone[optimiser]) < 1e-9
        assert len({rank[optimiser].fingerprint for rank in several}) == 1


@pytest.mark.scale
@pytest.mark.parametrize("form", FORMS)
def test_columns_grow_as_in_one_process(
    form: str, alone: dict[Any, Any], two: list[dict[Any, Any]], three: list[dict[Any, Any]]
) -> None:
    theirs = alone["growing", form]
    for several in (two, three):
        for rank in several:
            ours = rank["growing", form]
            assert distance(ours, theirs, ".growing.") < 1e-9
            assert distance(ours, theirs, ".net.") < 1e-9
            for name in (name for name in theirs.state if name.startswith("map.")):
                assert np.array_equal(ours.state[name], theirs.state[name])
        assert len({rank["growing", form].fingerprint for rank in several}) == 1


@pytest.mark.scale
@pytest.mark.parametrize("case", FOUR, ids=str)
def test_batches_may_be_smaller_than_the_number_of_workers(
    case: Case, alone: dict[Any, Any], two: list[dict[Any, Any]], three: list[dict[Any, Any]]
) -> None:
    for rank in (*two, *three):
        assert_gradients_close(rank[4, case], alone[4, case], 1e-9)
    assert len({rank[4, case].fingerprint for rank in three}) == 1


@pytest.mark.scale
def test_batches_may_be_of_two(alone: dict[Any, Any], two: list[dict[Any, Any]], three: list[dict[Any, Any]]) -> None:
    for rank in (*two, *three):  # less exact, because two rows normalised are 1 and -1, or nearly so
        assert_gradients_close(rank[2, FOUR[0]], alone[2, FOUR[0]], 1e-8)


def test_only_nets_that_are_shared_are_touched_and_so_are_their_copies() -> None:
    shares: list[int] = []

    class Alone(Ranks):
        def __init__(self) -> None:
            self.rank, self.size = 0, 1

        def gathered(self, value: Tensor) -> Tensor:
            shares.append(len(value))
            return value[None]

    plain, before, x = nn.Module.__call__, nn.Linear(2, 1), torch.ones(3, 2)
    with sharing_batches(Alone()):
        net, other = shared(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))), nn.Linear(2, 1)
        names = list(net.state_dict())
        assert nn.Module.__call__ is plain
        for one, calls in ((net, 1), (net[0], 1), (deepcopy(net), 1), (other, 0), (before, 0)):
            shares.clear()
            one(x)
            assert shares == [3] * calls
        assert names == list(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1)).state_dict())
        assert shared(net) is net
    shares.clear()
    net(x)
    assert shares == []
    assert type(shared(other)) is nn.Linear  # alone, nothing is shared


@pytest.mark.scale
def test_nets_may_be_used_in_odd_ways(
    alone: dict[Any, Any], two: list[dict[Any, Any]], three: list[dict[Any, Any]]
) -> None:
    for rank in (*two, *three):
        for ours, theirs in zip(rank["odd nets"], alone["odd nets"], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.scale
def test_nets_whose_rows_meet_are_refused(alone: dict[Any, Any], three: list[dict[Any, Any]]) -> None:
    assert alone["refused"] == []
    for rank in three:
        assert ["one row for each row" in message for message in rank["refused"]] == [True, False]
        assert "nn.BatchNorm1d" in rank["refused"][1]


# Whole runs.

WORDS = ("run", "--method", "trace", "--data", "synthetic", "--data-set", "clicks=3000", "--set", "hidden=16,8")
SETTINGS = {"hidden": "16,8", "completer_hidden": "16,8", "batch_size": "512", "interval": "6h"}


def made(workers: int, seed: int = 0) -> Spec:
    return spec_of("trace", (), "synthetic", None, SETTINGS, ("clicks=3000",), seed, 1, workers)


def instead(launch: Launch, job: Job) -> Launch:
    """Has workers do this job in place of their own."""
    return lambda _, *how: launch(job, *how)


def written(out: Path) -> dict[str, bytes]:
    """What a run came to, without what it cost."""
    names = ("scores.parquet", "intervals.parquet", "internals.json", "run.json")
    weights = next((out / "checkpoint").glob("*.safetensors"))
    return {name: (out / name).read_bytes() for name in names} | {"weights": weights.read_bytes()}


def nll(result: dict[str, Any]) -> float:
    return float(result["metrics"]["pooled"]["nll"])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    result = run(made(2), out, launch=run_workers)
    assert (result["workers"], result["threads"]) == (2, 1)
    return out


@pytest.mark.slow
def test_a_whole_run_differs_by_less_than_seeds_do(undisturbed: Path, tmp_path: Path) -> None:
    alone = [nll(run(made(1, seed), tmp_path / str(seed))) for seed in range(3)]
    ours = nll(json.loads((undisturbed / "result.json").read_text()))
    assert abs(ours - alone[0]) < np.std(alone)


@pytest.mark.scale
def test_a_worker_that_is_killed_stops_the_run_which_goes_on_to_the_same_bytes(
    undisturbed: Path, tmp_path: Path
) -> None:
    out, spec, clock = tmp_path / "run", made(2), time.monotonic()
    with pytest.raises(UserError, match=r"worker 1 of 2 was killed by SIGKILL.* continue it with --resume"):
        run(spec, out, launch=instead(run_workers, partial(ranked.dying, spec, out, 5)))
    assert time.monotonic() - clock < 100  # and not after the patience of those who wait
    assert not (out / "result.json").exists()
    before = next((out / "checkpoint").glob("*.json")).stem
    assert int(before) == 5
    run(spec, out, resume=True, launch=run_workers)
    assert written(out) == written(undisturbed)


def test_workers_that_do_not_agree_stop_the_run(tmp_path: Path) -> None:
    out, spec = tmp_path / "run", made(2)
    with pytest.raises(UserError, match="after 1 intervals: the state of worker 1 is not that of worker 0"):
        run(spec, out, launch=instead(run_workers, partial(ranked.straying, spec, out)))


@pytest.mark.slow
def test_a_users_mistake_is_told_as_by_one_process(tmp_path: Path) -> None:
    spec = spec_of("vanilla", (), "synthetic", None, {"split": "90d"}, ("clicks=500",), workers=2)
    messages = []
    launches: tuple[Launch | None, ...] = (run_workers, None)
    for launch in launches:
        with pytest.raises(UserError) as error:
            run(spec, tmp_path / "run", launch=launch)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert not (tmp_path / "run").exists()


@pytest.mark.scale
def test_the_number_of_workers_is_part_of_a_run(undisturbed: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="workers is 2 there, 1 here"):
        run(made(1), undisturbed, resume=True)
    with pytest.raises(UserError, match="workers is 2 there, 3 here"):
        run(made(3), undisturbed, resume=True, launch=run_workers)
    assert run(made(2), undisturbed, resume=True, launch=run_workers)["workers"] == 2


def test_the_command_line(call: Call, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = ("--out", tmp_path / "run")
    assert call(*WORDS, *out, "--engine", "elsewhere") == 2
    assert "--engine elsewhere: give local or ray" in capsys.readouterr().err
    assert call(*WORDS, *out, "--address", "auto") == 2
    assert "--address is for --engine ray" in capsys.readouterr().err
    assert call(*WORDS, *out, "--engine", "ray", "--workers", 2, "--address", "127.0.0.1:1") == 2
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_the_command(how: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = [*WORDS, "--workers", "2", "--threads", "1", "--out", str(out)]
    with subprocess.Popen([sys.executable, "-m", "tracecvr.cli", *words], stderr=subprocess.PIPE, text=True) as command:
        until = time.monotonic() + 100
        while not (out / "run.json").exists():
            assert command.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        workers = children(command.pid)
        assert len(workers) == 2
        command.send_signal(how)
        stderr = command.communicate(timeout=60)[1]
    if how is signal.SIGINT:
        assert command.returncode == 130
        assert "goes on with --resume" in stderr
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < until
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    """Of a process, those that work: one that multiprocessing starts to tidy up after the others does not."""
    pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in pids if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.scale
def test_under_ray_train_the_run_is_the_same(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracecvr.distributed.ray_cluster import connected
    from tracecvr.distributed.ray_train import ray_launcher

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # Ray's workers import what we import
    out, spec = tmp_path / "run", made(2)
    with connected(cpus=2):
        with pytest.raises(UserError, match=r"worker 1 of 2 is gone.* continue it with --resume"):
            run(spec, out, launch=instead(ray_launcher(None), partial(ranked.dying, spec, out, 5)))
        assert not (out / "result.json").exists()
        run(spec, out, resume=True, launch=ray_launcher(None))
        with pytest.raises(UserError, match="the Ray cluster has 2 cores, but 3 workers of 1 threads need 3"):
            run(made(3), tmp_path / "three", launch=ray_launcher(None))
    assert written(out) == written(undisturbed)
