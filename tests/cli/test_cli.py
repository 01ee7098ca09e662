"""The command line: quick, clear, and never a traceback for a user's mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from conftest import Call

import documents
from quick import SMALL_NETS
from tracecvr.base import registry

PRETRAIN = ["run", "--method", "pretrain", "--data", "synthetic", *SMALL_NETS, "--threads", "1"]
SMALL = ["--data", "synthetic", "--data-set", "clicks=3000", *SMALL_NETS, "--threads", "1"]


def test_help_answers_at_once() -> None:
    times = []
    for _ in range(3):
        before = os.times()
        subprocess.run([sys.executable, "-m", "tracecvr.cli", "--help"], check=True, capture_output=True)
        after = os.times()  # the processor's time: other tests run beside it
        times.append(after.children_user + after.children_system - before.children_user - before.children_system)
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, tracecvr.cli; print('torch' in sys.modules, 'sklearn' in sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert loaded.stdout.split() == ["False", "False"]
    assert min(times) < 1.0  # a third of a second on a quiet machine


@pytest.mark.parametrize("words", [("datasets",), ("inspect", "clicks.csv")])
def test_commands_that_need_no_torch_do_not_load_it(words: tuple[str, ...], tmp_path: Path) -> None:
    rows = "".join(f"{n},{1_700_000_000 + 900 * n},{n % 3},{1_700_000_600 + 900 * n}\n" for n in range(200))
    (tmp_path / "clicks.csv").write_text(f"click_id,time,device,conversion_time\n{rows}")
    code = "import sys; from tracecvr.cli.commands import main; import atexit\n"
    code += "atexit.register(lambda: print('torch' in sys.modules)); main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_is_offered(shell: str) -> None:
    words = {"bash": {"COMP_WORDS": "tracecvr ben", "COMP_CWORD": "1"}, "zsh": {"_TYPER_COMPLETE_ARGS": "tracecvr ben"}}
    environment = os.environ | words[shell] | {"_TRACECVR_COMPLETE": f"complete_{shell}"}
    code = "import sys; sys.argv[0] = 'tracecvr'; from tracecvr.cli import main; main()"
    asked = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "bench" in asked.stdout


def test_it_says_its_version(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--version") == 0
    assert capsys.readouterr().out == f"tracecvr {version('tracecvr')}\n"


@pytest.mark.parametrize("group", [(), ("models",), ("aside",)])
def test_without_a_command_there_is_help_and_no_error(
    group: tuple[str, ...], call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*group) == 2
    printed = capsys.readouterr()
    assert "Commands" in printed.out + printed.err
    assert "error" not in printed.err


@pytest.mark.parametrize("kind", ["method", "dataset"])
def test_listings(kind: str, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(f"{kind}s", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(registry.available(kind))
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
    words = (*PRETRAIN, "--source", table)
    assert call(*words, "--out", tmp_path / "run") == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["config"]["data"]["clicks"] == 3000


def test_check(few_checks: None, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("check", "oracle", "--json") == 0
    report = {row["check"]: row["status"] for row in json.loads(capsys.readouterr().out)}
    assert report == {"no_future": "expected failure", "scoring_is_pure": "passed"}
    assert call("check", "pretrain") == 0
    assert "method x check pairs" in capsys.readouterr().out


def test_plugins_are_listed_and_checked(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plugins", "--json") == 0
    (completer,) = [row for row in json.loads(capsys.readouterr().out) if row["name"] == "completer"]
    assert {o["name"] for o in completer["options"]} >= {"weight", "gate", "hidden"}


def test_a_finished_run_is_not_taken_for_one_on_another_log(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seed in (("one", 0), ("two", 1)):
        options = ("--data-set", "clicks=3000", "--data-set", f"log_seed={seed}")
        call("prepare", "synthetic", *options, "--out", tmp_path / name)
    manifest = tmp_path / "two" / "table.json"  # the same options, another log
    manifest.write_text(manifest.read_text().replace('"log_seed": 1', '"log_seed": 0'))
    words = (*PRETRAIN, "--out", tmp_path / "run")
    assert call(*words, "--source", tmp_path / "one") == 0
    assert call(*words, "--source", tmp_path / "one", "--resume") == 0
    assert call(*words, "--source", tmp_path / "two", "--resume") == 2
    assert "fingerprint" in capsys.readouterr().err
    (tmp_path / "one").rename(tmp_path / "moved")
    assert call(*words, "--source", tmp_path / "moved", "--resume") == 0


def test_a_model_that_ran_away_is_told(tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", "--method", "pretrain", *SMALL, "--set", "learning_rate=1e30", "--out", tmp_path / "run") == 2
    assert "try a lower learning_rate" in capsys.readouterr().err


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    words = ["run", "--method", "trace", "--data", "synthetic", "--data-set", "clicks=200000", "--threads", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tracecvr.cli", *words, "--out", tmp_path / "run"], stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "run" / ".lock").exists():
        time.sleep(0.01)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, shown = process.communicate()
    assert process.returncode == 130
    assert shown.splitlines() == ["stopped; the run goes on with --resume"]


def test_ctrl_c_in_a_command_that_keeps_nothing_says_no_more(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`inspect` has no --resume."""

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tracecvr.data.inspection.inspect_log.inspect_files", stopped)
    monkeypatch.setattr("os._exit", sys.exit)
    assert call("inspect", tmp_path / "log.csv") == 130
    assert capsys.readouterr().err.splitlines() == ["stopped"]


