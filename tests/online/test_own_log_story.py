"""A log of one's own from its file to a served model, by the commands and what they propose, from any folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from conftest import Call

from log_kinds import KINDS
from more_logs import MORE_LOGS
from other_logs import OTHER_LOGS, Kept
from test_service import asked, served
from tracecvr.base.config import DAY
from tracecvr.data import prepared
from tracecvr.data.table import NEVER
from tracecvr.datasets.synthetic import Synthetic
from tracecvr.online.dataset_events import events_of
from tracecvr.online.store.store import Store
from tracecvr.online.upkeep.verify_log import write_table

QUICK = (
    "--set",
    "hidden=16,8",
    "--set",
    "warm_epochs=1",
    "--set",
    "warm_batch_size=256",
    "--set",
    "interval=5d",
    "--set",
    "until=50d",
    "--threads",
    "1",
)


def story(
    kind: str | Callable[[Path], Sequence[Path]],
    tmp_path: Path,
    call: Call,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *options: str,
) -> Store:
    """From the files of a log to a store that has learnt the events after a run; each command in another folder."""

    def carry_out(folder: str, *words: object) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        assert call(*words) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    (tmp_path / "logs").mkdir()
    monkeypatch.chdir(tmp_path / "logs")
    files = KINDS[kind](tmp_path / "logs", 1200).files if isinstance(kind, str) else kind(tmp_path / "logs")
    carry_out(
        "logs", "inspect", *(os.path.relpath(file) for file in files), *options, "--out", "../schemas/schema.toml"
    )
    carry_out("schemas", "prepare", "logs", "--schema", "schema.toml", "--out", "../data/table")
    carry_out("data", "run", "--method", "telescoped", "--source", "table", *QUICK, "--out", "../runs/mine")
    sent = carry_out("runs", "events", "--model", "mine")
    assert {json.loads(line)["type"] for line in sent.splitlines()} >= {"click"}
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "events.jsonl").write_text(sent)
    carry_out("elsewhere", "init", "../live/store", "--model", tmp_path / "runs" / "mine")
    carry_out("live", "ingest", "store", "events.jsonl")
    carry_out("live", "tick", "store")
    return Store.open(tmp_path / "live" / "store")


def check_served(store: Store, tmp_path: Path) -> None:
    """A click is answered with a rate, an unseen and a missing value included."""
    events = [json.loads(line) for line in (tmp_path / "live" / "events.jsonl").read_text().splitlines()]
    features: dict[str, Any] = next(event["features"] for event in events if event["type"] == "click")
    campaign, device = (next(name for name in features if word in name.lower()) for word in ("campaign", "device"))
    asked_for = {"features": [features, features | {campaign: "never seen", device: None}]}
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


def with_text_ids(folder: Path) -> Sequence[Path]:
    files = KINDS["refunds_in_one_file"](folder, 1200).files
    for file in files:
        pl.read_csv(file).with_columns(pl.format("c-{}", "click_id").alias("click_id")).write_csv(file)
    return files


def test_a_purchase_finds_its_click_in_the_log_by_its_text_id(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clicks that were open when the run ended convert live, by the ids that the log has."""
    store = story(with_text_ids, tmp_path, call, capsys, monkeypatch)
    sent = [json.loads(line) for line in (tmp_path / "live" / "events.jsonl").read_text().splitlines()]
    clicks = pl.read_csv(tmp_path / "logs" / "clicks.csv")
    assert {event["click_id"] for event in sent} <= set(clicks["click_id"])
    fresh = {event["click_id"] for event in sent if event["type"] == "click"}
    of_open = [event for event in sent if event["type"] == "purchase" and event["click_id"] not in fresh]
    assert len(of_open) > 3
    live, whole = write_table(store, tmp_path / "live_table"), prepared.load(tmp_path / "data" / "table").table
    final = int(np.searchsorted(live.click_ts, live.click_ts[-1] - live.schema.d_max))
    assert final > len(live) - len(fresh), "every click that was open is over"
    assert np.array_equal(live.click_id[:final], whole.click_id[:final])
    assert np.array_equal(live.label[:final], whole.label[:final])
    scores = pl.read_parquet(tmp_path / "runs" / "mine" / "scores.parquet")
    assert set(scores["click_id"]) <= set(clicks["click_id"])


def test_ingest_says_that_most_actions_have_no_click(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = story("refunds_in_one_file", tmp_path, call, capsys, monkeypatch)
    sent = [json.loads(line) for line in (tmp_path / "live" / "events.jsonl").read_text().splitlines()]
    actions = [event for event in sent if event["type"] != "click"]
    (tmp_path / "wrong.jsonl").write_text(
        "\n".join(json.dumps(event | {"click_id": str(event["click_id"])}) for event in actions)
    )
    assert call("ingest", store.folder, tmp_path / "wrong.jsonl") == 0
    assert "clicks that actions name are not known to this store" in capsys.readouterr().err
    assert call("ingest", store.folder, tmp_path / "live" / "events.jsonl") == 0
    assert "warning" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "refunds_in_one_file"])
