"""Data-parallel training: an optimiser step by one process, by two workers, by one process of two threads.

    python benchmarks/ranks.py                       # about a minute, writes runs/ranks.json
    python benchmarks/ranks.py --rounds 9 --out elsewhere.json

TRACE at its default sizes, whole hours of the stream, everything included: events, losses, the optimiser. The three
take turns, hour by hour, in the same two processes, so that other work on the machine meets all of them alike; so do
two runs at once, which share nothing: what they gain over one is all that a second core of this machine can give.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from measure import machine, paper
from tracecvr.base.progress import Progress
from tracecvr.distributed.workers import run_workers
from tracecvr.nets import ranks

BATCHES = (4_096, 16_384)
ALONE, SHARED, THREADS, APART = "1 worker x 1 thread", "2 workers x 1 thread", "1 worker x 2 threads", "2 runs at once"
WAYS = {ALONE: (1, 1), SHARED: (2, 1), THREADS: (1, 2), APART: (1, 1)}
"""Workers and threads of each. Two runs at once, one thread each, show what the machine's second core is worth."""


def main() -> None:
    given = _arguments()
    steps = run_workers(partial(measured, given.rounds, given.hourly), 2, threads=2)[0]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({"machine": machine.facts(2), "steps": steps}, indent=2) + "\n")
    sys.stdout.write("\n".join(_table(steps)) + f"\nwritten: {given.out}\n")


def measured(rounds: int, hourly: int, _: Progress) -> list[dict[str, Any]]:
    """Of each size of batch and each way: seconds per step, hour by hour, and those in which ranks talk or wait."""
    shared = ranks.current()
    assert shared is not None
    table = paper.dense(paper.STEADY + rounds, hourly)
    steps = []
    for size in BATCHES:
        samples: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        streams = {way: _started(table, size, workers, threads) for way, (workers, threads) in WAYS.items()}
        for hour in range(paper.STEADY + rounds):
            for way, (workers, threads) in WAYS.items():
                shared.broadcast_first(True)  # whoever does not work in this way waits here for the next
                if workers > 1 or shared.rank == 0 or way == APART:
                    sample = _hour(streams[way], hour, workers, threads)
                    samples[way] += [sample] if hour >= paper.STEADY else []
        steps.append({"batch": size, "ways": samples})
    return steps


def _started(table: Any, size: int, workers: int, threads: int) -> paper.Stream:
    with _working(workers, threads):
        stream = paper.Stream("trace", table)
    stream.engine.method.batch_size = size
    return stream


def _hour(stream: paper.Stream, hour: int, workers: int, threads: int) -> tuple[float, float]:
    with _working(workers, threads), _talking() as talk:
        steps, start = stream.engine.steps, time.perf_counter()
        stream.tick(hour)
        seconds = time.perf_counter() - start
    return seconds / (stream.engine.steps - steps), sum(talk) / (stream.engine.steps - steps)


@contextmanager
def _working(workers: int, threads: int) -> Iterator[None]:
    """Work by so many threads, and alone if there is one worker."""
    torch.set_num_threads(threads)
    joined = ranks._joined
    if workers == 1:
        ranks._joined = None
    try:
        yield
    finally:
        ranks._joined = joined


@contextmanager
def _talking() -> Iterator[list[float]]:
    """Seconds spent in what ranks say to each other, which includes waiting for the slower one."""
    spent: list[float] = []
    plain = ranks.Ranks.gathered, ranks.Ranks.summed

    def timed(function: Any) -> Any:
        def call(self: ranks.Ranks, value: Tensor) -> Tensor:
            start = time.perf_counter()
            answer: Tensor = function(self, value)
            spent.append(time.perf_counter() - start)
            return answer

        return call

    ranks.Ranks.gathered, ranks.Ranks.summed = map(timed, plain)  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        ranks.Ranks.gathered, ranks.Ranks.summed = plain  # type: ignore[method-assign]


def _table(steps: list[dict[str, Any]]) -> Iterator[str]:
    yield "| batch | | ms per step | of these talking | speed-up | ideal |"
    yield "|---|---|---|---|---|---|"
    for part in steps:
        alone = [seconds for seconds, _ in part["ways"][ALONE]]
        for way, samples in part["ways"].items():
            times = [seconds for seconds, _ in samples]
            talk = statistics.median(seconds for _, seconds in samples)
            cores = 2 if way == APART else WAYS[way][0] * WAYS[way][1]
            ratio = statistics.median(a / b for a, b in zip(alone, times, strict=True)) * (2 if way == APART else 1)
            median = statistics.median(times)
            yield f"| {part['batch']:,} | {way} | {1e3 * median:.1f} | {1e3 * talk:.1f} | {ratio:.2f} | {cores} |"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="hours that are measured")
    parser.add_argument("--hourly", type=int, default=paper.HOURLY, help="clicks an hour, each shown six times")
    parser.add_argument("--out", type=Path, default=Path("runs/ranks.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
