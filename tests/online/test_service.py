"""The service: what is answered with success is on disk, every score names its version, nobody gets in uninvited."""

from __future__ import annotations

import json
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import pytest
import schemathesis
import torch
from conftest import Call
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from schemathesis import GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import positive_data_acceptance

from livestore import Made, learnt, replayed, the_events
from service_client import Client
from tracecvr.base import registry
from tracecvr.base.config import DAY
from tracecvr.base.errors import UserError
from tracecvr.cli.live.operate import learn
from tracecvr.online.log.event_log import EventLog
from tracecvr.online.service import bodies
from tracecvr.online.service.app import application
from tracecvr.online.service.auth import SCOPES, RateLimiter, Token, Tokens, new_token
from tracecvr.online.service.gauges import BUCKETS, Gauges
from tracecvr.online.service.options import Limits, Options
from tracecvr.online.service.processes import LearnerState
from tracecvr.online.service.serve import Config, Server, _bind, serve
from tracecvr.online.store.store import Settings, Store
from tracecvr.online.store.versions import Versions
from tracecvr.stream.source import TableSource

JSON_TYPE = {"Content-Type": "application/json"}
GENEROUS = Limits(rate=10_000)
ROUTES = [
    ("POST", "/v1/clicks", "ingest"),
    ("POST", "/v1/events", "ingest"),
    ("POST", "/v1/score", "score"),
    ("GET", "/v1/clicks/5", "score"),
    ("GET", "/v1/model", "score"),
    ("GET", "/v2/models/tracecvr", "score"),
    ("GET", "/v2/models/tracecvr/ready", "score"),
    ("POST", "/v2/models/tracecvr/infer", "score"),
    ("GET", "/v1/status", "admin"),
    ("GET", "/v1/forecast", "admin"),
    ("POST", "/v1/promote", "admin"),
    ("GET", "/metrics", "admin"),
    ("GET", "/v1/published", "replicate"),
    ("GET", "/v1/published/store.json", "replicate"),
]
UNGUARDED = ["/healthz", "/readyz", "/openapi.json", "/", "/v2", "/v2/health/live", "/v2/health/ready"]


@contextmanager
def served(
    store: Store,
    tokens: Tokens | None = None,
    limits: Limits = GENEROUS,
    names: tuple[str, ...] = (),
    learner: Callable[[], LearnerState] = LearnerState,
) -> Iterator[str]:
    """The service of a store, in a thread of this process."""
    with running(application(store, tokens, limits, learner, names), limits) as url:
        yield url


@contextmanager
def running(app: FastAPI, limits: Limits = GENEROUS) -> Iterator[str]:
    """An application, in a thread of this process."""
    server = Server(Config(app, limits, port=0))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def asked(
    url: str,
    method: str,
    path: str,
    body: bytes | None = None,
    *,
    authorization: str = "",
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Any]:
    """Status and content of an answer."""
    where = urlsplit(url)
    connection = HTTPConnection(where.hostname or "", where.port, timeout=20)
    try:
        sent = JSON_TYPE | ({"Authorization": authorization} if authorization else {}) | dict(headers or {})
        connection.request(method, path, body, sent)
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    try:
        return response.status, json.loads(text)
    except json.JSONDecodeError:
        return response.status, text


def without_type(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name != "type"}


@pytest.fixture
def ready(made: Made) -> Store:
    """A store whose learner has warmed up and learnt the first events."""
    store = made("trace")
    store.log().append([store.reader.read(event) for event in the_events()[:600]])
    learnt(store)
    return store


# What it is for.


