"""Exports: what other systems are given answers as the engine does, from raw features on, or is not written."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
import time
from collections.abc import Container, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from conftest import Call
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

import export as benchmark
from alone import encode_alone
from quick import SMALL_NETS
from tracecvr.api.models import Model
from tracecvr.api.models import load as open_model
from tracecvr.authoring.method import Method
from tracecvr.base import registry
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.errors import UserError
from tracecvr.checks.subject import Subject, small_log
from tracecvr.data import scorer
from tracecvr.data.encoder import Binned, Column, Encoder, Hashed, Modulo, Vocabulary, describe_column, edges
from tracecvr.data.table import Schema
from tracecvr.export import write
from tracecvr.export.write import FORMS, Score, trace
from tracecvr.learn.engine import Engine
from tracecvr.learn.fast_scores import probes
from tracecvr.methods.mhol import MHOL
from tracecvr.nets.backbones import MLP
from tracecvr.stream.source import TableSource

METHODS = sorted(registry.available("method"))
ENCODER = Encoder(
    (
        Hashed("campaign", 500, table="shared"),
        Hashed("item", 300, table="shared"),
        Modulo("slot", 7, one_hot=True),
        Binned("spent", 16, low=-1.0, high=97.0),
        Binned("visits", 16, scale="log", low=0.0, high=9.0),
        Vocabulary("campaign", 4, words=("b", "été")),
    )
)
RAW: list[dict[str, Any]] = [
    {"campaign": "été", "item": 17, "slot": 3, "spent": 48, "visits": 0},
    {"campaign": None, "item": None, "slot": None, "spent": None, "visits": None},
    {"campaign": "", "item": -5, "slot": -1, "spent": 1e9, "visits": 10**6},
    {"campaign": "b", "item": 0, "slot": 700, "spent": -3.5, "visits": -7},
]


def some_slow(names: Iterable[str], quick: Container[str]) -> list[Any]:
    """All of them, those that are not quick marked slow."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def schema_of(encoder: Encoder = ENCODER, **more: Any) -> Schema:
    return Schema(
        "test", encoder.features, ("conversion", "cart"), (600, HOUR, DAY), 2 * DAY, 10 * DAY, HOUR, 99 * DAY, **more
    )


def trained(method: str, schema: Schema | None = None, publish_lag: int = 0, **options: Any) -> Engine:
    """An engine whose nets are as if trained: far from their start, in everything that a net remembers."""
    log = small_log()
    engine = Subject(method).engine(schema or log.schema, publish_lag, **options)
    if engine.schema is log.schema:
        engine.method.observe(next(TableSource(log).history(log.schema.split, "mature").batches(3000, None)))
    engine.method.after_warm_up()
    rng = torch.Generator().manual_seed(3)
    for name, value in engine.method.nets.state_dict().items():
        if value.is_floating_point() and not name.endswith(".shares"):  # of a blend: they add up to 1
            noise = torch.randn(value.shape, generator=rng)
            inputs = value.shape[1] if value.dim() == 2 and "table" not in name else 1
            value.copy_(noise.abs() + 0.5 if name.endswith("running_var") else noise / inputs**0.5)
    if isinstance(engine.method, MHOL):  # rates that add up to less than 1, where the sum would be cut off
        with torch.no_grad():
            engine.method.nets["main"].layers[-1].bias.sub_(5.0)  # type: ignore[union-attr, index]
    engine.load_state(engine.state())
    return engine


def mixed(method: str = "vanilla", **options: Any) -> Model:
    """A model of raw features of every kind."""
    return Model(trained(method, schema_of(**options)), ENCODER, {"kind": "test"})


def frame(clicks: list[dict[str, Any]]) -> pl.DataFrame:
    types = {"campaign": pl.String, "item": pl.Int64, "slot": pl.Int64, "spent": pl.Float64, "visits": pl.Int64}
    return pl.DataFrame(clicks, types)


