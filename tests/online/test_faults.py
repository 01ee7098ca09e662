"""What damaged choices, garbage from a writer and strange requests do: they are refused in one line, or bounded."""

from __future__ import annotations

import asyncio
import configparser
import io
import json
from pathlib import Path
from typing import Any

import pytest

from livestore import Made, learnt, send, the_events
from tracecvr.base.errors import UserError
from tracecvr.online.log import event_log
from tracecvr.online.service.auth import Tokens
from tracecvr.online.service.front import LOOPBACK, Names
from tracecvr.online.service.options import Limits
from tracecvr.online.service.replica import Mirror, Replica
from tracecvr.online.service.scorer import RoutedScorer
from tracecvr.online.store import choices
from tracecvr.online.store.store import Store

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture
def store(made: Made) -> Store:
    store = made("vanilla")
    send(store, the_events()[:200])
    learnt(store)
    return store


# Choices.


@pytest.mark.parametrize("text", ["{}", "[]", "null", "{", '{"version": "x"}', '{"model": "other", "before": null}'])
def test_a_damaged_choice_is_refused_in_one_line(text: str, store: Store) -> None:
    (store.folder / choices.NAME).write_text(text)
    with pytest.raises(UserError, match=r"is damaged: remove it|not readable as JSON"):
        RoutedScorer(store).refresh()


def test_a_choice_that_is_damaged_later_changes_nothing(store: Store) -> None:
    scorer = RoutedScorer(store)
    scorer.refresh()
    (store.folder / choices.NAME).write_text("{}")
    with pytest.raises(UserError, match="is damaged: remove it"):
        scorer.refresh()
    click = store.reader.values(the_events()[0]["features"])
    assert asyncio.run(scorer.main.answer([click])).model is None


def test_a_folder_in_place_of_the_choice_is_refused(store: Store) -> None:
    (store.folder / choices.NAME).mkdir()
    with pytest.raises(UserError, match="a folder is in place of a file"):
        RoutedScorer(store).refresh()


# Requests.