def test_live_equals_replay_over_http_and_every_score_is_its_versions(made: Made) -> None:
    store = made("trace", Settings(lateness=DAY))  # clicks and actions of a batch go different ways
    scores: list[tuple[dict[str, Any], int, float]] = []
    learnt(store)  # version 0
    events, sent = list(the_events()), 0
    with served(store) as url, Client(url) as client:
        while sent < len(events):
            batch = events[sent : sent + 60]
            clicks = [without_type(e) for e in batch if e["type"] == "click"]
            answers: list[dict[str, Any]] = client.clicks(clicks)["scores"] if clicks else []
            scores += [(c, s["version"], s["log_odds"]) for c, s in zip(clicks, answers, strict=True)]
            if actions := [e for e in batch if e["type"] != "click"]:
                client.events(actions)
            sent += len(batch)
            if sent % 900 == 0:
                learnt(store)
                until(lambda: client.model()["version"] == Versions(store.folder, 48).serving())
    store.log().close_until(7 * DAY)
    weights, _ = learnt(store)
    assert store.log().facts().get("late", 0) == 0
    assert weights == replayed(store)
    versions = {version for _, version, _ in scores}
    assert len(versions) > 2
    for version in versions:
        engine = store.engine()
        engine.warm_up(TableSource(store.base).history(store.schema.split, "censored"))
        for number in range(version):
            engine.tick(TableSource(store.base), *store.grid.bounds(number))
        ours = [(c, s) for c, v, s in scores if v == version]
        bodies = [store.reader.read({"type": "click", **c}).body or "" for c, _ in ours]
        offline = engine.score(torch.from_numpy(store.reader.encode_and_count(bodies)[0]))
        assert np.abs(offline - [s for _, s in ours]).max() < 1e-5


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_click_tells_what_it_was_answered_what_happened_and_what_is_believed(ready: Store) -> None:
    with served(ready) as url, Client(url) as client:
        late = the_events()[600:700]
        click = next(without_type(e) for e in late if e["type"] == "click")
        answer = client.clicks([click | {"click_id": "a/b?c"}])
        assert answer["accepted"] == 1
        assert client.clicks([click | {"click_id": "a/b?c"}])["duplicates"] == 1
        client.events([{"type": "cart", "click_id": "a/b?c", "ts": click["ts"] + 60}])
        client.events([{"type": "purchase", "click_id": "a/b?c", "ts": click["ts"] + 4000}])
        known = client.click("a/b?c")
        assert known["at_click"]["log_odds"] == pytest.approx(answer["scores"][0]["log_odds"])
        assert known["version_at_click"] == answer["scores"][0]["version"]
        assert known["actions"] == {"purchase": 4000, "cart": 60}
        assert known["converted"]
        assert [w["happened"] for w in known["windows"][:1]] == [["cart"]] or not known["windows"][0]["over"]
        with pytest.raises(UserError, match="404: no such click"):
            client.click("nobody")
        assert 0 < known["now"]["probability"] < 1


def test_a_click_that_is_sent_again_is_answered_as_it_was(ready: Store) -> None:
    one, two, new = [without_type(e) for e in the_events()[600:] if e["type"] == "click"][:3]
    ready.log().append([ready.reader.read({"type": "click", **two})])  # by another way: it was not answered
    with served(ready) as url, Client(url) as client:
        (first,) = client.clicks([one])["scores"]
        assert client.promote(0) == {"serving": 0}
        fresh = client.score([click["features"] for click in (one, two, new, new)])
        assert fresh["version"] != first["version"]
        again = client.clicks([one, two, new, new])
        assert (again["accepted"], again["duplicates"]) == (1, 3)
        assert again["scores"][0] == first
        expected = [score | {"version": 0} for score in fresh["scores"][1:]]
        assert again["scores"][1:] == expected
        other = client.clicks([one | {"features": new["features"]}])
        assert other["scores"] == [first], "of one id, the first counts"
        assert client.click(one["click_id"])["version_at_click"] == first["version"]
        client.promote(None)
        assert client.clicks([new])["scores"] == expected[-1:]
    facts = ready.log().facts()
    assert (facts["duplicates"], facts["conflicts"]) == (5, 1)


