"""Metrics for Prometheus. Labels are routes, statuses, kinds and columns that we name: nothing from a request."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tracecvr.monitor.monitor import TEXTS

BUCKETS = tuple(round(m * 10.0**e, 4) for e in (-3, -2, -1, 0) for m in (1, 1.4, 2, 3, 5, 7))
"""Seconds: fine enough to compute quantiles from."""
ROUTES = {"score": "/v1/score", "clicks": "/v1/clicks", "events": "/v1/events"}
"""Whose times the page shows, by what it calls them."""
_WINDOW_S, _KEPT = 300.0, 10_000
"""Of late: so many seconds, and at most so many answers of a route."""


class Answered:
    """Answers of one route: how many by status, the buckets of their times, and when the last ones came."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.buckets, self.seconds = [0] * (len(BUCKETS) + 1), 0.0
        self.recent: deque[tuple[float, float]] = deque(maxlen=_KEPT)

    def note(self, status: int, now: float, seconds: float) -> None:
        self.statuses[status] += 1
        self.buckets[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds
        self.recent.append((now, seconds))

    def summary(self, since: float) -> dict[str, Any]:
        """How many answers of late, and the milliseconds in which half and 99 % of them came."""
        times = [1e3 * seconds for now, seconds in list(self.recent) if now >= since]
        middle, slow = np.quantile(times, (0.5, 0.99)).tolist() if times else (None, None)
        return {"requests": len(times), "p50_ms": middle, "p99_ms": slow}


class Gauges(Collector):
    """One registry per service, so that two in one process do not meet. What each request counts is in plain numbers:
    to lock and to look for a label takes longer than to count."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock, self.started = clock, clock()
        self.answered: dict[str, Answered] = {}
        self.events: Counter[str] = Counter()
        self.scored = 0
        self.registry = CollectorRegistry()
        self.registry.register(self)
        own: dict[str, Any] = {"registry": self.registry}
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

    def collect(self) -> Iterable[Metric]:
        """What requests have counted."""
        requests = CounterMetricFamily("tracecvr_requests", "Requests", labels=["route", "status"])
        seconds = HistogramMetricFamily("tracecvr_request_seconds", "Time to answer", labels=["route"])
        events = CounterMetricFamily("tracecvr_events", "Events accepted", labels=["kind"])
        for route, answered in self.answered.items():
            for status, count in answered.statuses.items():
                requests.add_metric([route, str(status)], count)
            ends = [*map(str, BUCKETS), "+Inf"]
            below = list(zip(ends, accumulate(answered.buckets), strict=True))
            seconds.add_metric([route], below, answered.seconds)
        for kind, count in self.events.items():
            events.add_metric([kind], count)
        return requests, seconds, events, CounterMetricFamily("tracecvr_scores", "Clicks scored", self.scored)

    def note(self, route: str, status: int, since: float) -> None:
        """Count an answer to a request that came at some time of the clock."""
        if (answered := self.answered.get(route)) is None:
            answered = self.answered[route] = Answered()
        answered.note(status, since, self.clock() - since)

    def latency(self) -> dict[str, Any]:
        """How long answers took of late."""
        since = max(self.started, self.clock() - _WINDOW_S)
        routes = {name: self.answered.get(route, Answered()).summary(since) for name, route in ROUTES.items()}
        return {"seconds": round(self.clock() - since)} | routes

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
        on = Counter(alarm["kind"] for alarm in alarms if alarm["on"])
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
