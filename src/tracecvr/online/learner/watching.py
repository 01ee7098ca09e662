"""A live model's monitor: alarms of the stream, and holding on an outage."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from tracecvr.base.durations import log_day
from tracecvr.base.metrics import Floats, probability
from tracecvr.data.encoder import value_names
from tracecvr.data.outages import Outages
from tracecvr.monitor.monitor import Alarm, Monitor, segment_feature
from tracecvr.online.ledger.ledger import Ledger
from tracecvr.online.store.store import Store
from tracecvr.stream.reveal import Reveals
from tracecvr.stream.source import Clicks, TableSource

_log = logging.getLogger("tracecvr.learner")
_SHOWN = 10


class Watch:
    """Follows the learner of a store. Challengers are not watched."""

    def __init__(self, store: Store) -> None:
        self.store, self.active = store, store.model is None
        self.holds = store.settings.hold_on_outage and self.active
        by = store.settings.alarms_by
        position = segment_feature(store.schema, by)
        names = {} if position is None else value_names(store.reader.encoder.columns[position])
        self.monitor = Monitor(store.schema, store.grid.interval, by, names, self.declared)

    @property
    def declared(self) -> Outages:
        gaps = tuple((start, end) for start, end in self.store.settings.outages)
        return self.store.schema.outages + gaps

    def start(self) -> None:
        """Learn what is usual from the log that the store started from."""
        if self.active:
            source = TableSource(self.store.base)
            source.outages = self.declared
            self.monitor.start(source, self.store.grid.split)

    def observe(self, ledger: Ledger, start: int, clicks: Clicks, log_odds: npt.NDArray[np.float32]) -> None:
        """Compare an interval with what was expected, before it is learnt."""
        if self.active:
            for alarm in self.monitor.observe(ledger, start, clicks.x.numpy(), log_odds):
                _log.warning("%s", self._text(alarm))
        self.hide(ledger, start + self.store.grid.interval)

    def hide(self, ledger: Ledger, now: int) -> None:
        """Keep from the learner what outages have made false."""
        ledger.outages = self.declared + (self.monitor.outages(now) if self.holds else ())

    def to_come(self, events: Reveals, log_odds: npt.NDArray[np.float32]) -> Floats | None:
        """What clicks that were served these scores are still expected to bring; None if there is no watch."""
        if not self.active:
            return None
        served = probability(np.nan_to_num(log_odds, nan=-np.inf))
        return self.monitor.to_come(events.x.numpy(), events.elapsed.numpy(), served)

    def summary(self) -> list[dict[str, Any]]:
        """Alarms that are on, and the last of those that are over."""
        alarms = self.monitor.alarms
        shown = [a for a in alarms if a.ended is None] + [a for a in alarms if a.ended is not None][-_SHOWN:]
        return [asdict(a) | {"on": a.ended is None, "text": self._text(a)} for a in shown]

    def _text(self, alarm: Alarm) -> str:
        stops_all = alarm.kind == "stopped" and alarm.segment is None and alarm.ended is None
        held = "; nothing is learnt until they come" if self.holds and stops_all else ""
        return alarm.text(lambda seconds: self.store.times.iso(seconds) or log_day(seconds)) + held
