"""A live model that learns on another device, and answers on the processor."""

from __future__ import annotations

from pathlib import Path

import pytest

from elsewhere import compute_as_elsewhere, elsewhere
from livestore import SMALL, learnt, replayed, send, the_events
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.errors import UserError
from tracecvr.learn.stream_learning import StreamLearning
from tracecvr.methods.telescoped import Telescoped
from tracecvr.online.service.scorer import LiveScorer
from tracecvr.online.store.store import Settings, Store


def test_it_learns_there_what_a_replay_would_and_answers_without_it(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with elsewhere() as device:
        stream = StreamLearning(device=device)
        store = Store.create(tmp_path / "s", base, Telescoped(**SMALL), (), Settings(lateness=HOUR), stream=stream)
        until = store.grid.split + DAY
        send(store, [event for event in the_events() if event["ts"] < until])
        store.log().close_until(until)
        fingerprint, intervals = learnt(store)
    with pytest.raises(UserError, match="option 'device' is 'meta'"):  # it is gone
        learnt(store)
    scorer = LiveScorer(Store.open(tmp_path / "s"))
    scorer.refresh()
    assert scorer.ready().version == intervals > 2
    assert scorer.ready().fast is not None
    compute_as_elsewhere(monkeypatch)
    assert fingerprint == replayed(store, intervals=intervals)
