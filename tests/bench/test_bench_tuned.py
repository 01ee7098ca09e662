"""Tuned as the paper tunes: chosen on the first part of the stream, judged on what comes after, with fresh seeds."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import Call

import madeup
from benches import SUITE
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.errors import UserError
from tracecvr.base.files import write_json
from tracecvr.bench import engines, report, suite, tables, tuned
from tracecvr.bench.engines.local import Serial
from tracecvr.bench.runner import Request, hold_bench
from tracecvr.bench.tuned import Period, Tuned
from tracecvr.checks.subject import small_log
from tracecvr.runs.replay import Plan

TABLE = small_log()
SPLIT = TABLE.schema.split
PERIOD = Period("synthetic", "f", SPLIT, SPLIT + DAY, [0, 1])
TUNED = Tuned({"trace": {"stream.learning_rate": "0.0001"}, "es-dfm": {}}, PERIOD)
TUNE = (
    SUITE.partition("[[row]]")[0].replace('about = "small"', 'about = "search"\nlayout = "tune"\nfirst = "1d"')
    + "[[trial]]\n[[trial]]\nlearning_rate = 0.01\n[[row]]\nmethod = ['vanilla', 'oracle']\n"
)


# The file.


def test_the_file_holds_what_was_written(tmp_path: Path) -> None:
    tuned.write(tmp_path / "tuned.toml", TUNED.methods, PERIOD)
    assert tuned.load(tmp_path / "tuned.toml") == TUNED
    assert tuned.load(None) == Tuned()


@pytest.mark.parametrize(
    "text", ["lam = 3", "format = 4", "format = 3", "format = 4\n[period]\nuntil = 3\n[methods.trace]", "[trace"]
)
def test_damaged_files_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(UserError, match=r"t\.toml"):
        tuned.load(tmp_path / "t.toml")


def test_choices_belong_to_the_learning_settings_that_they_were_made_with(tmp_path: Path) -> None:
    assert Tuned().learning is None
    assert TUNED.learning == "ours"
    tuned.write(tmp_path / "tuned.toml", TUNED.methods, replace(PERIOD, learning="paper"))
    assert tuned.load(tmp_path / "tuned.toml").learning == "paper"


# Which clicks are tuned on, and which may be judged.


def test_a_search_ends_after_its_first_days_and_leaves_half_of_the_stream() -> None:
    whole = Plan().resolve(TABLE)
    length = whole.until - whole.split
    assert length > 2 * DAY
    assert tuned.choose_times(TABLE, {}, DAY, Tuned()) == {"until": str(SPLIT + DAY)}
    assert tuned.choose_times(TABLE, {}, 90 * DAY, Tuned()) == {"until": str(SPLIT + round(length / 2 / DAY) * DAY)}
    assert tuned.choose_times(TABLE, {"split": str(SPLIT + DAY)}, HOUR, Tuned()) == {"until": str(SPLIT + DAY + HOUR)}
    for said in ({"until": "9d"}, {"plan.until": "9d"}):
        assert tuned.choose_times(TABLE, said, DAY, Tuned()) == {}


def test_settings_are_judged_on_what_comes_after_their_period() -> None:
    assert tuned.choose_times(TABLE, {}, None, TUNED) == {"judge_from": str(SPLIT + DAY)}
    assert tuned.choose_times(TABLE, {"judge_from": "9d"}, None, TUNED) == {}
    in_warm_up = replace(TUNED, period=replace(PERIOD, start=DAY, until=SPLIT))
    assert tuned.choose_times(TABLE, {}, None, in_warm_up) == {}
    with pytest.raises(UserError, match="leaves no click to judge"):
        tuned.choose_times(TABLE, {}, None, replace(TUNED, period=replace(PERIOD, until=90 * DAY)))


def test_what_was_tuned_on_is_not_judged() -> None:
    good = [Plan(judge_from=PERIOD.until), Plan(judge_from=PERIOD.until + 1)]
    tuned.refuse(TUNED, "f", (2, 3), good, SPLIT)
    for wrong in (Plan(judge_from=PERIOD.until - 1), Plan(), Plan(split=PERIOD.until - 1)):
        with pytest.raises(UserError, match=f"would be judged: set judge_from = {PERIOD.until}"):
            tuned.refuse(TUNED, "f", (2, 3), [*good, wrong], SPLIT)
    with pytest.raises(UserError, match=r"chosen on another log .*fingerprint f; this one is g"):
        tuned.refuse(TUNED, "g", (2,), good, SPLIT)
    with pytest.raises(UserError, match="chosen with seed 1: judge them with fresh seeds, for example --seeds 2-4"):
        tuned.refuse(TUNED, "f", (1, 2), good, SPLIT)
    assert tuned.fresh_seed(TUNED) == 2
    assert tuned.fresh_seed(Tuned()) == 0


# The whole way.


def test_from_a_search_to_a_table(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engines, "choose", lambda *_: Serial())  # workers are those of test_bench_run
    (tmp_path / "search.toml").write_text(TUNE)
    (tmp_path / "small.toml").write_text(SUITE)
    words = ("--data", "synthetic", "--workers", "1")
    assert call("bench", str(tmp_path / "search.toml"), *words, "--out", str(tmp_path / "search")) == 0
    log, chosen = str(tmp_path / "search" / "data"), tmp_path / "search" / "tuned.toml"
    period = tuned.load(chosen).period
    assert period is not None
    assert (period.start, period.until, period.seeds) == (3 * DAY, 4 * DAY, [0])
    scored = pl.read_parquet(tmp_path / "search" / "results.parquet")
    assert scored["clicks"].n_unique() == 1
    assert set(tuned.load(chosen).methods) == {"vanilla", "oracle"}
    costs = (tmp_path / "search" / "table.md").read_text()
    for method, settings in tuned.load(chosen).methods.items():
        mine = scored.filter(method=method)
        assert settings == ({} if mine["nll"].arg_min() == 0 else {"learning_rate": "0.01"})
        figures = f"| 2 | {mine['nll'][0]:.4f} | {mine['nll'].to_numpy().min():.4f} | {mine['steps'].sum():,} |"
        assert figures in costs

    table = ("bench", str(tmp_path / "small.toml"), *words, "--methods", "vanilla,oracle", "--source", log)
    given = ("--tuned", str(chosen), "--out", str(tmp_path / "table"))
    assert call(*table, *given) == 0
    text = (tmp_path / "table" / "table.md").read_text()
    assert "clicks judged, day 4 to day 6" in text
    assert "## What each method was given" in text
    assert "Chosen by pooled NLL on day 3 to day 4, seeds 0; judged here: day 4 to day 6, seeds 1." in text
    assert "What each method was given" in (tmp_path / "table" / "report.html").read_text()
    results = pl.read_parquet(tmp_path / "table" / "results.parquet")
    assert results["seed"].to_list() == [1, 1]
    for cell, clicks in results.select("cell", "clicks").iter_rows():
        folder = tmp_path / "table" / "cells" / cell
        scores = pl.read_parquet(folder / "scores.parquet")
        assert len(scores) == clicks
        assert min(scores["click_ts"].to_list()) >= 4 * DAY
        assert pl.read_parquet(folder / "intervals.parquet")["start"].min() == 4 * DAY

    capsys.readouterr()
    assert call(*table, *given) == 0  # the same command again goes on, here to nothing
    assert call(*table, *given[:2], "--seeds", "0", "--out", str(tmp_path / "no")) == 2
    assert call(*table, *given[:2], "--set", "judge_from=3.5d", "--out", str(tmp_path / "no")) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(errors) == 2
    assert "fresh seeds" in errors[0]
    assert "would be judged" in errors[1]


def test_a_search_takes_no_tuned_settings(tmp_path: Path) -> None:
    (tmp_path / "search.toml").write_text(TUNE)
    request = Request(suite.load(str(tmp_path / "search.toml")), "synthetic", tuned=TUNED)
    with pytest.raises(UserError, match="a search of its own"), hold_bench(request, tmp_path / "out"):
        pass


# What is said of it.


def told(out: Path, **facts: Any) -> str:
    bench = json.loads((madeup.bench(out) / "bench.json").read_text())
    write_json(out / "bench.json", bench | facts)
    tables.write(out)
    report.write(out)
    assert "What each method was given" in (out / "report.html").read_text()
    return (out / "table.md").read_text()


def test_what_was_given_is_told(tmp_path: Path) -> None:
    judged = {"from": PERIOD.until, "until": PERIOD.until + 3 * DAY}
    text = told(tmp_path / "new", tuned=TUNED.methods, tuned_on=asdict(PERIOD), judged=judged)
    given = "stream.learning_rate=0.0001 (but here stream.learning_rate=unknown)"
    assert f"| TRACE | {given} |" in text
    assert "| Oracle | defaults: not tuned |" in text
    assert "Settings were chosen for each method on" in (tmp_path / "new" / "report.html").read_text()
