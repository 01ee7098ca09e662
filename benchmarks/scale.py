"""Past one machine, by measurement and simulation: what live learning asks of machines as traffic grows.

    python benchmarks/scale.py             # about a minute
    python benchmarks/scale.py --quick     # seconds: what CI runs

First what a click costs here is measured: memory and disk while it is open, processor's time to accept and to learn its
events. Then demand is worked out for 1, 10, 100 and 1,000 times a traffic. See docs/scale.md for what follows from it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from measure import machine, paper
from rawlogs import write_criteo
from tracecvr.base.config import DAY, HOUR
from tracecvr.data import prepared
from tracecvr.data.dataset import Dataset
from tracecvr.datasets.criteo import Criteo
from tracecvr.methods.trace import Trace
from tracecvr.online.ledger.ledger import MATURE, Ledger
from tracecvr.online.log.times import Grid
from tracecvr.online.store.store import Settings, Store

SCALES = (1, 10, 100, 1000)
GB = 1e9
DISK_USED = 0.8
"""The share of a disk that log and ledger may fill."""
COMPACTED = 24
"""Intervals from one `compact` to the next."""
REQUEST_S = 4.2e-3
"""Of the processor, to answer a request that registers and scores one click: taken with `load.py`, not here."""


@dataclass(frozen=True)
class Costs:
    """What was measured on one core of this machine, TRACE at the paper's sizes."""

    ledger_bytes: float
    """Disk of a click as long as it is in the ledger."""
    action_bytes: float
    """Disk of an action, as long."""
    log_bytes: float
    """Disk of an event of the log."""
    accept_s: float
    """To read and store an event, in batches of 100, without waiting for the disk."""
    learn_s: float
    """To train on an event."""
    adam_s: float
    """To move one weight of an embedding: Adam moves all of them in every step."""


@dataclass(frozen=True)
class Traffic:
    """One time the traffic: 100 clicks a second, 8.6 million a day."""

    clicks_per_s: float = 100.0
    conversions_per_click: float = 0.1
    reveals_per_click: float = 6.0
    d_max: int = 30 * DAY
    interval: int = HOUR
    embedding_rows: int = 1_000_000
    dim: int = 16
    features: int = 17

    def times(self, scale: int) -> Traffic:
        """So many times the clicks. Vocabularies grow with the root of it: most ids of a larger log are known."""
        return replace(
            self,
            clicks_per_s=self.clicks_per_s * scale,
            embedding_rows=round(self.embedding_rows * scale**0.5),
        )


@dataclass(frozen=True)
class Machine:
    """A plain server. What it has is shared: half of the cores learn."""

    cores: int = 16
    memory: float = 64 * GB
    disk: float = 2000 * GB


# Measured.


def measured(clicks: int, rounds: int) -> Costs:
    """Costs, on this machine, now."""
    torch.set_num_threads(1)
    table = paper.dense(paper.STEADY + rounds, clicks)
    stream = paper.Stream("trace", table)
    each = []
    with tempfile.TemporaryDirectory(prefix="tracecvr_scale_") as room:
        of_a_click = _of_a_click(Path(room), clicks)
        for hour in range(paper.STEADY):
            stream.tick(hour)
        for hour in range(paper.STEADY, paper.STEADY + rounds):
            start = time.process_time()
            events = stream.tick(hour)
            each.append((time.process_time() - start) / events)
    return Costs(
        of_a_click.ledger,
        of_a_click.action,
        of_a_click.log,
        of_a_click.accept_s,
        float(np.median(each)),
        _adam_s(1_000 * clicks),
    )


class OfAClick(NamedTuple):
    """Bytes of the ledger per click and per action, bytes of the log per event, and seconds to accept one."""

    ledger: float
    action: float
    log: float
    accept_s: float


def _of_a_click(room: Path, clicks: int) -> OfAClick:
    """Of clicks of a day, as JSON."""
    write_criteo(room / "raw.txt", 2 * clicks)
    dataset = Criteo(split=30 * DAY, duplicates="keep")
    prepared.prepare_to(room / "base", dataset, room / "raw.txt")
    store = Store.create(room / "store", room / "base", Trace(hidden=(8,)), (), Settings(lateness=60))
    lines = [json.dumps(event) for event in _events(dataset, room / "raw.txt")]
    log, seconds = store.log(), time.process_time()
    for batch in _by(lines, 100):
        log.append([store.reader.read(json.loads(line)) for line in batch])
    seconds = time.process_time() - seconds
    log.close()  # what is in the write-ahead log goes into the database
    size = (room / "store" / "events.db").stat().st_size
    log = store.log()
    grid = Grid(store.grid.split, 365 * DAY, 60, store.grid.d_max)
    ledger = Ledger(store.base, grid, store.reader, log, 10**10)
    before = len(ledger.table)
    ledger.advance()
    assert len(ledger.table) > before
    click = sum(np.dtype(kind).itemsize * max(1, width) for kind, width in ledger.database.layout.values())
    action = 2 * 4 * 8  # click, kind and times, and the index by when they became known; half of a page is full
    return OfAClick(float(click), float(action), size / len(lines), seconds / len(lines))


