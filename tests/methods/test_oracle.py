"""Oracle at other methods' moments: it stays unbiased."""

from __future__ import annotations

from collections import Counter

import pytest

from simulated import engine_of
from tracecvr.base import registry
from tracecvr.checks.loss import root
from tracecvr.checks.subject import KnownLaw, Subject
from tracecvr.methods.oracle import Oracle
from tracecvr.stream.reveal import LabelledReveals

OTHERS = [name for name in registry.available("method") if name not in ("pretrain", "oracle")]


@pytest.mark.parametrize("method", OTHERS)
def test_oracle_is_unbiased_whenever_it_is_shown_clicks(method: str) -> None:
    cell = KnownLaw()
    engine = cell.engine(Subject("oracle"), schedule_of=method)
    events = cell.events(engine)
    assert isinstance(engine.method, Oracle)
    assert isinstance(events, LabelledReveals)
    shown = Counter(events.row.tolist())
    assert engine.method.times_shown(events).tolist() == [shown[row] for row in events.row.tolist()]
    assert root(engine, events) == pytest.approx(cell.p, abs=1e-4)


def test_oracle_has_the_schedule_of_the_other() -> None:
    assert engine_of("oracle", schedule_of="trace").schedule == engine_of("trace").schedule
