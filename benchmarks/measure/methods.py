"""Every method beside TRACE: time and arithmetic per event of the stream, and peak memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from measure import paper
from tracecvr.base import registry
from tracecvr.data.table import ClickTable
from tracecvr.runs.replay import Scored

_HOURLY = 2 * paper.BATCH
"""Clicks an hour: a method with one event per click has full batches, too."""


def names() -> list[str]:
    """Every method that is found."""
    return list(registry.available("method"))


def beside_trace(method: str, rounds: int, threads: int) -> dict[str, Any]:
    """One method's row: hours of its stream and of TRACE's in turn, the fastest of each, then the arithmetic of one
    more. Its peak memory is taken before TRACE enters the process. A method that learns from no event has no ratios."""
    torch.set_num_threads(threads)
    table = paper.dense(paper.STEADY + rounds + 1, _HOURLY)
    subject = _steady(method, table)
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    reference = _steady("trace", table)
    samples = [(_seconds(subject), _seconds(reference)) for _ in range(rounds)]
    ours, theirs = (min(seconds for seconds, _ in side) for side in zip(*samples, strict=True))
    events = samples[-1][0][1]
    row = {"method": method, "events_per_click": events / _HOURLY, "peak_gb": peak_gb}
    if not events:
        return row
    flop_ratio = _flop(subject) / _flop(reference)
    return row | {"events_per_s": 1 / ours, "time_ratio": ours / theirs, "flop_ratio": flop_ratio}


def _steady(method: str, table: ClickTable) -> Iterator[Scored]:
    """A method's stream, run up to the hour from which all its events are there."""
    stream = paper.Stream(method, table).replayed()
    for _ in range(paper.STEADY):
        next(stream)
    return stream


def _seconds(stream: Iterator[Scored]) -> tuple[float, int]:
    """Seconds per event of the next hour, scoring included, and its events."""
    start = time.perf_counter()
    events = next(stream).reveals
    return (time.perf_counter() - start) / max(events, 1), events


def _flop(stream: Iterator[Scored]) -> float:
    """Floating-point operations per event of the next hour, in matrix products as they were carried out."""
    with FlopCounterMode(display=False) as counter:
        events = next(stream).reveals
    return float(counter.get_total_flops()) / max(events, 1)
