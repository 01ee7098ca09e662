"""A live model whose columns grow is that of a replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from grown import FORMS, OPTIONS, SMALL, Grown
from livestore import finish, learnt, replayed, send
from tracecvr.base import registry
from tracecvr.base.config import DAY, HOUR
from tracecvr.data import prepared
from tracecvr.online.dataset_events import events_of
from tracecvr.online.store.store import Settings, Store
from tracecvr.online.upkeep.verify_log import verify_log


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    usual, ours = registry.available, {"dataset": {"synthetic": Grown}}
    monkeypatch.setattr(registry, "available", lambda kind: usual(kind) | ours.get(kind, {}))
    prepared.prepare_to(tmp_path / "base", Grown(**OPTIONS), None)
    method = registry.get("method", "es_dfm")(**SMALL)
    return Store.create(
        tmp_path / "store", tmp_path / "base", method, (), Settings(lateness=HOUR), stream=FORMS["lazy"]
    )


def test_a_live_model_is_that_of_a_replay(store: Store) -> None:
    chosen = Grown(**OPTIONS)
    events = list(events_of(chosen, None, chosen.split, 100 * DAY))
    half = len(events) // 2
    send(store, events[:half])
    assert learnt(store)[1] > 4
    send(store, events[half:])  # and another learner goes on from the last version
    finish(store)
    weights, _ = learnt(store)
    assert weights == replayed(store)
    assert verify_log(store).same
