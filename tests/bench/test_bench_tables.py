"""Tables, from made-up results: who is ranked, against whom, and whose numbers are whose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tracecvr.base.config import DAY
from tracecvr.base.errors import UserError
from tracecvr.base.files import write_json
from tracecvr.base.metrics import INTERVAL_METRICS
from tracecvr.bench import tables, tuned
from tracecvr.bench.outcome import POOLED, SCHEMA
from tracecvr.bench.tuned import Period

FIGURES = dict.fromkeys(POOLED, 0.5) | {f"interval_{name}": 0.5 for name in INTERVAL_METRICS}


def row(label: str, method: str, role: str = "method", base: str = "", **more: Any) -> dict[str, Any]:
    plain = {"label": label, "method": method, "plugins": [], "settings": {}, "role": role, "variant": "", "base": base}
    return plain | {"name": label} | more


def bench(out: Path, rows: list[dict[str, Any]], figures: list[list[float]], metric: str = "auc", **more: Any) -> Path:
    """A bench directory whose cells have these figures, by row and seed, in one metric and 0.5 in all others."""
    asked = {"name": "mine", "about": "made up", "layout": "comparison", "metrics": [metric]} | more.pop("suite", {})
    seeds = list(range(len(figures[0])))
    write_json(out / "bench.json", {"suite": asked, "data": "synthetic", "rows": rows, "seeds": seeds} | more)
    cells = [
        dict.fromkeys(SCHEMA)
        | {key: one[key] for key in ("label", "variant", "role", "base", "method")}
        | {"cell": f"{one['name']}~seed{seed}", "seed": seed, "clicks": 100, "events_per_click": 1.0}
        | FIGURES
        | {"steps_per_click": 0.01, metric: value, f"interval_{metric}": value}
        for one, values in zip(rows, figures, strict=True)
        for seed, value in enumerate(values)
    ]
    frame = pl.DataFrame([{name: cell[name] for name in SCHEMA} for cell in cells], SCHEMA)
    frame.write_parquet(out / "results.parquet")
    tables.write(out)
    return out


COMPARED = [
    row("Pretrain", "pretrain", "lower"),
    row("Vanilla", "vanilla", "zero"),
    row("DEFER", "defer"),
    row("TRACE", "trace", "ours"),
    row("Oracle", "oracle", "upper"),
]
AUC = [[0.70, 0.72], [0.74, 0.76], [0.76, 0.80], [0.78, 0.81], [0.80, 0.82]]


def lines(out: Path, start: str) -> list[str]:
    return [line for line in (out / "table.md").read_text().splitlines() if line.startswith(start)]


def test_a_comparison_ranks_all_but_bounds(tmp_path: Path) -> None:
    out = bench(tmp_path, COMPARED, AUC)
    assert lines(out, "| TRACE")[0] == "| TRACE | **0.7950 ± 0.0212** | 1.00 | 10 |"
    assert lines(out, "| DEFER")[0].startswith("| DEFER | <u>0.7800 ± 0.0283</u> |")
    assert lines(out, "| Oracle")[0].startswith("| Oracle | 0.8100 ± 0.0141 |")


def test_relative_improvement_on_both_scales(tmp_path: Path) -> None:
    out = bench(tmp_path, COMPARED, AUC)
    assert lines(out, "| TRACE")[2] == "| TRACE | 0.850 | 0.750 |"  # .085 of .10, and .045 of .06
    assert lines(out, "| Pretrain")[2] == "| Pretrain | 0.000 | -0.667 |"  # -.04 of .06


def test_differences_are_against_the_best_other(tmp_path: Path) -> None:
    """Not against a bound. By seed +.02 and +.01: t(1) = 12.7062, error .005."""
    out = bench(tmp_path, COMPARED, AUC)
    assert lines(out, "| TRACE")[3] == "| TRACE | best other | +0.0150 [-0.0485, +0.0785] p=0.205 |"
    assert lines(out, "| DEFER")[3] == "| DEFER | best other | -0.0150 [-0.0785, +0.0485] p=0.205 |"
    assert len(lines(out, "| Oracle")) == 3
    assert "Best: TRACE before DEFER in AUC." in (out / "table.md").read_text()


def test_a_lower_loss_is_the_better_one(tmp_path: Path) -> None:
    out = bench(tmp_path, COMPARED, [[1 - x for x in values] for values in AUC], "nll")
    assert "**0.2050" in lines(out, "| TRACE")[0]
    assert lines(out, "| TRACE")[2].startswith("| TRACE | 0.850 |")


def test_changes_are_against_the_row_that_is_named(tmp_path: Path) -> None:
    rows = [row("TRACE", "trace", "ours"), row("w/o Gate", "trace", base="TRACE")]
    out = bench(tmp_path, rows, [[0.7, 0.8], [0.6, 0.8]], suite={"layout": "changes"})
    assert lines(out, "| w/o Gate | TRACE |")[0].startswith("| w/o Gate | TRACE | -0.0500 [")


def test_cells_that_are_missing_are_counted_and_pairs_are_those_that_both_have(tmp_path: Path) -> None:
    out = bench(tmp_path, COMPARED, AUC)
    frame = pl.read_parquet(out / "results.parquet")
    frame.filter(pl.col("cell") != "TRACE~seed1").write_parquet(out / "results.parquet")
    tables.write(out)
    assert "1 cells are not finished" in (out / "table.md").read_text()
    assert lines(out, "| TRACE")[3] == "| TRACE | best other | +0.0200 |"


# Tuning.


def test_the_best_trial_of_each_method_is_handed_on(tmp_path: Path) -> None:
    trials = [{}, {"learning_rate": "0.0001"}, {"learning_rate": "0.01"}]
    rows = [row(m, m, name=f"{m}-{trial}", variant=f"trial {trial}") for m in ("fnw", "trace") for trial in range(3)]
    asked = {"layout": "tune", "trials": trials, "learning": "ours", "settings": {}}
    figures = [[0.5, 0.5], [0.4, 0.4], [0.3, 0.6], [0.2, 0.2], [0.3, 0.3], [0.4, 0.4]]
    judged = {"from": 3 * DAY, "until": 10 * DAY}
    out = bench(tmp_path, rows, figures, "nll", suite=asked, settings={}, tuned={}, fingerprint="f", judged=judged)
    tuned.write_best(out)
    chosen = tuned.load(out / "tuned.toml")
    assert chosen.methods == {"fnw": trials[1], "trace": {}}  # fnw's second; trace's own defaults
    assert chosen.period == Period("synthetic", "f", 3 * DAY, 10 * DAY, [0, 1])
    papers = json.loads((out / "bench.json").read_text())
    papers["suite"]["learning"] = "paper"
    write_json(out / "bench.json", papers)
    tuned.write_best(out)
    assert tuned.load(out / "tuned.toml").learning == "paper"
    assert lines(out, "| FNW")[0].startswith("| FNW | learning_rate=0.0001 | 3 | 0.5000 | 0.4000 |")
    assert "| defaults |" in lines(out, "| TRACE")[0]
    assert "on day 3 to day 10" in (out / "table.md").read_text()
    with pytest.raises(UserError, match="no such file"):
        tuned.load(out / "other.toml")


# How the stream was learnt.


def head(out: Path, learning: dict[str, str], settings: dict[str, str] | None = None, **more: Any) -> str:
    asked = {"settings": {"warm_labels": "mature", "batch_size": "256"}} | learning
    bench(out, COMPARED, AUC, suite=asked, settings=settings or {}, **{"tuned": {}} | more)
    return (out / "table.md").read_text().splitlines()[2]


def test_the_head_says_how_the_stream_was_learnt(tmp_path: Path) -> None:
    ours = head(tmp_path, {"learning": "ours"}, {"until": "9d"})
    assert ours.endswith(
        "Learning settings: ours (a step size that fits the interval, larger steps for the level, a 12-hour average)."
    )
    paper = head(tmp_path, {"learning": "paper"}, {"stream.average": "2d", "until": "9d"})
    assert "Learning settings: the paper's (a plain perceptron, step size and batch size as in warm-up" in paper
    assert paper.endswith("newest weights served), but batch_size=256, stream.average=2d.")
    tuned_head = head(tmp_path, {"learning": "ours"}, {"average": "2d"}, tuned={"trace": {"lam": "1"}})
    assert tuned_head.endswith("a 12-hour average), but average=2d, and what was tuned for each method.")
    assert "earning" not in head(tmp_path, {})  # a bench of old does not say it
