"""The last second of a window, of d_max and of a clock counts; the next one does not. And what becomes known late."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from test_reveal import D_MAX, SCHEMA, table_of
from tracecvr.data.table import NEVER, ClickTable
from tracecvr.stream.reveal import After, LabelledReveals, On, reveal
from tracecvr.stream.source import TableSource

CLICK = 5


def source_of(
    purchase: int | None, cart: int | None = None, undone: int | None = None, seen: int | None = None
) -> TableSource:
    """One click; delays of what follows it, of a refund, and of when the purchase became known."""
    table = table_of([(CLICK, purchase, cart)])
    if undone is not None:
        table = replace(table, refund_ts=np.array([[CLICK + undone]], np.int64))
    if seen is not None:
        late = table.action_ts.copy()
        late[0, 0] = CLICK + seen
        table = replace(table, late_known_ts=late)
    return TableSource(table)


def came_late(table: ClickTable, arrival: int) -> TableSource:
    return TableSource(replace(table, late_arrival_ts=np.array([CLICK + arrival], np.int64)))


# Windows.


@pytest.mark.parametrize(("elapsed", "visible"), [(39, 1), (40, 2), (41, 2)])
def test_a_window_is_visible_in_the_second_in_which_it_ends(elapsed: int, visible: int) -> None:
    (shown,) = source_of(None).reveals((After(elapsed),), 0, 600).trajectory(SCHEMA.horizons)[1]
    assert shown.tolist() == [1.0] * visible + [0.0] * (3 - visible)


@pytest.mark.parametrize(("delay", "inside"), [(39, 1), (40, 1), (41, 0)])
def test_an_action_in_the_last_second_of_a_window_is_inside_it(delay: int, inside: int) -> None:
    events = source_of(delay, cart=delay).reveals((After(60),), 0, 600)
    assert events.trajectory((40,))[0].tolist() == [[[inside, inside]]]


@pytest.mark.parametrize(("delay", "known"), [(39, True), (40, True), (41, False)])
def test_what_happens_in_the_clocks_own_second_is_known(delay: int, known: bool) -> None:
    events = source_of(delay, cart=delay).reveals((After(40),), 0, 600)
    assert events.converted.tolist() == [known]
    assert (events.age != NEVER).tolist() == [[known, known]]
    assert len(source_of(delay).reveals((After(40, seen=True),), 0, 600)) == known
    assert len(source_of(delay).reveals((After(40, seen=False),), 0, 600)) == 1 - known
    (at_clock,) = source_of(delay).known_at(CLICK + 40, 0, 600).converted.tolist()
    assert at_clock == known


@pytest.mark.parametrize(("delay", "fires"), [(39, 0), (40, 0), (41, 1)])
def test_a_conversion_in_the_last_second_of_a_window_is_not_a_late_one(delay: int, fires: int) -> None:
    """Else it would be shown twice as a positive: when the window ends, and as what came after it."""
    source = source_of(delay)
    assert len(source.reveals((On(0, later_than=40),), 0, 600)) == fires
    assert source.reveals((After(40),), 0, 600).label.tolist() == [1 - fires]


# d_max.


@pytest.mark.parametrize(("elapsed", "mature"), [(D_MAX - 1, False), (D_MAX, True), (D_MAX + 1, True)])
def test_a_click_is_mature_in_the_second_in_which_d_max_ends(elapsed: int, mature: bool) -> None:
    events = source_of(None).reveals((After(elapsed),), 0, 600)
    assert events.mature.tolist() == [mature]
    assert events.open.tolist() == [not mature]


@pytest.mark.parametrize(
    ("delay", "counts"), [(D_MAX - 1, True), (D_MAX, True), (D_MAX + 1, False), (D_MAX + 40, False)]
)
@pytest.mark.parametrize("clock", [D_MAX + 50, 400])
def test_a_conversion_after_d_max_never_counts_however_long_one_waits(delay: int, counts: bool, clock: int) -> None:
    """Also where it is known: at a clock after it, in a source of events and in history."""
    source = source_of(delay)
    assert source.known_at(CLICK + clock, 0, 600).converted.tolist() == [counts]
    events = source.reveals((After(clock),), 0, 600, truth=True)
    assert isinstance(events, LabelledReveals)
    assert (events.converted.tolist(), events.truth.tolist()) == ([counts], [float(counts)])
    assert len(source.reveals((After(clock, seen=True),), 0, 600)) == counts
    assert len(source.reveals((After(clock, seen=False),), 0, 600)) == 1 - counts
    assert len(source.reveals((On(0),), 0, 600)) == counts
    for labels in ("mature", "censored"):
        (b,) = source.history(CLICK + clock, labels).batches(10, None)
        assert (b.converted.tolist(), b.truth.tolist()) == ([counts], [float(counts)]), labels
        assert b.elapsed.tolist() == [D_MAX]  # history ends with d_max: later actions are no evidence
        assert (b.age[:, 0] <= D_MAX).tolist() == [counts]


@pytest.mark.parametrize(("delay", "counts"), [(D_MAX, True), (D_MAX + 1, False)])
def test_a_click_that_came_late_has_the_label_of_its_own_time(delay: int, counts: bool) -> None:
    """A click that becomes known after d_max fires at once. A conversion after d_max does not count then either."""
    source = came_late(table_of([(CLICK, delay, None)]), arrival=D_MAX + 30)
    assert len(source.reveals((After(40, seen=True),), 0, 600)) == counts
    assert len(source.reveals((After(40, seen=False),), 0, 600)) == 1 - counts
    assert source.reveals((After(40),), 0, 600).label.tolist() == [float(counts)]


def test_a_later_action_that_is_no_conversion_fires_up_to_d_max() -> None:
    for delay, fires in ((D_MAX, 1), (D_MAX + 1, 0)):
        assert len(source_of(None, cart=delay).reveals((On(1),), 0, 600)) == fires


# What becomes known later than it happens.


@pytest.mark.parametrize(("seen", "fires"), [(40, 0), (41, 1), (90, 1)])
def test_a_conversion_is_late_by_when_it_became_known(seen: int, fires: int) -> None:
    """Bought after 10, known after 40 or more. If it becomes known after the window's end at 40, the learner has taken
    the click for a negative and needs the late positive; if it is known by then, it has seen the positive."""
    source = source_of(10, seen=seen)
    events = source.reveals((On(0, later_than=40),), 0, 600)
    assert events.elapsed.tolist() == [seen] * fires
    assert source.reveals((After(40),), 0, 600).label.tolist() == [1 - fires]
    assert len(source.reveals((After(40, seen=True),), 0, 600)) == 1 - fires


def test_a_conversion_inside_d_max_counts_even_if_it_becomes_known_later() -> None:
    source = source_of(90, seen=D_MAX + 30)
    events = source.reveals((On(0),), 0, 600)
    assert (events.elapsed.tolist(), events.label.tolist(), events.age[:, 0].tolist()) == ([D_MAX + 30], [1], [90])


@pytest.mark.parametrize(("end", "known"), [(CLICK + 60, False), (CLICK + 61, True)])
def test_censored_history_has_what_became_known_before_its_end(end: int, known: bool) -> None:
    """Bought after 10, known after 60."""
    (b,) = source_of(10, seen=60).history(end, "censored").batches(10, None)
    assert (b.truth.bool().tolist(), b.converted.tolist()) == ([known], [known])
    assert b.delay[:, 0].tolist() == [10 if known else NEVER]


# Refunds.


@pytest.mark.parametrize(("clock", "stands"), [(49, True), (50, False), (51, False)])
def test_a_refund_takes_back_the_conversion_and_nothing_else(clock: int, stands: bool) -> None:
    """Bought after 30 and put into the cart after 8; taken back after 50."""
    source = source_of(30, cart=8, undone=50)
    events = source.reveals((After(clock),), 0, 600)
    assert events.converted.tolist() == [stands]
    assert events.age.tolist() == [[30 if stands else NEVER, 8]]
    assert events.trajectory((10, 40))[0].tolist() == [[[0, 1], [int(stands), 1]]]
    assert len(source.reveals((After(clock, seen=True),), 0, 600)) == stands
    assert len(source.reveals((On(1),), 0, 600)) == 1


@pytest.mark.parametrize(("undone", "label"), [(D_MAX - 1, 0), (D_MAX, 0), (D_MAX + 1, 1)])
@pytest.mark.parametrize("clock", [D_MAX, D_MAX + 1, 400])
def test_a_refund_counts_up_to_the_last_second_of_d_max(undone: int, label: int, clock: int) -> None:
    source = source_of(30, cart=8, undone=undone)
    events = source.reveals((After(clock),), 0, 600, truth=True)
    assert isinstance(events, LabelledReveals)
    assert events.truth.tolist() == events.label.tolist() == [label]
    assert source.table.label.tolist() == [bool(label)]
    (b,) = source.history(600, "mature").batches(10, None)
    assert b.truth.tolist() == [label]
    assert b.age.tolist() == [[30 if label else NEVER, 8]]


@pytest.mark.parametrize(("end", "label"), [(CLICK + 50, 1), (CLICK + 51, 0)])
def test_censored_history_knows_refunds_before_its_end(end: int, label: int) -> None:
    (b,) = source_of(30, cart=8, undone=50).history(end, "censored").batches(10, None)
    assert b.truth.tolist() == b.label.tolist() == [label]
    assert b.age[:, 1].tolist() == [8]


def test_reveal_itself_leaves_other_actions_of_a_refunded_click() -> None:
    one = np.array([0], np.int64)
    actions = np.array([[30, 8, 60]])
    b = reveal(
        x=np.zeros((1, 1), np.int32),
        click_ts=one,
        action_ts=actions,
        known_ts=actions,
        clock=one + 70,
        d_max=D_MAX,
        row=one,
        refund_ts=one[:, None] + 65,
    )
    assert b.age.tolist() == [[NEVER, 8, 60]]
    assert torch.equal(b.open, torch.tensor([True]))