def exported(out: Path) -> Any:
    """The scorer of an export, from the file that lies there."""
    spec = importlib.util.spec_from_file_location("exported", out / "scorer.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Scorer()


# What is traced, and what is written.


def unlike_others(method: str) -> bool:
    """Whether it serves more than the first output of a backbone."""
    cls = registry.get("method", method)
    return any(getattr(cls, name) is not getattr(Method, name) for name in ("log_odds", "build", "logit"))


@pytest.mark.parametrize("method", METHODS)
def test_plain_forms_answer_as_the_engine(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = trained(method)
    ids = torch.from_numpy(probes(engine, 1000))
    expected = engine.score(ids)
    with monkeypatch.context() as plain, torch.no_grad():
        plain.setattr("torch.compiler.is_compiling", lambda: True)
        np.testing.assert_allclose(Score(engine)(ids), expected, atol=2e-5, rtol=1e-5)
    assert np.ptp(expected) > 0.3  # or agreement would mean little


@pytest.mark.parametrize("method", some_slow(METHODS, [m for m in METHODS if m == "vanilla" or unlike_others(m)]))
def test_graphs_answer_as_the_engine(method: str) -> None:
    engine = trained(method)
    batches = [probes(engine, size) for size in (1, 2, 1000)]
    expected = [engine.score(torch.from_numpy(ids)) for ids in batches]
    with engine.exporting():
        net: Any = trace(Score(engine), batches[-1]).module()
    for ids, answers in zip(batches, expected, strict=True):
        np.testing.assert_allclose(net(torch.from_numpy(ids)).detach(), answers, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("method", some_slow(METHODS, ["miss", "nodef"]))
def test_onnx_answers_as_the_engine(method: str, tmp_path: Path) -> None:
    """Quickly, of a mixture and of a law of delays; and below of a trajectory."""
    engine = trained(method)
    Model(engine, _stand_in(engine.schema), {}).export(tmp_path / "out")
    ids = probes(engine, 300)
    scores = scorer.load(tmp_path / "out" / "score.onnx")(ids=ids)
    np.testing.assert_allclose(scores, engine.score(torch.from_numpy(ids)), atol=1e-4)


def _stand_in(schema: Schema) -> Encoder:
    """An encoder of these features, where only ids matter."""
    return Encoder(tuple(Modulo(f.name, f.size, f.table, f.one_hot) for f in schema.features))


@pytest.mark.parametrize("backbone", ["blend", "wide_deep", "mlp", "dcn_v2"])
def test_every_backbone_is_exported(backbone: str, tmp_path: Path) -> None:
    engine = trained("vanilla", schema_of(), backbone=backbone)
    Model(engine, ENCODER, {}).export(tmp_path / "out")
    scores = exported(tmp_path / "out").log_odds(RAW)
    np.testing.assert_allclose(scores, engine.score(torch.from_numpy(ENCODER.encode(frame(RAW)))), atol=1e-4)


def test_the_probes_hold_every_extreme() -> None:
    engine = trained("vanilla", schema_of())
    ids = probes(engine, 1000)
    last = [f.size - 1 for f in engine.schema.features]
    assert ((ids >= 0) & (ids <= last)).all()
    assert (ids == 0).any(0).all()
    assert (ids == last).any(0).all()


def test_odds_are_corrected_for_negatives_that_were_left_out(tmp_path: Path) -> None:
    whole = mixed().engine.score(torch.from_numpy(ENCODER.encode(frame(RAW))))
    mixed(negatives_kept=0.1).export(tmp_path / "out")
    np.testing.assert_allclose(exported(tmp_path / "out").log_odds(RAW) - whole, np.log(0.1), atol=1e-5)


def test_what_serves_is_exported_not_what_has_been_learnt_since(tmp_path: Path) -> None:
    engine = trained("vanilla", schema_of(), publish_lag=1)
    served = engine.score(torch.from_numpy(ENCODER.encode(frame(RAW))))
    engine._published.append({name: value.clone() for name, value in engine._main.state_dict().items()})
    nn.init.zeros_(engine._main.get_parameter("layers.6.weight"))
    Model(engine, ENCODER, {}).export(tmp_path / "out")
    np.testing.assert_allclose(exported(tmp_path / "out").log_odds(RAW), served, atol=1e-5)


def test_the_same_model_is_the_same_bytes_and_names_no_machine(tmp_path: Path) -> None:
    for out in ("one", "two"):
        mixed().export(tmp_path / out)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name
        assert str(Path(write.__file__).parents[1]).encode() not in path.read_bytes()


@pytest.mark.parametrize(
    ("operator", "low", "high"), [("log1p", -0.99, 1e9), ("expm1", -200, 50), ("log_sigmoid", -200, 200)]
)
def test_stable_forms_keep_their_digits(operator: str, low: float, high: float) -> None:
    x = torch.cat([-torch.logspace(-30, 9, 2000), torch.zeros(1), torch.logspace(-30, 9, 2000)]).clamp(low, high)
    exact = getattr(torch.ops.aten, operator).default
    torch.testing.assert_close(FORMS[exact](x).double(), exact(x.double()), rtol=5e-7, atol=1e-37)


def test_the_stable_sum_of_exponentials() -> None:
    a, b = torch.linspace(-200, 50, 300)[:, None], torch.linspace(-200, 50, 301)
    exact = torch.logaddexp(a.double(), b.double())
    torch.testing.assert_close(FORMS[torch.ops.aten.logaddexp.default](a, b).double(), exact, rtol=5e-7, atol=1e-6)


class Extremes(nn.Module):
    """The four operators at whatever they are given."""

    def forward(self, ids: Tensor) -> Tensor:
        x = -torch.exp(ids.float())
        values = [torch.expm1(x), torch.log1p(-x), nn.functional.logsigmoid(x), torch.logaddexp(x, 2 * x)]
        return torch.stack(values, dim=1)


def test_onnx_keeps_the_digits_of_numbers_near_and_far(tmp_path: Path) -> None:
    ids = np.arange(-60, 7)  # to -403: the exponential of that is none
    write.write_onnx(trace(Extremes(), ids), tmp_path / "extremes.onnx")
    values = scorer.load(tmp_path / "extremes.onnx")(ids=ids)
    np.testing.assert_allclose(values, Extremes()(torch.from_numpy(ids)), rtol=2e-6)


# The scorer.

_BARE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "tracecvr", "polars", "safetensors", "onnx"):
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
sys.path[:] = [place for place in sys.path if not place.endswith("src")] + [sys.argv[1]]
import json
from scorer import Scorer
given = json.load(sys.stdin)
found = Scorer()
answers = found.log_odds(given), found.predict(given)
print(json.dumps([answer.tolist() for answer in answers]))
"""


def test_the_scorer_needs_neither_torch_nor_this_package(tmp_path: Path) -> None:
    model = mixed("trace")
    engine, out = model.engine, tmp_path / "out"
    manifest = model.export(out)
    command = [sys.executable, "-c", _BARE, str(out)]
    output = subprocess.run(command, input=json.dumps(RAW), capture_output=True, text=True, check=True).stdout
    score, probabilities = json.loads(output)
    ids = ENCODER.encode(frame(RAW)).astype(np.int64)
    np.testing.assert_allclose(score, engine.score(torch.from_numpy(ids)), atol=1e-5)
    np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-np.array(score))), atol=1e-6)

    lines = "\n".join(map(json.dumps, RAW))
    command = [sys.executable, str(out / "scorer.py")]
    rates = subprocess.run(command, input=lines, capture_output=True, text=True, check=True).stdout.split()
    np.testing.assert_allclose([float(rate) for rate in rates], 1 / (1 + np.exp(-np.array(score))), atol=1e-6)

    assert set(manifest["files"]) == {"score.onnx", "scorer.py"}
    assert manifest["model"]["state_sha256"] == engine.fingerprint()
    _one_click_takes_little(out)
    _damage_is_noticed(out)


def _one_click_takes_little(out: Path) -> None:
    ask = scorer.Scorer(out)
    took = []
    for _ in range(50):
        start = time.perf_counter()
        ask.log_odds(RAW[:1])
        took.append(time.perf_counter() - start)
    assert np.median(took) < 2e-3


def _damage_is_noticed(out: Path) -> None:
    content = bytearray((out / "score.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    (out / "score.onnx").write_bytes(content)
    with pytest.raises(SystemExit, match=r"score\.onnx is not the file"):
        scorer.Scorer(out)


NUMBERS = st.integers(-(2**62), 2**62) | st.floats(allow_infinity=False, allow_nan=False)
VALUES = st.none() | st.text(max_size=12) | NUMBERS | st.booleans() | st.floats(1e-7, 1e-3)
TEXTS = [
    -1e-5,
    1.5e-5,
    9.99e-5,
    1e-4,
    9.9e-6,
    1e-7,
    1e-10,
    1e16,
    1e15,
    1e100,
    -0.0,
    0.1 + 0.2,
    math.nan,
    -math.inf,
    True,
]
"""Numbers that are written otherwise here and there."""


def identify(column: Column, value: object) -> int:
    """By the scorer, from what the manifest keeps of a column."""
    facts = _kept(column)
    known = scorer.make_reader(facts)(value)
    return int(facts["missing"]) if known is None else known


@cache
def _kept(column: Column) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(describe_column(column)))
    return content


@example(TEXTS, 2**31 - 1)
@given(st.lists(VALUES, min_size=1, max_size=5), st.integers(1, 2**31 - 1))
def test_the_scorer_hashes_as_the_encoder(values: list[Any], size: int) -> None:
    column = Hashed("c", size)
    for value in values:
        series = pl.Series("c", [value], pl.String if value is None else None)
        assert identify(column, value) == Encoder((column,)).encode(series.to_frame())[0, 0], value


@example(TEXTS, {"3"})
@given(st.lists(VALUES, min_size=1, max_size=5), st.sets(st.text(max_size=3) | st.sampled_from(["0", "1.5", "true"])))
def test_the_scorer_has_the_vocabulary_of_the_encoder(values: list[Any], words: set[str]) -> None:
    encoder = Encoder((Vocabulary("c"),)).fit(pl.DataFrame({"c": sorted(words)}, {"c": pl.String}))
    for value in values:
        series = pl.Series("c", [value], pl.String if value is None else None)
        assert identify(encoder.columns[0], value) == encoder.encode(series.to_frame())[0, 0], value


@given(st.lists(st.integers(-(2**62), 2**62) | st.none(), min_size=1), st.integers(1, 2**31 - 1))
def test_the_scorer_takes_remainders_as_the_encoder(values: list[int | None], size: int) -> None:
    column = Modulo("c", size)
    expected = Encoder((column,)).encode(pl.DataFrame({"c": values}, {"c": pl.Int64}))[:, 0]
    assert [identify(column, value) for value in values] == expected.tolist()


@example(list(range(98)), 64, "linear", (-1, 97))
@example(list(range(98)), 64, "log", (-1, 97))
@given(
    st.lists(st.integers(-10, 400) | st.floats(-1e6, 1e6) | st.none(), min_size=1),
    st.integers(1, 200),
    st.sampled_from(["linear", "log"]),
    st.tuples(st.integers(-1, 10), st.integers(0, 300)),
)
def test_the_scorer_bins_as_the_encoder(
    values: list[float | None], size: int, scale: str, between: tuple[int, int]
) -> None:
    column = Binned("n", size, scale=scale).fit(pl.DataFrame({"n": between}))
    as_floats = [None if value is None else float(value) for value in values]
    expected = Encoder((column,)).encode(pl.DataFrame({"n": as_floats}, {"n": pl.Float64}))[:, 0]
    assert [identify(column, value) for value in values] == expected.tolist()


WRITTEN = st.from_regex(r"[+-]?[0-9]{0,20}\.?[0-9]{0,3}(e[+-]?[0-9]{1,3})?", fullmatch=True)
ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | WRITTEN | st.just([1])


@given(ANYTHING, st.integers(1, 2**31 - 1))
def test_the_scorer_reads_any_value_as_the_encoder(value: Any, size: int) -> None:
    for column in (Modulo("c", size), Binned("c", 16, low=-3.0, high=1000.0)):
        expected, _ = encode_alone(Encoder((column,)), {"c": [value]})
        assert identify(column, value) == expected[0][0], value


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_an_edge_is_the_least_value_of_its_bin(scale: str) -> None:
    column = Binned("n", 64, scale=scale).fit(pl.DataFrame({"n": (0.1, 97.3)}))
    assert isinstance(column, Binned)
    least = np.array(edges(column))
    for values, ids in ((least, range(1, 64)), (np.nextafter(least, -np.inf), range(63))):
        assert Encoder((column,)).encode(pl.DataFrame({"n": values}))[:, 0].tolist() == list(ids)


def test_xxhash_is_needed_only_where_a_feature_is_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Encoder(ENCODER.columns[2:])
    for encoder, out in ((ENCODER, "hashed"), (plain, "plain")):
        Model(trained("vanilla", schema_of(encoder)), encoder, {}).export(tmp_path / out)
    monkeypatch.setitem(sys.modules, "xxhash", None)
    assert exported(tmp_path / "plain").ids(RAW).tolist() == ENCODER.encode(frame(RAW))[:, 2:].tolist()
    with pytest.raises(ImportError, match="xxhash"):
        exported(tmp_path / "hashed").ids(RAW)


def test_a_click_without_a_feature_is_refused_and_one_of_unseen_values_is_not(tmp_path: Path) -> None:
    mixed().export(tmp_path / "out")
    ask = exported(tmp_path / "out")
    assert np.isfinite(ask.log_odds([RAW[0] | {"campaign": "never seen", "spent": 1e12}])).all()
    with pytest.raises(KeyError, match="spent"):
        ask.log_odds([{name: value for name, value in RAW[0].items() if name != "spent"}])
    assert ask.log_odds([]).shape == (0,)


@pytest.mark.slow
def test_the_benchmark_measures_every_question(tmp_path: Path) -> None:
    figures = benchmark.measured(tmp_path / "out", calls=100)
    assert [figure.name.split(" by ")[0].split()[-1] for figure in figures] == 3 * ["score"]
    assert all(figure.value is not None and 1 < figure.value < 1e5 for figure in figures)


# What goes wrong.


class OfOneSize(MLP):
    """A third party's backbone that is traced for one number of rows only."""

    name = "of_one_size"

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.from_numpy(np.full((len(x), 1), 2.0, np.float32))


def test_a_backbone_that_cannot_be_exported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.available("backbone"), "of_one_size", OfOneSize)
    engine = trained("vanilla", schema_of(), backbone="of_one_size")
    ids = torch.from_numpy(ENCODER.encode(frame(RAW)))
    before = engine.score(ids)
    with pytest.raises(UserError, match=r"(?s)score of method 'vanilla' with backbone 'of_one_size'.*x\.shape\[0\]"):
        Model(engine, ENCODER, {}).export(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    assert (engine.score(ids) == before).all()


class Forgetful(MLP):
    """A third party's backbone that answers otherwise when it is traced."""

    name = "forgetful"

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1e-3 * torch.compiler.is_compiling()


def test_an_export_that_differs_from_torch_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.available("backbone"), "forgetful", Forgetful)
    engine = trained("vanilla", schema_of(), backbone="forgetful")
    with pytest.raises(UserError, match=r"exported score is 0\.001\d* from torch's log-odds, more than 0\.0001"):
        Model(engine, ENCODER, {}).export(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="exists already"):
        mixed().export(tmp_path)


def test_a_missing_package_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"onnx is not installed.*tracecvr\[export\]"):
        mixed().export(tmp_path / "out")


