"""What is read from a store, a run or a bench is never executed: files are loaded only if the command names them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import Call

from benches import SUITE
from livestore import OPTIONS, Made, send, the_events
from tracecvr.base import registry
from tracecvr.base.errors import UserError
from tracecvr.learn import checkpoint
from tracecvr.online.learner.learner import open_learner
from tracecvr.online.store import file_hashes

LOG = [word for key, value in OPTIONS.items() for word in ("--data-set", f"{key}={value}")]
RUN = [
    "run",
    "--data",
    "synthetic",
    *LOG,
    "--set",
    "hidden=8",
    "--set",
    "warm_epochs=1",
    "--set",
    "warm_batch_size=256",
    "--threads",
    "1",
]
TRAP = """
from pathlib import Path
Path({marker!r}).write_text("executed")
from dataclasses import dataclass
from tracecvr.methods.vanilla import Vanilla
@dataclass
class Trap(Vanilla):
    name = "trap"
"""


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "marker"


@pytest.fixture
def trap(tmp_path: Path, marker: Path) -> Iterator[Path]:
    path = tmp_path / "trap.py"
    path.write_text(TRAP.format(marker=str(marker)))
    yield path
    registry._in_file.cache_clear()


def altered(path: Path, *keys: str, value: Any) -> None:
    """A recorded fact replaced, as somebody would who knows that manifests carry a hash of themselves."""
    content = json.loads(path.read_text())
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    if content.pop("manifest", None):
        content["manifest"] = checkpoint.digest(content)
    path.write_text(json.dumps(content))


def learnt_store(made: Made) -> Path:
    store = made("vanilla")
    send(store, the_events()[:600])
    with open_learner(store) as learner:
        learner.tick()
    return store.folder


PLACES = [("method",), ("plugins",), ("config", "method", "backbone"), ("config", "stream", "optimiser")]


@pytest.mark.parametrize("keys", PLACES, ids=lambda keys: keys[-1])
def test_no_command_executes_what_a_store_names(
    keys: tuple[str, ...], made: Made, trap: Path, marker: Path, tmp_path: Path, call: Call
) -> None:
    store = learnt_store(made)
    altered(store / "store.json", *keys, value=[str(trap)] if keys == ("plugins",) else str(trap))
    with suppress(KeyError):  # a plugin has its options beside it
        altered(store / "store.json", "config", "plugins", str(trap), value={})
    file_hashes.write(store)  # whoever can write to a store can write this, too
    out = tmp_path / "out"
    for words in (
        ["tick", store],
        ["compact", store],
        ["verify", store, "--replay"],
        ["table", store, out],
        ["export", store, "--out", tmp_path / "onnx"],
        ["status", store],
        ["models", "list", store],
        ["erase", store, "nobody"],
        ["verify", store],
        ["verify", store, "--replay"],
    ):
        call(*words)
        assert not marker.exists(), words


@pytest.mark.parametrize("keys", [*PLACES, ("data",)], ids=lambda keys: keys[-1])
def test_no_command_executes_what_a_run_names(
    keys: tuple[str, ...], trap: Path, marker: Path, tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    run, words = tmp_path / "run", (*RUN, "--method", "vanilla", "--out", tmp_path / "run")
    assert call(*words) == 0
    manifests = [(run / "run.json", ()), *((path, ("run",)) for path in (run / "checkpoint").glob("*.json"))]
    for path, prefix in manifests:
        altered(path, *prefix, *keys, value=[str(trap)] if keys == ("plugins",) else str(trap))
    if keys == ("data",):  # what a run says of its log is asked first
        altered(run / "raw_log.json", "dataset", value=str(trap))
    capsys.readouterr()
    assert call("init", tmp_path / "store", "--model", run) == 2
    assert not marker.exists()
    if keys != ("data",):
        assert call("export", run, "--out", tmp_path / "onnx") == 2
    assert call(*words, "--resume") == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told
    assert not marker.exists()
    assert not (tmp_path / "store").exists()


def test_a_bench_executes_a_file_only_if_the_command_names_it(
    trap: Path, marker: Path, tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = tmp_path / "suite.toml"
    suite.write_text(SUITE.split("[[row]]")[0] + f'[[row]]\nmethod = ["vanilla", "{trap}"]\n')
    words = ["bench", suite, "--data", "synthetic", "--out", tmp_path / "bench", "--workers", "1"]
    assert call(*words) == 2
    assert "only if the command line names the file" in capsys.readouterr().err
    assert not marker.exists()
    assert call(*words, "--methods", f"vanilla,{trap}") == 0
    assert marker.exists()
    marker.unlink()
    registry._in_file.cache_clear()
    assert call("report", tmp_path / "bench") == 0
    assert call(*words) == 2  # the same bench, which has recorded the file
    assert not marker.exists()


@pytest.mark.parametrize("kind", ["method", "plugin"])
def test_a_store_cannot_be_made_of_a_file(
    kind: str, trap: Path, marker: Path, tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("init", tmp_path / "store", "--source", tmp_path / "table", f"--{kind}", trap) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert f"entry point of the group 'tracecvr.{kind}s'" in told
    assert not marker.exists()
    assert not (tmp_path / "store").exists()


def test_a_run_of_a_file_goes_on_with_the_same_file_alone(
    trap: Path, marker: Path, tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = (*RUN, "--method", trap, "--out", run, "--resume")
    assert call(*words) == 0
    assert marker.exists()
    marker.unlink()
    registry._in_file.cache_clear()
    assert call("export", run, "--out", tmp_path / "onnx") == 2
    assert call("init", tmp_path / "store", "--model", run) == 2
    assert "method 'trap' was loaded from a file" in capsys.readouterr().err
    assert not marker.exists()
    assert call(*words) == 0
    trap.write_text(trap.read_text() + "# another\n")
    registry._in_file.cache_clear()
    assert call(*words) == 2
    assert "code.trap" in capsys.readouterr().err


def test_names_from_data_are_no_files(trap: Path, marker: Path) -> None:
    for kind in ("method", "plugin", "dataset", "backbone"):
        with pytest.raises(UserError, match="entry point"):
            registry.get(kind, json.loads(json.dumps(registry.Given(trap))))
    assert not marker.exists()
    assert registry.get("method", registry.Given(trap)).name == "trap"  # type: ignore[attr-defined]
    assert marker.exists()
