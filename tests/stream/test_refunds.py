"""Refunds: a conversion counts from its time until it is taken back, and nothing changes after d_max."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saving import save_prepared
from test_reveal import D_MAX, SCHEMA, after, assert_equal, on, schedules, table_of
from tracecvr.base.config import HOUR
from tracecvr.base.errors import UserError
from tracecvr.checks.reference import EventByEvent
from tracecvr.checks.subject import Subject, plan_for, small_log
from tracecvr.data import prepared
from tracecvr.data.table import NEVER, ClickTable, Ints
from tracecvr.datasets.synthetic import Synthetic
from tracecvr.runs.replay import replay
from tracecvr.stream.reveal import After, LabelledReveals, On, Schedule
from tracecvr.stream.source import TableSource

Click = tuple[int, int | None, int | None, int | None]
"""Click time, delays of purchase and cart, and how long after the purchase it is taken back."""

delays = st.none() | st.integers(0, D_MAX + 50)
clicks = st.lists(
    st.tuples(st.integers(0, 200), delays, delays, st.none() | st.integers(0, 80)), min_size=1, max_size=12
)


def refunded(rows: list[Click]) -> ClickTable:
    rows = sorted(rows, key=lambda row: row[0])
    table = table_of([row[:3] for row in rows])
    undone = [NEVER if bought is None or back is None else at + bought + back for at, bought, _, back in rows]
    return replace(table, refund_ts=np.array(undone, np.int64)[:, None])


def state(table: ClickTable, row: int, clock: int) -> bool:
    """What is known of a conversion at a clock, said as plainly as can be."""
    click, bought = int(table.click_ts[row]), int(table.action_ts[row, 0])
    undone = NEVER if table.refund_ts is None else int(table.refund_ts[row, 0])
    known = False
    for moment in sorted({bought, undone}):
        if moment <= clock and moment <= click + D_MAX:
            known = moment != undone
    return known


@given(clicks, schedules)
def test_every_reveal_shows_the_state_at_its_clock(rows: list[Click], schedule: Schedule) -> None:
    table = refunded(rows)
    events = TableSource(table).reveals(schedule, 0, 700, truth=True)
    assert isinstance(events, LabelledReveals)
    for i, row in enumerate(events.row.tolist()):
        clock = int(table.click_ts[row] + events.elapsed[i])
        final = state(table, row, int(table.click_ts[row]) + D_MAX)
        assert bool(events.converted[i]) == state(table, row, clock)
        assert bool(events.truth[i]) == bool(table.label[row]) == final
        assert bool(events.open[i]) == (not state(table, row, clock) and events.elapsed[i] < D_MAX)


@given(clicks, schedules, st.integers(1, 60))
def test_slices_equal_events_one_by_one(rows: list[Click], schedule: Schedule, step: int) -> None:
    table = refunded(rows)
    source, live = TableSource(table), EventByEvent(SCHEMA)
    for start in range(0, 460, step):
        live.receive(table, start, start + step)
        assert_equal(source.reveals(schedule, start, start + step), live.reveals(schedule, start, start + step))


@given(clicks, after | on)
def test_what_fires_follows_the_state(rows: list[Click], trigger: After | On) -> None:
    table = refunded(rows)
    events = TableSource(table).reveals((trigger,), 0, 700)
    clock = table.click_ts[events.row.numpy()] + events.elapsed.numpy()
    if isinstance(trigger, After):
        fired = [
            row
            for row, at in enumerate(table.click_ts.tolist())
            if trigger.seen in (None, state(table, row, at + trigger.seconds))
        ]
        assert sorted(events.row.tolist()) == fired
    elif trigger.action == 0:  # an event of a conversion is of the conversion's second, and shows it
        assert events.converted.all()
        assert np.array_equal(clock, table.action_ts[events.row.numpy(), 0])


@given(clicks, st.integers(1, 250))
def test_censored_history_knows_refunds_before_the_split_only(rows: list[Click], split: int) -> None:
    table = refunded(rows)
    for b in TableSource(table).history(split, "censored").batches(5, None):
        known = [state(table, row, split - 1) for row in b.row.tolist()]
        assert b.truth.bool().tolist() == b.converted.tolist() == known


@given(clicks)
def test_refunds_that_never_come_change_nothing(rows: list[Click]) -> None:
    table = refunded([(*row[:3], None) for row in rows])
    plain = replace(table, refund_ts=None)
    schedule = (After(10), After(40, seen=True), After(D_MAX, seen=False), On(0), On(1))
    assert_equal(TableSource(table).reveals(schedule, 0, 600), TableSource(plain).reveals(schedule, 0, 600))
    assert np.array_equal(table.label, plain.label)


def test_a_click_by_hand() -> None:
    """Bought after 30, taken back after 50: shown at 30 as a conversion, at 60 as open, and a negative in the end."""
    events = TableSource(refunded([(5, 30, None, 20)])).reveals((After(40), After(60), On(0), After(D_MAX)), 0, 600)
    assert events.elapsed.tolist() == [30, 40, 60, 100]
    assert events.label.tolist() == [1, 1, 0, 0]
    assert events.open.tolist() == [False, False, True, False]
    assert events.trajectory((10, 40))[0][:, 1, 0].tolist() == [0, 1, 0, 0]  # hidden, bought, taken back


@pytest.mark.parametrize(("back", "label"), [(69, False), (70, False), (71, True)], ids=["before", "at", "after"])
def test_a_refund_counts_up_to_d_max(back: int, label: bool) -> None:
    table = refunded([(5, 30, None, back)])
    assert table.label.tolist() == [label]
    assert TableSource(table).known_at(500, 0, 100).converted.tolist() == [label]


def test_a_refund_after_the_split_is_not_known_at_it() -> None:
    table = refunded([(5, 30, None, 20)])  # bought at 35, taken back at 55
    for split, known in ((35, 0), (36, 1), (55, 1), (56, 0)):
        (b,) = TableSource(table).history(split, "censored").batches(10, None)
        assert (b.truth.tolist(), b.converted.tolist()) == ([known], [bool(known)])


def test_what_is_taken_back_at_once_is_never_told() -> None:
    source = TableSource(refunded([(5, 30, 30, 0)]))
    assert len(source.reveals((On(0),), 0, 600)) == 0
    assert len(source.reveals((On(1),), 0, 600)) == 1


def some_refunds(seed: int = 3) -> ClickTable:
    """A small log in which a third of the conversions are taken back within half a day."""
    table, rng = small_log(), np.random.default_rng(seed)
    bought = table.action_ts[:, 0]
    back = (bought != NEVER) & (rng.random(len(table)) < 1 / 3)
    undone = np.where(back, np.where(back, bought, 0) + rng.integers(1, 12 * HOUR, len(table)), NEVER)
    return replace(table, refund_ts=undone[:, None])


@pytest.mark.parametrize("method", ["trace", "defer"])
def test_a_refund_is_not_known_before_it_comes(method: str) -> None:
    table = some_refunds()
    assert table.refund_ts is not None
    until = table.schema.split + 12 * HOUR
    plan = replace(plan_for(table), until=until)
    later = np.where(table.refund_ts >= until, NEVER, table.refund_ts)
    never = np.full((len(table), 1), NEVER)

    def weights(refund_ts: Ints) -> str:
        engine, source = Subject(method).warmed(replace(table, refund_ts=refund_ts), plan)
        for _ in replay(engine, source, plan):
            pass
        return engine.fingerprint()

    assert weights(table.refund_ts) == weights(later)
    assert weights(table.refund_ts) != weights(never)


def test_refunds_are_saved_with_the_table(tmp_path: Path) -> None:
    table = some_refunds()
    dataset = Synthetic()
    save_prepared(prepared.Prepared(table, Synthetic(clicks=500).prepare(None)[1]), dataset, tmp_path / "table")
    loaded = prepared.load(tmp_path / "table").table
    assert np.array_equal(loaded.refund_ts, table.refund_ts)  # type: ignore[arg-type]
    assert loaded.fingerprint == table.fingerprint != small_log().fingerprint
    assert torch.equal(torch.from_numpy(np.array(loaded.label)), torch.from_numpy(table.label))
    (tmp_path / "table" / "refund_ts.npy").unlink()
    with pytest.raises(UserError, match="prepare the table again"):
        ClickTable.load(tmp_path / "table")


def test_a_purchase_after_a_refund_counts_again() -> None:
    """Bought after 30, taken back after 50, bought again after 70, taken back after 90: as known at each clock, by the
    table and event by event."""
    table = replace(refunded([(5, 30, None, 20)] * 2), refund_ts=np.array([[55, 75, 95], [55, 75, NEVER]], np.int64))
    schedule: Schedule = (*(After(clock) for clock in (29, 30, 50, 69, 70, 89, 90, D_MAX)), After(60, seen=True), On(0))
    events = TableSource(table).reveals(schedule, 0, 600)
    first, second = (events.take(events.row == row) for row in (0, 1))
    assert [first.elapsed.tolist(), first.label.tolist()] == [
        [29, 30, 30, 50, 69, 70, 89, 90, 100],
        [0, 1, 1, 0, 0, 1, 1, 0, 0],
    ]
    assert second.label.tolist() == [0, 1, 1, 0, 0, 1, 1, 1, 1]
    assert table.label.tolist() == [False, True]
    live = EventByEvent(SCHEMA)
    for start in range(0, 460, 7):
        live.receive(table, start, start + 7)
        assert_equal(TableSource(table).reveals(schedule, start, start + 7), live.reveals(schedule, start, start + 7))
