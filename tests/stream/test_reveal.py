"""Reveals: what fires when, and that nothing unknown at the clock is in them."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tracecvr.base.config import DAY
from tracecvr.checks.reference import EventByEvent
from tracecvr.checks.subject import small_log
from tracecvr.data.table import NEVER, ClickTable, Feature, Schema
from tracecvr.stream.reveal import After, LabelledReveals, On, Reveals, Schedule, Trigger
from tracecvr.stream.source import TableSource

D_MAX = 100
SCHEMA = Schema(
    dataset="tiny",
    features=(Feature("row", 1000, "row"),),
    actions=("purchase", "cart"),
    horizons=(10, 40, D_MAX),
    d_max=D_MAX,
    split=50,
    interval=20,
    observed_until=1000,
)


def table_of(clicks: list[tuple[int, int | None, int | None]]) -> ClickTable:
    """Clicks given as (click time, purchase delay, cart delay)."""
    clicks = sorted(clicks, key=lambda c: c[0])
    action = [[NEVER if d is None else c[0] + d for d in c[1:]] for c in clicks]
    return ClickTable(
        x=np.arange(len(clicks), dtype=np.int32)[:, None],
        click_ts=np.array([c[0] for c in clicks], np.int64),
        click_id=np.arange(len(clicks)),
        action_ts=np.array(action, np.int64),
        schema=SCHEMA,
    )


delays = st.none() | st.integers(0, D_MAX + 50)
logs = st.lists(st.tuples(st.integers(0, 200), delays, delays), min_size=1, max_size=12).map(table_of)
after = st.builds(After, st.integers(0, D_MAX), st.sampled_from([None, True, False]))
on = st.builds(On, st.integers(0, 1), st.integers(-1, 60))
triggers: st.SearchStrategy[Trigger] = after | on
schedules = st.lists(triggers, min_size=1, max_size=4).map(tuple)


def assert_equal(ours: Reveals, theirs: Reveals) -> None:
    for column in fields(ours):
        a, b = getattr(ours, column.name), getattr(theirs, column.name)
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, column.name


@given(logs, schedules, st.integers(1, 60))
def test_slices_of_the_table_equal_events_one_by_one(table: ClickTable, schedule: Schedule, step: int) -> None:
    source, live = TableSource(table), EventByEvent(SCHEMA)
    for start in range(0, 460, step):
        live.receive(table, start, start + step)
        assert_equal(source.reveals(schedule, start, start + step), live.reveals(schedule, start, start + step))


@given(logs, schedules, st.integers(1, 60))
def test_intervals_tile_the_stream(table: ClickTable, schedule: Schedule, step: int) -> None:
    source = TableSource(table)
    whole = source.reveals(schedule, 0, 600)
    parts = [source.reveals(schedule, start, min(start + step, 600)) for start in range(0, 600, step)]
    for column in ("row", "elapsed", "trigger", "age", "converted"):
        assert torch.equal(torch.cat([getattr(p, column) for p in parts]), getattr(whole, column)), column


@given(logs, schedules)
def test_nothing_later_than_the_clock_is_in_a_reveal(table: ClickTable, schedule: Schedule) -> None:
    events = TableSource(table).reveals(schedule, 0, 600)
    known = events.age != NEVER
    assert (events.age[known] <= events.elapsed[:, None].expand_as(events.age)[known]).all()
    assert not isinstance(events, LabelledReveals)
    state, visible = events.trajectory(SCHEMA.horizons)
    assert (state[visible == 0] == 0).all()
    assert (visible == (torch.tensor(SCHEMA.horizons) <= events.elapsed[:, None])).all()
    assert (events.open == (~events.converted & (events.elapsed < D_MAX))).all()
    assert (torch.diff(state, dim=1)[visible[:, 1:] == 1] >= 0).all()  # states are cumulative


def test_a_click_by_hand() -> None:
    table = table_of([(5, 30, 8)])
    events = TableSource(table).reveals((After(10), After(40), On(0), On(1), After(D_MAX)), 0, 600)
    assert events.elapsed.tolist() == [8, 10, 30, 40, 100]
    assert events.trigger.tolist() == [3, 0, 2, 1, 4]
    assert events.label.tolist() == [0, 0, 1, 1, 1]
    assert events.open.tolist() == [True, True, False, False, False]
    assert events.mature.tolist() == [False, False, False, False, True]
    state, visible = events.trajectory((10, 40, 100))
    assert visible.tolist() == [[0, 0, 0], [1, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert state[3].tolist() == [[0, 1], [1, 1], [0, 0]]


@pytest.mark.parametrize(
    ("delay", "label"),
    [(0, True), (D_MAX, True), (D_MAX + 1, False), (None, False)],
    ids=["at once", "last", "late", "no"],
)
def test_what_counts_as_a_conversion(delay: int | None, label: bool) -> None:
    table = table_of([(5, delay, None)])
    assert table.label.tolist() == [label]
    assert TableSource(table).reveals((After(D_MAX),), 0, 600).converted.tolist() == [label]
    assert len(TableSource(table).reveals((On(0),), 0, 600)) == label


def test_an_event_belongs_to_the_interval_in_which_it_fires() -> None:
    source = TableSource(table_of([(5, None, None)]))
    assert len(source.reveals((After(10),), 5, 15)) == 0
    assert len(source.reveals((After(10),), 15, 16)) == 1
    assert len(source.clicks(5, 6)) == 1
    assert len(source.clicks(6, 20)) == 0


@given(logs, st.integers(1, 250))
def test_censored_history_knows_only_what_was_known_at_the_split(table: ClickTable, split: int) -> None:
    source = TableSource(table)
    for b in source.history(split, "censored").batches(5, None):
        click_ts = torch.from_numpy(table.click_ts)[b.row]
        assert (click_ts < split).all()
        known = b.delay != NEVER
        assert ((click_ts[:, None] + b.delay)[known] < split).all()  # at the split itself: the first interval's
        assert torch.equal(b.truth.bool(), b.converted)


def test_what_comes_at_the_split_is_not_history() -> None:
    """A conversion in the split's own second belongs to the first interval, where it fires."""
    source = TableSource(table_of([(5, 45, None)]))
    for split, known in ((50, 0), (51, 1)):
        (b,) = source.history(split, "censored").batches(10, None)
        assert b.truth.tolist() == [known]
        assert len(source.reveals((On(0),), split, split + 20)) == 1 - known


