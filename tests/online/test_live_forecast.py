"""Forecasts of a live model: the counts of its log, what its learner predicted, over the command line and HTTP."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from livestore import Made, finish, learnt, send, the_events
from tracecvr.base.config import DAY
from tracecvr.base.metrics import probability
from tracecvr.cli.commands import app
from tracecvr.forecast.cells import count, outcomes_of
from tracecvr.online.learner.learner import opened
from tracecvr.online.upkeep.forecast import NewestForecasts, forecasts_of


def test_it_is_that_of_the_log_and_of_what_the_learner_predicted(made: Made) -> None:
    store = made("vanilla")
    send(store, the_events())
    finish(store)
    learnt(store)
    asked = forecasts_of(store)
    live, segments = asked.cells("segment")
    table = store.base
    number = np.asarray(table.x[:, 0]).astype(np.int64)
    log = count(outcomes_of(table, number, np.full(len(table), np.nan, np.float32)), len(segments.names), asked.last)
    assert np.array_equal(live.clicks, log.clicks)
    assert np.array_equal(live.conversions, log.conversions)
    with opened(store) as learner:
        first = learner.ledger.first_of_stream
        rows = np.arange(first, learner.ledger.rows)
        known = table.click_ts[rows] < asked.last
        served = learner.prequential.of(rows[known])
    assert live.predicted.sum() == pytest.approx(probability(served).sum(), rel=1e-4)
    assert live.scored.sum() == len(served) > 100


def test_the_command_and_the_service_say_the_same(made: Made) -> None:
    store = made("vanilla")
    send(store, the_events()[:900])
    learnt(store)
    ran = CliRunner().invoke(app, ["forecast", str(store.folder), "--by", "segment", "--days", "2", "--json"])
    assert ran.exit_code == 0, ran.output
    printed = json.loads(ran.output)
    newest = NewestForecasts(store)
    answer = newest.rows("segment", 0.9, 2)
    assert [row["expected"] for row in answer["rows"]] == [row["expected"] for row in printed]
    assert {row["start"] for row in answer["rows"]} == {answer["at"] - DAY}
    send(store, the_events()[900:1800])
    learnt(store)
    assert newest.rows("segment", 0.9, 2)["at"] > answer["at"]