def _events(dataset: Dataset, raw: Path) -> Iterator[dict[str, Any]]:
    from tracecvr.online.dataset_events import events_of

    return events_of(dataset, raw, dataset.split, 100 * DAY)


def _by(lines: list[str], size: int) -> Iterator[list[str]]:
    rest = iter(lines)
    while batch := list(islice(rest, size)):
        yield batch


def _adam_s(weights: int) -> float:
    table = torch.zeros(weights, requires_grad=True)
    table.grad = torch.ones(weights)
    adam = torch.optim.Adam([table], fused=True)
    adam.step()  # makes its moments
    start = time.process_time()
    for _ in range(3):
        adam.step()
    return (time.process_time() - start) / (3 * weights)


# Demand.


@dataclass(frozen=True)
class Demand:
    """What a traffic needs, and how many servers that is for each thing that may be short."""

    scale: int
    clicks_per_s: float
    open_clicks: float
    ledger_gb: float
    log_gb: float
    accept_cores: float
    score_cores: float
    learn_cores: float
    embedding_gb: float
    servers: dict[str, float]

    @property
    def short(self) -> str:
        """What runs out first."""
        return max(self.servers, key=lambda name: self.servers[name])


def demand(scale: int, traffic: Traffic, costs: Costs, m: Machine) -> Demand:
    """By multiplication. Cores and memory are counted at half of what a machine has, the rest is for peaks; the disk at
    `DISK_USED` of it, since what is open does not peak with an hour."""
    t = traffic.times(scale)
    kept = t.d_max + (MATURE + 1) * t.interval
    open_clicks = t.clicks_per_s * kept
    of_a_click = costs.ledger_bytes + t.conversions_per_click * costs.action_bytes
    ledger = open_clicks * of_a_click
    events = t.clicks_per_s * (1 + t.conversions_per_click)
    log = events * (kept + (Settings.keep + COMPACTED) * t.interval) * costs.log_bytes
    accept = events * costs.accept_s
    serve = t.clicks_per_s * REQUEST_S
    learn = t.clicks_per_s * t.reveals_per_click * costs.learn_s
    embedding = 3 * 4.0 * t.embedding_rows * t.dim  # weights and Adam's two moments
    needs = {
        "disk": (log + ledger) / (DISK_USED * m.disk),
        "cores that accept": accept / (m.cores / 2),
        "cores that score": serve / (m.cores / 2),
        "cores that learn": learn / (m.cores / 2),
        "memory of embeddings": embedding / (m.memory / 2),
    }
    return Demand(
        scale,
        t.clicks_per_s,
        open_clicks,
        ledger / GB,
        log / GB,
        accept,
        serve,
        learn,
        embedding / GB,
        needs,
    )


# Told.


def main() -> None:
    given = _arguments()
    console = Console(width=None if sys.stdout.isatty() else 160)
    clicks, rounds = (500, 2) if given.quick else (20_000, 6)
    costs, traffic, one = measured(clicks, rounds), Traffic(), Machine()
    demands = [demand(scale, traffic, costs, one) for scale in SCALES]
    content = {
        "machine": machine.facts(1),
        "costs": asdict(costs),
        "traffic": asdict(traffic),
        "server": asdict(one),
        "demand": [asdict(d) | {"short": d.short} for d in demands],
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(content, indent=2) + "\n")
    console.print(_table("what was measured", ("", ""), [(k, f"{v:.3g}") for k, v in asdict(costs).items()]))
    console.print(_table("demand", DEMAND, [_demand_row(d) for d in demands]))
    most = demands[0].clicks_per_s / demands[0].servers["disk"]
    console.print(f"the disk of one server: {most:,.0f} clicks a second")
    console.print(f"written: {given.out}")


DEMAND = (
    "x",
    "clicks/s",
    "open clicks",
    "ledger",
    "log",
    "accept",
    "score",
    "learn",
    "embeddings",
    "servers",
    "short of",
)


def _demand_row(d: Demand) -> tuple[str, ...]:
    return (
        f"{d.scale:,}",
        f"{d.clicks_per_s:,.0f}",
        f"{d.open_clicks:.2g}",
        f"{d.ledger_gb:,.0f} GB",
        f"{d.log_gb:,.0f} GB",
        f"{d.accept_cores:,.2f} cores",
        f"{d.score_cores:,.2f} cores",
        f"{d.learn_cores:,.2f} cores",
        f"{d.embedding_gb:,.1f} GB",
        f"{ceil(max(d.servers.values())):,}",
        d.short,
    )


def _table(title: str, head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in head:
        table.add_column(name)
    for row in rows:
        table.add_row(*row)
    return table


def _arguments() -> argparse.Namespace:
    text, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=text, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a smoke")
    parser.add_argument("--out", type=Path, default=Path("runs/scale.json"), help="the JSON that is written")
    return parser.parse_args()


if __name__ == "__main__":
    main()
