"""Challengers: other models on the same log. They learn what a store of their own would, and are compared on the same
clicks; whatever happens to them, the store's own model goes on."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Call

from crashing import LOCAL, Disturbance, in_batches, small_events, small_store
from livestore import SMALL, Made, learnt, predicted, send, the_events
from tracecvr.base import registry
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.errors import UserError
from tracecvr.base.metrics import nll
from tracecvr.learn.checkpoint import Checkpoints
from tracecvr.learn.engine import Engine
from tracecvr.learn.stream_learning import StreamLearning
from tracecvr.methods.vanilla import Vanilla
from tracecvr.online.challengers.learners import ChallengerLearner, Learners
from tracecvr.online.learner.archive import compact, erase
from tracecvr.online.learner.learner import Tick
from tracecvr.online.ledger.ledger import Ledger
from tracecvr.online.log.event_log import EventLog
from tracecvr.online.store.challenge import (
    Challenger,
    challengers,
    choose_parts,
    create,
    drop,
    find_challenger,
    promote_challenger,
    promote_own,
)
from tracecvr.online.store.store import Settings, Store
from tracecvr.online.store.versions import Versions
from tracecvr.online.upkeep.status import status_of
from tracecvr.online.upkeep.store_check import verify
from tracecvr.online.upkeep.verify_log import verify_log

EVENTS = tuple(event for event in the_events() if event["ts"] < 5 * DAY)
"""Of two days: 16 intervals, half of which become mature."""
HALF, QUARTER = len(EVENTS) // 2, len(EVENTS) // 4


def finish(store: Store) -> None:
    """Close what is over when these were sent."""
    store.log().close_until(5 * DAY)


def small(method: str = "vanilla", **options: Any) -> tuple[Any, ...]:
    return (registry.get("method", method)(**SMALL | options), (), StreamLearning())


def learn_all(store: Store) -> list[Tick]:
    with Learners(store) as learners:
        return list(learners.all())


def newest(store: Store) -> dict[str, Any]:
    found = Versions(store.home, store.settings.keep).latest()
    assert found is not None
    return found


def same(one: Store, other: Store) -> None:
    """What two challengers have learnt, predicted and been told, to the byte."""
    first, second = newest(one), newest(other)
    for name in (
        "intervals",
        "weights",
        "sha256",
        "rows",
        "counts",
        "mature",
        "recent",
        "pairs",
        "comparison",
    ):
        assert first[name] == second[name], name
    assert predicted(one) == predicted(other)
    ticks = [[(n, t["weights"], t["comparison"]) for n, t in s.log().ticks(model=s.model)] for s in (one, other)]
    assert ticks[0] == ticks[1]


# What is learnt.


def test_it_learns_what_a_store_of_its_own_would_and_the_stores_own_as_if_it_were_alone(
    made: Made, base: Path, tmp_path: Path
) -> None:
    store = made("vanilla")
    challenger = create(store, "other", small("fnw", hidden=(8,)), seed=3)
    send(store, EVENTS)
    finish(store)
    learn_all(store)
    method = registry.get("method", "fnw")(**SMALL | {"hidden": (8,)})
    settings = Settings(lateness=HOUR, seed=3)
    apart = Store.create(tmp_path / "apart", base, method, (), settings, stream=StreamLearning())
    alone = Store.create(
        tmp_path / "alone", base, registry.get("method", "vanilla")(**SMALL), (), Settings(lateness=HOUR)
    )
    for other, model in ((apart, challenger), (alone, store)):
        send(other, EVENTS)
        finish(other)
        weights, done = learnt(other)
        assert (newest(model)["weights"], newest(model)["intervals"]) == (weights, done)
        assert newest(model)["mature"] == newest(other)["mature"]
        assert predicted(model) == predicted(other)
    for model in (store, challenger):
        assert verify_log(model).same


# What is compared.


def test_both_are_judged_by_the_same_clicks_which_came_after_it_was_made(made: Made) -> None:
    store = made("vanilla")
    send(store, EVENTS[:QUARTER])
    challenger = create(store, "other", small("fnw"), seed=3)
    send(store, EVENTS[QUARTER:])
    finish(store)
    learn_all(store)
    table, grid, done = store.base, store.grid, newest(store)["intervals"]
    first_row = int(np.searchsorted(table.click_ts, grid.split))
    rows = np.flatnonzero(
        (table.click_ts >= grid.bounds(challenger.since)[0]) & (table.click_ts < grid.bounds(done)[0] - grid.d_max)
    )
    assert table.click_ts[rows].min() > EVENTS[QUARTER - 1]["ts"], "clicks that it may have been chosen by"
    scores = [np.frombuffer(predicted(s), np.float32)[rows - first_row] for s in (challenger, store)]
    losses = [nll(s.astype(np.float64), table.label[rows]) for s in scores]
    compared = status_of(store)["challengers"]["other"]["comparison"]
    assert compared["challenger"]["clicks"] == compared["champion"]["clicks"] == len(rows) > 100
    for name, loss in zip(("challenger", "champion"), losses, strict=True):
        assert compared[name]["nll"] == pytest.approx(loss.mean())
    pairs = newest(challenger)["pairs"]["differences"]
    total = pairs["total"] + pairs["open_total"]
    assert total == pytest.approx((losses[0] - losses[1]).sum())
    recent = status_of(store)["challengers"]["other"]["recent"]
    assert recent["challenger"]["clicks"] == recent["champion"]["clicks"] > 0
    assert recent["challenger"]["so_far"] == recent["champion"]["so_far"]
    assert recent["challenger"]["predicted"] != recent["champion"]["predicted"]


def test_a_challenger_that_is_worse_by_a_hundredth_is_told_apart_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = small_store(tmp_path / "store", intervals=66, hourly=200, method=Vanilla)
    create(store, "worse", choose_parts(store, None, (), {}))
    monkeypatch.setattr(Challenger, "engine", off)
    log = store.log()
    log.append([store.reader.read(event) for event in small_events(66, hourly=200)])
    log.close()
    learn_all(store)
    compared = status_of(store)["challengers"]["worse"]["comparison"]
    assert compared["verdict"] == "worse"
    assert 0.005 < compared["nll_difference"]["mean"] < 0.02
    words = [tick["comparison"]["verdict"] for _, tick in store.log().ticks(model="worse")]
    assert words[0] == "too early"
    assert "better" not in words


def off(challenger: Challenger, device: str | None = "cpu") -> Engine:
    """The same engine, its log-odds off by a constant that costs about a hundredth of a nat per click."""
    engine = Store.engine(challenger, device)
    plain = engine.method.log_odds
    object.__setattr__(engine.method, "log_odds", lambda x: plain(x) - 0.18)
    return engine


# Kills.


class Killed(BaseException):
    pass


def killed_at(moment: str, patch: pytest.MonkeyPatch, rng: random.Random) -> None:
    """End the process, as it were, at one of the moments of a tick: before or after something is written."""
    owner, name = {
        "scores": (EventLog, "keep_series"),
        "ledger": (Ledger, "advance"),
        "version": (Checkpoints, "save"),
        "record": (EventLog, "record"),
    }[moment]
    plain, left, after = getattr(owner, name), rng.randint(1, 8), rng.random() < 0.5

    def counted(*words: Any) -> Any:
        nonlocal left
        left -= 1
        if left <= 0 and not after:
            raise Killed
        result = plain(*words)
        if left <= 0:
            raise Killed
        return result

    patch.setattr(owner, name, counted)


def test_ended_at_any_moment_it_goes_on_to_the_same_bytes(made: Made, tmp_path: Path) -> None:
    store = made("vanilla")
    send(store, EVENTS[:HALF])
    learn_all(store)
    create(store, "other", small("fnw"), seed=3)
    create(store, "faster", choose_parts(store, None, (), {"stream.learning_rate": "0.01"}))
    calm = Store.open(shutil.copytree(store.folder, tmp_path / "calm"))
    for one in (store, calm):
        send(one, EVENTS[HALF:])
        finish(one)
    learn_all(calm)
    rng, kills = random.Random(1), 0
    for _ in range(12):
        with pytest.MonkeyPatch.context() as patch:
            killed_at(rng.choice(["scores", "ledger", "version", "record"]), patch, rng)
            try:
                learn_all(store)
            except Killed:
                kills += 1
    assert kills > 8
    learn_all(store)
    for one, other in zip(challengers(store), challengers(calm), strict=True):
        same(one, other)
    assert newest(store)["sha256"] == newest(calm)["sha256"]


@pytest.mark.slow
def test_real_kills_change_nothing(tmp_path: Path) -> None:
    events, stores = small_events(12), []
    for name in ("killed", "calm"):
        store = small_store(tmp_path / name, 12, method=Vanilla)
        create(store, "other", small("fnw"), seed=3)
        stores.append(store)
    killed, calm = stores
    Disturbance(killed, in_batches(events, 5), tmp_path, random.Random(5), LOCAL, ("learner",)).run(4)
    log = calm.log()
    log.append([calm.reader.read(event) for event in events])
    log.close()
    for store in stores:
        learn_all(store)
    same(find_challenger(killed, "other"), find_challenger(calm, "other"))


def test_a_damaged_version_is_made_again_and_a_damaged_definition_stops_it_alone(made: Made) -> None:
    store = made("vanilla")
    challenger = create(store, "other", small("fnw"))
    send(store, EVENTS[:HALF])
    learn_all(store)
    before = newest(challenger)
    state = challenger.home / "models" / f"{before['intervals']:09d}.safetensors"
    state.write_bytes(state.read_bytes()[:-1])
    assert [f.part for f in verify(store) if not f.fine] == ["challenger other"]
    learn_all(store)
    assert newest(challenger)["sha256"] == before["sha256"]
    definition = challenger.home / "challenger.json"
    definition.write_text(definition.read_text().replace('"seed": 0', '"seed": 1'))
    send(store, EVENTS[HALF:])
    assert {tick.model for tick in learn_all(store)} == {None}
    (wrong,) = [f for f in verify(store) if not f.fine]
    assert "challenger.json is damaged" in wrong.text
    assert "challenger.json is damaged" in status_of(store)["challengers"]["other"]["problem"]


def test_a_challenger_that_fails_stops_nobody_and_says_why(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made("vanilla")
    for name in ("bad", "good"):
        create(store, name, small("fnw"))
    send(store, EVENTS[:HALF])
    plain = ChallengerLearner._compare

    def failing(self: ChallengerLearner, *words: Any) -> None:
        if self.store.name == "bad":
            raise RuntimeError("out\nof memory")
        plain(self, *words)

    with monkeypatch.context() as patch:
        patch.setattr(ChallengerLearner, "_compare", failing)
        learn_all(store)
    assert newest(find_challenger(store, "good"))["intervals"] == newest(store)["intervals"] > 3
    assert status_of(store)["challengers"]["bad"]["problem"] == "RuntimeError: out of memory"
    learn_all(store)
    assert find_challenger(store, "bad").problem is None
    assert newest(find_challenger(store, "bad"))["weights"] == newest(find_challenger(store, "good"))["weights"]


# Forgetting.


def test_what_a_challenger_needs_of_the_log_is_not_archived_before_it_has_learnt_it(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", intervals=60, hourly=3, method=Vanilla, keep=2)
    log = store.log()
    log.append([store.reader.read(event) for event in small_events(60, hourly=3)])
    log.close()
    learnt(store)
    challenger = create(store, "late", small("fnw"))
    with Learners(store) as learners:
        next(iter(learners.all()))
        assert compact(store) == 0
        list(learners.all())
    assert compact(store) > 0
    assert verify_log(challenger).same
    before = newest(challenger)
    for path in (challenger.home / "models").glob("0*"):
        path.unlink()
    learn_all(store)
    assert newest(challenger)["sha256"] == before["sha256"], "from the archive and what is left of the log"


def test_a_user_who_is_erased_is_not_shown_to_challengers_either(made: Made) -> None:
    store = made("vanilla")
    challenger = create(store, "other", small("fnw"))
    events = [event | {"user": f"u{int(event['click_id']) % 5}"} for event in EVENTS]
    send(store, events[:HALF])
    with Learners(store) as learners:
        list(learners.all())
        erase(store, "u3")
        send(store, events[HALF:])
        finish(store)
        list(learners.all())
    clicks = [e for e in events if e["type"] == "click"]
    told = newest(challenger)
    assert told["rows"] == newest(store)["rows"]
    assert told["comparison"]["challenger"]["clicks"] == newest(store)["mature"]["prequential"]["clicks"] < len(clicks)


# Coming and going.


def test_one_that_is_made_anew_under_the_same_name_while_a_learner_runs_is_another(made: Made) -> None:
    store = made("vanilla")
    create(store, "other", small("fnw"))
    send(store, EVENTS[:HALF])
    with Learners(store) as learners:
        list(learners.all())
        drop(store, "other")
        assert store.log().ticks(model="other") == []
        assert list(learners.all()) == []
        again = create(store, "other", small("fnc"))
        list(learners.all())
    assert newest(again)["store"]["method"] == "fnc"
    assert newest(again)["intervals"] == newest(store)["intervals"]
    assert verify_log(again).same


def test_promoting(made: Made) -> None:
    store = made("vanilla")
    create(store, "one", small("fnw"))
    create(store, "two", small("fnc"))
    with pytest.raises(UserError, match="'one' has no version yet"):
        promote_challenger(store, "one")
    send(store, EVENTS[:HALF])
    learn_all(store)
    promote_own(store, 2)
    promote_challenger(store, "one")
    promote_challenger(store, "two")
    assert status_of(store)["serving_model"] == "two"
    with pytest.raises(UserError, match="'two' serves: promote another first"):
        drop(store, "two")
    promote_own(store, 1)
    status = status_of(store)
    assert (status["serving_model"], status["versions"]["serving"]) == (None, 1)
    drop(store, "two")
    with pytest.raises(UserError, match="there is no challenger 'two'; there are: one"):
        promote_challenger(store, "two")


# Commands.


def test_commands(made: Made, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    store = made("vanilla")

    def said(*words: object, code: int = 0) -> str:
        assert call(*words) == code
        captured = capsys.readouterr()
        return captured.err if code else captured.out

    options = [w for k, v in SMALL.items() for w in ("--set", f"{k}={','.join(map(str, v)) if k == 'hidden' else v}")]
    made_it = said("challenge", store.folder, "other", "--method", "fnw", *options)
    assert "challenger: other; compared on clicks from interval 0 on" in made_it
    assert newest(find_challenger(store, "other"))["intervals"] == 0, "it is warmed up at once"
    for words, wrong in (
        (("Other",), "lower-case letters"),
        (("newest",), "lower-case letters"),
        (("other",), "there is a challenger 'other' already"),
        (("more", "--method", "oracle"), "cannot run live"),
        (("more", "--method", "mine.py"), "cannot be made of a file"),
        (("more", "--plugin", "completer"), "--plugin needs --method"),
    ):
        assert wrong in said("challenge", store.folder, *words, code=2)
    assert [c.name for c in challengers(store)] == ["other"]
    send(store, EVENTS)
    said("tick", store.folder)
    assert "other: fnw" in said("models", "list", store.folder)
    assert not json.loads(said("models", "list", store.folder, "--json"))["challengers"]["other"]["serves"]
    assert "challenger other, replay: " in said("verify", store.folder, "--replay")
    assert "serving: other" in said("models", "promote", store.folder, "other")
    assert "give a number of `tracecvr models list`, newest, or" in said("models", "promote", store.folder, "x", code=2)
    assert "serves: promote another first" in said("models", "drop", store.folder, "other", code=2)
    said("models", "promote", store.folder, "newest")
    assert "dropped: other" in said("models", "drop", store.folder, "other")
    assert "other" not in said("models", "list", store.folder)
