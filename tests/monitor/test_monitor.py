"""Alarms: what is expected of an interval, faults that are put into a log, and clean logs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from alarm_faults import Watched, inject
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.errors import UserError
from tracecvr.data.table import NEVER, ClickTable
from tracecvr.datasets.hardships import Hardships
from tracecvr.monitor.detectors import FAMILIES, Detectors
from tracecvr.monitor.expected import Expectations
from tracecvr.monitor.monitor import Alarm, Monitor, segment_feature

AT = 14 * DAY


@pytest.fixture(scope="module")
def watched() -> Watched:
    """A log in which nothing changes, with its true rates as scores."""
    table, _ = Hardships(hardship="stationary").prepare(None)
    first, _ = table.rows_between(table.schema.split, table.schema.split)
    p = np.asarray(table.truth["p"][first:], np.float64)
    return Watched(table, np.log(p / (1 - p)))


def alarms_of(watched: Watched, table: ClickTable, until: int = 20 * DAY) -> list[Alarm]:
    monitor = watched.monitor()
    list(watched.watch(table, monitor, table.schema.split, until))
    return monitor.alarms


def test_a_clean_log_raises_no_alarm(watched: Watched) -> None:
    assert alarms_of(watched, watched.table, 23 * DAY) == []


def test_a_stop_of_everything_is_noticed_within_an_interval_and_its_end_as_well(watched: Watched) -> None:
    (alarm,) = alarms_of(watched, inject(watched.table, "all stop", AT, 0))
    assert (alarm.kind, alarm.segment, alarm.since, alarm.ended) == ("stopped", None, AT, AT + DAY)
    assert alarm.raised - AT <= 2 * watched.table.schema.interval
    assert alarm.arrived < 0.1 * alarm.expected
    assert alarm.text().startswith("conversions stopped arriving since day 14 until day 15: ")


def test_a_stop_in_one_segment_names_the_segment(watched: Watched) -> None:
    alarms = alarms_of(watched, inject(watched.table, "segment stops", AT, 4))
    assert [(a.kind, a.segment) for a in alarms] == [("stopped", "segment=4")]
    assert AT - DAY / 2 <= alarms[0].since <= AT
    assert alarms[0].raised <= AT + 2 * DAY


def test_rates_that_double_in_a_segment_are_called_rates(watched: Watched) -> None:
    alarms = alarms_of(watched, inject(watched.table, "rate x 2 in segment", AT, 1))
    assert [(a.kind, a.segment) for a in alarms] == [("rates", "segment=1")]


def test_delays_three_times_as_long_are_called_delays(watched: Watched) -> None:
    times, clicked = np.array(watched.table.action_ts), watched.table.click_ts
    slow = (times[:, 0] != NEVER) & (clicked >= AT)
    times[slow, 0] = clicked[slow] + 3 * (times[slow, 0] - clicked[slow])
    kinds = [a.kind for a in alarms_of(watched, replace(watched.table, action_ts=times))]
    assert kinds.count("delays") > len(kinds) / 2


def test_traffic_that_falls_to_a_tenth_is_called_traffic(watched: Watched) -> None:
    table = watched.table
    kept = (table.click_ts < AT) | (np.arange(len(table)) % 20 == 0)
    columns = {name: getattr(table, name)[kept] for name in ("x", "click_ts", "click_id", "action_ts")}
    first, _ = table.rows_between(table.schema.split, table.schema.split)
    fewer = Watched(replace(table, **columns, truth={}), watched.log_odds[kept[first:]])
    assert [a.segment for a in alarms_of(fewer, fewer.table) if a.kind == "traffic"] == [None]  # of no segment


def test_a_monitor_goes_on_from_its_state_to_the_same_alarms(watched: Watched) -> None:
    faulty = inject(watched.table, "all stop", AT, 0)
    whole, first = watched.monitor(), watched.monitor()
    list(watched.watch(faulty, whole, 10 * DAY, 17 * DAY))
    list(watched.watch(faulty, first, 10 * DAY, AT + DAY // 2))
    second = Monitor(faulty.schema, faulty.schema.interval)
    second.load(json.loads(json.dumps(first.state())))
    list(watched.watch(faulty, second, AT + DAY // 2, 17 * DAY))
    assert second.state() == whole.state()


def test_a_declared_outage_raises_no_alarm(watched: Watched) -> None:
    faulty = inject(watched.table, "all stop", AT, 0)
    monitor = watched.monitor()
    monitor.declared = ((AT, AT + DAY),)
    list(watched.watch(faulty, monitor, 10 * DAY, 18 * DAY))
    assert monitor.alarms == []


def test_what_is_expected_over_a_life_adds_up_to_the_rates_served() -> None:
    ours = Expectations(2, HOUR, 2 * DAY)
    bins = len(ours.edges) - 1
    ours.sums.law = np.stack([np.full(bins, 1.0), np.full(bins, float(bins))])  # all ages alike, in total 1
    total = np.zeros(2)
    for start in range(0, 6 * DAY, HOUR):
        clicked = start < 2 * DAY
        ours.add_clicks(start, np.array([0, 0, 1] if clicked else [], int), np.full(3 if clicked else 0, 0.25))
        exposed, shares = ours.expect(start)
        total += (exposed * shares).sum(1)
    assert total == pytest.approx([48 * 0.5, 48 * 0.25], rel=1e-9)


def test_old_clicks_are_kept_in_blocks_and_those_over_are_dropped() -> None:
    ours = Expectations(1, HOUR, 30 * DAY)
    for start in range(0, 60 * DAY, HOUR):
        ours.add_clicks(start, np.array([0]), np.array([1.0]))
    assert len(ours.mass) < 120
    assert ours.mass.sum() == pytest.approx(30 * 24, abs=12)


def test_a_feature_that_is_not_there_is_refused(watched: Watched) -> None:
    with pytest.raises(UserError, match="did you mean 'segment'"):
        segment_feature(watched.table.schema, "segmnt")


def test_a_feed_that_stops_again_and_again_is_not_waited_for() -> None:
    table, _ = Hardships(hardship="stationary").prepare(None)
    monitor = Monitor(table.schema, table.schema.interval)
    days = (10, 11, 12, 13, 21)
    monitor.alarms = [Alarm("stopped", None, d * DAY, d * DAY + HOUR, d * DAY + 20 * HOUR, 0, 9) for d in days]
    assert [start // DAY for start, _ in monitor.outages(30 * DAY)] == [10, 11, 21]
    monitor.alarms = [Alarm("stopped", None, 10 * DAY, 10 * DAY + HOUR, None, 0, 9)]
    assert monitor.outages(12 * DAY) == ((10 * DAY, 12 * DAY),)


def test_an_alarm_of_rates_does_not_hide_a_stop(watched: Watched) -> None:
    monitor = watched.monitor()
    list(watched.watch(watched.table, monitor, watched.table.schema.split, AT))
    monitor.alarms, monitor.on = [Alarm("rates", None, AT - DAY, AT - HOUR, None, 5, 9)], {(1, 0): 0}
    monitor.detectors.evidence[3, 0] = monitor.detectors.before[3, 0] = monitor.detectors.threshold[3, 0]
    raised = list(watched.watch(inject(watched.table, "all stop", AT, 0), monitor, AT, AT + DAY))
    assert ("stopped", None) in [(a.kind, a.segment) for a in raised]


def test_days_that_differ_for_all_segments_alike_raise_no_alarm(watched: Watched) -> None:
    times, clicked = np.array(watched.table.action_ts), np.asarray(watched.table.click_ts)
    rng = np.random.default_rng(3)
    kept = rng.choice([0.25, 0.5, 1.0], 40)[clicked // DAY]
    times[rng.random(len(times)) > kept] = NEVER
    uneven = replace(watched.table, action_ts=times)
    assert alarms_of(Watched(uneven, watched.log_odds), uneven, 23 * DAY) == []


def raised(seed: int, storm: bool, doubled: int | None = None) -> int:
    """Of twelve segments, those with an alarm of rates in 40 days. In a storm, days 40 to 47, all differ more."""
    rng, detectors, of_rates = np.random.default_rng(seed), Detectors(13, DAY), np.zeros(13, bool)
    for day in range(60):
        rough = 0.4 if storm and 40 <= day < 48 else 0.05
        rate = np.exp(rough * (rng.normal() + rng.normal(size=12)))
        rate[0] *= 2 if doubled is not None and day >= doubled else 1
        count, mean = (np.tile(np.append(a.sum(), a), (3, 1)) for a in (rng.poisson(400 * rate), np.full(12, 400.0)))
        detectors.step(day * DAY, count, mean, [np.zeros((3, 13))] * 2)
        if day >= 20:
            of_rates |= detectors.sound()[FAMILIES.index("level")] > 0
        detectors.learn(day * DAY, count, mean, np.ones(13))
    return int(of_rates[1:].sum())


def test_days_that_are_strange_for_all_are_no_change_of_segments() -> None:
    assert sum(raised(seed, storm=True) for seed in range(6)) <= 42  # of 72; 66 if such days counted in full
    assert [raised(seed, storm=False) for seed in range(6)] == [0] * 6
    assert [raised(seed, storm=False, doubled=45) for seed in range(6)] == [1] * 6
