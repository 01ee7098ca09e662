"""The learner: one tick of the engine for each interval that was closed, and a version at the end of each.

Only one learner uses a store. Killed at any moment, it resumes from the newest whole version, to the same bytes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tracecvr.base.errors import DivergedError
from tracecvr.base.files import locked
from tracecvr.base.metrics import Labels
from tracecvr.base.progress import Progress, no_progress
from tracecvr.data.table import Ints
from tracecvr.learn.checkpoint import digest
from tracecvr.learn.engine import Engine
from tracecvr.online.learner.archive import WholeLog
from tracecvr.online.learner.guard import Guard
from tracecvr.online.learner.live_forecast import LiveForecast
from tracecvr.online.learner.live_metrics import LiveMetrics, Predictions, recent_rates
from tracecvr.online.learner.watching import Watch
from tracecvr.online.ledger.ledger import MATURE, Ledger, memory_of
from tracecvr.online.ledger.open_clicks import DamagedLedgerError
from tracecvr.online.store import choices
from tracecvr.online.store.store import Store
from tracecvr.stream.reveal import After
from tracecvr.stream.source import TableSource

_log = logging.getLogger("tracecvr.learner")
_RECENT = 24
_NOTHING_RECENT = {"as_served": {"clicks": 0}, "prequential": {"clicks": 0}}
_RUN = 10_000
"""Intervals without anything to learn from that are learnt one by one before a version is written."""
_JUDGED = 4096
"""Clicks by which a tick is judged, and recent clicks that are looked at."""


@dataclass(frozen=True)
class Tick:
    number: int
    clicks: int
    events: int
    seconds: float
    undone: str
    intervals: int = 1
    """How many intervals were learnt: those before the last had nothing to learn from."""
    model: str | None = None
    """The challenger that has learnt it; None is the store's own model."""


