"""Alarms of live models: an outage is told, held on, and learnt again to the same bytes."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from livestore import Made, base, finish, learnt, made, send, the_events
from test_service import asked, served
from tracecvr.base.config import DAY, HOUR
from tracecvr.monitor.monitor import TEXTS
from tracecvr.online.learner.learner import open_learner
from tracecvr.online.service.gauges import Gauges
from tracecvr.online.store.store import Settings, Store
from tracecvr.online.upkeep.status import status_of
from tracecvr.online.upkeep.verify_log import verify_log

__all__ = ["base", "made"]

OUTAGE = (4 * DAY, 5 * DAY)
HOLD = Settings(lateness=HOUR)


def events_without_conversions(store: Store) -> list[dict[str, Any]]:
    """What a store is sent whose pixel is broken for a day."""
    start, end = OUTAGE
    return [e for e in the_events() if e["type"] == "click" or not start <= e["ts"] < end]


def test_an_outage_is_told_in_status_log_and_metrics(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    store = made("vanilla")
    send(store, [e for e in events_without_conversions(store) if e["ts"] < OUTAGE[1]])
    with caplog.at_level(logging.WARNING, "tracecvr.learner"):
        learnt(store)
    (alarm,) = [a for a in status_of(store)["alarms"] if a["kind"] == "stopped" and a["segment"] is None]
    assert alarm["on"]
    assert OUTAGE[0] - 6 * HOUR <= alarm["since"] <= OUTAGE[0] + 3 * HOUR
    assert alarm["raised"] <= OUTAGE[0] + DAY / 2
    assert any(record.message.startswith(TEXTS["stopped"]) for record in caplog.records)
    text = Gauges(lambda: status_of(store)).text().decode()
    assert 'tracecvr_alarms{kind="stopped"} 1.0' in text
    assert 'tracecvr_alarms{kind="rates"} 0.0' in text
    with served(store) as url:
        ready = asked(url, "GET", "/readyz")[1]
    assert ready.endswith("; alarm: conversions stopped arriving: see /v1/status")


def test_while_it_holds_nothing_is_learnt_and_a_replay_holds_as_well(made: Made) -> None:
    store = made("vanilla", HOLD)
    send(store, events_without_conversions(store))
    finish(store)
    with open_learner(store) as learner:
        held = []
        while (tick := learner.tick()) is not None:
            held += [tick.events] if learner.watch.monitor.outages(tick.number) and tick.clicks else []
            if len(held) == 3:  # as if it was killed
                break
    assert held[:3] == [0, 0, 0]
    learnt(store)
    alarms = [a for a in status_of(store)["alarms"] if a["kind"] == "stopped" and a["segment"] is None]
    assert [a["ended"] for a in alarms] == [OUTAGE[1]]
    assert verify_log(store).same


def test_a_declared_gap_is_not_learnt(made: Made, tmp_path: Any) -> None:
    store = made("vanilla", replace(HOLD, hold_on_outage=False, outages=(OUTAGE,)))
    send(store, events_without_conversions(store))
    finish(store)
    learnt(store)
    ticks = dict(store.log().ticks(1000))
    inside = [ticks[n]["tick"]["events"] for n in ticks if OUTAGE[0] <= store.grid.bounds(n)[0] < OUTAGE[1]]
    assert inside
    assert not any(inside)
    assert not [a for a in status_of(store)["alarms"] if a["kind"] == "stopped"]
    assert verify_log(store).same
