"""The gauntlet: regret of every method on every log, from figures that are made up and from two small logs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import Call

import gauntlet
import madeup
import regret
from gauntlet import Field, Log, tables
from tracecvr.base import registry
from tracecvr.base.files import read_json, write_json
from tracecvr.bench import suite
from tracecvr.bench.engines.local import Serial
from tracecvr.bench.findings import FINDINGS, load_findings
from tracecvr.bench.outcome import Outcome
from tracecvr.bench.runner import Request
from tracecvr.bench.stats import Spread

SUITE = """
about = "small"
metrics = ["nll"]
[set]
hidden = [8]
warm_epochs = 1
[[row]]
method = ["pretrain", "vanilla", "oracle"]
"""
LOGS = (
    Log("first", "hardships", {"hardship": "tiny", "clicks": "2000"}, {"interval": "1d"}),
    Log("second", "hardships", {"hardship": "dense", "clicks": "2000"}, about="a log of one day"),
    Log("elsewhere", "taobao", {}, file="nowhere.csv"),
)


# Arithmetic.


def measured(folder: Path, auc: madeup.Figures, log: str = "here") -> pl.DataFrame:
    """NLL is 1.2 minus AUC."""
    frame = regret.measure(Outcome(madeup.bench(folder / log, auc)), log, "made up")
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
    assert regret.pooled_reach([Spread(0.0, 1.0, 4), Spread(0.0, 1.0, 4)]) == pytest.approx(1.2235, abs=1e-4)
    assert regret.pooled_reach([Spread(0.0, None, 1)]) == 0


def test_methods_are_sorted_by_their_worst_log_and_failures_are_last(tmp_path: Path) -> None:
    one = measured(tmp_path, {"Pretrain": (0.70,), "TRACE": (0.78,), "DEFER": (0.77,), "Oracle": (0.80,)}, "one")
    two = measured(tmp_path, {"Pretrain": (0.76,), "TRACE": (0.75,), "Oracle": (0.80,)}, "two")
    field = Field(pl.concat([one, two]), {"absent": []})
    assert [s.label for s in field.standings] == ["TRACE", "Pretrain", "DEFER", "Oracle"]
    trace, _, failed, _ = field.standings
    assert (trace.worst_log, trace.near_best) == ("two", 1)
    assert trace.worst == pytest.approx(0.01, abs=0.003)
    assert (failed.worst, failed.logs) == (None, 1)
    drawn = gauntlet.draw(field)
    assert all(text in drawn for text in ("Regret of every method", "TRACE, two: 0.0", "DEFER, two: n/a"))
    assert drawn.count('class="heat light"') == 2


# Two logs, end to end.


def test_a_gauntlet_of_two_logs(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SUITE)
    request, out = Request(suite.load(str(tmp_path / "small.toml")), ""), tmp_path / "out"
    assert gauntlet.run(request, LOGS, out, Serial()) == {}
    frame = pl.read_parquet(out / "gauntlet.parquet")
    assert frame.schema == pl.Schema(regret.SCHEMA)
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
    assert "Left out, because their files are not at hand (TRACECVR_DATA): elsewhere." in table
    assert "smallest worst regret" in table
    assert "<title>Regret of every method" in (out / "regret.svg").read_text()
    (out / "second" / "cells").rename(out / "second" / "gone")
    assert gauntlet.run(request, LOGS[:1], out, Serial()) == {}  # nothing is run again
    assert pl.read_parquet(out / "gauntlet.parquet")["log"].unique().to_list() == ["first"]
    failing = replace(request, methods=("dfsn",), settings={"window": "9d"})
    assert list(gauntlet.run(failing, LOGS[:1], tmp_path / "failed", Serial())) == ["first/dfsn~seed0"]


def test_real_logs_are_looked_for_by_their_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRACECVR_DATA", str(tmp_path))
    (tmp_path / "taobao_slice.csv").touch()
    assert [log.name for log in gauntlet.LOGS if gauntlet.source_of(log) is not None] == ["taobao"]
    made = suite.load(str(Path(gauntlet.__file__).with_suffix(".toml")))
    assert len(suite.rows_of(made)) == len(registry.available("method")) + 1  # TRACE is there twice


# What is packaged.


def test_findings_are_those_of_the_results_in_the_docs(tmp_path: Path) -> None:
    facts = read_json(gauntlet.RESULTS / "gauntlet.json")
    frame = pl.read_parquet(gauntlet.RESULTS / "gauntlet.parquet")
    gauntlet.write_findings(frame, facts["seeds"], tmp_path / "again.json")
    assert read_json(tmp_path / "again.json") == read_json(FINDINGS)
    made = "\n\n".join(table.markdown() for table in tables(Field(frame, facts)))
    assert made in (gauntlet.RESULTS / "table.md").read_text()


def test_findings_are_listed(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    line = load_findings()["methods"]["telescoped"]
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
    gauntlet.collect(bench, tmp_path / "docs", tmp_path / "packaged.json")
    names = {path.name for path in (tmp_path / "docs").iterdir()}
    assert names == {"gauntlet.json", "gauntlet.parquet", "table.md", "regret.png"}
    assert "near the best on 1 of 1" in read_json(tmp_path / "packaged.json")["methods"]["trace"]