class Learner:
    """An engine that follows an event log. Use `open_learner`, which holds the store."""

    def __init__(self, store: Store, progress: Progress = no_progress) -> None:
        self.store = store
        torch.set_num_threads(store.settings.threads)
        self.log, self.engine = store.log(), store.engine(None)
        if store.model is None:  # once for all that learn from it
            self.log.refuse_damage()
        store.refuse_lost_log()
        self.versions = store.versions
        self.ledger = ledger_of(store, self.engine, store.home)
        self.vitals, self.watch = LiveMetrics(), Watch(store)
        self.forecast = LiveForecast(store, self.watch, self.log)
        self.predictions = Predictions(self.log, store.model)
        manifest = self.versions.latest()
        done = 0 if manifest is None else manifest["intervals"]
        if (recorded := self.log.recorded(store.model)) > done:  # the newest was being written, if it was killed
            lost = f"versions {done + 1} to {recorded} are lost or damaged, or were not finished"
            _log.warning("%s: %s: they are learnt again from the log", store.home, lost)
        if manifest is None:
            begin(self.engine, self.ledger, store, progress)
            self.watch.start()
            self.forecast.start()
            self._save(0, Tick(-1, 0, 0, 0.0, ""), {"recent": _NOTHING_RECENT})
        else:
            self._restore(manifest)

    def tick(self) -> Tick | None:
        """Learn the next interval that is closed, and pass over those before it in which nothing happens; None if there
        is none. A damaged ledger is built anew."""
        try:
            return self._tick()
        except DamagedLedgerError as error:
            _log.error("%s: it is built anew from the log", error)
            self._restore(self.versions.latest() or {})
            return self._tick()

    def _tick(self) -> Tick | None:
        if self.store.model is None:
            choices.mend(self.log, self.store.folder)  # a version that was chosen is kept
        if self.ledger.apply_erasures():  # of what frozen nets said of it, too
            self.engine.forget_answers()
        closed, first, since = self.closed(), self.ledger.done, time.monotonic()
        if closed <= first:
            return None
        clicks, events, undone = 0, 0, ""
        while self.ledger.done < closed and not (clicks or events or undone) and self.ledger.done < first + _RUN:
            if not skip(self.ledger, closed):
                clicks, events, undone = self._learn_one()
        number = self.ledger.done
        tick = Tick(number - 1, clicks, events, time.monotonic() - since, undone, number - first, self.store.model)
        self._save(number, tick, {"recent": self._recent(self.store.grid.bounds(number)[0])})
        return tick

    def closed(self) -> int:
        return self.log.closed()

    def _learn_one(self) -> tuple[int, int, str]:
        """Learn one interval: how many clicks and events it had, and why it was undone."""
        start, end = self.store.grid.bounds(self.ledger.done)
        self.ledger.advance()
        clicks = self.ledger.clicks(start, end)
        log_odds = self.engine.score(clicks.x)
        self.predictions.keep(self.ledger.rows - len(log_odds), log_odds)
        self.watch.observe(self.ledger, start, clicks, log_odds)
        self.forecast.observe(self.ledger, start, end, self.predictions)
        events, undone = learn(self.engine, self.ledger, start, end)
        self._observe(start, end)
        return len(clicks), events, undone

    def _observe(self, start: int, end: int) -> None:
        """Count the clicks whose labels became final in an interval."""
        mature = self.ledger.reveals((After(self.store.schema.d_max),), start, end)
        row, label = mature.row.numpy(), mature.converted.numpy()
        self.vitals.add(self.predictions.of(row), self.ledger.answers_of(row - self.ledger.first_row), label)
        self._compare(row, label, start)

    def _compare(self, row: Ints, label: Labels, start: int) -> None:
        """For a challenger, which is compared with another model on the same clicks."""

    def _recent(self, end: int) -> dict[str, Any]:
        self.forecast.update(end)
        rows = self.ledger.known_between(end - _RECENT * self.store.grid.interval, end)
        rows = rows[:: -(-len(rows) // _JUDGED) or 1]
        events, served = self.ledger.at(rows, end - 1), self.ledger.answers_of(rows)
        scores, converted = self.predictions.of(rows + self.ledger.first_row), events.converted.numpy()
        to_come = self.watch.to_come(events, scores)
        ours, spread = ~np.isnan(served), self.forecast.spread
        of_served = None if to_come is None else to_come[ours]
        return {
            "as_served": recent_rates(served[ours], converted[ours], of_served, spread),
            "prequential": recent_rates(scores, converted, to_come, spread),
        }

    def _newest_mature(self) -> dict[str, Any]:
        """Figures of the clicks whose labels became final in the last intervals."""
        end = self.store.grid.bounds(self.ledger.done)[0]
        mature = end - self.store.grid.d_max
        rows = self.ledger.known_between(mature - MATURE * self.store.grid.interval, mature)
        scores, label = self.predictions.of(rows + self.ledger.first_row), self.ledger.has_converted(rows, end)
        return {"intervals": MATURE} | LiveMetrics().add(scores, self.ledger.answers_of(rows), label).summary()

    # State.

    def _save(self, number: int, tick: Tick, measured: dict[str, Any]) -> None:
        summary = {
            "published": not tick.undone,
            "undone": tick.undone,
            "position": self.log.position(number - 1) if number else 0,
            "rows": self.ledger.rows,
            "counts": dict(self.ledger.counts),
            "weights": self.engine.fingerprint(),
            "tick": {name: getattr(tick, name) for name in ("clicks", "events", "seconds", "intervals")},
            "mature": self.vitals.summary(),
            "window": self._newest_mature(),
            **measured,
        }
        facts = {
            "store": self.store.content,
            "vitals": self.vitals.state(),
            "monitor": self.watch.monitor.state(),
            "alarms": self.watch.summary(),
            "forecast": self.forecast.state(),
            "written": time.time(),
        }
        if number:  # first: of a version that is there, it is known what came of its tick
            self._record(number - 1, summary | {"store": digest(self.store.content)})
        self.versions.save(self.engine, number, summary | facts | self._more_facts())

    def _more_facts(self) -> dict[str, Any]:
        return {}

    def _record(self, number: int, content: dict[str, Any]) -> None:
        self.log.record(number, content, self.store.model)

    def _restore(self, manifest: dict[str, Any]) -> None:
        self.versions.restore(self.engine, manifest)
        self.ledger.rebuild(manifest["intervals"], manifest["rows"], manifest["counts"])
        end = self.store.grid.bounds(manifest["intervals"])[0]
        self.vitals = LiveMetrics.of(manifest["vitals"])
        self.watch.monitor.load(manifest["monitor"])
        self.watch.hide(self.ledger, end)
        self.forecast.load(manifest["forecast"])


@contextmanager
def open_learner(
    store: Store, progress: Progress = no_progress, kind: type[Learner] | None = None
) -> Iterator[Learner]:
    """A learner that holds its model: a second one is refused."""
    models = store.home / "models"
    models.mkdir(exist_ok=True)
    with locked(models, "a store has one learner; stop the other first"):
        for left in (*models.glob(".*.tmp"), *store.home.glob(".ledger.*.tmp")):  # of a process that was killed
            left.unlink()
        learner = (kind or Learner)(store, progress)
        try:
            yield learner
        finally:
            learner.log.close()
            learner.ledger.database.close()


def learn(engine: Engine, ledger: Ledger, start: int, end: int) -> tuple[int, str]:
    """Train on an interval; if that did harm, take it back. Returns the number of events and what was wrong."""
    if not len(ledger.clicks(start, end)) and engine.is_quiet(ledger, start, end):
        return engine.tick(ledger, start, end), ""  # nothing to judge; it forgets what is over
    before = {name: value.clone() for name, value in engine.state().items()}
    mature = end - ledger.grid.d_max
    judges = ledger.known_between(mature - MATURE * ledger.grid.interval, mature)[-_JUDGED:]
    newest = ledger.newest_between(mature - MATURE * ledger.grid.interval, end, _JUDGED)
    label = ledger.has_converted(judges, end)
    asked = [torch.from_numpy(ledger.table.x[rows]) for rows in (judges, newest)]
    old = [engine.score(x) for x in asked]
    try:
        events = engine.tick(ledger, start, end)
        new = [engine.score(x) for x in asked]
        undone = Guard().extreme(old[1], new[1]) or Guard().verdict(label, old[0], new[0])
    except DivergedError as error:
        events, undone = 0, str(error)
    if undone:
        engine.load_state(before)
    return events, undone


def skip(ledger: Ledger, closed: int) -> bool:
    """Pass over a run of intervals in which nothing is to be learnt. Whether there was one."""
    before = ledger.done
    if ledger.idle:
        ledger.pass_over(closed)
    return ledger.done > before


def ledger_of(store: Store, engine: Engine, folder: Path | None = None) -> Ledger:
    """The ledger that an engine of a store needs. It reads the archive, too."""
    memory = memory_of(store.grid, engine.memory)
    return Ledger(store.base, store.grid, store.reader, WholeLog(store), memory, folder)


def begin(engine: Engine, ledger: Ledger, store: Store, progress: Progress = no_progress) -> None:
    """Put an engine and its ledger where their model starts: after the warm-up, or at the end of a run."""
    if store.start is None or store.model is not None:
        _warm_up(engine, store, progress)
    else:
        store.restore_start(engine, store.start)
    ledger.begin()


def _warm_up(engine: Engine, store: Store, progress: Progress) -> None:
    """Learn the log that a store was made of: what is before its split, and what a run had learnt of the rest."""
    source, first, grid = TableSource(store.base), store.schema.split, store.grid
    engine.warm_up(source.history(first, store.settings.warm_labels), progress)
    for start in range(first, grid.split, grid.interval):  # only for a challenger of a model that goes on from a run
        engine.tick(source, start, min(start + grid.interval, grid.split))
