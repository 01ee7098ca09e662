"""The live learner: what was replayed is what runs live, bit for bit; and what it does when something goes wrong."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from conftest import Call
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import roc_auc_score

from livestore import OPTIONS, SMALL, Made, finish, learnt, predicted, replayed, send, the_events
from tracecvr.base import metrics, registry
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.errors import UserError
from tracecvr.base.metrics import probability
from tracecvr.data import prepared
from tracecvr.data.table import NEVER
from tracecvr.learn.engine import Engine
from tracecvr.learn.stream_learning import StreamLearning
from tracecvr.online.dataset_events import events_of
from tracecvr.online.learner import archive
from tracecvr.online.learner.guard import Guard
from tracecvr.online.learner.learner import open_learner
from tracecvr.online.learner.live_metrics import ScoreSums
from tracecvr.online.store.store import Settings, Store
from tracecvr.online.store.versions import Versions
from tracecvr.online.upkeep import verify_log
from tracecvr.runs.spec import dataset_of

METHODS = ("trace", "es_dfm", "defer", "ftp", "miss", "ulc")
"""The ones that the promise names, and one that trains its helpers again while it runs."""


# Live equals replay.


@pytest.mark.parametrize("method", METHODS)
def test_live_equals_replay(method: str, made: Made) -> None:
    """Shuffled within the allowed lateness, some twice, in batches of any size, by learners that come and go."""
    dice, store = random.Random(method), made(method)
    events = sorted(the_events(), key=lambda event: event["ts"] + dice.uniform(0, HOUR))
    for _ in range(100):
        first = dice.randrange(len(events))
        events.insert(dice.randint(first, len(events)), events[first])
    while events:
        size = dice.choice((1, 20, 400, 1500))
        send(store, events[:size], dice.randint(1, 300))
        del events[:size]
        if dice.random() < 0.5:
            learnt(store)
    assert store.log().facts().get("late", 0) == 0
    finish(store)
    weights, intervals = learnt(store)
    assert intervals > 32
    assert weights == replayed(store)
    assert verify_log.verify_log(store).same


@pytest.mark.parametrize("labels", ["censored", "mature"])
def test_warm_up_labels_are_those_that_the_store_was_created_with(labels: str, made: Made) -> None:
    store = made("vanilla", Settings(warm_labels=labels))
    assert learnt(store)[0] == replayed(store, intervals=0)


@pytest.mark.parametrize("method", ["trace", "defer", "miss"])
def test_with_events_that_are_truly_late_live_equals_the_replay_of_the_log(
    method: str, made: Made, tmp_path: Path
) -> None:
    """A tenth of all events come up to a day too late, clicks among them, and some purchases are taken back."""
    dice, store = random.Random(3), made(method)
    came = [(e["ts"] + (dice.uniform(2 * HOUR, DAY) if dice.random() < 0.1 else 0), e) for e in the_events()]
    bought = [e for e in the_events() if e["type"] == store.schema.actions[0]]
    for event in dice.sample(bought, 30):
        at = event["ts"] + dice.randint(0, 6 * HOUR)
        came.append((at, event | {"type": "refund", "ts": at}))
    send(store, [event for _, event in sorted(came, key=lambda pair: pair[0])], 37)
    finish(store)
    weights, _ = learnt(store)
    facts = store.log().facts()
    assert facts["late"] > 100
    assert verify_log.verify_log(store).same
    verify_log.write_table(store, tmp_path / "table")
    assert weights == replayed(store, tmp_path / "table")
    assert weights != replayed(store)  # the table that knows everything in time
    table = prepared.load(tmp_path / "table").table
    assert (table.arrival_ts > table.click_ts).any()
    assert table.refund_ts is not None
    assert len(table) == len(store.base)


def test_the_log_as_a_table_is_a_benchmark(made: Made, tmp_path: Path, call: Call) -> None:
    store = made("vanilla")
    send(store, the_events())
    finish(store)
    assert call("table", store.folder, tmp_path / "table") == 0
    words = ("--method", "vanilla", "--data", "synthetic", "--source", tmp_path / "table", "--out", tmp_path / "run")
    assert (
        call(
            "run",
            *words,
            "--set",
            "hidden=16,8",
            "--set",
            "warm_epochs=1",
            "--set",
            "warm_batch_size=256",
            "--threads",
            "1",
        )
        == 0
    )
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["cost"]["clicks"] > 500
    assert "kept live" in result["data"]["notes"][-1]


def test_compaction_changes_nothing_and_the_archive_is_replayed_too(made: Made, hourly: Path) -> None:
    store = made("es_dfm", Settings(lateness=HOUR, keep=2), hourly)
    half = len(the_events()) * 19 // 20
    send(store, the_events()[:half])
    learnt(store)
    assert archive.compact(store) > 100
    assert archive.compact(store) == 0
    frame = pl.concat([pl.read_parquet(path) for path in (store.folder / "archive").iterdir()])
    kinds = store.reader.kinds
    events = {(kinds[e["type"]], e["click_id"], e["ts"]) for e in the_events()}
    assert set(frame.select("kind", "click", "ts").rows()) < events
    assert store.log().append([store.reader.read(the_events()[0])]).counts["out_of_window"] == 1  # sent again, too late
    send(store, the_events()[half:])
    finish(store)
    assert learnt(store)[0] == replayed(store)
    assert verify_log.verify_log(store).same


def test_a_compaction_in_small_files_keeps_what_is_open_and_nothing_else(
    made: Made, hourly: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger that is lost afterwards is built anew from them, also what waits for clicks that come late."""
    store = made("es_dfm", Settings(lateness=HOUR, keep=2), hourly)
    late = {e["click_id"] for e in the_events() if e["type"] == "click" and e["click_id"] % 10 == 0}
    order = sorted(
        enumerate(the_events()), key=lambda e: e[0] + 150 * (e[1]["type"] == "click" and e[1]["click_id"] in late)
    )
    events = [event for _, event in order]
    half = len(events) * 19 // 20
    send(store, events[:half])
    learnt(store)
    everything = len(store.log().before(NEVER))
    monkeypatch.setattr(archive, "_BLOCK", 40)
    assert archive.compact(store) > 100
    frames = [pl.read_parquet(path) for path in (store.folder / "archive").glob("*")]
    sizes = [len(frame) for frame in frames]
    assert sum(sizes) + len(store.log().before(NEVER)) == everything
    assert len(sizes) > 3
    assert all(
        size <= 40 or len({store.grid.number(t) for t in frame["seen"]}) == 1
        for size, frame in zip(sizes, frames, strict=True)
    )
    with open_learner(store) as learner:
        done = learner.ledger.done - 1  # of the older version that is kept
        oldest = min(row.seen for row in store.log().before(NEVER))
        assert oldest >= store.grid.bounds(done - 1)[0] - learner.ledger.memory - store.grid.interval
        assert learner.ledger.database._run("SELECT count(*) FROM waiting").get > 2
    send(store, events[half:])
    finish(store)
    learnt(store)
    assert verify_log.verify_log(store).same


