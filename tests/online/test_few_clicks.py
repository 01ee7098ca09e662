"""The short way of a few clicks answers as the application does, and its scores are the engine's."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi import FastAPI
from hypothesis import example, given, settings
from hypothesis import strategies as st

from livestore import learnt
from tracecvr.base import registry
from tracecvr.checks.subject import small_log
from tracecvr.data.encoder import Binned, Encoder, Hashed, Modulo, RowEncoder, Vocabulary
from tracecvr.learn.engine import Engine
from tracecvr.learn.fast_scores import fast_score
from tracecvr.nets.rows import Rows
from tracecvr.online.service.app import application
from tracecvr.online.service.gate import Gate
from tracecvr.online.service.options import Limits
from tracecvr.online.service.scorer import Answers, LiveScorer, MicroBatch, Values
from tracecvr.online.store.store import Settings, Store

VALUES = st.none() | st.booleans() | st.integers() | st.integers(-9, 9) | st.floats() | st.text(max_size=20)
BROKEN: st.SearchStrategy[Any] = VALUES | st.lists(st.integers(), max_size=1) | st.just({}) | st.just("x" * 1001)
FEATURES = st.fixed_dictionaries(dict.fromkeys(("segment", "device", "item"), VALUES)) | st.dictionaries(
    st.sampled_from(("segment", "device", "item", "other")), BROKEN, max_size=4
)
CLICK = st.fixed_dictionaries(
    {"click_id": st.integers(0, 50) | BROKEN, "ts": st.integers(0, 10**7) | BROKEN, "features": FEATURES},
    optional={"user": st.none() | st.text(max_size=5) | BROKEN, "else": VALUES},
)
BODIES = st.one_of(
    st.tuples(st.just("/v1/score"), st.fixed_dictionaries({"features": st.lists(FEATURES, max_size=3)})),
    st.tuples(st.just("/v1/clicks"), st.fixed_dictionaries({"clicks": st.lists(CLICK, max_size=2)})),
    st.tuples(st.sampled_from(("/v1/score", "/v1/clicks")), st.dictionaries(st.text(max_size=3), VALUES, max_size=2)),
)


@dataclass
class Site:
    """An application within its event loop."""

    app: Gate
    runner: asyncio.Runner

    def ask(self, path: str, body: bytes, *more: bytes) -> tuple[int, Any]:
        """Status and content of an answer. A body may come in parts."""
        messages: list[Any] = []
        parts = iter([body, *more])
        left = len(more)

        async def receive() -> Any:
            nonlocal left
            await asyncio.sleep(0) if left < len(more) else None
            left -= 1
            return {"type": "http.request", "body": next(parts), "more_body": left >= 0}

        async def send(message: Any) -> None:
            messages.append(message)

        length = b"%d" % (len(body) + sum(map(len, more)))
        headers = [(b"host", b"localhost"), (b"content-length", length), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
        self.runner.run(_call(self.app(scope, receive, send)))
        return messages[0]["status"], json.loads(b"".join(one.get("body", b"") for one in messages[1:]))


async def _call(answering: Awaitable[None]) -> None:
    await answering


@pytest.fixture(scope="module")
def site(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    method = registry.get("method", "vanilla")(hidden=(8,))
    store = Store.create(tmp_path_factory.mktemp("few") / "store", base, method, (), Settings())
    learnt(store)
    app = application(store, limits=Limits(rate=1e9))
    assert isinstance(app, Gate)
    with asyncio.Runner() as runner:
        lifespan = app.router.lifespan_context(app)
        runner.run(lifespan.__aenter__())
        yield Site(app, runner)
        runner.run(lifespan.__aexit__(None, None, None))


@settings(max_examples=200, deadline=None)
@example(("/v1/score", {"features": [{"segment": 1 << 63, "device": 1e400, "item": "x" * 1001}]}))
@example(("/v1/clicks", {"clicks": [{"click_id": 1 << 63, "ts": 5, "features": {}}]}))
@example(("/v1/score", {"features": [{"segment": 1, "device": None, "item": "a"}] * 17}))
@given(BODIES)
def test_both_ways_answer_the_same(site: Site, request_: tuple[str, Any]) -> None:
    path, body = request_[0], json.dumps(request_[1]).encode()
    first, short = site.ask(path, body), site.ask(path, body)
    ways, site.app.short_ways = site.app.short_ways, {}
    try:
        long = site.ask(path, body)
    finally:
        site.app.short_ways = ways
    assert short == long
    assert first[0] == long[0]


GOOD = b'{"features": [{"segment": 1, "device": "phone", "item": null}]}'


def test_a_good_request_does_not_come_to_the_application(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any) -> None:
        raise AssertionError("went the long way")

    monkeypatch.setattr(FastAPI, "__call__", refuse)
    status, answer = site.ask("/v1/score", GOOD)
    assert (status, len(answer["scores"])) == (200, 1)
    click = {"click_id": "one", "ts": 10**6, "features": {"segment": "a", "device": 3.5, "item": True}, "user": "u"}
    assert site.ask("/v1/clicks", json.dumps({"clicks": [click]}).encode())[0] == 200


@pytest.mark.parametrize("path", ["/v1/score", "/v1/clicks"])
def test_a_body_may_come_in_parts(site: Site, path: str) -> None:
    whole, parts = site.ask(path, GOOD), site.ask(path, GOOD[:9], GOOD[9:30], GOOD[30:])
    assert whole == parts


def test_a_click_reaches_its_score_in_six_frames(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[list[str]] = []
    plain = LiveScorer.score

    def score(self: LiveScorer, clicks: Sequence[Values]) -> Answers:
        code = [frame.f_code for frame, _ in traceback.walk_stack(sys._getframe().f_back)]
        paths.append(["score", *(c.co_qualname for c in code if "/tracecvr/" in c.co_filename)])
        return plain(self, clicks)

    features = {"segment": 1, "device": 2, "item": 3}
    scorer = site.app.service.models.own
    monkeypatch.setattr(scorer, "_batch", MicroBatch(partial(score, scorer)))
    bodies = {
        "score": {"features": [features]},
        "clicks": {"clicks": [{"click_id": 77, "ts": 5, "features": features}]},
    }
    for name, body in bodies.items():
        assert site.ask(f"/v1/{name}", json.dumps(body).encode())[0] == 200
    assert [len(path) for path in paths] == [6, 6], paths


# Clicks of several requests.


def _double(clicks: Sequence[Values]) -> Answers:
    CALLS.append(len(clicks))
    if any(click[0] == "wrong" for click in clicks):
        raise ValueError("wrong")
    bad = sum(click[0] == "bad" for click in clicks)
    return Answers([float(len(click[0])) for click in clicks], 1, None, {"column": bad} if bad else {})


CALLS: list[int] = []


def _scored(*requests: list[str]) -> list[Any]:
    async def score() -> list[Any]:
        batch = MicroBatch(_double)
        asked = [batch.score([[value] for value in values]) for values in requests]
        return await asyncio.gather(*asked, return_exceptions=True)

    CALLS.clear()
    return asyncio.run(score())


def test_requests_of_one_turn_are_scored_in_one_call_and_each_gets_its_own() -> None:
    answers = _scored(["a", "bb"], ["ccc"], ["dddd", "e"])
    assert [one.log_odds for one in answers] == [[1, 2], [3], [4, 1]]
    assert CALLS == [5]


def test_values_that_cannot_be_read_are_told_to_those_who_sent_them() -> None:
    assert [one.unreadable for one in _scored(["a"], ["bad", "bad"], ["c"])] == [{}, {"column": 2}, {}]


def test_an_error_comes_to_whose_it_is_and_the_others_are_scored() -> None:
    fine, wrong, other = _scored(["a"], ["wrong"], ["ccc"])
    assert [one.log_odds for one in (fine, other)] == [[1], [3]]
    assert type(wrong) is ValueError


def test_who_is_gone_keeps_nobody_from_an_answer() -> None:
    async def score() -> Answers:
        batch = MicroBatch(_double)
        gone, there = (asyncio.create_task(batch.score([[value]])) for value in ("gone", "a"))
        await asyncio.sleep(0)  # both have asked
        gone.cancel()
        return await there

    assert asyncio.run(score()).log_odds == [1]


# Every kind of column.

COLUMNS = (
    Hashed("h", 50),
    Hashed("wide", 1 << 20),
    Modulo("m", 7),
    Binned("b", 8, low=-1.0, high=20.0),
    Binned("l", 8, scale="log", low=0.0, high=5.0),
    Vocabulary("v", 8, words=("a", "b", "3", "true")),
)
ODD = [None, True, False, "", "a", "b", "3", "n/a", "nan", "-1.5", "é", 0, 3, -7, 1 << 62, 2.5, -0.0, 1e-7, 1e17]


@pytest.mark.parametrize("count", [3_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_scores_of_raw_values_are_the_engines_for_every_kind_of_column(count: int) -> None:
    encoder, rng = Encoder(COLUMNS), random.Random(1)
    schema = replace(small_log().schema, features=encoder.features)
    engine = Engine(registry.get("method", "vanilla")(hidden=(32, 16)), schema, 3)
    for module in engine.method.nets["main"].modules():
        if isinstance(module, Rows):
            torch.nn.init.normal_(module.weight)
    names = [column.raw for column in COLUMNS]
    makers: list[Callable[[], Any]] = [
        lambda: rng.choice(ODD),
        lambda: rng.gauss(0, 10),
        lambda: rng.randrange(-(10**6), 10**6),
        lambda: str(rng.randrange(300)),
    ]
    clicks = [[rng.choice(makers)() for _ in names] for _ in range(count)]
    engine.forget()
    fast, rows = fast_score(engine), RowEncoder(encoder, names)
    assert fast is not None
    expected = engine.score(torch.from_numpy(rows.encode(clicks)[0]))
    computed = np.concatenate([fast(rows.encode([click])[0]) for click in clicks])
    assert np.abs(computed - expected).max() < 1e-5 * max(1.0, float(np.abs(expected).max()))
