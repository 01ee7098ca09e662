"""Forecasts of a live model: its log since the days that a forecast looks back on, and what the learner predicted."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import numpy as np
import polars as pl

from tracecvr.base.config import DAY
from tracecvr.base.errors import UserError
from tracecvr.data.encoder import value_names
from tracecvr.forecast.cells import KEPT_DAYS, Cells, Tally
from tracecvr.forecast.forecast import forecast
from tracecvr.forecast.of_run import Forecasts
from tracecvr.monitor.monitor import segment_feature
from tracecvr.online.learner.archive import WholeLog
from tracecvr.online.learner.live_forecast import read_counts
from tracecvr.online.learner.predictions import Predictions
from tracecvr.online.ledger.ledger import Ledger
from tracecvr.online.store.store import Store
from tracecvr.online.upkeep.verify_log import table_of


def forecasts_of(store: Store) -> Forecasts:
    """As of the newest version. Clicks are read from the log, in memory for as long as this takes: whoever asks often
    keeps what he gets."""
    newest = _newest(store)
    memory = store.schema.d_max + KEPT_DAYS * DAY
    log = WholeLog(store)
    ledger = Ledger(store.base, store.grid, store.reader, log, memory)
    ledger.rebuild(newest["intervals"], newest["rows"], newest["counts"])
    rows = ledger.known_between(0, store.grid.bounds(ledger.done)[0])
    log_odds = Predictions(log, store.model).of(rows + ledger.first_row)
    log.close()
    table = table_of(ledger, rows)
    return Forecasts(table, store.reader.encoder, log_odds, midnight(store, newest), store.times.origin)


def midnight(store: Store, version: dict[str, Any]) -> int:
    """The last midnight (UTC) up to which a version has learnt, in seconds of the log."""
    end, origin = store.grid.bounds(version["intervals"])[0], store.times.origin or 0
    return (end + origin) // DAY * DAY - origin


def _newest(store: Store) -> dict[str, Any]:
    newest = store.versions.latest()
    if newest is None:
        raise UserError(f"{store.folder}: nothing is learnt yet; run `tracecvr tick` or `tracecvr learn`")
    return newest


class NewestForecasts:
    """Forecasts as of the last midnight (UTC) that the newest version has seen. By the feature that alarms watch, and
    of all clicks, they come from counts that the learner adds to with each tick; by others the log is read, once for
    each version that somebody asks about."""

    def __init__(self, store: Store) -> None:
        self.store, self._lock = store, threading.Lock()
        self._read: tuple[int, Forecasts] | None = None
        self._shift = (store.times.origin or 0) % DAY
        position = segment_feature(store.schema, store.settings.alarms_by)
        self.feature = None if position is None else store.schema.features[position].name
        self._names = {} if position is None else value_names(store.reader.encoder.columns[position])
        self._begin()

    def _begin(self) -> None:
        self._counted, self._numbers, self._cells = 0, dict[int, int](), dict[tuple[str | None, int], Cells]()
        self._tallies = {by: Tally(self.store.schema.d_max, shift=self._shift) for by in {None, self.feature}}

    def rows(self, by: str | None, level: float, days: int | None) -> dict[str, Any]:
        """A forecast as JSON has it: the moment (`at`, in seconds of the log) and its rows."""
        with self._lock:
            newest = _newest(self.store)
            at = midnight(self.store, newest)
            if by in self._tallies:
                self._follow(newest["forecast"]["records"])
                names = {number: self._names.get(value, str(value)) for value, number in self._numbers.items()}
                if (by, at) not in self._cells:
                    self._cells[by, at] = self._tallies[by].cells(at)
                frame = forecast(self._cells[by, at], {0: "all"} if by is None else names, level, days=days)
            else:
                if self._read is None or self._read[0] != newest["intervals"]:
                    self._read = newest["intervals"], forecasts_of(self.store)
                frame = self._read[1].forecast(by, level=level, days=days)
        start = (at - (pl.col("age_days") + 1) * DAY).alias("start")
        return {"at": at, "by": by, "level": level, "rows": frame.drop("day").with_columns(start).to_dicts()}

    def _follow(self, count: int) -> None:
        """Count what ticks have added since."""
        if count == self._counted:
            return
        if count < self._counted:  # an older version is the newest now
            self._begin()
        with closing(self.store.log()) as log:
            records = read_counts(log, self._counted, count)
        values, place = np.unique(records["segment"], return_inverse=True)
        numbers = [self._numbers.setdefault(value, len(self._numbers)) for value in values.tolist()]
        self._tallies[None].add(np.zeros(len(records), np.int64), records)
        if self.feature is not None:
            self._tallies[self.feature].add(np.array(numbers, np.int64)[place], records)
        self._counted = count
        self._cells.clear()
