"""Forecasts of a live model: its log since the days that a forecast looks back on, and what the learner predicted."""

from __future__ import annotations

import threading
from typing import Any

import polars as pl

from tracecvr.base.config import DAY
from tracecvr.base.errors import UserError
from tracecvr.forecast.cells import KEPT_DAYS
from tracecvr.forecast.of_run import Forecasts
from tracecvr.online.learner.archive import WholeLog
from tracecvr.online.learner.learner import Prequential
from tracecvr.online.ledger.ledger import Ledger
from tracecvr.online.store.store import Store
from tracecvr.online.store.versions import Versions
from tracecvr.online.upkeep.verify_log import table_of


def forecasts_of(store: Store) -> Forecasts:
    """As of the newest version. Clicks are read from the log, in memory for as long as this takes: whoever asks often
    keeps what he gets."""
    newest = Versions(store.home, store.settings.keep).latest()
    if newest is None:
        raise UserError(f"{store.folder}: nothing is learnt yet; run `tracecvr tick` or `tracecvr learn`")
    memory = store.schema.d_max + KEPT_DAYS * DAY
    ledger = Ledger(store.base, store.grid, store.reader, WholeLog(store), memory)
    ledger.rebuild(newest["intervals"], newest["rows"], newest["counts"])
    rows = ledger.known_between(0, store.grid.bounds(ledger.done)[0])
    first = ledger.first_of_stream if store.taken_over is None else store.taken_over.rows
    predicted = Prequential(store.home / "prequential.f32", first)
    log_odds = predicted.of(rows + ledger.first_row)
    end = store.grid.bounds(ledger.done)[0]
    return Forecasts(table_of(ledger, rows), store.reader.encoder, log_odds, end, store.times.origin)


class NewestForecasts:
    """Forecasts as of the newest version, read once for each version that somebody asks about."""

    def __init__(self, store: Store) -> None:
        self.store, self._lock = store, threading.Lock()
        self._read: tuple[int, Forecasts] | None = None

    def rows(self, by: str | None, level: float, days: int | None) -> dict[str, Any]:
        """A forecast as JSON has it: the moment (`at`, in seconds of the log) and its rows."""
        with self._lock:
            newest = Versions(self.store.home, self.store.settings.keep).latest()
            version = -1 if newest is None else newest["intervals"]
            if self._read is None or self._read[0] != version:
                self._read = version, forecasts_of(self.store)
            asked = self._read[1]
        frame = asked.forecast(by, level=level, days=days).drop("day")
        start = (asked.last - (pl.col("age_days") + 1) * DAY).alias("start")
        return {"at": asked.last, "by": by, "level": level, "rows": frame.with_columns(start).to_dicts()}
