"""How many threads a run has if nobody says."""

from __future__ import annotations

import os

from tracecvr.authoring.method import Method
from tracecvr.learn.stream_learning import StreamLearning
from tracecvr.learn.warm_up_passes import batch_that_fits

_LARGE_BATCH = 1024
"""Events of a step from which on several threads are used. A small step has little to divide, and where other processes
are busy, threads wait for each other: log-sigmoid of a small batch then took 2.0 ms with two threads and 0.2 with one.
Not measured: from which size on two threads gain."""


def usual_threads(method: Method, stream: StreamLearning, warm_up_clicks: int, interval_clicks: float) -> int:
    """All cores that the process may use if optimiser steps are large, else one."""
    of_warm_up = method.warm_batch_size or batch_that_fits(warm_up_clicks, method.batch_size)
    of_stream = of_warm_up if stream.batch_size is None else stream.batch_size or method.batch_size
    return usable_cores() if min(of_stream, interval_clicks) >= _LARGE_BATCH else 1


def usable_cores() -> int:
    """Cores that this process may use: not more than OMP_NUM_THREADS and the process's CPU affinity allow."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # a list is for nested threads
    allowed = int(given) if given.isdigit() else 0
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    return max(1, min(number for number in (allowed, affinity, os.cpu_count() or 1) if number))
