"""A log of one's own from its file to a served model, by the commands and what they propose, from any folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Call

from log_kinds import KINDS
from test_service import asked, served
from tracecvr.online.store import Store

QUICK = ("--set", "hidden=16,8", "--set", "warm_epochs=1", "--threads", "1")


def story(
    kind: str, tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Store:
    """From the files of a log to a store that has learnt the events after a run; each command in another folder."""

    def carried_out(folder: str, *words: object) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        assert call(*words) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    (tmp_path / "logs").mkdir()
    files = KINDS[kind](tmp_path / "logs", 1200).files
    carried_out("logs", "inspect", *(file.name for file in files), "--out", "../schemas/schema.toml")
    carried_out("schemas", "prepare", "logs", "--schema", "schema.toml", "--out", "../data/table")
    carried_out("data", "run", "--method", "telescoped", "--source", "table", *QUICK, "--out", "../runs/mine")
    sent = carried_out("runs", "events", "--model", "mine")
    assert {json.loads(line)["type"] for line in sent.splitlines()} >= {"click"}
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "events.jsonl").write_text(sent)
    carried_out("elsewhere", "init", "../live/store", "--model", tmp_path / "runs" / "mine")
    carried_out("live", "ingest", "store", "events.jsonl")
    carried_out("live", "tick", "store")
    return Store.open(tmp_path / "live" / "store")


def check_served(store: Store, tmp_path: Path) -> None:
    """A click is answered with a rate, an unseen and a missing value included."""
    line = (tmp_path / "live" / "events.jsonl").read_text().splitlines()[0]
    features: dict[str, Any] = json.loads(line)["features"]
    asked_for = {"features": [features, features | {"campaign": "never seen", "device": None}]}
    with served(store) as url:
        status, answer = asked(url, "POST", "/v1/score", json.dumps(asked_for).encode())
    assert status == 200, answer
    rates = [one["probability"] for one in answer["scores"]]
    assert all(0 < rate < 1 for rate in rates)
    assert rates[0] != rates[1]


def test_a_log_of_your_own_is_served_from_any_folder(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = story("refunds_in_one_file", tmp_path, call, capsys, monkeypatch)
    check_served(store, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "refunds_in_one_file"])
def test_every_kind_of_log_is_served(
    kind: str, tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_served(story(kind, tmp_path, call, capsys, monkeypatch), tmp_path)
