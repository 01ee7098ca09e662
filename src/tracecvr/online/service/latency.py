"""Quantiles of recent answer times: the difference between the Prometheus histogram now and some time ago."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from prometheus_client import Histogram

ROUTES = {"score": "/v1/score", "clicks": "/v1/clicks", "events": "/v1/events"}
"""Whose times are told, by what the page calls them."""
_WINDOW = 300.0
"""Seconds that are looked back."""
_STEP = 5.0
"""Seconds between two looks at the histogram that are kept."""

Counts = dict[str, npt.NDArray[np.float64]]
"""Of each route: how many answers there have been in each bucket, from the fastest on; the last has no upper end."""


class Latency:
    """Remembers what the histogram held, for as long as it looks back."""

    def __init__(self, seconds: Histogram, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.clock = seconds, clock
        self._past: deque[tuple[float, Counts]] = deque([(clock(), {})])

    def note(self) -> None:
        """To be called now and then, at least as often as steps are long."""
        now = self.clock()
        if now - self._past[-1][0] < _STEP:
            return
        self._past.append((now, self._counts()[1]))
        while len(self._past) > 1 and now - self._past[1][0] >= _WINDOW:
            self._past.popleft()

    def summary(self) -> dict[str, Any]:
        """Of each route: how many answers of late, and the milliseconds in which half and 99 % of them came."""
        since, old = self._past[0]
        ends, new = self._counts()
        content: dict[str, Any] = {"seconds": round(self.clock() - since)}
        for name, route in ROUTES.items():
            counts = new.get(route, np.zeros(1)) - old.get(route, 0.0)
            middle, slow = (quantile(ends, counts, share) for share in (0.5, 0.99))
            content[name] = {"requests": int(counts.sum()), "p50_ms": middle, "p99_ms": slow}
        return content

    def _counts(self) -> tuple[list[float], Counts]:
        """The ends of the buckets that have one, in milliseconds, and what is in each bucket."""
        ends: list[float] = []
        below: dict[str, list[float]] = {}
        for sample in next(iter(self.seconds.collect())).samples:
            if sample.name.endswith("_bucket"):
                ends.append(1e3 * float(sample.labels["le"]))
                below.setdefault(sample.labels["route"], [0.0]).append(sample.value)
        return sorted(set(ends))[:-1], {route: np.diff(counts) for route, counts in below.items()}


def quantile(ends: list[float], counts: npt.NDArray[np.float64], share: float) -> float | None:
    """The value below which a share lies, by straight lines inside buckets; None of nothing. What is beyond the last
    end counts as there."""
    if not counts.sum():
        return None
    below = np.concatenate([[0.0], counts.cumsum()]) / counts.sum()
    for (low, high), (start, end) in zip(pairwise(below), pairwise([0.0, *ends]), strict=False):
        if share <= high:
            return float(start + (end - start) * (share - low) / (high - low))
    return ends[-1]
