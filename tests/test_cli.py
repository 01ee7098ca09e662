"""The command line: quick, clear, and never a traceback for a user's mistake."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import Call
from tracecvr import registry

SMALL = ["--data", "synthetic", "--data-set", "clicks=3000", "--set", "hidden=8", "--threads", "1"]


def test_help_answers_at_once() -> None:
    times = []
    for _ in range(3):
        clock = time.monotonic()
        subprocess.run([sys.executable, "-m", "tracecvr.cli", "--help"], check=True, capture_output=True)
        times.append(time.monotonic() - clock)
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, tracecvr.cli; print('torch' in sys.modules, 'sklearn' in sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert loaded.stdout.split() == ["False", "False"]
    assert min(times) < 2.0  # half a second on a quiet machine; here other tests run beside it


@pytest.mark.parametrize("kind", ["method", "dataset"])
def test_listings(kind: str, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(f"{kind}s", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(registry.found(kind))
    for row in rows:
        assert row["summary"]
        assert all(o["help"] for o in row["options"])
    assert call(f"{kind}s") == 0
    assert rows[0]["name"] in capsys.readouterr().out


def test_run_and_resume(tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("run", "--method", "vanilla", "--plugin", "completer", *SMALL, "--out", tmp_path / "run")
    assert call(*words, "--set", "completer.weight=0.2", "--set", "warm_labels=censored") == 0
    shown = capsys.readouterr().out
    assert "vanilla+completer" in shown
    assert "result.json" in shown
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["config"]["plugins"]["completer"]["weight"] == 0.2
    assert result["plan"]["warm_labels"] == "censored"
    assert call(*words) == 2
    assert "--resume" in capsys.readouterr().err


def test_prepare_then_run(tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "table"
    assert call("prepare", "synthetic", "--data-set", "clicks=3000", "--out", table) == 0
    assert "clicks: 3,000" in capsys.readouterr().out
    words = (
        "run",
        "--method",
        "pretrain",
        "--data",
        "synthetic",
        "--set",
        "hidden=8",
        "--threads",
        "1",
        "--source",
        table,
    )
    assert call(*words, "--out", tmp_path / "run") == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["config"]["data"]["clicks"] == 3000


def test_check(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("check", "oracle", "--json") == 0
    report = {row["check"]: row["status"] for row in json.loads(capsys.readouterr().out)}
    assert report["no_future"] == "expected failure"
    assert "failed" not in report.values()
    assert call("check", "pretrain") == 0
    assert "method x check pairs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--method", "tracee", *SMALL], "did you mean 'trace'"),
        (["run", "--method", "trace", "--data", "cryteo"], "unknown dataset 'cryteo' (did you mean 'criteo'?)"),
        (["run", "--method", "trace", "--plugin", "complete", *SMALL], "unknown plugin 'complete'"),
        (["run", "--method", "trace", "--plugin", "completer", *SMALL], "plugin 'completer' is there twice"),
        (["run", "--method", "trace", *SMALL, "--set", "lamda=1"], "unknown key 'lamda'"),
        (["run", "--method", "trace", *SMALL, "--set", "lam=nan"], "finite"),
        (["run", "--method", "trace", *SMALL, "--set", "lam=-1"], "at least 0"),
        (["run", "--method", "trace", *SMALL, "--set", "horizons=2h,1h"], "rising order"),
        (["run", "--method", "trace", *SMALL, "--data-set", "click=1"], "did you mean 'clicks'"),
        (["run", "--method", "trace", *SMALL, "--data-set", "split=100d"], "leaves no stream"),
        (["run", "--method", "trace", *SMALL, "--set", "split=100d"], "leaves no stream"),
        (["run", "--method", "trace", *SMALL, "--set", "split=1d"], "encoder was fitted"),
        (["run", "--method", "trace", *SMALL, "--source", "x.csv"], "reads no file"),
        (["run", "--method", "trace", "--data", "criteo"], "--source FILE"),
        (["run", "--method", "trace", "--data", "criteo", "--source", "nothing.txt"], "nothing.txt: no such file"),
        (["prepare", "criteo", "--source", "nothing.txt", "--out", "table"], "nothing.txt: no such file"),
        (["check", "tracee"], "did you mean 'trace'"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_mistake_is_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(*words) == 2
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 1
    assert shown[0].startswith("error: ")
    assert message in shown[0]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_prepared_log_of_another_dataset_is_refused(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table"
    call("prepare", "synthetic", "--data-set", "clicks=3000", "--out", table)
    assert call("run", "--method", "pretrain", "--data", "criteo", "--source", table) == 2
    assert "use --data synthetic" in capsys.readouterr().err
    words = ("run", "--method", "pretrain", "--data", "synthetic", "--source", table, "--data-set", "clicks=5")
    assert call(*words) == 2
    assert "prepared already" in capsys.readouterr().err
    assert call("prepare", "synthetic", "--out", table) == 2
    assert "exists already" in capsys.readouterr().err
