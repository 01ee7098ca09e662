"""The gauntlet: regret of every method on every log, from figures that are made up and from two small logs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import Call

import documents
import madeup
from tracecvr.base import registry
from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json, write_json
from tracecvr.bench import engines, gauntlet, suite
from tracecvr.bench.engines.local import Serial
from tracecvr.bench.gauntlet import draw, tables
from tracecvr.bench.outcome import Outcome
from tracecvr.bench.stats import Spread

SUITE = """
about = "small"
metrics = ["nll"]
[set]
hidden = [8]
warm_epochs = 1
[[row]]
method = ["pretrain", "vanilla", "oracle"]
[[log]]
name = "first"
data = "hardships"
options = {hardship = "tiny", clicks = 2000}
set = {interval = "1d"}
[[log]]
name = "second"
about = "a log of one day"
data = "hardships"
options = {hardship = "dense", clicks = 2000}
[[log]]
name = "elsewhere"
data = "taobao"
file = "nowhere.csv"
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gauntlet") / "small.toml"
    path.write_text(SUITE)
    return path


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benches run in this process: it takes seconds to start another."""
    monkeypatch.setattr(engines, "choose", lambda *_: Serial())


# Arithmetic.


def measured(folder: Path, auc: madeup.Figures, log: str = "here") -> pl.DataFrame:
    """NLL is 1.2 minus AUC."""
    frame = gauntlet.measure(Outcome(madeup.bench(folder / log, auc)), log, "made up")
    assert frame is not None
    return frame


def row(frame: pl.DataFrame, label: str) -> dict[str, Any]:
    return frame.filter(pl.col("label") == label).row(0, named=True)


def test_one_seed_is_judged_over_days(tmp_path: Path) -> None:
    frame = measured(tmp_path, {"Pretrain": (0.70,), "DEFER": (0.7799,), "TRACE": (0.78,), "Oracle": (0.80,)})
    best, near, behind, bound = (row(frame, label) for label in ("TRACE", "DEFER", "Pretrain", "Oracle"))
    assert (best["best"], best["near_best"], best["regret"]) == (True, True, 0.0)
    assert (near["best"], near["near_best"], near["over"]) == (False, True, "days")
    assert near["regret_low"] < 0 < near["regret_high"]
    assert behind["near_best"] is False
    assert behind["regret"] == pytest.approx(0.08, abs=0.005)
    assert behind["regret_low"] > 0
    assert bound["regret"] < 0  # better, but not a candidate
    assert (bound["best"], bound["near_best"]) == (False, None)


def test_intervals_are_for_other_days_and_other_seeds(tmp_path: Path) -> None:
    auc = {"Pretrain": (0.70, 0.71, 0.72), "DEFER": (0.779, 0.792, 0.799), "TRACE": (0.78, 0.79, 0.80)}
    frame = measured(tmp_path, auc | {"Oracle": (0.80, 0.81, 0.82)})
    assert row(frame, "Pretrain")["regret"] == pytest.approx(0.08)
    assert row(frame, "TRACE")["regret"] == 0
    assert row(frame, "DEFER")["regret"] == pytest.approx(0)
    assert frame.filter("near_best")["label"].to_list() == ["DEFER", "TRACE"]
    assert frame["over"].unique().to_list() == ["days and seeds"]
    steady = measured(tmp_path, {name: (values[1],) * 3 for name, values in auc.items()}, "steady")
    widths = [one["regret_high"] - one["regret_low"] for one in (row(frame, "Pretrain"), row(steady, "Pretrain"))]
    assert widths[0] > widths[1] > 0
    assert row(frame, "DEFER")["pcoc"] == pytest.approx(1.58)


def test_seeds_of_all_methods_say_together_how_much_they_vary() -> None:
    assert gauntlet.pooled_reach([Spread(0.0, 1.0, 4), Spread(0.0, 1.0, 4)]) == pytest.approx(1.2235, abs=1e-4)
    assert gauntlet.pooled_reach([Spread(0.0, None, 1)]) == 0


def test_methods_are_sorted_by_their_worst_log_and_failures_are_last(tmp_path: Path) -> None:
    one = measured(tmp_path, {"Pretrain": (0.70,), "TRACE": (0.78,), "DEFER": (0.77,), "Oracle": (0.80,)}, "one")
    two = measured(tmp_path, {"Pretrain": (0.76,), "TRACE": (0.75,), "Oracle": (0.80,)}, "two")
    frame = pl.concat([one, two])
    standings = gauntlet.standings(frame)
    assert [one["label"] for one in standings] == ["TRACE", "Pretrain", "DEFER", "Oracle"]
    trace, _, failed, _ = standings
    assert (trace["worst_log"], trace["near_best"]) == ("two", 1)
    assert trace["worst"] == pytest.approx(0.01, abs=0.003)
    assert failed["worst"] is None
    regrets, pcoc, logistic, _ = tables(frame)
    assert [table.rows[2][-1].text for table in (regrets, pcoc, logistic)] == ["failed", "n/a", "failed"]
    drawn = draw(frame)
    assert all(text in drawn for text in ("Regret of every method", "TRACE, two: 0.0", "DEFER, two: n/a"))
    assert drawn.count('class="heat light"') == 2


# Two logs, end to end.


@pytest.mark.usefixtures("here")
def test_a_gauntlet_of_two_logs(path: Path, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    out = path.parent / "out"
    assert call("bench", path, "--out", out) == 0
    missing = "Left out, because their files are not at hand (TRACECVR_DATA): elsewhere."
    printed = capsys.readouterr().out
    assert printed.count(missing) == 1
    assert f"figure: {out / 'figures' / 'regret.svg'}" in printed
    frame = pl.read_parquet(out / "gauntlet.parquet")
    assert frame.schema == pl.Schema(gauntlet.SCHEMA)
    assert frame.select("log", "label").rows() == [
        (log, label) for log in ("first", "second") for label in ("Pretrain", "Vanilla", "Oracle")
    ]
    assert dict(frame.select("log", "about").iter_rows()) == {
        "first": "3,000 clicks in all",
        "second": "a log of one day",
    }
    assert dict(frame.select("log", "over").iter_rows()) == {"first": "days", "second": "intervals"}
    results = pl.concat(pl.read_parquet(out / log / "results.parquet") for log in ("first", "second"))
    assert frame["nll"].to_list() == results["nll"].to_list()
    assert frame["pcoc"].to_list() == pytest.approx(results["pcoc"].to_list())
    assert (frame["nll"] - frame["excess"]).n_unique() <= 6  # of each log, the NLL of the true rates
    by_log = frame.with_columns(truth=pl.col("nll") - pl.col("excess")).group_by("log").agg(pl.col("truth").std())
    assert by_log["truth"].max() < 1e-9  # type: ignore[operator]
    assert (frame["logistic"] - (frame["nll"] - results["logistic_nll"])).abs().max() < 1e-9  # type: ignore[operator]
    table = (out / "table.md").read_text()
    assert "## Regret" in table
    assert missing in table
    assert "smallest worst regret" in table
    (out / "figures" / "regret.svg").unlink()
    assert call("report", out) == 0
    assert "tiny" not in (out / "figures" / "regret.svg").read_text()
    (out / "second" / "cells").rename(out / "second" / "gone")
    assert call("bench", path, "--out", out, "--logs", "first") == 0  # nothing is run again
    assert pl.read_parquet(out / "gauntlet.parquet")["log"].unique().to_list() == ["first"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["small.toml", "--data", "synthetic"], "has its own logs"),
        (["small.toml", "--logs", "secund"], "did you mean 'second'"),
        (["quick"], "--data is missing"),
        (["quick", "--data", "synthetic", "--logs", "jump"], "is run on one log"),
    ],
)
def test_what_is_refused(
    path: Path, call: Call, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    given = [str(path) if word == "small.toml" else word for word in words]
    assert call("bench", *given, "--out", path.parent / "refused") == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ('name = "a"', "log 1: give data, and a name"),
        ('name = "a/b"\ndata = "x"', "which a directory will have"),
        ('nam = "a"', "did you mean"),
    ],
)
def test_a_log_that_is_wrong(tmp_path: Path, log: str, message: str) -> None:
    (tmp_path / "bad.toml").write_text(f'[[row]]\nmethod = "vanilla"\n[[log]]\n{log}\n')
    with pytest.raises(UserError, match=message):
        suite.load(str(tmp_path / "bad.toml"))


def test_the_suite_names_what_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tracecvr.datasets.hardships import HARDSHIPS

    made = suite.load("gauntlet")
    assert [log.options["hardship"] for log in made.logs if log.data == "hardships"] == list(HARDSHIPS)
    assert len(suite.rows_of(made)) == len(registry.available("method")) + 1  # TRACE is there twice
    monkeypatch.setenv("TRACECVR_DATA", str(tmp_path))
    (tmp_path / "taobao_slice.csv").touch()
    at_hand = [log.name for log in made.logs if gauntlet.source_of(log) is not None]
    assert at_hand == ["taobao"]


# What is packaged.


def test_findings_are_those_of_the_results_in_the_docs(tmp_path: Path) -> None:
    folder = documents.ROOT / "docs" / "results" / "gauntlet"
    documents.script("collect").write_findings(folder, tmp_path / "again.json")
    assert read_json(tmp_path / "again.json") == read_json(gauntlet.FINDINGS)
    made = "\n\n".join(table.markdown() for table in tables(pl.read_parquet(folder / "gauntlet.parquet")))
    assert made in (folder / "table.md").read_text()


def test_findings_are_listed(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    line = gauntlet.load_findings()["methods"]["telescoped"]
    assert re.fullmatch(r"worst regret \d\.\d{4} \(\w+\); near the best on \d+ of \d+ logs", line)
    assert call("methods", "--json") == 0
    listed = {method["name"]: method["gauntlet"] for method in json.loads(capsys.readouterr().out)}
    assert (listed["telescoped"], listed["oracle"]) == (line, "")


def test_a_gauntlet_is_taken_into_the_docs(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    bench = tmp_path / "bench"
    madeup.bench(bench / "here", {"Pretrain": (0.7,), "TRACE": (0.78,)})
    facts = {"suite": "gauntlet", "about": "", "seeds": [0], "methods": [], "settings": {}, "absent": []}
    write_json(bench / "gauntlet.json", facts | {"logs": [{"name": "here", "about": "made up"}]})
    out = documents.script("collect").collect_gauntlet(bench, tmp_path, tmp_path / "packaged.json")
    names = {path.name for path in out.iterdir()}
    assert names == {"gauntlet.json", "gauntlet.parquet", "table.md", "regret.png"}
    assert "near the best on 1 of 1" in read_json(tmp_path / "packaged.json")["methods"]["trace"]
