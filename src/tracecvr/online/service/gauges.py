"""Metrics for Prometheus. Labels are routes, statuses, kinds and columns that we name: nothing from a request.

Requests are counted as they come. All other metrics are read from the status when they are asked for.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import prometheus_client as prometheus
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tracecvr.base.errors import UserError
from tracecvr.monitor.monitor import TEXTS

# Otherwise each counter has one more series: when it was made.
prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
BUCKETS = tuple(round(m * 10.0**e, 4) for e in (-3, -2, -1, 0) for m in (1, 1.4, 2, 3, 5, 7))
"""Seconds: fine enough to compute quantiles from."""
_FIGURES = ("clicks", "conversions", "cvr", "auc", "nll", "ece", "pcoc")
_BECAME = ("messages", "repeated", "set_aside", "lost", "waiting")

FAMILIES = {
    "version": ("Version that serves", ()),
    "version_age_seconds": ("Since the version was published", ()),
    "intervals_behind": ("Closed intervals not learnt yet", ()),
    "source_lag": ("Messages not pulled yet", ("source",)),
    "source_up": ("Whether it can be read", ("source",)),
    "source_messages": ("Messages by what became of them", ("source", "kind")),
    "mature": ("Live metrics of clicks with final labels; `lately` is as served", ("scores", "metric")),
    "learner_up": ("Whether the learner runs", ()),
    "learner_restarts": ("How often it ended by itself", ()),
    "bad_values": ("Values of clicks learnt so far that could not be read", ("column",)),
    "alarms": ("Alarms that are on", ("kind",)),
    "challenger": (
        "NLL per click of a challenger less that of the store's own model: mean, low, high; below 0 it is better",
        ("challenger", "metric"),
    ),
    "expected": (
        "Figures of the last whole day before its labels are final, and their intervals: value, low, high",
        ("segment", "metric", "end"),
    ),
}
"""What is read from the status: of each metric, its description and its labels."""


def read_status(status: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...], float | None]]:
    """Metrics of a service or a replica: names, labels and values, as far as its status has them."""
    yield "version", (), status.get("serving")
    if "age_s" in status:
        yield "version_age_seconds", (), status["age_s"]
    if "learner" in status:
        yield "learner_up", (), bool(status["learner"]["running"])
        yield "learner_restarts", (), status["learner"]["restarts"]
    if "intervals" in status:
        yield "intervals_behind", (), status["intervals"]["closed"] - status["intervals"]["learnt"]
    for source, facts in status.get("sources", {}).items():
        yield "source_lag", (source,), facts["lag"]
        yield "source_up", (source,), facts["problem"] is None
        yield from (("source_messages", (source, kind), facts[kind]) for kind in _BECAME)
    lately = {"lately": status["window"]["as_served"]} if "window" in status else {}
    for scores, figures in (status.get("mature", {}) | lately).items():
        yield from (("mature", (scores, metric), figures.get(metric)) for metric in _FIGURES)
    yield from (("bad_values", (column,), count) for column, count in status.get("bad_values", {}).items())
    on = Counter(alarm["kind"] for alarm in status.get("alarms", ()) if alarm["on"])
    yield from (("alarms", (kind,), on[kind]) for kind in TEXTS if "alarms" in status)
    for name, facts in status.get("challengers", {}).items():
        difference = facts.get("comparison", {}).get("nll_difference", {})
        yield from (("challenger", (name, metric), value) for metric, value in difference.items())
        yield "challenger", (name, "failed"), facts.get("problem") is not None
    for series in status.get("forecast", {}).get("series", ()):
        last = series["days"][-1]
        expected = series["figures"] | {"conversions": [last["first"], last["first_low"], last["first_high"]]}
        for metric, values in expected.items():
            for end, value in zip(("value", "low", "high"), values, strict=True):
                yield "expected", (series["segment"] or "all", metric, end), value


class Gauges(Collector):
    """One registry per service, so that two in one process do not meet."""

    def __init__(
        self, status: Callable[[], Mapping[str, Any]] = dict, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.clock, self._status = clock, status
        self.registry = prometheus.CollectorRegistry()
        self.registry.register(self)
        own: dict[str, Any] = {"registry": self.registry}
        self._requests = prometheus.Counter("tracecvr_requests", "Requests", ["route", "status"], **own)
        self._seconds = prometheus.Histogram(
            "tracecvr_request_seconds", "Time to answer", ["route"], buckets=BUCKETS, **own
        )
        self.events = prometheus.Counter("tracecvr_events", "Events accepted", ["kind"], **own)
        self.scored = prometheus.Counter("tracecvr_scores", "Clicks scored", **own)

    def collect(self) -> Iterable[Metric]:
        """What the status says. Unknown is NaN; if the status cannot be read, requests are still counted."""
        families: dict[str, GaugeMetricFamily] = {}
        status: Mapping[str, Any] = {}
        with suppress(UserError):
            status = self._status()
        for name, labels, value in read_status(status):
            if name not in families:
                text, names = FAMILIES[name]
                families[name] = GaugeMetricFamily(f"tracecvr_{name}", text, labels=names)
            families[name].add_metric(labels, math.nan if value is None else value)
        return families.values()

    def note(self, route: str, status: int, since: float) -> None:
        """Count an answer to a request that came at some time of the clock."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(self.clock() - since)

    def text(self) -> bytes:
        return prometheus.generate_latest(self.registry)