def test_a_receipt_says_what_became_of_each_event(ready: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracecvr.online.log.event_log.MOST_ASIDE", 2)
    old, new = the_events()[0], next(without_type(e) for e in the_events()[600:] if e["type"] == "click")
    with served(ready) as url, Client(url) as client:
        told = client.model()["time"]
        assert told["unit"] == "log"
        assert told["ts"] == "whole seconds since the log's origin, or ISO 8601 text with a zone"
        assert told["example"] == client.status()["time"]["example"]
        assert ready.times.read(told["example"]["means"]) == told["example"]["ts"]
        late = client.clicks([new | {"click_id": "late", "ts": ready.grid.split}])
        assert (late["accepted"], late["late"], late["set_aside"], late.get("note")) == (1, 1, 0, None)
        assert client.clicks([without_type(old) | {"ts": new["ts"]}])["conflicts"] == 1
        assert client.clicks([new | {"ts": ready.times.iso(new["ts"])}])["accepted"] == 1, "text is a time in any store"
        found = client.click(new["click_id"])
        assert (found["ts"], found["time"]) == (new["ts"], ready.times.iso(new["ts"]))
        closed = client.status()["intervals"]["closed"]
        wrong = [new | {"click_id": f"wrong {n}", "ts": int(time.time()) + n} for n in range(3)]
        answer = client.clicks(wrong)
        assert (answer["accepted"], answer["set_aside"], answer["not_kept"], len(answer["scores"])) == (0, 3, 1, 3)
        assert "not believed; /v1/model says how ts is read" in answer["note"]
        assert client.events([{"type": "cart", "click_id": 1, "ts": 1 << 40}])["not_kept"] == 1
        assert client.status()["intervals"]["closed"] == closed
        assert client.status()["events"]["future"] == 4
        assert client.clicks([wrong[0] | {"ts": new["ts"]}])["accepted"] == 1, "sent again with the right date"
        with pytest.raises(UserError, match="422: click 0: ts is 'soon': expected ISO 8601"):
            client.clicks([new | {"ts": "soon"}])


def test_another_version_serves_from_the_next_request_on(ready: Store) -> None:
    features = [the_events()[0]["features"]]
    with served(ready) as url, Client(url) as client:
        newest = client.score(features)
        assert client.promote(0) == {"serving": 0}
        old = client.score(features)
        assert (old["version"], newest["version"]) == (0, Versions(ready.folder, 48).published()[-1])
        assert old["scores"] != newest["scores"]
        assert client.promote(None)["serving"] == newest["version"]
        assert client.score(features) == newest
        with pytest.raises(UserError, match="422: version 999 cannot serve"):
            client.promote(999)
        assert client.status()["versions"]["serving"] == newest["version"]


def test_a_look_that_fails_is_not_the_last(ready: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = threading.Event()

    def failing(_: Versions) -> int | None:
        tried.set()
        raise RuntimeError("for example")

    with served(ready) as url:
        with monkeypatch.context() as patch:
            patch.setattr(Versions, "serving", failing)
            (ready.folder / "models" / "touched").touch()
            assert tried.wait(20)
        Versions(ready.folder, 48).promote(0)
        until(lambda: asked(url, "GET", "/readyz") == (200, "version 0"))


def test_before_there_is_a_version_it_is_alive_and_not_ready(made: Made) -> None:
    store = made("vanilla")
    with served(store) as url:
        assert asked(url, "GET", "/healthz") == (200, "ok")
        assert asked(url, "GET", "/readyz")[0] == 503
        assert asked(url, "GET", "/v1/model")[0] == 503
        learnt(store)
        until(lambda: asked(url, "GET", "/readyz") == (200, "version 0"))
        assert "tracecvr_version 0.0" in asked(url, "GET", "/metrics")[1]
        assert "<title>tracecvr</title>" in asked(url, "GET", "/")[1]


def test_what_could_not_be_written_is_not_answered_with_success(ready: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before = ready.log().position()
    with served(ready) as url:
        with monkeypatch.context() as patch:
            patch.setattr(EventLog, "append_all", lambda *_: (_ for _ in ()).throw(UserError("disk full")))
            event = {"events": [{"type": "cart", "click_id": 1, "ts": 5}]}
            status, body = asked(url, "POST", "/v1/events", json.dumps(event).encode())
            assert (status, "disk" in body["error"]) == (503, False)
        assert ready.log().position() == before
        with Client(url) as client:
            assert client.events(event["events"])["accepted"] == 1


@given(st.lists(st.floats(0, 9), min_size=1, max_size=300))
def test_times_are_counted_in_buckets(seconds: list[float]) -> None:
    now = 0.0
    gauges = Gauges(clock=lambda: now)
    for now in seconds:  # noqa: B007
        gauges.note("/v1/score", 200, 0.0)
    below = dict(re.findall(r'request_seconds_bucket\{le="(.*?)",route="/v1/score"\} (.*)', gauges.text().decode()))
    expected = {str(end): sum(took <= end for took in seconds) for end in (*BUCKETS, math.inf)}
    assert [float(count) for count in below.values()] == list(expected.values())
    assert f'tracecvr_requests_total{{route="/v1/score",status="200"}} {len(seconds)}.0' in gauges.text().decode()


# Who may.


def test_every_route_wants_a_token_of_its_scope(ready: Store) -> None:
    made_tokens = {scope: new_token() for scope in SCOPES}
    tokens = Tokens(tuple(Token(s, digest, frozenset([s])) for s, (_, digest) in made_tokens.items()))
    with served(ready, tokens) as url:
        for method, path, scope in ROUTES:
            body = b"{}" if method == "POST" else None
            assert asked(url, method, path, body)[0] == 401, path
            for bad in ("Bearer nonsense", "Basic abc", "Bearer", "Bearer \u00e9"):
                assert asked(url, method, path, body, authorization=bad)[0] == 401, (path, bad)
            for other, (token, _) in made_tokens.items():
                status, answer = asked(url, method, path, body, authorization=f"Bearer {token}")
                assert (status == 403) == (other != scope), (path, other, answer)
                assert status not in (401, 500)
        assert asked(url, "POST", "/v1/score", b"{")[0] == 401, "a stranger's body is not even parsed"
        for path in UNGUARDED:
            assert asked(url, "GET", path)[0] == 200
        described = asked(url, "GET", "/openapi.json")[1]["paths"]
        every = {(method.upper(), path) for path, methods in described.items() for method in methods}
        guarded = {(m, p.replace("/5", "/{click_id}").replace("store.json", "{name}")) for m, p, _ in ROUTES}
        guarded = {(m, p.replace("/tracecvr", "/{name}")) for m, p in guarded}
        assert every - guarded <= {("GET", path) for path in UNGUARDED}, "a route that is not tried above"
        with Client(url, made_tokens["score"][0]) as client:
            assert client.model()["method"] == "trace"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("token = 5", "expected \\[\\[token\\]\\]"),
        ("[[token]]\nname = 'a'", "expected name, sha256 and scopes"),
        ("[[token]]\nname = 'a'\nsha256 = 'abc'\nscopes = ['score']", "64 hexadecimal"),
        (f"[[token]]\nname = 'a'\nsha256 = '{'0' * 64}'\nscopes = ['all']", "expected some of score"),
        ("[[token]]\nname = \"a\\nb\"\nsha256 = 'abc'\nscopes = ['score']", "name is"),
    ],
)
def test_a_bad_file_of_tokens_is_told_what_is_wrong(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "tokens.toml").write_text(text)
    with pytest.raises(UserError, match=message):
        Tokens.read(tmp_path / "tokens.toml")


def test_a_token_is_made_and_works(tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("token", "bidder", "--scope", "score", "--scope", "ingest") == 0
    output = capsys.readouterr()
    (tmp_path / "tokens.toml").write_text(output.out)
    holder = Tokens.read(tmp_path / "tokens.toml").find(output.err.removeprefix("token: ").strip())
    assert holder is not None
    assert holder.scopes == {"score", "ingest"}
    assert len(new_token()[0]) >= 43, "256 bits, six of them in a character"
    assert output.err.removeprefix("token: ").strip() not in output.out
    assert call("token", "x", "--scope", "all") == 2


def test_every_token_is_compared_whichever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def compare(known: str, given: str) -> bool:
        compared.append(known)
        return known == given

    monkeypatch.setattr("tracecvr.online.service.auth.hmac.compare_digest", compare)
    made_tokens = [new_token() for _ in range(4)]
    tokens = Tokens(tuple(Token(f"t{n}", digest, frozenset(["score"])) for n, (_, digest) in enumerate(made_tokens)))
    for sent in ("nobody's", *(token for token, _ in made_tokens)):
        compared.clear()
        tokens.find(sent)
        assert compared == [digest for _, digest in made_tokens]


def test_nobody_outside_is_served_without_tokens(ready: Store) -> None:
    assert Options().host == "127.0.0.1"
    with pytest.raises(UserError, match="give --tokens FILE"):
        serve(ready, Options(host="0.0.0.0"))
    with pytest.raises(UserError, match="check the path given as --tokens"):
        serve(ready, Options(tokens=Path("nowhere.toml")))
    with pytest.raises(UserError, match="both --certificate and --key"):
        serve(ready, Options(certificate=Path("x")))


def test_an_address_that_is_taken_is_named_and_no_learner_is_started(ready: Store, tmp_path: Path) -> None:
    entries = tmp_path / "tokens.toml"
    entries.write_text(f"[[token]]\nname = 'a'\nsha256 = '{'0' * 64}'\nscopes = ['score']")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"--port {port} cannot be listened at .*in use"):
            serve(ready, Options(port=port), learn)
    with pytest.raises(UserError, match="--host localhorst --port 0 cannot be listened at"):
        serve(ready, Options(host="localhorst", port=0, tokens=entries), learn)


# How much.


def test_too_much_is_refused_and_harms_nobody(ready: Store) -> None:
    limits = Limits(body_bytes=20_000, batch=5, text=50, rate=10_000, body_seconds=0.5)
    features = the_events()[0]["features"]
    with served(ready, limits=limits) as url, Client(url, retries=0) as client:
        assert asked(url, "POST", "/v1/score", b"[" * 30_000)[0] == 413
        with pytest.raises(UserError, match="413: 6 clicks in one request"):
            client.score([features] * 6)
        with pytest.raises(UserError, match="422: click 0: a text is longer"):
            client.score([features | {"item": "x" * 51}])
        where = urlsplit(url)
        with socket.create_connection((where.hostname or "", where.port)) as slow:
            slow.sendall(b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            assert client.score([features])["scores"]  # others are served meanwhile
            assert b" 408 " in slow.recv(1000)
        chunked = {"Transfer-Encoding": "chunked"}
        connection = HTTPConnection(where.hostname or "", where.port)
        connection.request("POST", "/v1/score", iter([b"x" * 15_000, b"y" * 15_000]), chunked, encode_chunked=True)
        assert connection.getresponse().status == 413
        connection.close()


def test_a_body_that_declares_to_be_too_large_is_not_waited_for(ready: Store) -> None:
    with served(ready, limits=Limits(rate=10_000, body_seconds=60)) as url:
        where = urlsplit(url)
        with socket.create_connection((where.hostname or "", where.port), timeout=20) as declared:
            declared.sendall(b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 262145\r\n\r\n")
            assert b" 413 " in declared.recv(1000)


def test_a_batch_of_too_many_events_is_refused_as_a_whole(fuzzed: str) -> None:
    event = {"type": "cart", "click_id": 1, "ts": 1}
    status, answer = asked(fuzzed, "POST", "/v1/events", json.dumps({"events": [event] * 501}).encode())
    assert (status, answer["error"]) == (413, "501 events in one request; send at most 500")


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("score", {"features": [[]] * 500}, 422, "features.0: "),
        ("score", {"features": [{str(n): [] for n in range(15_000)}]}, 422, "neither text nor a number nor null"),
        ("clicks", {str(n): 0 for n in range(15_000)}, 422, "unknown key '0'; expected clicks"),
        ("clicks", {"clicks": [{str(n): 0 for n in range(15_000)}]}, 422, "unknown key '0'; expected click_id"),
        ("events", {"events": [{}] * 501}, 422, "events.0.type: Field required"),
    ],
)
def test_of_many_mistakes_the_first_is_found(path: str, body: Any, status: int, told: str, fuzzed: str) -> None:
    """To list all of them takes seconds, in which nobody else is answered."""
    code, answer = asked(fuzzed, "POST", f"/v1/{path}", json.dumps(body).encode())
    assert code == status
    assert told in answer["error"]
    models: dict[str, type[BaseModel]] = {"score": bodies.Features, "clicks": bodies.Clicks, "events": bodies.Actions}
    with pytest.raises(ValidationError) as caught:
        models[path].model_validate(body)
    assert caught.value.error_count() <= 5


def test_who_leaves_in_the_middle_is_counted_and_no_error(ready: Store, caplog: pytest.LogCaptureFixture) -> None:
    with served(ready) as url:
        where = urlsplit(url)
        with socket.create_connection((where.hostname or "", where.port)) as leaving:
            leaving.sendall(b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        until(lambda: 'requests_total{route="none",status="400"} 1.0' in asked(url, "GET", "/metrics")[1])
        assert asked(url, "GET", "/v1/model")[0] == 200
        counted = asked(url, "GET", "/metrics")[1]
        assert 'requests_total{route="/v1/model",status="200"} 1.0' in counted
        assert 'status="500"' not in counted
    assert "Traceback" not in caplog.text


def test_an_answer_does_not_wait_for_an_acknowledgement() -> None:
    with _bind(Options(port=0)) as listening:
        assert listening.proto == socket.IPPROTO_TCP, "asyncio asks this before it switches Nagle's algorithm off"


def test_who_asks_too_often_is_slowed_down_alone(ready: Store) -> None:
    made_tokens = [new_token() for _ in range(2)]
    tokens = Tokens(tuple(Token(f"t{n}", digest, frozenset(["score"])) for n, (_, digest) in enumerate(made_tokens)))
    with served(ready, tokens, Limits(rate=3)) as url:
        eager, modest = (f"Bearer {token}" for token, _ in made_tokens)
        statuses = [asked(url, "GET", "/v1/model", authorization=eager)[0] for _ in range(12)]
        assert statuses[:6] == [200] * 6
        assert 429 in statuses
        assert asked(url, "POST", "/v1/score", b"{", authorization=eager)[0] == 429, "nor are too many"
        assert asked(url, "GET", "/v1/model", authorization=modest)[0] == 200


def test_a_pace_is_refilled_at_its_rate() -> None:
    now = 0.0
    pace = RateLimiter(2.0, lambda: now)
    assert [pace.allow("a") for _ in range(5)] == [True] * 4 + [False]
    now = 0.5
    assert [pace.allow("a") for _ in range(2)] == [True, False]
    assert pace.allow("b")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
NAMES = ("segment", "device", "item")
SHAPED = st.fixed_dictionaries(
    {
        "clicks": st.lists(
            st.fixed_dictionaries(
                {"click_id": JSON, "ts": JSON},
                optional={
                    "features": st.dictionaries(st.sampled_from(("segment", "device", "item")), JSON),
                    "user": JSON,
                },
            ),
            max_size=3,
        )
    }
)


@pytest.fixture(scope="module")
def fuzzed(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    method = registry.get("method", "vanilla")(hidden=(8,))
    store = Store.create(tmp_path_factory.mktemp("fuzz") / "store", base, method, (), Settings())
    learnt(store)
    with served(store) as url:
        yield url


@given(
    body=st.one_of(
        st.binary(max_size=60), JSON.map(lambda j: json.dumps(j).encode()), SHAPED.map(lambda j: json.dumps(j).encode())
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_sent_is_no_servers_error(fuzzed: str, body: bytes) -> None:
    for method, path, _ in ROUTES:
        if method == "POST":
            status, answer = asked(fuzzed, method, path, body)
            assert status in (200, 400, 413, 422), (path, body, answer)
            assert status == 200 or list(answer) == ["error"]


@given(st.text(min_size=1, max_size=30))
def test_whatever_a_click_is_called_is_no_servers_error(fuzzed: str, name: str) -> None:
    status, _ = asked(fuzzed, "GET", f"/v1/clicks/{quote(name, safe='')}")
    assert status in (404, 200)


def test_what_it_says_of_itself_is_true_and_no_request_is_its_error(fuzzed: str) -> None:
    """By hand: schemathesis' own plugin does not know this pytest."""
    described = schemathesis.openapi.from_url(f"{fuzzed}/openapi.json")
    operations = [
        described_operation.ok()
        for described_operation in described.get_all_operations()
        if isinstance(described_operation, Ok)
    ]
    assert len(operations) > len(ROUTES)
    for operation, mode in product(operations, GenerationMode):
        if mode == GenerationMode.NEGATIVE and operation.method.upper() != "POST":
            continue  # there is nothing to be wrong

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=20, deadline=None)
        def holds(case: Any) -> None:
            case.call_and_validate(excluded_checks=[positive_data_acceptance])  # features are the store's

        holds()


# The client.


def test_the_client_tries_again_when_it_may_and_says_when_it_gives_up() -> None:
    with pytest.raises(UserError, match="503"):
        Client("http://127.0.0.1:9", retries=1).model()