def test_mature_history_has_final_labels_and_all_windows() -> None:
    table = table_of([(0, 90, None), (10, None, 3), (20, 120, None)])
    (b,) = TableSource(table).history(30, "mature").batches(10, None)
    assert b.truth.tolist() == [1, 0, 0]
    assert b.trajectory(SCHEMA.horizons)[1].all()


def test_posterior_view_at_one_clock() -> None:
    events = TableSource(table_of([(0, 90, None), (10, 5, None), (20, None, None)])).known_at(20, 0, 100)
    assert events.elapsed.tolist() == [20, 10, 0]
    assert events.label.tolist() == [0, 1, 0]
    assert len(TableSource(table_of([(30, None, None)])).known_at(20, 0, 100)) == 0


def test_labelled_events_stay_labelled_whatever_is_taken_of_them() -> None:
    source = TableSource(small_log())
    plain, with_truth = (source.reveals((After(60),), 0, DAY, truth=truth) for truth in (False, True))
    (history,) = source.history(DAY, "mature").batches(len(with_truth) + 100, None)
    assert type(plain) is Reveals
    assert not hasattr(plain, "truth")
    for events in (with_truth, history):
        assert isinstance(events, LabelledReveals)
        taken = replace(events.take(torch.tensor([3, 1])), rng=None)
        assert type(taken) is LabelledReveals
        for name in ("truth", "delay", "span"):
            assert torch.equal(getattr(taken, name), getattr(events, name)[[3, 1]])
