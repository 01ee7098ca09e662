"""The live learner under load: how fast events are accepted while it learns, how long it learns, and whether its memory
stays flat. Every figure with its target, in a table and as JSON. Exit code 1 if one fails.

    python benchmarks/live.py             # about 10 minutes, 5 million events
    python benchmarks/live.py --quick     # seconds, with wider limits: what CI runs
    python benchmarks/live.py --only traffic

See docs/live_performance.md. Other work on the machine makes figures worse and is not told apart: leave it alone.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from measure import command, paper
from measure.report import Figure
from rawlogs import CRITEO_D_MAX, CRITEO_DAYS, DAY, write_criteo
from tracecvr.base.config import HOUR
from tracecvr.data import prepared
from tracecvr.datasets.criteo import Criteo
from tracecvr.datasets.synthetic import Synthetic
from tracecvr.methods.trace import Trace
from tracecvr.methods.vanilla import Vanilla
from tracecvr.online.dataset_events import events_of
from tracecvr.online.learner.learner import open_learner
from tracecvr.online.store.store import Settings, Store

BATCH = 100
ALONE = paper.STEADY + 1
"""Hours that are learnt before the writer starts; the last of them has all kinds of events."""
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tracecvr.online.learner.learner", "torch._dynamo"])
"""Children are forked by a process that has imported torch and done nothing: imports take seconds each time."""


@dataclass(frozen=True)
class Size:
    """How much is measured, and how much wider limits of time are."""

    name: str
    hourly: int
    hours: int
    events: int
    intervals: int
    loose: float


FULL = Size("full", paper.HOURLY, ALONE + 8, 5_000_000, 500, 1.0)
QUICK = Size("quick", 300, ALONE + 3, 10_000, 10, 4.0)


def main() -> None:
    options = command.parser(__doc__, "live", QUICK, FULL)
    options.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="some of the parts")
    given = options.parse_args()

    def measured(room: Path) -> list[Figure]:
        figures: list[Figure] = []
        for part in given.only:
            (room / part).mkdir()
            figures += PARTS[part](given.size, room / part)
        return figures

    command.carry_out("live", given.size.name, given.out, measured)


# Traffic: a tick of an hour at the paper's sizes, alone and beside a writer.


def traffic(size: Size, room: Path) -> list[Figure]:
    """Some hours learnt alone; then a writer sends more while the learner follows."""
    dataset, raw = criteo(size, room)
    prepared.prepare_to(room / "base", dataset, raw)
    store = Store.create(room / "store", room / "base", Trace(), (), Settings(lateness=60))
    events = list(events_of(dataset, raw, HOUR, 100 * DAY))
    early = [event for event in events if event["ts"] < HOUR * (1 + ALONE) + 60]
    late = [json.dumps(event) for event in events[len(early) :]]
    log = store.log()
    log.append([store.reader.read(event) for event in early])
    log.close_until(HOUR * (1 + ALONE))
    (room / "late").write_text("\n".join(late))
    learner = _started(_learn, store.folder, room / "ticks")
    _wait(learner, lambda: len(_lines(room / "ticks")) == ALONE)
    writer = _started(_send_file, store.folder, room / "late", room / "batches")
    writer.join()
    _wait(learner, lambda: len(_lines(room / "ticks")) == log.closed())
    learner.kill()
    learner.join()
    return _traffic_figures(size, _lines(room / "ticks"), _lines(room / "batches"))


def _traffic_figures(size: Size, ticks: list[dict[str, Any]], batches: list[dict[str, Any]]) -> list[Figure]:
    alone, beside = ticks[ALONE - 1], ticks[ALONE:]
    busy = [b for b in batches if any(t["start"] <= b["start"] and b["end"] <= t["end"] for t in beside)]
    seconds = np.array([b["end"] - b["start"] for b in busy])
    appends = 1e3 * np.array([b["end"] - b["read"] for b in busy])
    each = float(seconds.sum()) / (BATCH * len(seconds))
    work = 1e6 * sum(b["processor"] for b in busy) / (BATCH * len(busy))
    how = f"{1 / each:,.0f}/s, JSON to disk by {BATCH}; {work:.0f} us of them the processor's; {len(busy):,} batches"
    middle, worst = np.quantile(appends, (0.5, 0.99))
    learnt = f"{alone['clicks']:,} clicks, {alone['events']:,} events, version written; one thread, alone"
    slowed = max(t["end"] - t["start"] for t in beside)
    return [
        Figure("to accept an event while a tick runs", 1e6 * each, "us", 100.0, how, size.loose),
        Figure("an append, median", float(middle), "ms", how=f"a transaction of {BATCH} events, flushed to disk"),
        Figure("an append, 99 % below", float(worst), "ms", how=f"longest {appends.max():.0f} ms"),
        Figure("tick of an hour", alone["end"] - alone["start"], "s", 60.0, learnt, size.loose),
        Figure("tick of an hour beside the writer", slowed, "s", 60.0, f"longest of {len(beside)}", size.loose),
    ]


def criteo(size: Size, room: Path) -> tuple[Criteo, Path]:
    """A raw log in Criteo's format, its 60 days and 30 of delay squeezed into the hours that `paper` has."""
    made, raw = room / "made.txt", room / "raw.txt"
    write_criteo(made, size.hourly * (size.hours + 1))
    frame = pl.read_csv(made, separator="\t", has_header=False, infer_schema=False)
    click, conversion = (pl.col(name).cast(pl.Int64) for name in frame.columns[:2])
    squeezed = (click * (size.hours + 1) * HOUR // (CRITEO_DAYS * DAY)).alias(frame.columns[0])
    delay = (conversion - click) * paper.HORIZONS[-1] // CRITEO_D_MAX
    frame = frame.with_columns(squeezed, (squeezed + delay).alias(frame.columns[1]))
    frame.write_csv(raw, separator="\t", include_header=False)
    return Criteo(horizons=paper.HORIZONS, d_max=paper.HORIZONS[-1], split=HOUR, duplicates="keep"), raw


# Memory: far more events than a window of them.


def memory(size: Size, room: Path) -> list[Figure]:
    """Peak memory of writer and learner after a fifth of the events and after all."""
    dataset = Synthetic(clicks=4_000, days=2, split=DAY, d_max=2 * HOUR, horizons=(HOUR, 2 * HOUR), interval=HOUR)
    prepared.prepare_to(room / "base", dataset, None)
    store = Store.create(
        room / "store", room / "base", Vanilla(hidden=(16, 8)), (), Settings(lateness=60, warm_labels="mature")
    )
    learner = _started(_learn, store.folder, room / "ticks")
    writer = _started(_send_made, store.folder, size, room / "batches")
    _wait(learner, lambda: len(_lines(room / "ticks")) >= size.intervals - 1)
    writer.join()
    learner.kill()
    learner.join()
    ticks, batches = _lines(room / "ticks"), _lines(room / "batches")
    return [_flat("learner", ticks, size), _flat("writer", batches, size)]


def _flat(who: str, samples: list[dict[str, Any]], size: Size) -> Figure:
    early, late = samples[len(samples) // 5]["peak_mb"], samples[-1]["peak_mb"]
    how = f"{early:.0f} MB after {size.events // 5:,} events, {late:.0f} MB after {size.events:,}"
    return Figure(f"peak memory of the {who}, after all / after a fifth", late / early, "x", 1.1, how, size.loose**0.25)


def _made(size: Size) -> Iterator[dict[str, Any]]:
    """Three clicks, then a purchase of some click of the last hour, over and over, evenly in time."""
    rng, hourly = random.Random(0), size.events // size.intervals
    for number in range(size.events):
        event = {"click_id": 10**9 + number, "ts": DAY + number * HOUR // hourly}
        if number % 4 < 3:
            features = {"segment": rng.randrange(8), "device": rng.randrange(3), "item": rng.randrange(500)}
            yield event | {"type": "click", "features": features}
        else:
            yield event | {"type": "purchase", "click_id": 10**9 + max(0, number - 1 - 4 * rng.randrange(hourly // 4))}


# In processes of their own.


def _learn(folder: Path, notes: Path) -> None:
    """Learn for ever, and note each tick."""
    with open_learner(Store.open(folder)) as learner, notes.open("w") as out:
        while True:
            start = time.monotonic()
            tick = learner.tick()
            if tick is None:
                time.sleep(0.01)
            else:
                _note(out, start=start, clicks=tick.clicks, events=tick.events)


def _send_file(folder: Path, lines: Path, notes: Path) -> None:
    _send(Store.open(folder), lines.read_text().splitlines(), notes, every=1)


def _send_made(folder: Path, size: Size, notes: Path) -> None:
    _send(Store.open(folder), map(json.dumps, _made(size)), notes, every=size.events // BATCH // 25)


def _send(store: Store, lines: Iterable[str], notes: Path, every: int) -> None:
    """Send events in batches, and note every so many of them."""
    log, numbered = store.log(), iter(lines)
    with notes.open("w") as out:
        number = 0
        while batch := list(islice(numbered, BATCH)):
            start, since = time.monotonic(), time.process_time()
            rows = [store.reader.read(json.loads(line)) for line in batch]
            read = time.monotonic()
            log.append(rows)
            number += 1
            if number % every == 0:
                _note(out, start=start, read=read, processor=time.process_time() - since)


def _note(out: Any, **facts: float) -> None:
    status = Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    out.write(json.dumps(facts | {"end": time.monotonic(), "peak_mb": int(peak.split()[1]) / 1e3}) + "\n")
    out.flush()


def _started(target: Callable[..., None], *given: Any) -> Any:
    process = _SERVER.Process(target=target, args=given, daemon=True)
    process.start()
    return process


def _wait(process: Any, done: Callable[[], bool]) -> None:
    while not done():
        if not process.is_alive():
            raise SystemExit("the learner has ended: see above")
        time.sleep(0.1)


def _lines(notes: Path) -> list[dict[str, Any]]:
    whole = notes.read_text().split("\n")[:-1] if notes.exists() else []
    return [json.loads(line) for line in whole]


PARTS: dict[str, Callable[[Size, Path], list[Figure]]] = {"traffic": traffic, "memory": memory}


if __name__ == "__main__":
    main()