def test_an_encoder_of_another_log_is_refused() -> None:
    with pytest.raises(UserError, match="files of two logs"):
        Model(trained("vanilla"), ENCODER, {})


# Where models come from.

_LOG = ["clicks=1500", "days=7", "split=3d", "d_max=1d", "horizons=1h,1d", "interval=6h", "observed_until=7d"]
_DATA = ("--data", "synthetic", *(word for option in _LOG for word in ("--data-set", option)))


def test_a_run_is_exported_by_the_command_line(tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    assert call("run", "--method", "vanilla", *_DATA, *SMALL_NETS, "--threads", 1, "--out", run) == 0
    assert call("export", run, "--out", out) == 0
    assert "score.onnx: within" in capsys.readouterr().out
    model = open_model(run)
    raw: list[dict[str, Any]] = [
        {"segment": 3, "device": 1, "item": 42},
        {"segment": None, "device": None, "item": None},
    ]
    ids = model.encoder.encode(pl.DataFrame(raw, {"segment": pl.Int64, "device": pl.Int64, "item": pl.Int64}))
    expected = model.engine.score(torch.from_numpy(ids))
    np.testing.assert_allclose(exported(out).log_odds(raw), expected, atol=1e-5)
    for words, error in (
        ((run, "--out", out), "exists already"),
        ((tmp_path, "--out", tmp_path / "b"), "holds no checkpoint"),
    ):
        assert call("export", *words) == 2
        assert error in capsys.readouterr().err
    (run / "encoder.json").unlink()
    assert call("export", run, "--out", tmp_path / "b") == 2
    assert "not finished" in capsys.readouterr().err


def test_the_version_that_serves_is_exported(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, events = tmp_path / "store", tmp_path / "events"
    assert call("prepare", "synthetic", *_DATA[2:], "--out", tmp_path / "table") == 0
    assert call("init", store, "--source", tmp_path / "table", "--method", "vanilla", *SMALL_NETS) == 0
    assert call("export", store, "--out", tmp_path / "none") == 2
    assert "no version yet" in capsys.readouterr().err
    capsys.readouterr()
    assert call("events", "--source", tmp_path / "table", "--end", "4d") == 0
    events.write_text(capsys.readouterr().out)
    assert call("ingest", store, events) == 0
    assert call("tick", store) == 0
    newest = open_model(store)
    assert newest.source["version"] > 1
    assert call("models", "promote", store, 1) == 0
    older = open_model(store)
    assert older.source == {"kind": "store", "version": 1}
    assert newest.engine.fingerprint() != older.engine.fingerprint()
    assert call("export", store, "--out", tmp_path / "out") == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["model"] == {"kind": "store", "version": 1, "state_sha256": older.engine.fingerprint()}
    (weights,) = (store / "models").glob("*1.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    assert open_model(store).source == newest.source, "another one serves in place of a damaged one"
