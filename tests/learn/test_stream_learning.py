"""How the stream is learnt: step size, batches, optimisers and averaged weights."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tracecvr.base.devices import PRECISIONS
from tracecvr.base.errors import UserError
from tracecvr.checks.subject import plan_for, small_log
from tracecvr.learn.engine import Engine
from tracecvr.learn.optimisers import START_OF_ROW
from tracecvr.learn.stream_learning import AS_WARM_UP, StreamLearning
from tracecvr.learn.warm_up_cache import WarmUpCache
from tracecvr.methods.oracle import Oracle
from tracecvr.methods.vanilla import Vanilla
from tracecvr.runs.replay import replay
from tracecvr.stream.source import TableSource

TABLE = small_log()
PLAN = plan_for(TABLE)
AVERAGED = StreamLearning(average=12 * 3600)
FORMS = {
    "default": StreamLearning(),
    "newest": StreamLearning(average=None),
    "lazy adam": StreamLearning(optimiser="lazy_adam", batch_size=64),
}


def warmed(stream: StreamLearning, share: WarmUpCache | None = None, **more: Any) -> Engine:
    engine = Engine(Vanilla(hidden=(16, 8), batch_size=256, warm_epochs=1), TABLE.schema, seed=1, stream=stream, **more)
    history = TableSource(TABLE).history(PLAN.split, PLAN.warm_labels)
    engine.warm_up(history, share=share) if share else engine.warm_up(history)
    return engine


def tick(engine: Engine, number: int) -> None:
    engine.tick(TableSource(TABLE), *PLAN.bounds(number))


def weights(engine: Engine) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in engine.method.nets["main"].state_dict().items()}


def test_one_step_per_interval() -> None:
    engine = warmed(replace(AS_WARM_UP, batch_size=0))
    for number in range(4):
        tick(engine, number)
    assert engine.steps == 4


def test_a_huge_interval_is_cut_into_equal_batches() -> None:
    cut = StreamLearning(batch_size=0).batches(100_000, 4096)
    assert [piece.indices(100_000)[1] - piece.start for piece in cut] == [50_000, 50_000]
    assert StreamLearning(batch_size=0).batches(0, 4096) == []


def test_the_step_size_of_the_stream_is_not_warm_ups() -> None:
    """Adam's first step moves each weight by about the learning rate."""
    for rate in (1e-3, 1e-5):
        engine = warmed(replace(AS_WARM_UP, batch_size=0, learning_rate=rate))
        before = weights(engine)["layers.0.weight"]
        tick(engine, 0)
        moved = (weights(engine)["layers.0.weight"] - before).abs()
        assert float(moved.max()) == pytest.approx(rate, rel=0.01)


def test_averaged_weights_are_served_with_their_batch_statistics_and_not_learnt_from() -> None:
    engine, plain = warmed(AVERAGED), warmed(replace(AVERAGED, average=None))
    expected = weights(engine)
    decay = math.exp(-TABLE.schema.interval / (12 * 3600))
    for number in range(3):
        tick(engine, number)
        tick(plain, number)
        newest = weights(engine)
        for name, value in newest.items():
            blend = expected[name] * decay + value * (1 - decay) if value.is_floating_point() else value
            expected[name] = blend
    assert all(torch.equal(value, weights(plain)[name]) for name, value in weights(engine).items())
    x = TableSource(TABLE).clicks(PLAN.split, PLAN.until).x
    scores = engine.score(x)
    assert not np.array_equal(scores, plain.score(x))
    with engine.serving():
        for name, value in engine.method.nets["main"].state_dict().items():
            assert torch.allclose(value.double(), expected[name].double(), atol=1e-6), name
    plain.method.nets["main"].load_state_dict(expected)
    assert np.allclose(scores, plain.score(x), atol=1e-5)


def test_an_interval_without_events_leaves_the_average_as_it_is() -> None:
    engine = warmed(AVERAGED)
    tick(engine, 0)
    before = engine.fingerprint()
    engine.tick(TableSource(TABLE), 10**9, 10**9 + 3600)
    assert engine.fingerprint() == before


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lag", [0, 2])
def test_a_restored_engine_goes_on_to_the_same_bytes(form: str, lag: int, tmp_path: Path) -> None:
    engine = warmed(FORMS[form], publish_lag=lag)
    for number in range(4):
        tick(engine, number)
        if number == 1:
            engine.snapshot(tmp_path / "state")
    again = Engine(
        Vanilla(hidden=(16, 8), batch_size=256, warm_epochs=1), TABLE.schema, 1, publish_lag=lag, stream=FORMS[form]
    )
    again.restore(tmp_path / "state")
    for number in (2, 3):
        tick(again, number)
    assert again.fingerprint() == engine.fingerprint()
    x = TableSource(TABLE).clicks(*PLAN.bounds(5)).x
    assert np.array_equal(again.score(x), engine.score(x))


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(UserError, match="batch_size = 1"):
        StreamLearning(batch_size=1)
    with pytest.raises(UserError, match="'optimiser' is 'adm': choose one of auto, adam, lazy_adam"):
        warmed(StreamLearning(optimiser="adm"))


