"""TRACE at the paper's sizes, in one process: an update, a score and an interval with next to nothing in it."""

from __future__ import annotations

import time
from itertools import islice, pairwise
from typing import Any

import torch

from measure import paper
from measure.machine import Peak
from tracecvr.stream.reveal import Reveals

_SCORED = 3
"""Batches scored between two ticks, about an hour's clicks: whatever a net prepares anew after a tick is in it."""


def updates(rounds: int, threads: int, hourly: int = paper.HOURLY) -> dict[str, Any]:
    """Seconds of an update and of a scored batch, and the rate of matrix products, sampled in turn."""
    torch.set_num_threads(threads)
    table = paper.dense(paper.STEADY + rounds, hourly)
    stream, multiply = paper.Stream("trace", table), Peak()
    for hour in range(paper.STEADY):
        stream.tick(hour)
    batches = torch.from_numpy(table.x[: _SCORED * paper.BATCH]).split(paper.BATCH)
    samples: dict[str, list[float]] = {"peak_flops": [], "update_s": [], "score_s": []}
    for hour in range(paper.STEADY, paper.STEADY + rounds):
        samples["peak_flops"].append(multiply.flops())
        start = time.perf_counter()
        events = stream.tick(hour)
        ticked = time.perf_counter()
        for x in batches:
            stream.engine.score(x)
        samples["update_s"].append((ticked - start) * paper.BATCH / events)
        samples["score_s"].append((time.perf_counter() - ticked) / _SCORED)
    trained, completer = paper.trained(table.schema), paper.completer(table.schema)
    return samples | {
        "update_flop": (6 * trained + 2 * completer) * paper.BATCH,
        "score_flop": 2 * trained * paper.BATCH,
    }


def overhead(
    intervals: int, before: int, threads: int, hourly: int = paper.HOURLY, processor: bool = False
) -> dict[str, list[float]]:
    """Seconds, of the wall or of the processor, of each interval with one click and six events, through `replay`: the
    whole of it, and without its one optimiser step, which belongs to the events."""
    now = time.thread_time if processor else time.perf_counter
    torch.set_num_threads(threads)
    stream = paper.Stream("trace", paper.sparse(paper.STEADY + intervals, before), hourly)
    learn, steps = stream.engine._learn, [0.0]

    def timed(b: Reveals, start: int) -> None:
        since = now()
        learn(b, start)
        steps[-1] += now() - since

    stream.engine._learn = timed  # type: ignore[method-assign]
    clock = []
    for _ in islice(stream.replayed(), paper.STEADY - 1, None):
        clock.append(now())
        steps.append(0.0)
    whole = [end - start for start, end in pairwise(clock)]
    return {"whole_s": whole, "overhead_s": [w - s for w, s in zip(whole, steps[1:-1], strict=True)]}
