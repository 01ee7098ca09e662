"""Metrics for Prometheus. Labels are routes, statuses, kinds and columns that we name: nothing from a request."""

from __future__ import annotations

import math
from collections import Counter as Counts
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tracecvr.monitor.monitor import TEXTS

BUCKETS = tuple(round(m * 10.0**e, 4) for e in (-3, -2, -1, 0) for m in (1, 1.4, 2, 3, 5, 7))
"""Seconds: fine enough to compute quantiles from."""


class Gauges:
    """One registry per service, so that two in one process do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("tracecvr_requests_total", "Requests", ["route", "status"], **own)
        self.seconds = Histogram("tracecvr_request_seconds", "Time to answer", ["route"], buckets=BUCKETS, **own)
        self.events = Counter("tracecvr_events_total", "Events accepted", ["kind"], **own)
        self.scored = Counter("tracecvr_scores_total", "Clicks scored", **own)
        self.version = Gauge("tracecvr_version", "Version that serves", **own)
        self.lag = Gauge("tracecvr_intervals_behind", "Closed intervals not learnt yet", **own)
        self.source_lag = Gauge("tracecvr_source_lag", "Messages not pulled yet", ["source"], **own)
        self.source_up = Gauge("tracecvr_source_up", "Whether it can be read", ["source"], **own)
        became = "Messages by what became of them"
        self.source_messages = Gauge("tracecvr_source_messages", became, ["source", "kind"], **own)
        live = "Live metrics of clicks with final labels"
        self.figures = Gauge("tracecvr_mature", live, ["scores", "metric"], **own)
        self.learner = Gauge("tracecvr_learner_up", "Whether the learner runs", **own)
        self.restarts = Gauge("tracecvr_learner_restarts", "How often it ended by itself", **own)
        unreadable = "Values of clicks learnt so far that could not be read"
        self.bad_values = Gauge("tracecvr_bad_values", unreadable, ["column"], **own)
        self.alarms = Gauge("tracecvr_alarms", "Alarms that are on", ["kind"], **own)
        less = "NLL per click of a challenger less that of the store's own model: mean, low, high; below 0 it is better"
        self.challengers = Gauge("tracecvr_challenger", less, ["challenger", "metric"], **own)
        early = "Figures of the last whole day before its labels are final, and their intervals: value, low, high"
        self.expected = Gauge("tracecvr_expected", early, ["segment", "metric", "end"], **own)

    def tell(self, sources: Mapping[str, Mapping[str, Any]]) -> None:
        """How far brokers were read."""
        for source, facts in sources.items():
            self.source_lag.labels(source).set(facts["lag"])
            self.source_up.labels(source).set(facts["problem"] is None)
            for kind in ("messages", "repeated", "set_aside", "lost", "waiting"):
                self.source_messages.labels(source, kind).set(facts[kind])

    def judge(self, figures: Mapping[str, Mapping[str, float | None]]) -> None:
        """How good predictions were: as served, prequential, and of the version that serves. Unknown is NaN."""
        for scores, figure in figures.items():
            for metric in ("clicks", "conversions", "cvr", "auc", "nll", "ece", "pcoc"):
                value = figure.get(metric)
                self.figures.labels(scores, metric).set(math.nan if value is None else value)

    def expect(self, forecast: Mapping[str, Any]) -> None:
        """What figures of the last day are expected to become, and its conversions: of all clicks and by segment. The
        segments are those that the warm-up had."""
        self.expected.clear()
        for series in forecast.get("series", ()):
            last = series["days"][-1]
            figures = series["figures"] | {"conversions": [last["first"], last["first_low"], last["first_high"]]}
            for metric, values in figures.items():
                for end, value in zip(("value", "low", "high"), values, strict=True):
                    place = self.expected.labels(series["segment"] or "all", metric, end)
                    place.set(math.nan if value is None else value)

    def warn(self, alarms: Iterable[Mapping[str, Any]]) -> None:
        """How many alarms are on, by kind."""
        on = Counts(alarm["kind"] for alarm in alarms if alarm["on"])
        for kind in TEXTS:
            self.alarms.labels(kind).set(on[kind])

    def compare(self, challengers: Mapping[str, Mapping[str, Any]]) -> None:
        """How challengers compare with the store's own model. Those that were dropped are no longer reported."""
        self.challengers.clear()
        for name, facts in challengers.items():
            for metric, value in facts.get("comparison", {}).get("nll_difference", {}).items():
                self.challengers.labels(name, metric).set(math.nan if value is None else value)
            self.challengers.labels(name, "failed").set(facts.get("problem") is not None)

    def text(self) -> bytes:
        return generate_latest(self.registry)