def test_resolved_options_name_what_warm_up_lent() -> None:
    engine = Engine(Oracle(learning_rate=0.01, batch_size=77), TABLE.schema)
    resolved = engine.resolve_options()["stream"]
    assert (resolved["learning_rate"], resolved["batch_size"]) == (0.01, 77)


def wide(precision: str, share: WarmUpCache | None = None) -> Engine:
    """An engine whose products are large enough for a lower precision."""
    stream = StreamLearning(batch_size=0, average=None, precision=precision)
    method = Vanilla(hidden=(64, 64), backbone="mlp", warm_batch_size=256, warm_epochs=1)
    engine = Engine(method, TABLE.schema, seed=1, stream=stream)
    history = TableSource(TABLE).history(PLAN.split, PLAN.warm_labels)
    engine.warm_up(history, share=share) if share else engine.warm_up(history)
    return engine


def test_a_net_that_learns_in_bfloat16_resumes_to_the_same_bytes_and_answers_in_float32(tmp_path: Path) -> None:
    exact, fast = wide("float32"), wide("bfloat16")
    tick(fast, 0)
    fast.snapshot(tmp_path / "state")
    again = wide("bfloat16")
    again.restore(tmp_path / "state")
    for engine, numbers in ((exact, range(4)), (fast, range(1, 4)), (again, range(1, 4))):
        for number in numbers:
            tick(engine, number)
    assert again.fingerprint() == fast.fingerprint() != exact.fingerprint()
    x = TableSource(TABLE).clicks(*PLAN.bounds(5)).x
    assert not np.array_equal(exact.score(x), fast.score(x))
    exact.load_state(fast.state())
    assert np.array_equal(exact.score(x), fast.score(x))
    assert all(tensor.dtype != torch.bfloat16 for tensor in fast.state().values())


def test_a_warm_up_is_not_shared_between_precisions(tmp_path: Path) -> None:
    for kept, precision in enumerate(("float32", "bfloat16"), start=1):
        for _ in range(2):
            wide(precision, WarmUpCache(tmp_path, {}))
        assert len(list(tmp_path.glob("*.safetensors"))) == kept


@pytest.mark.parametrize(("has", "precision"), [(True, "bfloat16"), (False, "float32")])
def test_the_precision_is_that_of_the_processor_and_a_run_says_which(
    has: bool, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has)
    engine = Engine(Vanilla(hidden=(4,)), TABLE.schema, stream=StreamLearning())
    assert engine.resolve_options()["stream"]["precision"] == precision


def test_bfloat16_is_for_the_processor_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [StreamLearning(device="cuda", precision=one).precision for one in PRECISIONS] == ["float32"] * 3


def test_a_replay_scores_with_the_average_of_what_was_learnt_before() -> None:
    engine, source = warmed(AVERAGED), TableSource(TABLE)
    twin = warmed(AVERAGED)
    for done in list(replay(engine, source, PLAN))[:3]:
        x = source.clicks(*PLAN.bounds(done.number)).x
        assert np.array_equal(done.log_odds, twin.score(x)[: len(done.log_odds)])
        tick(twin, done.number)


def test_the_optimiser_is_chosen_by_the_rows_of_all_tables_and_a_run_says_which() -> None:
    few = TABLE.schema
    many = replace(few, features=tuple(replace(f, size=60_000) for f in few.features))
    for schema, expected in ((few, "adam"), (many, "lazy_adam")):
        engine = Engine(Vanilla(hidden=(4,)), schema, stream=StreamLearning())
        told = engine.resolve_options()["stream"]
        assert told["optimiser"] == expected
        assert (expected in engine._optimisers) or expected == "adam"
    said = Engine(Vanilla(hidden=(4,)), many, stream=StreamLearning(optimiser="adam")).resolve_options()["stream"]
    assert said["optimiser"] == "adam"


def test_a_regression_alone_goes_on_with_the_step_sizes_of_warm_up(tmp_path: Path) -> None:
    engine = warmed(StreamLearning())
    assert engine.state()["regression.intercept.squares"].item() > START_OF_ROW["squares"]
    assert not any(name.startswith("adam.") for name in engine.state())
    shared = WarmUpCache(tmp_path, {"log": "small"})
    first, second = warmed(StreamLearning(), shared), warmed(StreamLearning(), shared)
    assert shared.seconds > 0  # the second was taken over
    assert first.fingerprint() == second.fingerprint() == engine.fingerprint()
