"""Open clicks in a bench: which estimates are compared, over seeds and over days."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import madeup
from tracecvr.base.config import DAY, HOUR
from tracecvr.bench import posteriors, stats, tables
from tracecvr.bench.posteriors import Judge, Judged, differences
from tracecvr.bench.tables import Outcome

ONE_SEED = {"DEFER": (0.7,), "TRACE": (0.8,), "Oracle": (0.9,)}
GAPS = (-0.05, -0.06, -0.04, -0.05, -0.07, 0.01)


def one_seed(out: Path, days: int = 6) -> Outcome:
    """The posterior's NLL of each day is the others' and a gap; later days have more clicks."""
    bench = madeup.bench(out, ONE_SEED, layout="posterior")
    rows = [
        {
            "start": day * DAY,
            "age_s": HOUR,
            "estimate": estimate,
            "clicks": 100 + day,
            "ece": 0.1,
            "nll": 0.4,
            "auc": None,
        }
        | ({"nll": 0.4 + GAPS[day]} if estimate == "posterior" else {})
        for day in range(days)
        for estimate in ("posterior", "static", "survival")
    ]
    frame = pl.DataFrame(rows, schema_overrides={"auc": pl.Float64})
    for name in ONE_SEED:
        frame.write_parquet(bench / "cells" / f"{name}~seed0" / "posterior_days.parquet")
    return Outcome(bench)


def difference(outcome: Outcome, metric: str, age: int = HOUR) -> stats.Difference | None:
    ours = outcome.of_role("ours")
    assert ours is not None
    return Judged(outcome).difference(Judge(ours, "posterior"), Judge(ours, "survival"), age, metric)


def test_one_seed_is_compared_over_days(tmp_path: Path) -> None:
    paired = difference(one_seed(tmp_path), "nll")
    assert paired is not None
    assert (paired.over, paired.n) == ("days", 6)
    by_hand = sum((100 + day) * gap for day, gap in enumerate(GAPS)) / sum(100 + day for day in range(6))
    assert paired.mean == pytest.approx(by_hand)
    assert paired.low is not None
    assert paired.high is not None
    assert min(GAPS) < paired.low < by_hand < paired.high < 0


def test_too_few_days_or_none_leave_the_difference_without_an_interval(tmp_path: Path) -> None:
    few, other_age, undefined = (
        difference(one_seed(tmp_path / "few", 4), "nll"),
        difference(one_seed(tmp_path / "age"), "nll", DAY),
        difference(one_seed(tmp_path / "auc"), "auc"),
    )
    for paired, mean in ((few, -0.1), (other_age, -0.1), (undefined, 0.0)):
        assert paired is not None
        assert paired.mean == pytest.approx(mean)
        assert paired.low is None


def test_several_seeds_are_compared_by_seed(tmp_path: Path) -> None:
    paired = difference(Outcome(madeup.bench(tmp_path, layout="posterior")), "nll")
    assert paired is not None
    assert (paired.over, paired.n) == ("seeds", 3)
    assert paired.mean == pytest.approx(-0.1)


def test_the_trajectory_stands_against_both_others_and_against_other_methods(tmp_path: Path) -> None:
    (made,) = differences(one_seed(tmp_path))
    against = [[place.text for place in row[:3]] for row in made.rows if row[2].text.startswith("NLL")]
    survival = "p S(e) / (1 - p + p S(e))"
    assert against == [
        ["DEFER", "p", "NLL ↓"],
        ["DEFER", survival, "NLL ↓"],
        ["TRACE", "p", "NLL ↓"],
        ["TRACE", survival, "NLL ↓"],
        ["TRACE", f"DEFER: {survival}", "NLL ↓"],
    ]
    first = next(row for row in made.rows if row[2].text.startswith("NLL"))
    at_an_hour = first[made.headings.index("1 h")]
    assert at_an_hour.bold
    assert at_an_hour.text.startswith("-0.043")
    assert any("bootstrap over days" in note for note in made.notes)


def test_a_row_without_a_posterior_of_its_own_has_none_shown_or_compared(tmp_path: Path) -> None:
    outcome = one_seed(tmp_path)
    path = outcome.out / "posterior.parquet"
    estimates = pl.read_parquet(path)
    of_defer = (pl.col("label") == "DEFER") & (pl.col("estimate") == "posterior")
    static = estimates.filter(label="DEFER", estimate="static")["nll"][0]
    estimates.with_columns(nll=pl.when(of_defer).then(static).otherwise("nll")).write_parquet(path)
    (made,) = differences(outcome)
    assert {row[0].text for row in made.rows} == {"TRACE"}
    shown = [(row[0].text, row[1].text) for row in posteriors.tables(outcome)[0].rows]
    assert ("TRACE", "p(y | x, trajectory)") in shown
    assert [estimate for name, estimate in shown if name == "DEFER"] == ["p", "p S(e) / (1 - p + p S(e))"]


def test_they_stand_below_the_tables(tmp_path: Path) -> None:
    out = one_seed(tmp_path).out
    tables.write(out)
    assert "## Paired differences among open clicks" in (out / "table.md").read_text()