def test_every_kind_of_log_is_served(
    kind: str, tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_served(story(kind, tmp_path, call, capsys, monkeypatch), tmp_path)


def test_events_of_a_prepared_log_are_those_of_its_raw_log(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table knows its options and its log, from any folder; one that does not says what to do."""
    options = ("--data-set", "clicks=600", "--data-set", "split=12d")
    assert call("prepare", "synthetic", *options, "--out", tmp_path / "table") == 0
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    assert call("events", "--source", "table") == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    dataset = Synthetic(clicks=600, split=12 * DAY)
    assert printed == list(events_of(dataset, None, dataset.split, 36500 * DAY))
    for words in ((), ("--source", "table", "--model", "run")):
        assert call("events", *words) == 2
        assert "give either a log that `tracecvr prepare` has written" in capsys.readouterr().err
    (tmp_path / "table" / "raw_log.json").unlink()
    assert call("events", "--source", "table") == 2
    assert "does not say which raw log it was made of" in capsys.readouterr().err


def test_a_run_over_raw_files_is_gone_on_from_in_any_folder(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schema may even be changed or gone: the run keeps its own copy."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    files = KINDS["label_with_delay"](tmp_path / "here", 1200).files
    assert call("inspect", files[0].name, "--out", "schema.toml") == 0
    run = ("run", "--method", "vanilla", "--schema", "schema.toml", *QUICK, "--out", "mine")
    assert call(*run) == 0
    (tmp_path / "here" / "schema.toml").unlink()
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert call("events", "--model", "here/mine") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["type"] in ("click", "converted")
    assert call("init", "store", "--model", "here/mine") == 0
    assert Store.open(tmp_path / "store").schema.actions == ("converted",)
    files[0].unlink()
    assert call("init", "store2", "--model", "here/mine") == 2
    assert "labels.csv: no such file" in capsys.readouterr().err


@pytest.mark.parametrize("kind", OTHER_LOGS)
def test_a_log_of_another_kind_goes_from_files_to_a_served_model(
    kind: str, tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No schema by hand: what is counted is exact, and clicks that were open convert, are taken back and convert again
    by the ids that the log has."""
    kept: list[Kept] = []

    def make(folder: Path) -> Sequence[Path]:
        kept.append(OTHER_LOGS[kind](folder, 1200))
        return kept[0].files

    zone = ("--zone", "Europe/Berlin") if kind == "european_tables" else ()
    store = story(make, tmp_path, call, capsys, monkeypatch, *zone)
    check_served(store, tmp_path)
    live, whole = write_table(store, tmp_path / "live_table"), prepared.load(tmp_path / "data" / "table").table
    assert {name: whole.counts[name] for name in kept[0].counts} == kept[0].counts
    assert len(whole) == len(kept[0].ids)
    assert int(whole.label.sum()) == kept[0].converted
    sent = [json.loads(line) for line in (tmp_path / "live" / "events.jsonl").read_text().splitlines()]
    assert {event["click_id"] for event in sent} <= set(kept[0].ids)
    fresh = {event["click_id"] for event in sent if event["type"] == "click"}
    assert any(event["type"] != "click" and event["click_id"] not in fresh for event in sent)
    final = int(np.searchsorted(live.click_ts, live.click_ts[-1] - live.schema.d_max))
    assert np.array_equal(live.click_id[:final], whole.click_id[:final])
    assert np.array_equal(live.label[:final], whole.label[:final])
    assert live.refund_ts is not None
    assert (live.refund_ts[:final] != NEVER).any()


@pytest.mark.parametrize("kind", MORE_LOGS)
def test_plain_python_counts_what_a_live_model_has(
    kind: str, tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From files to a served model without a schema by hand: clicks, conversions, and the open clicks that convert live
    by the ids that the log has, one by one."""
    zone = ("--zone", "UTC") if kind == "excel_in_america" else ()
    store = story(lambda folder: MORE_LOGS[kind].write(folder, 1200), tmp_path, call, capsys, monkeypatch, *zone)
    check_served(store, tmp_path)
    truth, whole = MORE_LOGS[kind].count(tmp_path / "logs"), prepared.load(tmp_path / "data" / "table")
    table, begin = whole.table, whole.origin or 0
    d_max, ids = table.schema.d_max, whole.ids_of(0, len(table)).to_list()
    first = {
        key: min((at for at in click.bought if at - click.at <= d_max), default=None) for key, click in truth.items()
    }
    assert dict(zip(ids, table.label.tolist(), strict=True)) == {key: at is not None for key, at in first.items()}

    assert store.start is not None
    end, closed = (begin + time for time in (store.start.time, store.grid.bounds(store.log().closed())[0]))
    open_then = {key for key, click in truth.items() if click.at < end <= click.at + d_max}
    convert = {key for key in open_then if end <= (first[key] or 0) < closed}
    live, names = write_table(store, tmp_path / "live_table"), dict(zip(table.click_id.tolist(), ids, strict=True))
    labels = {names[key]: label for key, label in zip(live.click_id.tolist(), live.label.tolist(), strict=True)}
    before = {key for key in open_then if (first[key] or end) < end}
    assert {key for key in open_then if labels[key]} == convert | before
    assert convert, "some of them convert live"
