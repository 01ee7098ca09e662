"""Replicas score from what one writer has published. When it is gone they go on, and say how old their version is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
from conftest import Call

from crashing import free_port, process, serving
from livestore import SMALL, Made, send, the_events
from service_client import Client
from test_service import asked, running, served, until, without_type
from tracecvr.base import registry
from tracecvr.base.errors import UserError
from tracecvr.learn.stream_learning import StreamLearning
from tracecvr.online.challengers.learners import Learners
from tracecvr.online.service.auth import Token, Tokens, new_token
from tracecvr.online.service.replica import Mirror, open_published, replica
from tracecvr.online.store.challenge import create
from tracecvr.online.store.store import Store
from tracecvr.online.store.versions import Versions

EVENTS = the_events()
CLICKS = [without_type(event) for event in EVENTS[:300] if event["type"] == "click"]
FEATURES = [click["features"] for click in CLICKS[:20]]


def learn_all(store: Store) -> None:
    with Learners(store) as learners:
        list(learners.all())


@contextmanager
def replica_of(source: str, folder: Path, token: Path | None = None, tokens: Tokens | None = None) -> Iterator[str]:
    store, mirror = open_published(source, folder, token, lambda _: None)
    with running(replica(store, tokens, None, mirror)) as url:
        yield url


def scores(url: str) -> dict[str, Any]:
    with Client(url) as client:
        return client.score(FEATURES)


def described(url: str) -> dict[str, Any]:
    """The version that serves and what it expects, without the moment that is given as an example of a time."""
    with Client(url) as client:
        facts = client.model()
    assert facts["features"]
    assert set(facts["time"].pop("example")) == {"ts", "means"}
    return facts


def test_two_replicas_follow_the_writer_and_go_on_when_it_is_killed(made: Made, tmp_path: Path) -> None:
    store, port = made("vanilla"), free_port()
    learn_all(store)
    with process(serving, store.folder, port) as writer:
        with Client(f"http://127.0.0.1:{port}", retries=30) as client:
            first = client.score(FEATURES)
        by_url = replica_of(f"http://127.0.0.1:{port}", tmp_path / "copy")
        with by_url as one, replica_of(str(store.folder), tmp_path / "unused") as other:
            assert scores(one) == scores(other) == first
            send(store, EVENTS[:300])
            learn_all(store)
            wanted = Versions(store.folder, store.settings.keep).serving()
            until(lambda: scores(one)["version"] == scores(other)["version"] == wanted)
            newest = scores(one)
            assert newest == scores(other) != first
            of_writer = described(f"http://127.0.0.1:{port}")
            writer.kill()
            writer.join()
            until(lambda: not asked(one, "GET", "/v1/status")[1]["writer"]["heard"])
            assert scores(one) == scores(other) == newest
            for url in (one, other):
                assert described(url) == of_writer
                assert asked(url, "GET", "/readyz") == (200, f"version {newest['version']}")
                told = asked(url, "GET", "/v1/status")[1]
                assert told["age_s"] >= 0
                assert "tracecvr_version_age_seconds" in asked(url, "GET", "/metrics")[1]
            assert not told["writer"]
            assert "cannot be reached" in asked(one, "GET", "/v1/status")[1]["writer"]["problem"]
        with replica_of(f"http://127.0.0.1:{port}", tmp_path / "copy") as again:
            assert scores(again) == newest, "from the copy that it kept"
    assert sorted(p.name for p in (tmp_path / "copy" / "models").glob("0*")) == [
        f"{newest['version']:09d}.json",
        f"{newest['version']:09d}.safetensors",
    ], "what serves, and nothing else"
    assert not (tmp_path / "copy" / "events.db").exists()


def test_a_replica_follows_promotions(made: Made, tmp_path: Path) -> None:
    store = made("vanilla")
    method = registry.get("method", "fnw")(**SMALL | {"hidden": (8,)})
    create(store, "other", (method, (), StreamLearning()))
    learn_all(store)
    with served(store) as url, replica_of(url, tmp_path / "copy") as follower, Client(url) as client:
        before = scores(follower)
        client.promote_model("other")
        until(lambda: scores(follower).get("model") == "other")
        assert scores(follower) == scores(url)
        client.promote_model(None)
        until(lambda: scores(follower) == before)


def test_a_replica_accepts_nothing(made: Made, tmp_path: Path) -> None:
    store = made("vanilla")
    learn_all(store)
    before = sorted(path.name for path in store.folder.iterdir())
    with replica_of(str(store.folder), tmp_path) as url:
        for path, body in (("clicks", {"clicks": CLICKS[:1]}), ("events", {"events": []}), ("promote", {"version": 0})):
            status, said = asked(url, "POST", f"/v1/{path}", json.dumps(body).encode())
            assert (status, said) == (405, {"error": "this is a replica, which scores only: ask the writer"})
    assert sorted(path.name for path in store.folder.iterdir()) == before, "it writes nothing, either"


def test_replicas_need_tokens_as_the_service_does(made: Made, tmp_path: Path) -> None:
    store = made("vanilla")
    learn_all(store)
    (copying, copying_hash), (scoring, scoring_hash) = new_token(), new_token()
    tokens = Tokens(
        (
            Token("replica", copying_hash, frozenset({"replicate"})),
            Token("bidder", scoring_hash, frozenset({"score"})),
        )
    )
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text(f"{copying}\n")
    wrong.write_text(scoring)
    with served(store, tokens) as writer:
        with pytest.raises(UserError, match=r"the writer answers 403, and there is no copy"):
            open_published(writer, tmp_path / "a", wrong, lambda _: None)
        with pytest.raises(UserError, match=r"the writer answers 401"):
            open_published(writer, tmp_path / "a", None, lambda _: None)
        for token, status in ((scoring, 403), (copying, 200), ("x", 401)):
            answer = asked(writer, "GET", "/v1/published", authorization=f"Bearer {token}")
            assert answer[0] == status
        for name in ("events.db", "../store.json", "models/../events.db", "%2e%2e/x", "base/x.npy", "events.position"):
            status, _ = asked(writer, "GET", f"/v1/published/{name}", authorization=f"Bearer {copying}")
            assert status == 404, name
        with replica_of(writer, tmp_path / "copy", right, tokens) as url:
            body = json.dumps({"features": FEATURES}).encode()
            assert asked(url, "POST", "/v1/score", body)[0] == 401
            assert asked(url, "POST", "/v1/score", body, authorization=f"Bearer {copying}")[0] == 403
            assert asked(url, "POST", "/v1/score", body, authorization=f"Bearer {scoring}")[0] == 200
            assert asked(url, "GET", "/v1/status", authorization=f"Bearer {scoring}")[0] == 403
            assert asked(url, "GET", "/v1/model", authorization=f"Bearer {scoring}")[0] == 200
            assert asked(url, "GET", "/v1/model", authorization=f"Bearer {copying}")[0] == 403
            assert asked(url, "GET", "/readyz")[0] == 200


def test_a_writer_that_offers_other_files_is_not_believed(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made("vanilla")
    learn_all(store)
    with served(store) as writer:
        copy = Mirror(writer, tmp_path / "copy")
        assert copy.pull()
        before = {path: path.read_bytes() for path in copy.folder.rglob("*") if path.is_file()}
        plain = Mirror._ask

        def evil(self: Mirror, path: str) -> Any:
            class Answer:
                def __enter__(self) -> Any:
                    return self

                def __exit__(self, *_: object) -> None: ...

                def read(self, _: int) -> bytes:
                    return json.dumps({"files": {"../evil.json": {"size": 1, "sha256": ""}}}).encode()

            return Answer() if path == "/v1/published" else plain(self, path)

        monkeypatch.setattr(Mirror, "_ask", evil)
        assert not copy.pull()
        assert "which is no file of a store" in str(copy.problem)
        assert {path: path.read_bytes() for path in copy.folder.rglob("*") if path.is_file()} == before
        assert not (tmp_path / "evil.json").exists()


def test_files_that_change_while_they_are_fetched_are_not_kept(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made("vanilla")
    learn_all(store)
    with served(store) as writer:
        copy = Mirror(writer, tmp_path / "copy")
        monkeypatch.setattr("tracecvr.online.service.replica.sha256", lambda _: "another")
        assert not copy.pull()
        assert not [path for path in copy.folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("error", [URLError("refused"), ConnectionResetError(104, "reset"), TimeoutError("timed out")])
def test_a_connection_that_breaks_at_any_moment_is_told_as_one(
    error: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(Mirror, "_ask", broken)
    copy = Mirror("http://127.0.0.1:1", tmp_path)
    assert not copy.pull()
    assert str(copy.problem).startswith("the writer cannot be reached (")


def test_commands(made: Made, tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    store = made("vanilla")
    for words, wrong in (
        (("--replica", "ftp://x"), "give http://HOST:PORT"),
        (("--replica", "http://me:secret@127.0.0.1:1"), "give http://HOST:PORT"),
        (("--replica", f"http://127.0.0.1:{free_port()}"), "cannot be reached"),
        (("--replica", tmp_path / "nothing"), "not a store"),
        (("--replica", store.folder, "--host", "0.0.0.0"), "can be reached by others"),
        (("--replica", store.folder, "--workers", 1), "--workers is for the writer"),
    ):
        assert call("serve", *words) == 2
        said = capsys.readouterr().err
        assert wrong in said
        assert "secret" not in said
    shutil.rmtree(store.folder)
