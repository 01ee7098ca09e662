"""What a learner predicted, and live metrics.

Predictions are judged *as served*, by the scores that clicks were answered with (those registered over HTTP), and
*prequential*, by those of the learner's newest version just before it learnt the clicks' interval (all clicks).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tracecvr.base.json_state import JsonState
from tracecvr.base.metrics import Floats, Labels, nll, probability, reliability
from tracecvr.data.table import Ints
from tracecvr.online.learner.guard import LogOdds
from tracecvr.online.log.event_log import EventLog

Scores = npt.NDArray[np.floating[Any]]
_EDGES = np.linspace(-15.0, 15.0, 1201)
"""Bins of log-odds, 0.025 wide: two scores of one bin count as a tie."""
_RELIABILITY = 15


class Predictions:
    """The log-odds that a model's learner gave clicks of the stream before it learnt them, by row."""

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


@dataclass
class ScoreSums(JsonState):
    """Sums over scored clicks with final labels."""

    positive: Floats = field(default_factory=lambda: np.zeros(len(_EDGES) + 1))
    negative: Floats = field(default_factory=lambda: np.zeros(len(_EDGES) + 1))
    predicted: Floats = field(default_factory=lambda: np.zeros(_RELIABILITY))
    happened: Floats = field(default_factory=lambda: np.zeros(_RELIABILITY))
    nll: float = 0.0

    def add(self, log_odds: Scores, label: Labels) -> None:
        """Add clicks; those that were not scored have NaN, and do not count."""
        scored = ~np.isnan(log_odds)
        s, label = np.asarray(log_odds, np.float64)[scored], label[scored]
        p, where = probability(s), np.searchsorted(_EDGES, s)
        self.positive += np.bincount(where[label], minlength=len(self.positive))
        self.negative += np.bincount(where[~label], minlength=len(self.negative))
        _, predicted, happened = reliability(p, label, _RELIABILITY)
        self.predicted += predicted
        self.happened += happened
        self.nll += float(nll(s, label).sum())

    def summary(self) -> dict[str, float | None]:
        """AUC, NLL, ECE, PCOC and the rate; None where there are too few clicks for it."""
        conversions, others = self.positive.sum(), self.negative.sum()
        clicks = conversions + others
        if not clicks:
            return {"clicks": 0} | dict.fromkeys(("conversions", "cvr", "auc", "nll", "ece", "pcoc"))
        below = np.concatenate([[0.0], self.negative.cumsum()[:-1]])
        wins = float((self.positive * (below + self.negative / 2)).sum())
        return {
            "clicks": int(clicks),
            "conversions": int(conversions),
            "cvr": float(conversions / clicks),
            "auc": wins / float(conversions * others) if conversions and others else None,
            "nll": self.nll / float(clicks),
            "ece": float(np.abs(self.predicted - self.happened).sum() / clicks),
            "pcoc": float(self.predicted.sum() / conversions) if conversions else None,
        }


@dataclass
class LiveMetrics(JsonState):
    """Figures of clicks whose labels are final, by both scores."""

    prequential: ScoreSums = field(default_factory=ScoreSums)
    as_served: ScoreSums = field(default_factory=ScoreSums)

    def add(self, prequential: Scores, as_served: Scores, label: Labels) -> LiveMetrics:
        self.prequential.add(prequential, label)
        self.as_served.add(as_served, label)
        return self

    def summary(self) -> dict[str, Any]:
        return {"as_served": self.as_served.summary(), "prequential": self.prequential.summary()}


def recent_rates(
    log_odds: Scores, converted: Labels, to_come: Floats | None, spread: Callable[[float], tuple[float, float]]
) -> dict[str, Any]:
    """Rate and calibration of recent clicks: predicted, so far, and forecast. `to_come` is what each is still expected
    to bring, `spread` says by which shares of the sum it may be wrong."""
    if not len(converted):
        return {"clicks": 0}
    served = ~np.isnan(log_odds)
    predicted = float(probability(log_odds[served]).mean()) if served.any() else None
    so_far = float(converted.mean())
    rates: dict[str, Any] = {"clicks": len(converted), "predicted": predicted, "so_far": so_far}
    if to_come is None:
        return rates | dict.fromkeys(("forecast", "low", "high", "pcoc"))
    rest, (below, above) = float(to_come.mean()), spread(float(to_come.sum()))
    expected = so_far + rest
    pcoc = predicted / expected if predicted is not None and expected > 0 else None
    ends = {"low": max(so_far + rest * (1 + below), 0.0), "high": so_far + rest * (1 + above)}
    return rates | {"forecast": expected} | ends | {"pcoc": pcoc}
