"""Forecasts of a live model: each tick adds what became known to counts by segment, score, day and age. Whenever a day
is over, they say what its clicks will bring and how good the model is on them.

The counts of each tick are a block in the log's database: a learner that starts again reads those up to its version.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracecvr.base.config import DAY
from tracecvr.base.metrics import Floats
from tracecvr.data.table import Ints
from tracecvr.forecast.cells import RECORD, Records, outcomes_of, records_of
from tracecvr.forecast.estimators import DEFAULT, estimate
from tracecvr.forecast.figures import METRICS, ScoredCells, ScoredTally, intervals
from tracecvr.forecast.forecast import LEVEL, between
from tracecvr.online.learner.live_metrics import Predictions
from tracecvr.online.learner.watching import Watch
from tracecvr.online.ledger.ledger import Ledger
from tracecvr.online.log.event_log import EventLog
from tracecvr.online.store.store import Store

_COUNTS = ":counts"
"""The name of the series; a challenger cannot have it."""
_SHOWN = 14
_NOW, _THEN = ("start", "clicks", "conversions", "expected"), ("then", "first", "first_low", "first_high")
"""Of each day: what is known and expected by now; conversions known and expected at its end, and the interval."""


def read_counts(log: EventLog, first: int, end: int) -> Records:
    return np.concatenate([np.zeros(0, RECORD), *(part for _, part in log.read_series(_COUNTS, first, end, RECORD))])


class LiveForecast:
    """Of all clicks and of the segments that are watched for alarms. Challengers have none."""

    def __init__(self, store: Store, watch: Watch, log: EventLog) -> None:
        self.store, self.watch, self.log = store, watch, log
        self.count, self.shift = 0, (store.times.origin or 0) % DAY
        self.tally = self._begin()
        self.summary: dict[str, Any] = {}

    def _begin(self) -> ScoredTally:
        return ScoredTally(self.store.schema.d_max, len(self.watch.monitor.values), self.shift)

    def start(self) -> None:
        """Count the log that the store started from, as known then."""
        self._go_back(0)
        self.tally = self._begin()
        if self.watch.active:
            base, end = self.store.base, self.store.grid.split
            rows = base.rows_between(0, end)[1]
            not_scored = np.full(rows, np.nan, np.float32)
            self._count(records_of(outcomes_of(base, self._segment(base.x[:rows]), not_scored), 0, end, self.shift))

    def observe(self, ledger: Ledger, start: int, end: int, predictions: Predictions) -> None:
        if self.watch.active:
            rows = ledger.changed_between(start, end)
            scores = predictions.of(rows + ledger.first_row)
            outcomes = outcomes_of(ledger.table, self._segment(ledger.table.x[rows]), scores, rows)
            self._count(records_of(outcomes, start, end, self.shift))

    def update(self, end: int) -> None:
        at = (end + self.shift) // DAY * DAY - self.shift
        if self.watch.active and at != self.summary.get("at"):
            cells = ScoredCells(self.tally.cells(at))
            self.summary = self._describe(cells) if cells.by_score.days else {}

    def spread(self, rest: float) -> tuple[float, float]:
        """The ends of an interval, as shares of what is still expected: of the last day, at first of chance."""
        newest = self.summary.get("series", [])[:1]
        if newest and (last := newest[0]["days"][-1])["first"] > last["then"]:
            expected = last["first"] - last["then"]
            return (last["first_low"] - last["first"]) / expected, (last["first_high"] - last["first"]) / expected
        guess = float(2 * 1.645 / np.sqrt(max(rest, 1.0)))
        return -min(guess, 1.0), guess

    def state(self) -> dict[str, Any]:
        return {"records": self.count, "summary": self.summary}

    def load(self, state: dict[str, Any]) -> None:
        self._go_back(state["records"])
        self.tally, self.summary = self._begin(), state["summary"]
        self._add(read_counts(self.log, 0, self.count))

    def _go_back(self, count: int) -> None:
        self.count = count
        if self.watch.active:
            self.log.cut_series(_COUNTS, count)

    def _segment(self, x: Any) -> Ints:
        position = self.watch.monitor.position
        return np.zeros(len(x), np.int64) if position is None else np.asarray(x)[:, position].astype(np.int64)

    def _count(self, records: Records) -> None:
        if len(records):
            self.log.keep_series(_COUNTS, self.count, records.tobytes())
            self.count += len(records)
        self._add(records)

    def _add(self, records: Records) -> None:
        values = self.watch.monitor.values
        place = np.searchsorted(values, records["segment"])
        ours = values[np.minimum(place, len(values) - 1)] == records["segment"] if len(values) else np.zeros(0, bool)
        self.tally.count(np.where(ours, place, -1) if len(values) else np.full(len(records), -1), records)

    def _describe(self, cells: ScoredCells) -> dict[str, Any]:
        segments = cells.segments
        day = np.arange(max(segments.days - _SHOWN, 0), segments.days)
        start, age = np.asarray(segments.start(day)), np.minimum(segments.days - 1 - day, segments.lags)
        now, figures = estimate(segments, day, age), intervals(cells, segments.days - 1, 0, LEVEL)
        earlier = {d["start"]: n for n, d in enumerate(self.summary["series"][0]["days"])} if self.summary else {}
        new = day[[one not in earlier for one in start.tolist()]]  # others were forecast when they were over
        then = estimate(segments, new, np.zeros_like(new))
        ends = np.stack([then.so_far, then.final[DEFAULT], *between(segments, new, np.zeros_like(new), then)], 2)
        series = []
        for n in range(len(segments.clicks)):
            columns = np.column_stack([start, segments.clicks[n, day], now.so_far[n], now.final[DEFAULT][n]])
            days = [dict(zip(_NOW, _round(row), strict=True)) for row in columns]
            for place, one in enumerate(days):
                known = earlier.get(one["start"])
                if known is None:
                    one |= dict(zip(_THEN, _round(ends[n, place - len(days) + len(new)]), strict=True))
                else:
                    one |= {key: self.summary["series"][n]["days"][known][key] for key in _THEN}
            last = {metric: _round(figures[metric][:, n]) for metric in METRICS}
            series.append({"segment": self.watch.monitor.name(n), "figures": last, "days": days})
        return {"at": segments.at, "level": LEVEL, "series": series}


def _round(values: Floats) -> list[float | None]:
    """As JSON has them, with the digits that mean something; None where nothing is known."""
    digits = [f"{value:.6g}" if abs(value) < 1e5 else f"{value:.0f}" for value in values.tolist()]
    return [float(text) if np.isfinite(value) else None for text, value in zip(digits, values.tolist(), strict=True)]
