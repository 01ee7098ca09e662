"""Challengers over HTTP: who answers is the model that was promoted, and the log keeps which one it was."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from livestore import SMALL, Made, send, the_events
from service_client import Client
from test_service import asked, served, until, without_type
from tracecvr.base import registry
from tracecvr.base.config import DAY
from tracecvr.base.errors import UserError
from tracecvr.data.table import NEVER
from tracecvr.learn.stream_learning import StreamLearning
from tracecvr.online.challengers.learners import Learners
from tracecvr.online.learner.archive import WholeLog
from tracecvr.online.service.scorer import LiveScorer
from tracecvr.online.store.challenge import create, drop, find_challenger
from tracecvr.online.store.store import Store
from tracecvr.online.store.versions import Versions

EVENTS = [event for event in the_events() if event["ts"] < 4 * DAY]
CLICKS = [without_type(event) for event in EVENTS if event["type"] == "click"]


@pytest.fixture
def store(made: Made) -> Store:
    """A store with a challenger, both of which have versions."""
    made_store = made("vanilla")
    method = registry.get("method", "fnw")(**SMALL | {"hidden": (8,)})
    create(made_store, "other", (method, (), StreamLearning()), seed=3)
    learn_all(made_store)
    return made_store


def learn_all(store: Store) -> None:
    with Learners(store) as learners:
        list(learners.all())


def scores_of(store: Store, clicks: list[dict[str, Any]]) -> list[float]:
    """What a model's scorer says, one by one."""
    scorer = LiveScorer(store)
    scorer.refresh()
    return [scorer.score([store.reader.values(click["features"])]).log_odds[0] for click in clicks]


def test_the_log_says_which_model_has_answered_each_click(store: Store) -> None:
    models = [None] * 100 + ["other"] * 100
    with served(store) as url, Client(url) as client:
        client.clicks(CLICKS[:100])
        client.promote_model("other")
        scores = client.clicks(CLICKS[:200])["scores"]
        known = [client.click(CLICKS[number]["click_id"])["model_at_click"] for number in (0, 100)]
    assert [score.get("model") for score in scores] == models, "what is sent again is answered as it was"
    expected = {None: scores_of(store, CLICKS[:200]), "other": scores_of(find_challenger(store, "other"), CLICKS[:200])}
    for number, score in enumerate(scores):
        assert score["log_odds"] == pytest.approx(expected[score.get("model")][number], abs=1e-5)
    assert known == [None, "other"]
    kept = {row.click: row.model for row in store.log().before(NEVER)}
    assert [kept[int(click["click_id"])] for click in CLICKS[:200]] == models


def test_figures_as_served_are_of_the_model_that_answered(store: Store) -> None:
    rows = [store.reader.read(event) for event in EVENTS]
    by = {None: (-1.0, 0), "other": (-3.0, 5)}
    scored = []
    for row in rows:
        model = "other" if row.click % 4 == 0 else None
        score, version = by[model]
        scored.append(row._replace(score=score, version=version, model=model) if row.kind == 0 else row)
    log = store.log()
    log.append(scored)
    clicks = [row for row in scored if row.kind == 0]
    span = store.grid.split, 4 * DAY
    own, other = (
        [answer for row in WholeLog(model).between(*span) if not math.isnan(answer := row.answer_for(model.model))]
        for model in (store, find_challenger(store, "other"))
    )
    assert len(own) == len(clicks), "what clients were answered, by whichever model"
    assert set(own) == {-1.0, -3.0}
    assert set(other) == {-3.0}
    assert len(other) == sum(row.model == "other" for row in clicks)
    log.close_until(6 * DAY)
    learn_all(store)
    versions = Versions(find_challenger(store, "other").home, 48).latest()
    assert versions is not None
    assert versions["mature"]["as_served"]["clicks"] == len(other)


def test_a_promotion_is_taken_back(store: Store) -> None:
    one = CLICKS[0]
    own, other = scores_of(store, [one])[0], scores_of(find_challenger(store, "other"), [one])[0]
    assert own != other
    with served(store) as url, Client(url) as client:
        assert client.promote_model("other") == {"serving": 0, "model": "other"}
        answer = client.score([one["features"]])
        assert (answer["model"], answer["scores"][0]["log_odds"]) == ("other", pytest.approx(other))
        assert client.model()["method"] == "fnw"
        assert client.status()["serving_model"] == "other"
        assert asked(url, "GET", "/readyz")[1] == "version 0 of other"
        assert client.promote_model(None) == {"serving": 0}
        assert client.score([one["features"]])["scores"][0]["log_odds"] == pytest.approx(own)
        for wrong, why in (
            ({"model": "nobody"}, "there is no challenger 'nobody'"),
            ({"model": "../../other"}, "there is no challenger"),
            ({}, "either version or model"),
            ({"version": 0, "model": "other"}, "either version or model"),
        ):
            status, said = asked(url, "POST", "/v1/promote", json.dumps(wrong).encode())
            assert (status, why in str(said)) == (422, True), said
            assert str(store.folder) not in str(said)
        definition = find_challenger(store, "other").home / "challenger.json"
        definition.write_text(definition.read_text().replace("fnw", "fnc"))
        status, said = asked(url, "POST", "/v1/promote", b'{"model": "other"}')
        assert (status, said) == (422, {"error": "challenger 'other' is damaged: `tracecvr verify` says what is wrong"})


def test_a_challenger_that_is_gone_or_damaged_is_passed_over(store: Store) -> None:
    with served(store) as url, Client(url) as client:
        client.promote_model("other")
        definition = find_challenger(store, "other").home / "challenger.json"
        content = definition.read_text()
        definition.write_text(content.replace("fnw", "fnc"))
        until(lambda: "model" not in client.score([CLICKS[0]["features"]]))
        definition.write_text(content)
        until(lambda: client.score([CLICKS[0]["features"]]).get("model") == "other")
        client.promote_model(None)
        drop(store, "other")
        assert "model" not in client.score([CLICKS[0]["features"]])
        with pytest.raises(UserError, match="422"):
            client.promote_model("other")


def test_status_and_metrics_show_the_comparison(store: Store) -> None:
    send(store, EVENTS)
    store.log().close_until(5 * DAY + 6 * 3600)
    learn_all(store)
    with served(store) as url, Client(url) as client:
        facts = client.status()["challengers"]["other"]
        compared = facts["comparison"]
        assert compared["verdict"] == "too early"
        assert compared["challenger"]["clicks"] == compared["champion"]["clicks"] > 50
        end = store.grid.bounds(facts["learnt"])[0]
        assert facts["history"][-1] == {"interval": facts["learnt"] - 1, "end": end, **compared["nll_difference"]}
        until(lambda: 'challenger="other",metric="mean"' in asked(url, "GET", "/metrics")[1])
