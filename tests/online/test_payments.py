"""Refunds of a part: live they take back what they take back in a replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livestore import Made, finish, learnt, replayed, send, the_events
from test_event_log import GRID, MEMORY, READER, action, base, click
from tracecvr.base.config import HOUR
from tracecvr.data.own_log.cleaning import _steps, _turns
from tracecvr.data.table import NEVER, TURNS
from tracecvr.online.learner.archive import compact
from tracecvr.online.ledger.ledger import Ledger
from tracecvr.online.ledger.payments import Payment, find_turns
from tracecvr.online.log.event_log import EventLog
from tracecvr.online.store.store import Settings
from tracecvr.online.upkeep.verify_log import verify_log

PAYMENTS = st.lists(st.tuples(st.integers(1, 12), st.booleans(), st.integers(1, 4)), unique=True, max_size=10)


@given(PAYMENTS, st.integers(0, 5))
def test_turns_are_those_of_a_replay(payments: list[tuple[int, bool, int]], first_amount: int) -> None:
    """Of events that come when they happen. A replay leaves out refunds before the first conversion."""
    payments = [(0, False, first_amount), *payments]
    rows = [{"_id": 1, "_ts": ts, "_amount": float(n)} for ts, refund, n in payments if not refund]
    back = [{"_id": 1, "_ts": ts, "_amount": float(n)} for ts, refund, n in payments if refund]
    schema = {"_id": pl.Int64, "_ts": pl.Int64, "_amount": pl.Float64}
    replayed = _turns(_steps(pl.DataFrame(rows, schema), pl.DataFrame(back, schema)))
    expected = [t for t in replayed.select(TURNS).row(0) if t is not None] if len(replayed) else []
    assert find_turns(Payment(ts, ts, refund, n) for ts, refund, n in payments) == expected


def test_a_conversion_stands_until_as_much_was_taken_back_as_was_bought(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.db", GRID)
    ledger = Ledger(base(), GRID, READER, log, MEMORY)
    days: list[list[Any]] = [
        [click(1, 101), action(1, 102, amount=10), action(1, 105, "refund", amount=-4)],
        [action(1, 111, "refund", amount=4), action(1, 111, "refund", amount=2)],
        [action(1, 121, amount=5), action(-1, 122, "refund", amount=0.5)],
    ]
    undone = []
    for number, events in enumerate(days):
        log.append(events)
        log.close_until(GRID.bounds(number)[1])
        ledger.advance()
        assert ledger.table.refund_ts is not None
        turns = dict(zip(ledger.table.click_id[:].tolist(), ledger.table.refund_ts[:].tolist(), strict=True))
        undone.append([t for t in turns[1] if t != NEVER])
    assert undone == [[], [111], [111, 121]]
    assert turns[-1][0] == 122, "what was bought before the store began is of unknown amount"
    assert (ledger.counts["refunds"], ledger.counts["conversions_after_refund"]) == (4, 1)


@pytest.mark.parametrize("amount", [1.0, 0.25])
def test_a_part_that_is_taken_back_changes_nothing_that_is_learnt(amount: float, made: Made, hourly: Path) -> None:
    """And is the same after a restart, a compaction and a replay."""
    store = made("vanilla", Settings(lateness=HOUR, keep=2), hourly)
    bought = [e for e in the_events() if e["type"] == store.schema.actions[0]][::2]
    back = [{"type": "refund", "click_id": e["click_id"], "ts": e["ts"] + 60, "amount": amount} for e in bought]
    events = sorted([*the_events(), *back], key=lambda e: e["ts"])
    half = len(events) // 2
    send(store, events[:half])
    learnt(store)
    send(store, events[half:])
    finish(store)
    weights, _ = learnt(store)
    assert compact(store) > 0
    assert verify_log(store).same
    assert len(bought) > 10
    assert (weights == replayed(store)) is (amount < 1)