def test_a_method_in_a_file_is_checked_and_run(tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    """The one of CONTRIBUTING.md, and the same with a loss that does not learn."""
    (code,) = documents.blocks("CONTRIBUTING.md", "python")
    (tmp_path / "mine.py").write_text(code)
    assert call("check", tmp_path / "mine.py", "--json") == 0
    assert sum(row["status"] == "passed" for row in json.loads(capsys.readouterr().out)) >= 15
    assert call("run", "--method", tmp_path / "mine.py", *SMALL, "--out", tmp_path / "run") == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["method"] == "mine"
    capsys.readouterr()
    (tmp_path / "idle.py").write_text(
        code.replace("return cross_entropy(self.logit", "return 0 * cross_entropy(self.logit")
    )
    assert call("check", tmp_path / "idle.py", "--json") == 1
    failed = {row["check"] for row in json.loads(capsys.readouterr().out) if row["status"] == "failed"}
    assert "fixed_point" in failed
    assert failed <= {"fixed_point", "stream_trains"}
    (tmp_path / "broken.py").write_text("import nothing_of_that_name")
    assert call("check", tmp_path / "broken.py") == 2
    assert "ModuleNotFoundError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--method", "tracee", *SMALL], "did you mean 'trace'"),
        (["run", "--method", "trace", "--data", "cryteo"], "unknown dataset 'cryteo' (did you mean 'criteo'?)"),
        (["run", "--method", "trace", "--plugin", "complete", *SMALL], "unknown plugin 'complete'"),
        (["run", "--method", "trace", "--plugin", "completer", *SMALL], "plugin 'completer' is part of method 'trace'"),
        (["run", "--method", "trace", *SMALL, "--set", "lamda=1"], "unknown key 'lamda'"),
        (["run", "--method", "trace", *SMALL, "--set", "lam=nan"], "finite"),
        (["run", "--method", "trace", *SMALL, "--set", "lam=-1"], "at least 0"),
        (["run", "--method", "trace", *SMALL, "--set", "horizons=2h,1h"], "rising order"),
        (["run", "--method", "trace", *SMALL, "--data-set", "click=1"], "did you mean 'clicks'"),
        (["run", "--method", "trace", *SMALL, "--data-set", "split=100d"], "leaves no stream"),
        (["run", "--method", "trace", *SMALL, "--set", "split=100d"], "leaves no stream"),
        (["run", "--method", "trace", *SMALL, "--set", "split=1d"], "encoder was fitted"),
        (["run", "--method", "trace", *SMALL, "--source", "x.csv"], "not a table written by"),
        (["run", "--method", "trace", "--data", "criteo"], "--source FILE"),
        (["run", "--method", "trace", "--data", "criteo", "--source", "nothing.txt"], "nothing.txt: no such file"),
        (["prepare", "criteo", "--source", "nothing.txt", "--out", "table"], "nothing.txt: no such file"),
        (["run", "--method", "trace", *SMALL, "--set", "until=864001"], "leaves no stream"),
        (["run", "--method", "trace", *SMALL, "--set", "interval=9999999999d"], "at most 100 years"),
        (["run", "--method", "trace", *SMALL, "--seed", "-1"], "--seed"),
        (["run", "--method", "trace", *SMALL, "--sed", "1"], "--sed"),
        (["run", "--data", "synthetic"], "--method"),
        (["check", "tracee"], "did you mean 'trace'"),
        (["check"], "Missing argument"),
        (["check", "missing.py"], "missing.py: no such file"),
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


WITHOUT_EXTRAS = """
import json, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("apsw", "fastapi", "uvicorn", "prometheus_client"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from tracecvr.cli.commands import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["tracecvr", *words]
    try:
        main()
    except SystemExit as leaving:
        print(leaving.code, file=sys.stderr)
"""


def test_commands_name_the_extra_that_they_need(tmp_path: Path) -> None:
    """As if it were installed without extras; every command of the live learner, in one process."""
    commands = ["ingest s e", "tick s", "learn s", "status s", "compact s", "erase s u", "verify s"]
    commands += ["init s --source t", "init s --model r", "table s t", "challenge s a --method vanilla"]
    commands += ["models list s", "models promote s 1", "aside list s"]
    commands += ["pull s --source nats://localhost/a", "serve s"]
    words = json.dumps([command.split() for command in commands])
    made = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, words], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    lines = made.stderr.splitlines()
    assert len(lines) == 2 * len(commands), made.stderr
    for command, line, code in zip(commands, lines[::2], lines[1::2], strict=True):
        extra = "serve" if command.startswith("serve") else "online"
        assert line.startswith("error: "), (command, line)
        assert f"pip install 'tracecvr[{extra}]'" in line, (command, line)
        assert code == "2"
