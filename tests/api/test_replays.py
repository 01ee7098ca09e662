"""`tc.replay`: figures, scores and the model; progress of intervals; options and their mistakes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from conftest import Call

import tracecvr as tc
from shop import START, shop
from tracecvr.base import metrics, registry
from tracecvr.methods.vanilla import Vanilla

SMALL: dict[str, Any] = {"hidden": [8], "warm_epochs": 1, "interval": "12h", "threads": 1, "progress": False}


@pytest.fixture(scope="module")
def log() -> tc.Log:
    return tc.read(shop().clicks, shop().sales, id="click", click_time="ts", d_max="2d", progress=False)


@pytest.fixture(scope="module")
def intervals() -> list[tc.Interval]:
    return []


@pytest.fixture(scope="module")
def result(log: tc.Log, intervals: list[tc.Interval]) -> tc.Result:
    return tc.replay(log, "trace", on_interval=intervals.append, **SMALL)


def test_scores_have_ids_times_and_probabilities(result: tc.Result, log: tc.Log) -> None:
    scores = result.scores
    assert scores.columns == ["click_id", "time", "probability", "log_odds", "label"]
    assert result.metrics["pcoc"] == pytest.approx(scores["probability"].mean() / scores["label"].mean())  # type: ignore[operator]
    clicks = shop().clicks.unique("click", maintain_order=True)
    joined = scores.join(clicks, left_on="click_id", right_on="click", how="left")
    assert (joined["time"] == joined["ts"].dt.truncate("1s")).all()
    assert set(scores.filter("label")["click_id"]) <= set(shop().sales["click"])
    assert scores["probability"].is_between(0, 1).all()


def test_the_callback_sees_what_intervals_hold(result: tc.Result, intervals: list[tc.Interval]) -> None:
    assert [one.number for one in intervals] == list(range(intervals[0].total))
    judged = [one for one in intervals if one.clicks]
    frame = result.intervals
    assert [one.time for one in judged] == frame["time"].to_list()
    assert [one.conversions for one in judged] == frame["conversions"].to_list()
    for name in ("auc", "nll", "pcoc"):
        assert [one.metrics[name] for one in judged] == frame[name].to_list()
    assert sum(one.events for one in intervals) == result.content["cost"]["reveals"]


def test_it_shows_itself(result: tc.Result) -> None:
    page = result._repr_html_()
    assert "logistic regression" in page
    assert "<svg" in page
    assert "warm_labels=censored: labels of the warm-up part are those known at the split" in page
    assert repr(result).startswith("trace: AUC 0.")
    assert "<svg" in result.plot()._repr_html_()


def test_the_model_predicts_from_frames_and_from_dictionaries(result: tc.Result) -> None:
    rows = shop().clicks.tail(50)
    p = result.model.predict(rows)
    assert p.shape == (50,)
    assert np.array_equal(p, metrics.probability(result.model.log_odds(rows)))
    assert result.model.predict(rows.head(1).to_dicts()) == pytest.approx(p[:1], abs=1e-6)
    assert result.model.features == ("campaign", "price")


def test_a_saved_model_answers_the_same(result: tc.Result, tmp_path: Path) -> None:
    path = result.model.save(tmp_path / "model")
    assert np.array_equal(tc.load(path).predict(shop().clicks), result.model.predict(shop().clicks))
    assert np.array_equal(tc.load(result.folder).predict(shop().clicks), result.model.predict(shop().clicks))
    with pytest.raises(tc.UserError, match="exists already"):
        result.model.save(path)


def test_posteriors_at_a_moment_and_at_an_age_agree(result: tc.Result) -> None:
    rows = shop().clicks.head(4).drop("ts")
    at = START + timedelta(days=3)
    timed = rows.with_columns(
        clicked=pl.lit(at - timedelta(hours=30)),
        conversion=pl.Series(
            [None, at - timedelta(hours=2), at + timedelta(hours=2), None], dtype=pl.Datetime("us", "UTC")
        ),
    )
    aged = rows.with_columns(conversion=pl.Series([None, 28 * 3600, None, None]))
    moment = result.model.posterior(timed, at=at, click_time="clicked")
    assert np.array_equal(moment, result.model.posterior(aged, age="30h"))
    assert moment[1] == 1.0  # converted by then; of the third click nothing is known yet
    nothing = result.model.posterior(rows, age="30h", actions={})
    assert np.array_equal(moment[[0, 2, 3]], nothing[[0, 2, 3]])
    assert (nothing < result.model.predict(rows)).all()  # 30 of 48 hours have passed without a conversion


def test_questions_that_cannot_be_answered(result: tc.Result) -> None:
    rows = shop().clicks.head(2)
    for arguments, message in (
        ({}, "either at"),
        ({"age": "1h"}, "column 'conversion' is missing"),
        ({"age": "1h", "actions": {"cart": "price"}}, "unknown action 'cart'"),
        ({"at": START - timedelta(days=1), "click_time": "ts", "actions": {}}, "a click after at"),
        ({"at": START, "click_time": "when", "actions": {}}, "column 'when' is missing"),
        ({"at": START, "click_time": "campaign", "actions": {}}, "campaign: row 1: 'camp.*' is no time"),
    ):
        with pytest.raises(tc.UserError, match=message):
            result.model.posterior(rows, **arguments)
    with pytest.raises(tc.UserError, match="column 'price' is missing"):
        result.model.predict(rows.drop("price"))


def test_options_as_keywords_or_as_a_dictionary(log: tc.Log) -> None:
    keywords = tc.replay(log, "vanilla", **SMALL, window="2h", stream={"learning_rate": 1e-3, "average": None})
    given = {"window": timedelta(hours=2), "stream.learning_rate": 0.001, "stream.average": None}
    assert keywords.scores.equals(tc.replay(log, "vanilla", **SMALL, options=given).scores)
    assert keywords.content["config"]["method"]["window"] == 7200
    assert keywords.content["plan"]["warm_labels"] == "censored"


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("trase", {}, "unknown method 'trase'.*did you mean 'trace'"),
        ("vanilla", {"windov": "1h"}, "option: unknown key 'windov'.*did you mean 'window'"),
        ("vanilla", {"window": "soon"}, "option window=soon: expected duration"),
        ("vanilla", {"warm_labels": "final"}, "choose one of censored, mature"),
    ],
)
def test_mistakes_are_named(method: str, options: dict[str, Any], message: str, log: tc.Log) -> None:
    with pytest.raises(tc.UserError, match=message):
        tc.replay(log, method, **SMALL | options)


@dataclass
class Patient(Vanilla):
    """Vanilla under another name."""

    name = "patient"


def test_a_class_of_ones_own(log: tc.Log) -> None:
    try:
        own = tc.replay(log, Patient, window="3h", **SMALL)
        assert own.scores.equals(tc.replay(log, "vanilla", window="3h", **SMALL).scores)
        assert "patient" in tc.available("method")
    finally:
        registry.unregister("method", "patient")
    with pytest.raises(tc.UserError, match="is installed"):
        tc.register(type("Mine", (Vanilla,), {"name": "trace"}))


def test_the_command_does_the_same(log: tc.Log, result: tc.Result, tmp_path: Path, call: Call) -> None:
    log.save(tmp_path / "table")
    settings = [word for pair in ("hidden=8", "warm_epochs=1", "interval=12h") for word in ("--set", pair)]
    words = ("run", "--method", "trace", "--data", "logs", "--source", tmp_path / "table", "--threads", "1")
    assert call(*words, *settings, "--out", tmp_path / "run") == 0
    again = tc.load_result(tmp_path / "run")
    assert again.scores.equals(result.scores)
    assert again.metrics == result.metrics


def test_importing_is_fast_and_nothing_is_missing() -> None:
    code = "import sys, tracecvr; print('torch' in sys.modules, 'polars' in sys.modules, 'pandas' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output.split() == ["False", "False", "False"]
    assert set(tc.__all__) <= set(dir(tc))
    assert all(getattr(tc, name) is not None for name in tc.__all__)
    with pytest.raises(AttributeError, match="no attribute 'replai'"):
        tc.replai  # noqa: B018


def test_times_without_a_calendar_are_seconds() -> None:
    small = tc.replay(
        tc.dataset("synthetic", clicks=600, interval="1d"), "pretrain", hidden=[4], threads=1, progress=False
    )
    assert small.scores["time"].dtype == pl.Int64
    assert tc.Interval(0, 1, 60, 0, 0, 0, {}).time is None
    assert tc.Interval(0, 1, 60, 0, 0, 0, {}, origin=0).time == datetime(1970, 1, 1, 0, 1, tzinfo=UTC)
