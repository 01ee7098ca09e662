"""Forecasts of a live model: the counts of its log, what its learner predicted, over the command line and HTTP."""

from __future__ import annotations

import shutil
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from livestore import Made, finish, learnt, send, the_events
from tracecvr.base.config import DAY
from tracecvr.base.metrics import probability
from tracecvr.cli.commands import app
from tracecvr.forecast.cells import RECORD, count, outcomes_of
from tracecvr.online.learner.archive import erase
from tracecvr.online.learner.learner import open_learner
from tracecvr.online.learner.live_forecast import read_counts
from tracecvr.online.store.store import Store
from tracecvr.online.upkeep import verify_log
from tracecvr.online.upkeep.status import status_of
from tracecvr.online.upkeep.verify_log import NewestForecasts, forecasts_of


def test_it_is_that_of_the_log_and_of_what_the_learner_predicted(made: Made) -> None:
    store = made("vanilla")
    send(store, the_events())
    finish(store)
    learnt(store)
    asked = forecasts_of(store)
    live, names = asked.cells("segment")
    table = store.base
    number = np.asarray(table.x[:, 0]).astype(np.int64)
    log = count(outcomes_of(table, number, np.full(len(table), np.nan, np.float32)), len(names), asked.last)
    assert np.array_equal(live.clicks, log.clicks)
    assert np.array_equal(live.conversions, log.conversions)
    with open_learner(store) as learner:
        rows = np.arange(np.searchsorted(table.click_ts, store.grid.split), learner.ledger.rows)
        known = table.click_ts[rows] < asked.last
        served = learner.predictions.of(rows[known])
    assert live.predicted.sum() == pytest.approx(probability(served).sum(), rel=1e-4)
    assert live.scored.sum() == len(served) > 100


def test_the_command_and_the_status_say_the_same(made: Made) -> None:
    store = made("vanilla")
    send(store, the_events()[:900])
    learnt(store)
    ran = CliRunner().invoke(app, ["forecast", str(store.folder), "--out", str(store.folder / "all.csv")])
    assert ran.exit_code == 0, ran.output
    printed = pl.read_csv(store.folder / "all.csv").sort("age_days", descending=True).to_dicts()
    shown = status_of(store)["forecast"]["series"][0]["days"][-len(printed) :]
    for name in ("clicks", "conversions"):
        assert [day[name] for day in shown] == [row[name] for row in printed]
    expected = [row["expected"] for row in printed]  # sums of an interval are added in another order
    assert [day["expected"] for day in shown] == pytest.approx(expected, rel=1e-4)


def test_the_command_and_the_service_say_the_same(made: Made) -> None:
    store = made("vanilla")
    send(store, the_events()[:900])
    learnt(store)
    newest = NewestForecasts(store)
    before = newest.rows("segment", 0.9, 2)
    assert {row["start"] for row in before["rows"]} == {before["at"] - DAY}
    send(store, the_events()[900:1800])
    learnt(store)
    later = newest.rows("segment", 0.9, 2)
    assert later["at"] > before["at"]
    assert later == NewestForecasts(store).rows("segment", 0.9, 2)
    out = store.folder / "all.csv"
    ran = CliRunner().invoke(app, ["forecast", str(store.folder), "--by", "segment", "--days", "2", "--out", str(out)])
    assert ran.exit_code == 0, ran.output
    printed = {str(row["segment"]): row["expected"] for row in pl.read_csv(out).to_dicts()}
    expected = {row["segment"]: row["expected"] for row in later["rows"]}
    assert expected == pytest.approx(printed, rel=1e-4)  # sums of an interval are added in another order
    clicks = [sum(row["clicks"] for row in newest.rows(by, 0.9, 2)["rows"]) for by in ("segment", "item", None)]
    assert clicks[0] == clicks[1] == clicks[2] > 0


def test_the_log_is_read_once_for_each_midnight_and_after_an_erasure(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made("vanilla")
    send(store, [event | {"user": "u"} for event in the_events()[:900]])
    learnt(store)
    read = Mock(side_effect=forecasts_of)
    monkeypatch.setattr(verify_log, "forecasts_of", read)
    newest = NewestForecasts(store)
    for by in ("segment", None):
        newest.rows(by, 0.9, None)
    assert not read.called  # the learner has counted these
    for by in ("device", "item", "segment", "item"):
        newest.rows(by, 0.9, None)
    assert read.call_count == 1
    erase(store, "u")
    newest.rows("item", 0.9, None)
    assert read.call_count == 2


def test_a_restart_goes_on_with_the_same_counts_and_forecasts(made: Made) -> None:
    store = made("vanilla")
    send(store, the_events())
    shutil.copytree(store.folder, store.folder.with_name("other"))
    stores = [store, Store.open(store.folder.with_name("other"))]
    learnt(store)
    with open_learner(stores[1]) as learner:
        for _ in range(9):
            learner.tick()
        learner.forecast._count(np.zeros(7, RECORD))  # as if it was killed before the version was whole
    learnt(stores[1])
    whole, resumed = (status_of(store)["forecast"] for store in stores)
    assert whole == resumed
    one, other = (read_counts(store.log(), 0, 1 << 60).tolist() for store in stores)
    assert one == other
    all_clicks = whole["series"][0]
    assert all_clicks["segment"] is None
    assert all_clicks["figures"]["nll"][1] < all_clicks["figures"]["nll"][0] < all_clicks["figures"]["nll"][2]
    for day in all_clicks["days"]:
        assert day["first_low"] <= day["first"] <= day["first_high"]
        assert day["then"] <= day["conversions"]
