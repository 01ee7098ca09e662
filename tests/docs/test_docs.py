"""The documents' commands and code run as they stand."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import Call

import documents
import log_kinds
import madeup
import tracecvr as tc
from tracecvr.base.files import read_json
from tracecvr.base.glossary import read_glossary
from tracecvr.bench import tables
from tracecvr.forecast.estimators import ESTIMATORS
from tracecvr.online.store.store import Store
from tracecvr.online.store.versions import Versions
from tracecvr.online.upkeep.status import status_of

ROOT = documents.ROOT


def assert_good(result: dict[str, Any]) -> None:
    """A model that is worth having: better than a logistic regression, and calibrated."""
    model, logistic = result["metrics"]["pooled"], result["references"]["logistic"]
    assert model["auc"] > logistic["auc"]
    assert model["nll"] < logistic["nll"]
    assert model["ne"] < 1
    assert 0.9 < model["pcoc"] < 1.1


def test_the_readme_runs_and_ends_with_a_good_model(
    tmp_path: Path, call: Call, few_checks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (commands,), (code,) = documents.blocks("README.md", "sh"), documents.blocks("README.md", "python")
    documents.run_commands(call, commands)
    assert_good(read_json(tmp_path / "result" / "result.json"))
    left = documents.run_code(code, "README.md")
    assert_good(left["result"].content)
    assert 0.05 < left["rates"][0] < 0.5


@pytest.mark.parametrize("clicks", ["8_000", pytest.param("40_000", marks=pytest.mark.slow)])
def test_the_tutorial_runs_and_ends_with_a_good_model_that_is_served(
    clicks: str, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it stands if it may be slow, else on a smaller log."""
    monkeypatch.chdir(tmp_path)
    make, ask, compare, client = documents.blocks("docs/tutorial.md", "python")
    inspect, replay, live = documents.blocks("docs/tutorial.md", "sh")
    (serve,) = documents.blocks("docs/tutorial.md", "bash")
    assert "count, days = 40_000, 30\n" in make
    documents.run_code(make.replace("40_000", clicks), "docs/tutorial.md")
    documents.run_commands(call, inspect)
    documents.run_commands(call, replay)
    assert_good(read_json(tmp_path / "result" / "result.json"))
    left = documents.run_code(ask, "docs/tutorial.md")
    at_click, later = (
        left["model"].predict([left["click"]])[0],
        left["model"].posterior([left["click"]], age="12h", actions={})[0],
    )
    assert 0 < later < at_click < 0.5
    board = documents.run_code(compare, "docs/tutorial.md", left)["board"]
    auc = dict(zip(board.frame["method"], board.frame["auc"], strict=True))
    assert auc["Telescoped"] > auc["Vanilla"]
    carry_out(live, tmp_path, call, capsys)
    store = Store.open(tmp_path / "store")
    status = status_of(store)
    assert status["joined"].get("orphans", 0) == 0, "open clicks are known by the ids of the log"
    assert status["watermark"] - store.grid.split > 0.8 * store.schema.d_max, "there is no gap after the run"
    assert status["intervals"]["learnt"] == status["intervals"]["closed"] > 0
    with documents.served(serve.strip()) as port:
        answer = documents.run_code(client.replace("8000", port), "docs/tutorial.md")["answer"]
    (score,) = answer["scores"]
    store.versions.promote(score["version"])
    now = tc.load(tmp_path / "store")  # what the store has learnt since, and not `model`
    assert score["probability"] == pytest.approx(now.predict([left["click"]])[0], rel=1e-5)
    assert "'actions': {'purchase': 1800}" in capsys.readouterr().out


def test_the_guide_to_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in documents.blocks("docs/python.md", "python"):
        documents.run_code(code, "docs/python.md", names)
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert names["again"].predict(names["clicks"]) == pytest.approx(names["model"].predict(names["clicks"]))
    for code in documents.blocks("docs/python.md", "py"):
        compile(code, "docs/python.md", "exec")