def test_of_a_click_with_very_many_actions_the_first_are_looked_at(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    click = next(event for event in the_events() if event["type"] == "click")
    action = {"type": "purchase", "click_id": click["click_id"]}
    send(store, [action | {"ts": click["ts"] + n, "event_id": f"e{n}"} for n in range(60)])
    monkeypatch.setattr(event_log, "MOST_SHOWN", 20)
    found = store.log().events_of_click(click["click_id"])
    assert len(found) == 21
    assert found[0].kind == 0


@pytest.mark.parametrize("given", ["a\nb", "a\n", "\x00", "a\u2028b"])
def test_an_id_that_cannot_be_asked_for_is_refused(given: str, store: Store) -> None:
    event = the_events()[0] | {"click_id": given}
    with pytest.raises(UserError, match=r"click_id is .*cannot be printed"):
        store.reader.read(event)


@pytest.mark.parametrize(
    ("host", "origin", "may"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000", True),
        ("localhost:8000", "http://LOCALHOST:8000", True),
        ("127.0.0.1:8000", "http://127.0.0.1:9000", False),
        ("localhost:8000", "http://localhost", False),
        ("127.0.0.1:8000", "http://localhost:8000", False),
        ("live.example", "https://live.example", True),
        ("live.example", "https://other.example", False),
    ],
)
def test_pages_of_another_local_port_may_not_ask(host: str, origin: str, may: bool) -> None:
    headers = {b"host": host.encode(), b"origin": origin.encode()}
    refusal = Names([*LOOPBACK, "live.example"]).refuse("/v1/promote", headers)
    assert (refusal is None) == may


# Writers.


class Writer:
    """Answers a mirror with what it is told to."""

    def __init__(self, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
        self.answers: dict[str, bytes] = {}
        scorer = RoutedScorer(store)
        scorer.refresh()
        files = scorer.list_published()
        self.listed = {name: {"size": file.size, "sha256": file.sha256} for name, file in files.items()}
        self.contents = {f"/v1/published/{name}": (store.folder / name).read_bytes() for name in files}
        self.offer(self.listed)
        monkeypatch.setattr(mirror, "_ask", lambda path: io.BytesIO(self.answers[path]))

    def offer(self, files: dict[str, Any]) -> None:
        self.answers = self.contents | {"/v1/published": json.dumps({"files": files}).encode()}


@pytest.fixture
def mirrored(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Mirror, Writer]:
    (tmp_path / "copy").mkdir()
    mirror = Mirror("http://127.0.0.1:1", tmp_path / "copy")
    return mirror, Writer(mirror, monkeypatch, store)


def held(mirror: Mirror) -> dict[str, bytes]:
    files = (path for path in mirror.folder.rglob("*") if path.is_file())
    return {path.relative_to(mirror.folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "answer", [b"", b"garbage", b"[]", b"null", b'{"files": {}}', b'{"files": {"store.json": 3}}', b'{"files": []}']
)
def test_a_writer_that_answers_garbage_takes_nothing_away(answer: bytes, mirrored: tuple[Mirror, Writer]) -> None:
    mirror, writer = mirrored
    writer.answers["/v1/published"] = answer
    assert not mirror.pull()
    assert not held(mirror)
    writer.offer(writer.listed)
    assert mirror.pull()
    before = held(mirror)
    assert len(before) > 4
    writer.answers["/v1/published"] = answer
    assert not mirror.pull()
    assert mirror.problem
    assert "\n" not in mirror.problem
    assert held(mirror) == before
    replica = Replica(Store.open(mirror.folder, check=False), Tokens(), Limits(), mirror)
    replica.look()
    assert replica.scorer.model is not None, "it goes on with its copy"
    assert mirror.problem


def test_files_that_are_too_large_are_not_fetched(mirrored: tuple[Mirror, Writer]) -> None:
    mirror, writer = mirrored
    for size in (1 << 33, -1):
        writer.offer(writer.listed | {"serving.json": writer.listed["store.json"] | {"size": size}})
        assert not mirror.pull()
        assert mirror.problem is not None
        assert "more than a model has" in mirror.problem


def test_another_store_does_not_replace_the_copy(mirrored: tuple[Mirror, Writer]) -> None:
    mirror, writer = mirrored
    assert mirror.pull()
    before = held(mirror)
    writer.offer(writer.listed | {"store.json": writer.listed["store.json"] | {"sha256": "0" * 64}})
    assert not mirror.pull()
    assert mirror.problem is not None
    assert "another store" in mirror.problem
    assert held(mirror) == before


def test_what_is_no_store_is_not_kept(mirrored: tuple[Mirror, Writer]) -> None:
    mirror, writer = mirrored
    import hashlib

    text = b'{"format": 1}'
    facts = {"size": len(text), "sha256": hashlib.sha256(text).hexdigest()}
    writer.contents["/v1/published/store.json"] = text
    writer.offer(writer.listed | {"store.json": facts})
    assert not mirror.pull()
    assert mirror.problem is not None
    assert "no store that can be read" in mirror.problem
    assert not held(mirror)


def test_a_writer_that_has_just_started_takes_no_version_away(mirrored: tuple[Mirror, Writer]) -> None:
    mirror, writer = mirrored
    assert mirror.pull()
    before = held(mirror)
    writer.offer({name: facts for name, facts in writer.listed.items() if not name.startswith("models/")})
    assert mirror.pull()
    assert held(mirror) == before


# What is deployed.


def test_the_unit_bounds_memory_and_calls_and_the_container_runs_as_the_owner() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "tracecvr.service")
    service = unit["Service"]
    assert service["MemoryMax"]
    assert service["SystemCallErrorNumber"] == "EPERM"
    assert "SystemCallFilter=@system-service\n" in (DEPLOY / "tracecvr.service").read_text()
    runs = [line for line in (DEPLOY / "Containerfile").read_text().splitlines() if " run " in line and "-v" in line]
    assert len(runs) == 2
    assert all("--userns=keep-id" in line or '--user "$(id -u):$(id -g)"' in line for line in runs)
