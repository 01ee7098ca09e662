"""Two benches: what changed, and what is noise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Call
from scipy.stats import ttest_ind, ttest_rel

import madeup
from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json, write_json
from tracecvr.bench.compare import Change, compare, summary_lines, welch

AFTER = {**madeup.AUC, "TRACE": (0.83, 0.861, 0.852), "DEFER": (0.76, 0.80, 0.779), "Vanilla": (0.70, 0.72, 0.712)}


def changes(one: Path, other: Path) -> dict[tuple[str, str], Change]:
    return {(change.row, change.metric): change for change in compare(one, other).changes}


def test_paired_by_seed_it_tells_better_worse_noise_and_same(tmp_path: Path) -> None:
    by_row = changes(madeup.bench(tmp_path / "a"), madeup.bench(tmp_path / "b", AFTER))
    assert {name: by_row[name, "auc"].verdict for name in madeup.AUC} == {
        "Pretrain": "same",
        "Vanilla": "worse",
        "DEFER": "noise",
        "TRACE": "better",
        "Oracle": "same",
    }
    assert by_row["TRACE", "nll"].verdict == "better"
    ours = by_row["TRACE", "auc"]
    assert ours.by == "paired"
    assert ours.after - ours.before == pytest.approx(ours.difference.mean) == pytest.approx(0.051)
    assert ours.difference.p == pytest.approx(ttest_rel(AFTER["TRACE"], madeup.AUC["TRACE"]).pvalue)


def test_other_seeds_are_judged_by_welch(tmp_path: Path) -> None:
    a, b = (madeup.bench(tmp_path / name, {"TRACE": madeup.AUC["TRACE"]}) for name in "ab")
    move(b, 10)
    change = changes(a, b)["TRACE", "auc"]
    assert change.by == "Welch"
    assert change.verdict == "same"
    assert change.difference.p == 1.0


def move(out: Path, by: int) -> None:
    """Give a made-up bench other seeds."""
    import polars as pl

    content = read_json(out / "bench.json")
    seeds = content["seeds"]
    write_json(out / "bench.json", content | {"seeds": [seed + by for seed in seeds]})
    path = out / "results.parquet"
    name = pl.col("cell").str.split("~").list.first() + "~seed" + (pl.col("seed") + by).cast(pl.String)
    pl.read_parquet(path).with_columns(cell=name, seed=pl.col("seed") + by).write_parquet(path)


def test_welch_equals_scipy() -> None:
    ours, theirs = [0.83, 0.86, 0.85, 0.9], [0.78, 0.81, 0.70]
    difference, expected = welch(ours, theirs), ttest_ind(ours, theirs, equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert difference.low == pytest.approx(interval.low)
    assert difference.high == pytest.approx(interval.high)
    assert difference.p == pytest.approx(expected.pvalue)
    assert welch([1.0], theirs).low is None
    assert welch([1.0, 1.0], [2.0, 2.0]).clear


def test_one_seed_tells_nothing_of_noise(tmp_path: Path) -> None:
    a, b = (madeup.bench(tmp_path / n, {"TRACE": (v,)}) for n, v in (("a", 0.7), ("b", 0.8)))
    assert changes(a, b)["TRACE", "auc"].verdict == "unknown"


def test_seeds_that_both_have_are_paired(tmp_path: Path) -> None:
    a = madeup.bench(tmp_path / "a", {"TRACE": (0.70, 0.72, None)})
    b = madeup.bench(tmp_path / "b", {"TRACE": (0.75, 0.772, 0.99)})
    change = changes(a, b)["TRACE", "auc"]
    assert change.by == "paired"
    assert (change.before, change.after) == pytest.approx((0.71, 0.761))


def test_rows_and_facts_that_differ_are_told(tmp_path: Path) -> None:
    a, b = madeup.bench(tmp_path / "a"), madeup.bench(tmp_path / "b", {**madeup.AUC, "GDFM": (0.7, 0.7, None)})
    write_json(b / "bench.json", read_json(b / "bench.json") | {"fingerprint": "g", "settings": {"lam": "1"}})
    lines = summary_lines(compare(a, b), ("a", "b"))
    assert "fingerprint differs: f and g" in lines
    assert "settings differs: {} and {'lam': '1'}" in lines
    assert "only in b: GDFM" in lines
    assert "b is not complete: 1 cells are not finished" in lines
    assert "the logs are not the same, so differences are not of the code or the settings alone" in lines
    assert lines[-1] == "15 figures: 15 the same"


@pytest.mark.parametrize(("key", "value"), [("data", "criteo"), ("suite", "other")])
def test_benches_of_two_kinds_are_refused(tmp_path: Path, key: str, value: str) -> None:
    a, b = madeup.bench(tmp_path / "a"), madeup.bench(tmp_path / "b")
    content = read_json(b / "bench.json")
    changed = {"suite": content["suite"] | {"name": value}} if key == "suite" else {key: value}
    write_json(b / "bench.json", content | changed)
    with pytest.raises(UserError, match=f"two kinds: {key} is"):
        compare(a, b)


def test_the_command(tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = madeup.bench(tmp_path / "a"), madeup.bench(tmp_path / "b", AFTER)
    assert call("compare", a, b) == 0
    shown = capsys.readouterr().out
    assert "+0.0510 [+0.0485, +0.0535] p<0.001" in shown
    assert "TRACE" in next(line for line in shown.splitlines() if "better" in line)
    assert call("compare", a, b, "--json") == 0
    first = json.loads(capsys.readouterr().out)[0]
    assert (first["row"], first["metric"], first["verdict"]) == ("Pretrain", "auc", "same")
    assert call("compare", a, tmp_path) == 2
    assert "no bench.json" in capsys.readouterr().err
