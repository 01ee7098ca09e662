"""Live metrics describe what was served: by the scores that clicks were answered with, whichever version did."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from livestore import Made, finish, learnt, send, the_events
from service_client import Client
from test_service import asked, served, until, without_type
from tracecvr.base import metrics
from tracecvr.base.config import DAY, HOUR
from tracecvr.data.table import NEVER
from tracecvr.online.learner.archive import compact, erase
from tracecvr.online.learner.learner import open_learner
from tracecvr.online.store.store import Settings, Store
from tracecvr.online.store.versions import Versions
from tracecvr.online.upkeep.status import status_of, ticks_of, versions_of

EVENTS = the_events()


def answer(click: int) -> tuple[float, int] | None:
    """What a click was answered: two thirds of them, by two versions that differ from the learner's."""
    chance = np.random.default_rng(click)
    return None if click % 3 == 0 else (round(float(chance.normal(-1, 1)), 3), click % 3)


def answered(store: Store, events: tuple[dict[str, Any], ...] = EVENTS, size: int = 100) -> None:
    """Send events of which some clicks were served: as the service commits them."""
    log = store.log()
    for first in range(0, len(events), size):
        rows = [store.reader.read(event) for event in events[first : first + size]]
        scores = [answer(row.click) if row.kind == 0 else None for row in rows]
        log.append(
            [row if s is None else row._replace(score=s[0], version=s[1]) for row, s in zip(rows, scores, strict=True)]
        )
    log.close()


def exact(store: Store, done: int, lately: bool = False) -> tuple[dict[str, Any], int]:
    """The same figures by themselves, from the table; lately, only the last intervals count."""
    table, grid = store.base, store.grid
    end = grid.bounds(done)[0] - grid.d_max
    start = max(grid.split, end - 24 * grid.interval) if lately else grid.split
    first, last = np.searchsorted(table.click_ts, (start, end))
    rows = [row for row in range(first, last) if answer(int(table.click_id[row]))]
    scores = np.array([(answer(int(table.click_id[row])) or (0.0,))[0] for row in rows], np.float32)
    return asdict(metrics.evaluate(scores, table.label[rows])), len(rows)


def same(figures: dict[str, Any], expected: tuple[dict[str, Any], int]) -> None:
    assert figures["clicks"] == expected[1] > 100
    assert figures["auc"] == pytest.approx(expected[0]["auc"], abs=0.01)  # of bins of log-odds
    for name in ("nll", "pcoc"):
        assert figures[name] == pytest.approx(expected[0][name])


def test_figures_as_served_are_of_the_scores_that_were_answered(made: Made) -> None:
    store = made("vanilla")
    answered(store)
    finish(store)
    _, done = learnt(store)
    told = status_of(store)
    same(told["mature"]["as_served"], exact(store, done))
    assert told["mature"]["prequential"]["clicks"] > told["mature"]["as_served"]["clicks"]
    assert abs(told["mature"]["prequential"]["nll"] - told["mature"]["as_served"]["nll"]) > 0.01
    recent = told["recent"]
    assert 0 < recent["as_served"]["clicks"] < recent["prequential"]["clicks"]
    assert recent["as_served"]["predicted"] > 1.2 * recent["prequential"]["predicted"]  # answers have odds of 1/e


def test_figures_of_the_last_intervals_show_what_sums_hide(made: Made) -> None:
    store = made("vanilla")
    answered(store)
    finish(store)
    _, done = learnt(store)
    told = status_of(store)
    same(told["window"]["as_served"], exact(store, done, lately=True))
    assert told["window"]["intervals"] == 24
    assert told["window"]["as_served"]["clicks"] < told["mature"]["as_served"]["clicks"]
    for tick in ticks_of(store, store.log(), 5):
        assert tick["end"] == store.grid.bounds(tick["interval"])[1]
        same(tick["window"]["as_served"], exact(store, tick["interval"] + 1, lately=True))
    newest = versions_of(store, Versions(store.folder, store.settings.keep))[-1]
    assert newest["version"] == done
    assert newest["end"] == store.grid.bounds(done - 1)[1]
    assert newest["window"] == told["window"]


def test_figures_are_the_same_however_often_the_learner_is_started(made: Made, hourly: Path) -> None:
    """Restarted every few ticks and compacted meanwhile; then at once, from the archive and what is left of the log."""
    store = made("vanilla", Settings(lateness=HOUR, keep=2), hourly)
    answered(store)
    finish(store)
    archived = 0
    while not stopped(store):
        archived += compact(store)
    assert archived
    told = told_of(store)
    for path in (store.folder / "models").glob("0*"):
        path.unlink()
    assert told_of(store) == told
    assert told["mature"]["as_served"]["clicks"] == exact(store, store.log().closed())[1] > 100


def stopped(store: Store) -> bool:
    with open_learner(store) as learner:
        return any(learner.tick() is None for _ in range(17))


def told_of(store: Store) -> dict[str, Any]:
    learnt(store)
    newest = Versions(store.folder, store.settings.keep).manifests()[-1]
    return {name: newest[name] for name in ("mature", "window", "recent", "vitals", "weights")}


def test_an_erased_click_is_no_longer_told_of(made: Made) -> None:
    store = made("vanilla")
    named = tuple(event | {"user": f"u{event['click_id'] % 2}"} for event in EVENTS[:1500])
    answered(store, named)
    learnt(store)
    erase(store, "u1")
    answered(store, EVENTS[1500:])
    finish(store)
    learnt(store)
    with open_learner(store) as learner:
        rows = learner.ledger.known_between(0, 1 << 60)
        assert not np.isnan(learner.ledger.answers_of(rows)).all()
        assert (learner.ledger.table.click_id[rows] >= 0).all()


def test_figures_as_served_are_of_the_version_that_was_chosen(made: Made) -> None:
    """Over HTTP: version 0 is chosen, and the learner goes on."""
    store = made("vanilla", Settings(lateness=7 * DAY), learning_rate=5e-3)  # conversions are sent after all clicks
    learnt(store)
    clicks = [without_type(event) for event in EVENTS if event["type"] == "click"]
    with served(store) as url, Client(url) as client:
        assert asked(url, "POST", "/v1/promote", b'{"version": 0}')[0] == 200
        for first in range(0, len(clicks), 400):
            client.clicks(clicks[first : first + 400])
        send(store, [event for event in EVENTS if event["type"] != "click"])
        finish(store)
        learnt(store)
        status, told = asked(url, "GET", "/v1/status")
        assert status == 200
        until(lambda: 'tracecvr_mature{metric="clicks",scores="lately"}' in asked(url, "GET", "/metrics")[1])
        gauges = asked(url, "GET", "/metrics")[1]
    figures = told["mature"]
    assert told["serving"] == 0
    assert figures["as_served"]["clicks"] == figures["prequential"]["clicks"] > 300
    assert figures["as_served"]["nll"] != figures["prequential"]["nll"]
    rows = {row.click: row for row in store.log().before(NEVER) if row.kind == 0}
    assert {row.version for row in rows.values()} == {0}
    end = store.grid.bounds(told["intervals"]["learnt"])[0] - store.grid.d_max
    table = store.base
    mature = [n for n in range(len(table)) if table.click_id[n] in rows and table.click_ts[n] < end]
    scores = np.array([rows[int(table.click_id[n])].score for n in mature])
    assert figures["as_served"]["nll"] == pytest.approx(metrics.evaluate(scores, table.label[mature]).nll)
    assert 'tracecvr_mature{metric="nll",scores="as_served"}' in gauges