def test_the_guide_to_forecasts_runs(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (commands,), (code,) = (documents.blocks("docs/forecast.md", language) for language in ("shell", "python"))
    *first, last = commands.splitlines()
    assert "90% interval" in carry_out("\n".join(first), tmp_path, call, capsys)
    carry_out(last, tmp_path, call, capsys)
    frame = documents.run_code(code, "docs/forecast.md")["result"].forecast(by="segment", at="15d")
    assert frame.columns == pl.read_csv("forecast.csv").columns
    page = (documents.ROOT / "docs/forecast.md").read_text(encoding="utf-8")
    assert [name for name in frame.columns if f"`{name}`" not in page] == []
    assert [name for name in ESTIMATORS if f"| `{name}` |" not in page] == []


def carry_out(commands: str, folder: Path, call: Call, capsys: pytest.CaptureFixture[str]) -> str:
    """Carry out the commands of a guide, one a line, `>` included; returns what the last one printed."""
    capsys.readouterr()
    for line in commands.splitlines():
        command, _, file = line.partition(" > ")
        assert call(*shlex.split(command)[1:]) == 0, line
        output = capsys.readouterr().out
        if file:
            (folder / file).write_text(output)
    return output


def test_the_guide_to_logs_of_your_own_ends_with_a_good_model(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    log_kinds.plain_clicks(tmp_path, 12000)
    (commands,) = documents.blocks("docs/own_log.md", "sh")
    carry_out(commands, tmp_path, call, capsys)
    result = read_json(tmp_path / "result" / "result.json")
    ours, logistic = result["metrics"]["pooled"], result["references"]["logistic"]
    assert ours["auc"] > logistic["auc"] + 0.02
    assert ours["nll"] < logistic["nll"]
    assert 0.9 <= ours["pcoc"] <= 1.1
    assert sum(result["cost"][name] for name in ("prepare_s", "warm_up_s", "stream_s")) < 60
    newest = Versions(tmp_path / "store", 48).newest()
    assert newest is not None
    assert newest["intervals"] > 0


def live_metrics_of(store: Path) -> dict[str, float]:
    """What `status` says of clicks that are still open."""
    recent: dict[str, float] = status_of(Store.open(store))["recent"]["prequential"]
    return recent


def test_the_guide_to_the_live_learner_runs(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (commands,) = documents.blocks("docs/online.md", "sh")
    output = carry_out(commands, tmp_path, call, capsys)
    assert "versions are identical" in output
    recent = live_metrics_of(tmp_path / "store")
    assert 0.8 < recent["predicted"] / recent["forecast"] < 1.25
    (events,) = documents.blocks("docs/online.md", "json")
    store = Store.open(tmp_path / "store")
    (command,), (code,) = documents.blocks("docs/online.md", "bash"), documents.blocks("docs/online.md", "python")
    with documents.served(command) as port:
        documents.run_code(code.replace("8000", port), "docs/online.md")
    output = capsys.readouterr().out
    assert "'accepted': 1" in output
    assert "'actions': {'cart': 600}" in output
    assert [store.reader.read(json.loads(line)).kind for line in events.splitlines()] == [0, 1, 4]


def test_the_guide_to_exports_runs(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (commands,), (clicks,), (code,) = (
        documents.blocks("docs/export.md", language) for language in ("sh", "json", "python")
    )
    *ours, theirs = commands.splitlines()
    for line in ours:
        assert call(*shlex.split(line)[1:]) == 0, line
    assert theirs == "python model/scorer.py < clicks.jsonl"

    def printed(*words: str) -> list[str]:
        command = [sys.executable, *words]
        return subprocess.run(
            command, cwd="model", input=clicks, capture_output=True, text=True, check=True
        ).stdout.splitlines()

    rates = [float(line) for line in printed("scorer.py")]
    assert len(rates) == 2
    assert all(0 < rate < 1 for rate in rates)
    assert len(printed("-c", code)) == 2


def test_the_guide_to_logs_of_your_own_names_every_count() -> None:
    text = (ROOT / "docs" / "own_log.md").read_text()
    code = "".join((ROOT / "src/tracecvr/data/own_log" / name).read_text() for name in ("cleaning.py", "rows.py"))
    counts = {*re.findall(r'"([a-z]+(?:_[a-z]+)+)"', code)} - {"click_id", "click_ts", "given_id"}
    reasons = {*re.findall(r"(?m)^ +(\w+_\w+)=.*,$", code)}
    assert len(counts | reasons) > 25
    missing = [name for name in sorted(counts | reasons) if not re.search(rf"`(dropped_)?{name}`", text)]
    assert missing == []


def test_the_glossary_is_that_of_reports() -> None:
    assert (ROOT / "docs" / "glossary.md").read_text() == read_glossary(), "run docs/generate.py"


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    for command in ("make demo", "make test"):
        assert command in text
        assert f"\n{command.split()[1]}:" in (ROOT / "Makefile").read_text()


def test_every_room_is_in_the_architecture() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    inside = [path for path in (ROOT / "src" / "tracecvr").iterdir() if path.name not in ("__init__.py", "py.typed")]
    assert [path.name for path in inside if path.is_file()] == []
    rooms = {path.name for path in inside if (path / "__init__.py").exists()}
    assert [name for name in sorted(rooms) if f"\n{name}/ " not in text] == []
    layers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    assert {name.removeprefix("tracecvr.") for line in layers for name in line.split(" | ")} == rooms


def test_the_pages_of_the_methods_are_up_to_date() -> None:
    generate = documents.script("generate")
    for name, text in generate.pages(generate.kept()).items():
        assert (generate.FOLDER / name).read_text() == text, f"{name}: run python docs/generate.py"
        assert "not run" not in text, f"{name}: run python docs/generate.py"
    assert {p.name for p in generate.FOLDER.iterdir()} == set(generate.pages(generate.kept()))


RESULTS = sorted(path.parent for path in (ROOT / "docs" / "results").rglob("bench.json"))


@pytest.mark.parametrize("folder", RESULTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_tables_of_results_follow_from_the_results(folder: Path, tmp_path: Path) -> None:
    again = tmp_path / folder.name
    shutil.copytree(folder, again)
    tables.write(again)
    kept, made = ((where / "table.md").read_text() for where in (folder, again))
    over_days = "## NLL minus that of the logistic regression"  # days are not kept here
    if len(read_json(folder / "bench.json")["seeds"]) == 1:  # then all intervals are over days
        over_days = "## Paired"
    kept, made = (text.partition(over_days)[0].rstrip() for text in (kept, made))
    assert kept == made


@pytest.mark.parametrize(
    "page", sorted({folder.parent / "README.md" for folder in RESULTS}), ids=lambda p: p.parent.name
)
def test_a_page_of_results_quotes_its_tables(page: Path) -> None:
    text, folders = page.read_text(), [folder for folder in RESULTS if folder.parent == page.parent]
    known = {line for folder in folders for line in (folder / "table.md").read_text().splitlines()}
    quoted = [line for line in text.splitlines() if line.startswith("|")]
    assert [line for line in quoted if line not in known] == []
    collect = documents.script("collect")
    for folder in folders:
        assert f"{folder.name}/table.md" in text
        shown = collect.shown(page, folder.name)
        assert [name for name in shown if not (folder / name).is_file()] == []
        assert {path.name for path in folder.iterdir()} <= {*collect.TAKEN, "bench.json", *shown}


def test_results_are_taken_without_cells_and_paths(tmp_path: Path) -> None:
    bench = madeup.bench(tmp_path / "bench")
    tables.write(bench)
    (tmp_path / "README.md").write_text("")
    out = documents.script("collect").collect(bench, tmp_path)
    assert {path.name for path in out.iterdir()} >= {"bench.json", "table.md", "results.parquet"}
    assert not (out / "cells").exists()
    assert "source" not in read_json(out / "bench.json")


def test_reports_are_drawn_from_the_results_that_are_kept(tmp_path: Path) -> None:
    documents.script("reports").draw(tmp_path)
    drawn = {path.parent.relative_to(tmp_path) for path in tmp_path.rglob("report.html")}
    assert drawn == {folder.relative_to(ROOT / "docs" / "results") for folder in RESULTS}
    assert "TRACE" in (tmp_path / "table1" / "report.html").read_text()


def test_nothing_names_a_machine() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    pattern = re.compile(r"(^|[^A-Za-z0-9_.])/(work|root|home)/")
    texts = [ROOT / name for name in tracked if (ROOT / name).suffix in (".py", ".md", ".toml", ".txt", "")]
    assert [str(path) for path in texts if path.is_file() and pattern.search(path.read_text())] == []


def test_a_guide_is_a_page_and_not_a_book() -> None:
    assert {path.name: size for path in (ROOT / "docs").glob("*.md") if (size := path.stat().st_size) > 12_000} == {}
