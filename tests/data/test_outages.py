"""Outages: what they hide from learners, from warm-up and from metrics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tracecvr.base.config import DAY, HOUR
from tracecvr.base.errors import UserError
from tracecvr.checks.subject import small_log
from tracecvr.data.outages import hides, pair
from tracecvr.data.table import NEVER, ClickTable, Schema
from tracecvr.datasets.hardships import OUTAGE, Hardships
from tracecvr.runs.run import run
from tracecvr.runs.spec import spec_of
from tracecvr.stream.reveal import After, On, Reveals
from tracecvr.stream.source import TableSource

GAP = (4 * DAY, 4 * DAY + 6 * HOUR)


@pytest.fixture(scope="module")
def table() -> ClickTable:
    return small_log()


def without_conversions(table: ClickTable, start: int, end: int) -> ClickTable:
    times = np.array(table.action_ts)
    times[(times >= start) & (times < end)] = NEVER
    return replace(table, action_ts=times)


def test_a_click_that_was_old_when_a_short_outage_began_is_not_hidden() -> None:
    clicked = np.array([0, 95])
    assert hides(((100, 105),), clicked, np.array([200, 200])).tolist() == [False, True]
    assert hides(((100, 105),), clicked, np.array([103, 103])).tolist() == [True, True]


def sure(events: Reveals) -> Reveals:
    """Without later events of clicks that were old when the outage began: of these, a few may be wrong."""
    old = (events.arrival < GAP[0]) & (events.elapsed + events.arrival >= GAP[1])
    return events.take((~old).nonzero()[:, 0])


def test_what_is_lost_in_a_declared_outage_changes_nothing_that_is_learnt(table: ClickTable) -> None:
    """Events before it are the same, and later ones are of clicks that came later, or were old."""
    whole, lossy = TableSource(table), TableSource(without_conversions(table, *GAP))
    schedule = (After(HOUR), After(2 * DAY), On(0, later_than=HOUR))
    whole.outages = lossy.outages = (GAP,)
    hidden = 0
    for start in range(3 * DAY, 6 * DAY, HOUR):
        ours, theirs = (source.reveals(schedule, start, start + HOUR) for source in (whole, lossy))
        mine, other = (sure(events) for events in (ours, theirs))
        assert mine.row.tolist() == other.row.tolist()
        assert mine.label.tolist() == other.label.tolist()
        whole.outages, before = (), whole.outages
        hidden += len(whole.reveals(schedule, start, start + HOUR)) - len(ours)
        whole.outages = before
    assert hidden > 500


def test_warm_up_is_without_clicks_whose_labels_are_hidden(table: ClickTable) -> None:
    source = TableSource(table)
    whole = len(source.history(3 * DAY, "censored"))
    source.outages = ((DAY, DAY + 12 * HOUR),)
    history = source.history(3 * DAY, "censored")
    arrival = np.concatenate([b.arrival.numpy() for b in history.batches(500, None)])
    assert 0 < len(history) == len(arrival) < whole
    assert not ((arrival >= 0.5 * DAY) & (arrival < 1.5 * DAY)).any()
    earlier, later = history.split_off(0.2)
    assert len(earlier) + len(later) == len(history)
    assert next(later.batches(10, None)).arrival.min() >= arrival[: len(earlier)].max()


def test_clicks_that_an_outage_hides_are_not_judged(tmp_path: Path) -> None:
    settings = {"hidden": "8", "warm_epochs": "1"}
    data = ["clicks=3000", "days=6", "split=3d", "d_max=2d", "horizons=1h,2d", "interval=6h"]

    def result(name: str, **more: str) -> dict[str, object]:
        spec = spec_of("vanilla", (), "synthetic", None, settings | more, data)
        return run(spec, tmp_path / name)

    result("with", outages="4d,102h")
    scores = pl.read_parquet(tmp_path / "with" / "scores.parquet")
    inside = pl.col("click_ts").is_between(4 * DAY, 102 * HOUR, closed="left")
    assert scores.filter(inside)["weight"].sum() == 0
    assert scores.filter(pl.col("click_ts") >= 102 * HOUR)["weight"].min() == 1
    with pytest.raises(UserError, match="an outage hides the outcome of every click"):
        result("none", outages="1d,9d")
    with pytest.raises(UserError, match="give start and end of each outage"):
        result("odd", outages="1d")


def test_outages_are_part_of_a_schema(table: ClickTable) -> None:
    declared = replace(table.schema, outages=pair((1, 2, 5, 9), "outages"))
    assert Schema.from_json(declared.to_json()) == declared


@pytest.mark.slow
def test_holding_on_an_outage_saves_the_model(tmp_path: Path) -> None:
    """The log of the gauntlet: without holding, NLL is .454; logistic regression has .442."""
    spec = spec_of("telescoped", (), "hardships", None, {"judge_from": "16d"}, ["hardship=outage"])
    outcome = run(spec, tmp_path / "run")
    (alarm,) = [a for a in outcome["alarms"] if a["kind"] == "stopped"]
    assert (alarm["since"], alarm["ended"]) == OUTAGE
    assert outcome["metrics"]["pooled"]["nll"] < 0.442
    assert Hardships(hardship="outage").split < OUTAGE[0]