def test_a_compaction_that_was_killed_before_it_deleted_is_repeated(
    made: Made, hourly: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made("vanilla", Settings(lateness=HOUR, keep=2), hourly)
    send(store, the_events())
    finish(store)
    learnt(store)
    everything = len(store.log().before(NEVER))
    with monkeypatch.context() as patch:
        patch.setattr(archive.WholeLog, "_transaction", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            archive.compact(store)
    assert len(list((store.folder / "archive").iterdir())) == 1
    assert verify_log.verify_log(store).same
    archive.compact(store)
    kept = sum(len(pl.read_parquet(path)) for path in (store.folder / "archive").iterdir())
    assert kept + len(store.log().before(NEVER)) == everything
    assert verify_log.verify_log(store).same


def test_a_user_who_is_erased_is_in_no_file_and_is_never_shown_again(made: Made, hourly: Path) -> None:
    dice, store = random.Random(5), made("miss", Settings(lateness=HOUR, keep=2), hourly)
    whose = {e["click_id"]: f"user-{dice.randrange(8)}-end" for e in the_events() if e["type"] == "click"}
    named = [e | ({"user": whose[e["click_id"]]} if e["click_id"] in whose else {}) for e in the_events()]
    half = len(named) * 3 // 4
    send(store, named[:half])
    learnt(store)
    archive.compact(store)
    with open_learner(store) as learner:  # one that runs while it happens
        rows = learner.ledger.rows
        clicks, actions = archive.erase(store, "user-3-end")
        assert clicks == sum(e["type"] == "click" and e["user"] == "user-3-end" for e in named[:half])
        assert actions > 0
        send(store, named[half:])
        learner.tick()
        ids = [click for click, user in whose.items() if user == "user-3-end"]
        known = learner.ledger.known_between(0, 10**9)
        before = learner.ledger.table.click_id[known][: rows - learner.ledger.first_row]
        early = {e["click_id"] for e in named[:half] if e["type"] == "click"}
        assert not set(before.tolist()) & set(ids) & early
        assert learner.ledger.rows >= rows
        while learner.tick() is not None:
            pass
        weights = learner.engine.fingerprint()
    held = b"".join(path.read_bytes() for path in store.folder.glob("events.db*"))
    later = sum(e.get("user") == "user-3-end" for e in named[half:])
    assert held.count(b"user-3-end") >= later  # those that were sent after the erasure
    archive.erase(store, "user-3-end")
    files = [*store.folder.glob("events.db*"), *(store.folder / "archive").iterdir()]
    assert not any(b"user-3-end" in path.read_bytes() for path in files)
    assert b"user-4-end" in (store.folder / "events.db").read_bytes()
    assert learnt(store)[0] == weights  # a restart finds everybody else in his place
    verification = verify_log.verify_log(store)
    assert verification.erased_clicks > 0
    assert "cannot be made again" in verification.summary()


# What serves, and what is undone.


def test_versions_change_what_serves_and_never_what_trains(made: Made) -> None:
    store = made(settings=Settings(lateness=HOUR, keep=5))
    send(store, the_events()[:1500])
    learnt(store)
    versions = Versions(store.folder, 5)
    numbers = versions.published()
    assert versions.serving() == numbers[-1]
    versions.promote(numbers[-2])
    assert versions.serving() == numbers[-2]
    with pytest.raises(UserError, match="version 999 cannot serve"):
        versions.promote(999)
    versions.promote(numbers[0])
    send(store, the_events()[1500:])
    finish(store)
    weights, intervals = learnt(store)
    assert weights == replayed(store)
    assert versions.serving() == numbers[0]  # chosen, so it is kept though it is old
    assert versions.published() == [numbers[0], *range(intervals - 4, intervals + 1)]
    versions.promote(None)
    assert versions.serving() == intervals
    newest = store.folder / "models" / f"{intervals:09d}.safetensors"
    newest.write_bytes(b"damaged" + newest.read_bytes()[7:])
    assert versions.serving() == intervals - 1


def test_a_tick_that_diverges_is_undone_told_and_not_published(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made("vanilla")
    send(store, the_events())
    finish(store)
    plain = Engine.tick

    def bad(self: Engine, source: Any, start: int, end: int) -> int:
        if start == store.grid.bounds(5)[0]:
            self.method.learning_rate = 1e30
            self._optimisers = self._stream_optimisers()
        events = plain(self, source, start, end)
        if start == store.grid.bounds(7)[0]:
            for parameter in self._main.parameters():
                parameter.data.mul_(40.0)
        return events

    monkeypatch.setattr(Engine, "tick", bad)
    with open_learner(store) as learner:
        before = ""
        while (tick := learner.tick()) is not None:
            if tick.number in (5, 7):
                assert tick.undone
                assert learner.engine.fingerprint() == before
                learner.engine.method.learning_rate = 1e-3
            before = learner.engine.fingerprint()
    undone = [n for n, record in store.log().ticks() if record["undone"]]
    assert set(undone) >= {5, 7}
    published = Versions(store.folder, 48).published()
    assert not {6, 8} & set(published)


def test_the_guard_tells_harm_from_what_was_bad_before() -> None:
    label = np.arange(1000) % 10 == 0
    good = np.where(label, -1.0, -2.5).astype(np.float32)
    guard = Guard()
    assert guard.verdict(label, good, good) == ""
    assert "NLL" in guard.verdict(label, good, good + np.float32(4))
    assert "calibration" in Guard(nll=100, base=100).verdict(label, good, good + np.float32(4))
    assert "calibration" in Guard(nll=100, base=100).verdict(label, good, good - np.float32(3))
    assert guard.verdict(label, good + np.float32(4), good + np.float32(4.01)) == ""
    assert Guard(base=math.inf).verdict(label[:400], good[:400], good[:400] + 9) == ""  # too few to be compared


@given(st.integers(1, 600), st.floats(-6, 2), st.integers(0, 2**32))
def test_few_clicks_are_no_reason_to_undo_a_tick_that_predicts_well(count: int, mean: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    right = (mean + rng.normal(size=count)).astype(np.float32)
    label = rng.random(count) < probability(right.astype(np.float64))
    perfect = np.where(label, 30, -30).astype(np.float32)  # nothing is excused by what was before
    assert Guard(nll=math.inf, pcoc=math.inf).verdict(label, perfect, right) == ""
    assert Guard().extreme(right, right + np.float32(0.5)) == ""


def test_absolute_bounds_hold_however_few_clicks_there_are() -> None:
    label = np.arange(60) % 20 == 0
    good, bad = (np.full(60, s, np.float32) for s in (-3.0, 4.0))
    assert "that of their rate" in Guard().verdict(label, good, bad)
    assert Guard().verdict(label, bad, bad) == ""  # it was as bad before
    assert Guard().verdict(label[:2], good[:2], bad[:2]) == ""  # two clicks may be chance
    assert "log-odds" in Guard().extreme(good, good - 5800)
    assert Guard().extreme(good - 5900, good - 5800) == ""  # a bad model may recover
    assert Guard().extreme(good, np.where(np.arange(60) == 7, np.float32(-5800), good)) == ""  # one strange click


def test_at_few_clicks_a_day_a_learning_rate_of_50_is_undone_and_never_published(tmp_path: Path) -> None:
    quiet = dataset_of("synthetic", [f"{key}={value}" for key, value in {**OPTIONS, "clicks": "1750"}.items()])
    prepared.prepare_to(tmp_path / "base", quiet, None)
    method = registry.get("method", "vanilla")(**SMALL)
    stream = StreamLearning(learning_rate=50.0)
    store = Store.create(tmp_path / "store", tmp_path / "base", method, (), Settings(keep=2), stream=stream)
    send(store, list(events_of(quiet, None, quiet.split, quiet.split + DAY)))
    learnt(store)
    told = [content for _, content in store.log().ticks()]
    assert len(told) > 5
    assert all("log-odds" in content["undone"] for content in told)
    versions = Versions(store.folder, 2)
    assert versions.published() == [0] == [versions.serving()]  # it is the oldest by far, and kept
    assert verify_log.verify_log(store).undone == list(range(len(told)))


def test_the_last_good_versions_outlive_any_number_of_undone_ticks(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made("vanilla", Settings(lateness=HOUR, keep=3))
    send(store, the_events())
    finish(store)
    monkeypatch.setattr(Guard, "verdict", lambda *_: "")
    monkeypatch.setattr(Guard, "extreme", lambda *_: "")
    versions = Versions(store.folder, 3)
    with open_learner(store) as learner:
        for _ in range(6):
            learner.tick()
        versions.promote(5)
        weights = learner.engine.fingerprint()
        monkeypatch.setattr(Guard, "extreme", lambda *_: "harm")
        for _ in range(8):
            learner.tick()
    assert versions.published() == [5, 6]
    assert versions.serving() == 5
    versions.promote(None)
    assert versions.serving() == 6
    for number in versions.published():  # as if they were lost
        (store.folder / "models" / f"{number:09d}.json").unlink()
    assert versions.serving() == 14
    assert versions.manifests()[-1]["weights"] == weights


# Live metrics.


SCORES = hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(-20, 20, width=32))


@given(SCORES, SCORES, st.randoms(use_true_random=False))
def test_sums_of_scores_tell_what_the_clicks_tell(one: Any, other: Any, dice: random.Random) -> None:
    parts = [(s, np.array([dice.random() < 0.3 for _ in s])) for s in (one, other)]
    sums = ScoreSums()
    for s, label in parts:
        sums.add(s, label)
    s, label = np.concatenate([one, other]), np.concatenate([parts[0][1], parts[1][1]])
    summary, exact = sums.summary(), metrics.evaluate(s, label)
    assert summary["nll"] == pytest.approx(exact.nll)
    assert summary["ece"] == pytest.approx(exact.ece)
    assert summary["clicks"] == len(s)
    assert summary["pcoc"] == (None if exact.pcoc is None else pytest.approx(exact.pcoc))
    binned = np.searchsorted(np.linspace(-15, 15, 1201), s)
    if 0 < label.sum() < len(label):
        assert summary["auc"] == pytest.approx(roc_auc_score(label, binned))
    again = ScoreSums.of(json.loads(json.dumps(sums.state())))
    assert again.summary() == sums.summary()


def test_what_is_told_of_a_stream_is_what_happened_in_it(made: Made) -> None:
    store = made(warm_epochs=4, learning_rate=5e-3)  # scores that differ: AUC is taken of bins of log-odds
    send(store, the_events())
    finish(store)
    with open_learner(store) as learner:
        while learner.tick() is not None:
            pass
        done, table = learner.ledger.done, store.base
        record = learner.log.ticks(1)[0][1]
        served = np.frombuffer(predicted(store), np.float32)
    end = store.grid.bounds(done)[0]
    first, last = np.searchsorted(table.click_ts, (store.schema.split, end - store.schema.d_max))
    exact = metrics.evaluate(served[: last - first], table.label[first:last])
    mature = record["mature"]["prequential"]
    assert mature["clicks"] == last - first
    assert mature["conversions"] == table.label[first:last].sum()
    assert mature["nll"] == pytest.approx(exact.nll)
    assert mature["auc"] == pytest.approx(exact.auc, abs=0.003)
    assert record["mature"]["as_served"]["clicks"] == record["recent"]["as_served"]["clicks"] == 0  # they were ingested
    recent = record["recent"]["prequential"]
    newest = table.click_ts >= end - 24 * store.schema.interval
    assert recent["clicks"] == (newest & (table.click_ts < end)).sum()
    assert recent["so_far"] <= recent["low"] <= recent["forecast"] <= recent["high"] < 3 * recent["so_far"]
    assert recent["pcoc"] == pytest.approx(recent["predicted"] / recent["forecast"])


# The command line.


def test_from_a_log_to_a_model_that_learns_by_the_command_line(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    data, table = [w for k, v in OPTIONS.items() for w in ("--data-set", f"{k}={v}")], ("--source", tmp_path / "table")
    store, events = tmp_path / "store", tmp_path / "events.jsonl"
    assert call("prepare", "synthetic", *data, "--out", tmp_path / "table") == 0
    nets = [w for setting in ("hidden=16,8", "warm_epochs=1", "warm_batch_size=256") for w in ("--set", setting)]
    assert call("init", store, *table, *nets, "--lateness", "30min") == 0
    assert call("init", store, *table) == 2
    capsys.readouterr()
    assert call("events", *table) == 0
    events.write_text(capsys.readouterr().out)
    assert call("ingest", store, events) == 0
    assert call("ingest", store, events) == 0
    assert f"duplicates: {len(the_events()):,}" in capsys.readouterr().out
    assert call("tick", store) == 0
    assert call("tick", store, "--to", 7 * DAY) == 0
    assert call("status", store, "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert status["intervals"] == {"closed": 39, "learnt": 39}
    assert status["versions"]["serving"] == 39
    assert call("models", "promote", store, 38) == 0
    assert call("models", "list", store) == 0
    assert "38" in next(line for line in capsys.readouterr().out.splitlines() if line.endswith("serves"))
    assert call("models", "promote", store, "newest") == 0
    assert call("models", "promote", store, "best") == 2
    assert call("verify", store, "--replay") == 0
    assert "39 intervals replayed; 40 of 40 versions are identical" in capsys.readouterr().out
    assert call("compact", store) == 0
    assert call("erase", store, "nobody") == 0
    assert "erased: 0 clicks" in capsys.readouterr().out


def test_bad_lines_and_directories_are_named(
    made: Made, tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    store, file = made("vanilla"), tmp_path / "events.jsonl"
    file.write_text("\n".join([json.dumps(the_events()[0]), json.dumps(the_events()[1]), "{", "x"]))
    assert call("ingest", store.folder, file, "--batch", "2") == 2
    stderr = capsys.readouterr().err
    assert "line 3" in stderr
    assert "lines before 3 are accepted" in stderr
    assert len(store.log().before(NEVER)) == 2
    assert call("ingest", tmp_path, file) == 2
    assert "not a store; create one with `tracecvr init`" in capsys.readouterr().err
    assert call("init", tmp_path / "new", "--source", store.folder / "base", "--set", "split=1d") == 2
    assert call("init", tmp_path / "new", "--source", store.folder / "base", "--method", "oracle") == 2
    assert "'oracle' learns from labels before they are known" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    with open_learner(store):
        assert call("tick", store.folder) == 2
    assert "in use by another process" in capsys.readouterr().err


@pytest.mark.slow
def test_twenty_days_of_a_real_log_live_equal_their_replay(real_log: Callable[[str], Path], tmp_path: Path) -> None:
    """For the methods that the promise names, at small sizes: what is compared is bytes, not quality."""
    chosen, source = dataset_of("criteo_search", ()), real_log("criteo_search.parquet")
    prepared.prepare_to(tmp_path / "base", chosen, source)
    end = chosen.split + 20 * DAY
    for method in METHODS[:5]:
        made = registry.get("method", method)(hidden=(32, 16))
        store = Store.create(tmp_path / method, tmp_path / "base", made, (), Settings(lateness=HOUR, keep=2))
        log, dice, batch = store.log(), random.Random(0), []
        for event in events_of(chosen, source, chosen.split, end):
            batch.append(store.reader.read(event))
            if len(batch) == 2000:
                dice.shuffle(batch)
                log.append(batch + batch[:100])
                batch = []
        log.append(batch)
        log.close_until(end)
        weights, intervals = learnt(store)
        assert intervals == 480
        assert weights == replayed(store)


def test_a_store_of_another_format_or_log_is_refused(made: Made) -> None:
    store = made("vanilla")
    other = replace(store, content=store.content | {"fingerprint": "x"})
    with pytest.raises(UserError, match="not the log that this store was created with"):
        _ = other.base
    (store.folder / "store.json").write_text(json.dumps(store.content | {"format": 99}))
    with pytest.raises(UserError, match="another version of tracecvr"):
        Store.open(store.folder)
