"""Ledgers of challengers: built, erased and dropped as the store's are."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Call

from livestore import SMALL, Made, learnt, send, the_events
from tracecvr.base import registry
from tracecvr.base.config import DAY, HOUR
from tracecvr.learn.stream_learning import StreamLearning
from tracecvr.online.challengers.learners import ChallengerLearner, Learners
from tracecvr.online.learner.archive import WholeLog, erase
from tracecvr.online.learner.learner import Learner, ledger_of, open_learner
from tracecvr.online.ledger.open_clicks import OpenClicks
from tracecvr.online.log.event_log import EventLog
from tracecvr.online.store.challenge import FOLDER, Challenger, challengers, create, drop
from tracecvr.online.store.store import Settings, Store
from tracecvr.online.upkeep.verify_log import verify_log

EVENTS = tuple(event for event in the_events() if event["ts"] < 5 * DAY)
HALF = len(EVENTS) // 2


def learn_all(store: Store) -> None:
    with Learners(store) as learners:
        list(learners.all())


def compared(made: Made) -> tuple[Store, Challenger]:
    """A store that has learnt half of the events, and a challenger with frozen nets."""
    store = made("trace", Settings(lateness=HOUR, keep=6))
    send(store, EVENTS[: HALF // 2])
    learnt(store)
    challenger = create(store, "other", (registry.get("method", "trace")(**SMALL), (), StreamLearning()))
    send(store, EVENTS[HALF // 2 : HALF])
    learn_all(store)
    return store, challenger


def same_as_from_the_log(store: Store) -> None:
    kind = ChallengerLearner if isinstance(store, Challenger) else Learner
    with open_learner(store, kind=kind) as learner:
        ours, log = learner.ledger, ledger_of(store, learner.engine)
        log.rebuild(ours.done, ours.rows, dict(ours.counts))
        end = store.grid.bounds(ours.done)[0]
        places = [ledger.known_between(end - ours.memory, end) for ledger in (ours, log)]
        assert len(places[0]) == len(places[1]) > 0
        for name in ("click_id", "click_ts", "arrival_ts", "action_ts", "known_ts", "refund_ts", "x"):
            one, other = (getattr(ledger.table, name)[at] for ledger, at in zip((ours, log), places, strict=True))
            assert np.array_equal(one, other), name


def test_it_goes_on_with_a_ledger_of_its_own(made: Made) -> None:
    store, other = compared(made)
    send(store, EVENTS[HALF:])
    learn_all(store)
    for model in (store, other):
        assert verify_log(model).same
        same_as_from_the_log(model)


@pytest.mark.parametrize("running", [True, False], ids=["a learner runs", "at rest"])
def test_an_erased_user_is_in_no_ledger(running: bool, made: Made) -> None:
    dice, store = random.Random(7), made("trace")
    other = create(store, "other", (registry.get("method", "trace")(**SMALL), (), StreamLearning()))
    number = {e["click_id"]: dice.getrandbits(62) for e in EVENTS}
    events = [e | {"click_id": number[e["click_id"]], "user": f"u{number[e['click_id']] % 5}"} for e in EVENTS]
    theirs = {e["click_id"] for e in events if e["user"] == "u3"}
    send(store, events[:HALF])
    learn_all(store)
    left = shutil.copytree(other.home, store.folder / FOLDER / ".gone.1.dropped")
    if running:
        with Learners(store) as learners:
            list(learners.all())
            erase(store, "u3")
            list(learners.all())
    else:
        erase(store, "u3")
    assert not left.exists()
    for model in (store, other):
        assert not _ids(model, theirs)
    send(store, [e for e in events[HALF:] if e["user"] != "u3"])
    learn_all(store)
    for model in (store, other):
        same_as_from_the_log(model)


def _ids(model: Store, clicks: set[int]) -> set[int]:
    """Which clicks its ledger knows."""
    kind = ChallengerLearner if isinstance(model, Challenger) else Learner
    with open_learner(model, kind=kind) as learner:
        return clicks & set(learner.ledger.table.click_id[:].tolist())


def test_killed_while_an_erasure_is_followed_no_ledger_is_called_damaged(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    """Copies are taken at each step, as kills leave a store: `verify` is content, and learning goes on as it would."""
    store = made("vanilla")
    create(store, "other", (registry.get("method", "vanilla")(**SMALL), (), StreamLearning()), seed=3)
    send(store, [e | {"user": f"u{int(e['click_id']) % 5}"} for e in EVENTS[: HALF // 3]])
    learn_all(store)
    copies: list[Path] = []

    def copying(owner: type, name: str) -> None:
        plain = getattr(owner, name)

        def copy(*given: Any) -> Any:
            result = plain(*given)
            copies.append(shutil.copytree(store.folder, tmp_path / str(len(copies))))
            return result

        monkeypatch.setattr(owner, name, copy)

    with Learners(store) as learners:
        list(learners.all())
        for owner, name in ((EventLog, "erase"), (WholeLog, "erase_archived"), (OpenClicks, "clear")):
            copying(owner, name)
        erase(store, "u3")
        copying(OpenClicks, "flush")
        list(learners.all())
    monkeypatch.undo()
    assert len(copies) > 6
    send(store, EVENTS[HALF // 3 : HALF // 2])
    learn_all(store)
    expected = weights(store)
    for copy in [*copies[:4], *copies[4::5]]:
        assert call("verify", copy) == 0, capsys.readouterr().out
        send(Store.open(copy), EVENTS[HALF // 3 : HALF // 2])
        learn_all(Store.open(copy))
        assert weights(Store.open(copy)) == expected
        assert call("verify", copy) == 0


def weights(store: Store) -> list[str]:
    newest = [model.versions.newest() for model in (store, *challengers(store))]
    return [manifest["weights"] for manifest in newest if manifest is not None]


def test_a_dropped_challenger_leaves_nothing(made: Made) -> None:
    store, other = compared(made)
    drop(store, "other")
    assert not other.home.exists()
    assert list((store.folder / FOLDER).iterdir()) == []
