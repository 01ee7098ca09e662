"""Engines on another device: a make-believe one, which computes as the processor does with plain forms of nets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tracecvr as tc
from elsewhere import compute_as_elsewhere, elsewhere
from tracecvr.authoring.losses import cross_entropy
from tracecvr.base import registry
from tracecvr.base.config import DAY
from tracecvr.base.files import read_json
from tracecvr.checks.subject import small_log
from tracecvr.learn.engine import Engine
from tracecvr.learn.stream_learning import StreamLearning
from tracecvr.learn.warm_up_cache import WarmUpCache
from tracecvr.methods.vanilla import Vanilla
from tracecvr.runs.replay import Plan, replay
from tracecvr.stream.reveal import Reveals
from tracecvr.stream.source import TableSource

Outcome = tuple[bytes, bytes, str]


@dataclass(frozen=True)
class Case:
    """A method in a setting; all have the same small net."""

    method: str
    optimiser: str = "adam"
    publish_lag: int = 0
    has_double: bool = True

    def __str__(self) -> str:
        more = {"lag": self.publish_lag, "single": not self.has_double}
        return "-".join([self.method, self.optimiser, *(word for word, on in more.items() if on)])

    def engine(self, device: str) -> Engine:
        stream = StreamLearning(optimiser=self.optimiser, device=device)
        method = registry.get("method", self.method)(hidden=(16, 8), warm_batch_size=64, warm_epochs=1)
        return Engine(method, small_log(500).schema, 1, publish_lag=self.publish_lag, stream=stream)

    def learn(self, device: str, folder: Path) -> Outcome:
        """What was served, the posteriors at the end and the state; with a resume in the middle."""
        table, engine = small_log(500), self.engine(device)
        plan, source = Plan(interval=DAY).resolve(table), TableSource(table)
        assert {weight.device.type for weight in engine.method.nets.parameters()} == {device}
        engine.warm_up(source.history(plan.split, plan.warm_labels))
        served = []
        for interval in replay(engine, source, plan):
            served.append(interval.log_odds)
            if interval.number == 1:
                break
        engine.snapshot(folder / device)
        engine = self.engine(device)
        engine.restore(folder / device)
        served += [scored.log_odds for scored in replay(engine, source, plan, first=2)]
        known = source.known_at(plan.until, plan.split, plan.until)
        return np.concatenate(served).tobytes(), engine.posterior(known).tobytes(), engine.fingerprint()


FEW = ("telescoped", "trace", "es_dfm", "dfm", "ftp", "dfsn")
CASES = [
    *(Case(name) for name in FEW),
    Case("trace", "lazy_adam", publish_lag=2),
    Case("vanilla", "lazy_adam"),
    *(Case(name, "lazy_adam", has_double=False) for name in ("telescoped", "miss")),
]
OTHERS = [
    *(Case(name) for name in sorted(registry.available("method")) if name not in FEW),
    *(Case(name, has_double=False) for name in ("trace", "gdfm")),
]


@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in OTHERS)], ids=str)
def test_learns_and_scores_as_the_processor_does(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with elsewhere(case.has_double) as device:
        there = case.learn(device, tmp_path)
    compute_as_elsewhere(monkeypatch, case.has_double)
    assert there == case.learn("cpu", tmp_path)


def test_a_warm_up_is_shared_by_runs_on_one_device(tmp_path: Path) -> None:
    history, case = TableSource(small_log(500)).history(3 * DAY, "censored"), Case("trace")
    outcomes = set()
    with elsewhere() as device:
        for _ in range(2):
            engine = case.engine(device)
            engine.warm_up(history, share=WarmUpCache(tmp_path, {}))
            outcomes.add(engine.fingerprint())
        kept = set(tmp_path.glob("*.safetensors"))
        case.engine("cpu").warm_up(history, share=WarmUpCache(tmp_path, {}))
    assert len(outcomes) == 1
    assert len(set(tmp_path.glob("*.safetensors"))) == 2 * len(kept) == 6  # the model, the trajectory and the completer


@dataclass
class Stranger(Vanilla):
    """A method whose loss has a tensor of the processor in it."""

    name = "stranger"

    def loss(self, b: Reveals) -> Tensor:
        return (cross_entropy(self.logit(b.x), b.label) * torch.from_numpy(np.ones(len(b), np.float32))).mean()


def test_a_loss_with_a_tensor_of_the_processor_is_refused() -> None:
    table, day = small_log(500), DAY
    with elsewhere() as device:
        engine = Engine(Stranger(hidden=(4,), warm_epochs=1), table.schema, stream=StreamLearning(device=device))
        engine.warm_up(TableSource(table).history(3 * day, "censored"))
        with pytest.raises(RuntimeError, match=r"a tensor of the processor, .* meets one of the device"):
            engine.tick(TableSource(table), 3 * day, 4 * day)


def test_a_run_records_its_device_and_its_model_answers_on_the_processor(tmp_path: Path) -> None:
    log = tc.dataset("synthetic", clicks=500, interval="5d")
    with elsewhere() as device:
        tc.replay(log, "vanilla", hidden=[4], warm_epochs=1, device=device, out=tmp_path / "run", progress=False)
    result = read_json(tmp_path / "run" / "result.json")
    assert result["config"]["stream"]["device"] == result["config"]["in_force"]["stream"]["device"] == device
    model = tc.load(tmp_path / "run")  # the device is not there any more
    assert len(model.predict([{"segment": 3, "device": 1, "item": 42}])) == 1


@pytest.mark.parametrize(("here", "device"), [({"cuda", "mps"}, "cuda"), ({"mps"}, "mps"), (set(), "cpu")])
def test_auto_is_the_first_that_is_here(here: set[str], device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in here)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in here)
    assert StreamLearning(device="auto").device == device


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", "option 'device' is 'gpu': choose one of auto, cuda, mps, cpu"),
        ("cuda", f"option 'device' is 'cuda': torch {torch.__version__} finds no such device on this machine; choose"),
    ],
)
def test_a_device_that_is_not_here_is_an_error_of_one_line(
    name: str,
    message: str,
    call: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = ("run", "--method", "vanilla", "--data", "synthetic", "--set", f"device={name}", "--out", tmp_path / "run")
    assert call(*words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
