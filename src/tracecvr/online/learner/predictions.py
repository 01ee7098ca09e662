"""What a model's learner predicted of clicks before it learnt them."""

from __future__ import annotations

import numpy as np

from tracecvr.data.table import Ints
from tracecvr.online.learner.guard import LogOdds
from tracecvr.online.log.event_log import EventLog


class Predictions:
    """The log-odds that a model's learner gave clicks of the stream before it learnt them, by row. What clicks were
    served is in the log, too."""

    def __init__(self, log: EventLog, model: str | None) -> None:
        self.log, self.model = log, model or ""

    def keep(self, first: int, log_odds: LogOdds) -> None:
        """Those of the clicks from row `first` on."""
        if len(log_odds):
            self.log.keep_series(self.model, first, log_odds.tobytes())

    def of(self, row: Ints) -> LogOdds:
        """Of clicks by row; NaN of those that were not scored, as the base's."""
        if not len(row):
            return np.empty(0, np.float32)
        first, end = int(row.min()), int(row.max()) + 1
        values = np.full(end - first, np.nan, np.float32)
        for start, known in self.log.read_series(self.model, first, end, np.float32):
            values[start - first : start - first + len(known)] = known
        return values[row - first]
