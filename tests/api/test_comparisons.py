"""`tc.compare`: a table with intervals, paired differences, single runs; from a script without a guard, too."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tracecvr as tc
from tracecvr.base import registry
from tracecvr.bench import stats
from tracecvr.methods.vanilla import Vanilla

SMALL: dict[str, Any] = {"hidden": [8], "warm_epochs": 1, "interval": "1d", "progress": False}


@pytest.fixture(scope="module")
def log() -> tc.Log:
    return tc.dataset("synthetic", clicks=800)


@pytest.fixture(scope="module")
def board(log: tc.Log) -> tc.Board:
    return tc.compare(log, ["vanilla", "oracle"], seeds=2, workers=1, **SMALL)


def test_means_with_intervals(board: tc.Board) -> None:
    assert list(board.frame["method"]) == ["Vanilla", "Oracle"]
    auc = board.outcome.results.filter(method="vanilla")["auc"].to_list()
    row = board.frame.row(0, named=True)
    assert row["auc"] == pytest.approx(sum(auc) / 2)
    half = 12.7062 * abs(auc[0] - auc[1]) / 2  # Student's t with one degree of freedom
    assert row["auc_high"] - row["auc"] == pytest.approx(half, rel=1e-4)
    assert stats.spread([0.5]).interval() == (None, None)


def test_differences_are_paired_by_seed(board: tc.Board) -> None:
    both = board.differences.filter(metric="nll")
    one, other = both.rows(named=True)
    assert (one["method"], one["against"], one["over"]) == ("Vanilla", "Oracle", "seeds")
    assert one["difference"] == -other["difference"]
    assert one["low"] < one["difference"] < one["high"]


def test_single_runs_and_pages(board: tc.Board) -> None:
    first = board.result("oracle", seed=1)
    assert first.content["seed"] == 1
    assert first.metrics["nll"] == board.outcome.results.filter(method="oracle", seed=1)["nll"][0]
    assert board.report.read_text().startswith("<!doctype html>")
    assert all(metric in repr(board) for metric in ("auc", "nll", "pcoc"))
    assert f"{board.frame['nll'][0]:.4f}" in repr(board)
    page = board._repr_html_()
    assert "Paired differences" in page
    assert "<svg" in page
    with pytest.raises(tc.UserError, match="there are: Vanilla, Oracle"):
        board.result("trace")
    with pytest.raises(tc.UserError, match="seeds are 0, 1"):
        board.result("oracle", seed=5)


def test_a_run_of_the_board_is_the_run_alone(board: tc.Board, log: tc.Log) -> None:
    alone = tc.replay(log, "vanilla", seed=1, threads=1, **SMALL)
    assert alone.scores.equals(board.result("vanilla", seed=1).scores)


def test_rows_with_labels_and_options_of_their_own(log: tc.Log, tmp_path: Path) -> None:
    rows = {"{short}": {"method": "vanilla", "window": "15min"}, "long": {"method": "vanilla", "window": "2h"}}
    made = tc.compare(log, rows, workers=1, out=tmp_path / "bench", **SMALL)
    assert list(made.frame["method"]) == ["{short}", "long"]
    windows = [made.result(label).content["config"]["method"]["window"] for label in ("{short}", "long")]
    assert windows == [900, 7200]
    assert tc.Board(tmp_path / "bench").frame.equals(made.frame)


@pytest.mark.parametrize(
    ("methods", "options", "message"),
    [
        (["vanila"], {}, "did you mean 'vanilla'"),
        ([], {}, "give at least one"),
        (["vanilla"], {"lamm": 1}, "option lamm: no row of suite 'comparison' has such an option"),
        (["vanilla"], {"window": "soon"}, "option window=soon: expected duration"),
        (["vanilla"], {"metrics": ["acu"]}, "unknown metric 'acu'.*did you mean 'auc'"),
        (["vanilla"], {"seeds": 0}, "at least one"),
        ({"mine": {"window": "1h"}}, {}, "name its method"),
    ],
)
def test_mistakes_are_named_before_anything_runs(
    methods: Any, options: dict[str, Any], message: str, log: tc.Log
) -> None:
    with pytest.raises(tc.UserError, match=message):
        tc.compare(log, methods, **SMALL | options)


@dataclass
class Calm(Vanilla):
    """Vanilla under another name."""

    name = "calm"


def test_a_class_that_only_this_process_knows(log: tc.Log) -> None:
    try:
        made = tc.compare(log, [Calm, "vanilla"], **SMALL)  # no worker process could find it
    finally:
        registry.unregister("method", "calm")
    assert made.frame["nll"].n_unique() == 1
    assert made.failed == {}


@pytest.mark.slow  # three processes import torch; test_bench_processes has the same without it
def test_workers_do_not_run_the_script_again(tmp_path: Path) -> None:
    script = tmp_path / "five_lines.py"
    script.write_text(
        "import tracecvr as tc\n"
        'print("begin")\n'
        'log = tc.dataset("synthetic", clicks=500)\n'
        'board = tc.compare(log, ["pretrain", "vanilla"], workers=2, hidden=[4], interval="2d", progress=False)\n'
        "print(len(board.frame))\n"
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, env=dict(os.environ))
    assert run.stdout.split() == ["begin", "2"]
