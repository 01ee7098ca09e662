"""Forecasts of a live model: its log since the days that a forecast looks back on, and what the learner predicted."""

from __future__ import annotations

from contextlib import closing

from tracecvr.base.config import DAY
from tracecvr.base.errors import UserError
from tracecvr.forecast.cells import KEPT_DAYS
from tracecvr.forecast.of_run import Forecasts
from tracecvr.online.learner.archive import WholeLog
from tracecvr.online.learner.live_metrics import Predictions
from tracecvr.online.ledger.ledger import Ledger
from tracecvr.online.store.store import Store
from tracecvr.online.upkeep.verify_log import table_of


def forecasts_of(store: Store) -> Forecasts:
    """As of the last midnight (UTC) that the newest version has learnt. Clicks are read from the log, into memory."""
    newest = store.versions.latest()
    if newest is None:
        raise UserError(f"{store.folder}: nothing is learnt yet; run `tracecvr tick` or `tracecvr learn`")
    with closing(WholeLog(store)) as log:
        ledger = Ledger(store.base, store.grid, store.reader, log, store.schema.d_max + KEPT_DAYS * DAY)
        ledger.rebuild(newest["intervals"], newest["rows"], newest["counts"])
        end, origin = store.grid.bounds(ledger.done)[0], store.times.origin or 0
        rows = ledger.known_between(0, end)
        log_odds = Predictions(log, store.model).of(rows + ledger.first_row)
    midnight = (end + origin) // DAY * DAY - origin
    return Forecasts(table_of(ledger, rows), store.reader.encoder, log_odds, midnight, store.times.origin)
