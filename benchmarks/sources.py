"""How fast events are pulled from a broker into a store: a message per event, by size of batch, and beside a learner.

    python benchmarks/sources.py          # a minute or two; needs the extra brokers

Each figure is from the broker to a transaction on disk, acknowledgement included. See docs/live_performance.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from brokers import Kafka, Nats
from measure import machine
from tracecvr.base.config import DAY, HOUR
from tracecvr.data import prepared
from tracecvr.datasets.synthetic import Synthetic
from tracecvr.methods.trace import Trace
from tracecvr.online.dataset_events import events_of
from tracecvr.online.sources import BrokerSource
from tracecvr.online.sources.pump import Pump
from tracecvr.online.store.store import Settings, Store

DATASET = Synthetic(clicks=60_000, days=6, split=3 * DAY, d_max=DAY, horizons=(HOUR, 6 * HOUR, DAY), interval=HOUR)
PORT = 14333


def pulled(room: Path, url: str, batch: int, learner: bool = False) -> float:
    """Seconds per event of pulling everything, once; beside a learner that has begun to learn, if wanted."""
    folder = room / f"store_{time.monotonic_ns()}"
    store = Store.create(folder, room / "base", Trace(hidden=(64, 32)), (), Settings(lateness=HOUR))
    pump = Pump(store, BrokerSource.of(url), batch, wait=0.2)
    beside = _learning(folder) if learner else None
    try:
        since = time.perf_counter()
        count = pump.drain()
        return (time.perf_counter() - since) / count
    finally:
        pump.log.close()
        if beside is not None:
            beside.kill()
            beside.wait()


def _learning(folder: Path) -> subprocess.Popen[bytes]:
    """A learner that is warm."""
    words = [sys.executable, "-m", "tracecvr.cli", "learn", str(folder), "--poll", "0.01"]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    while not any((folder / "models").glob("0*.json")):
        time.sleep(0.05)
    return process


def main() -> None:
    console = Console()
    console.print(machine.facts(1))
    with tempfile.TemporaryDirectory() as name:
        room = Path(name)
        prepared.prepare_to(room / "base", DATASET, None)
        events: list[dict[str, Any]] = list(events_of(DATASET, None, DATASET.split, 100 * DAY))
        payloads, keys = [json.dumps(event).encode() for event in events], [event["click_id"] for event in events]
        (room / "nats").mkdir()
        table = Table("broker", "batch", "events/s", "us each")
        for broker in (Nats(room / "nats", PORT), Kafka()):
            broker.publish(payloads, keys)
            for batch, learner in ((100, False), (500, False), (1000, False), (500, True)):
                each = min(pulled(room, broker.url, batch, learner) for _ in range(2))
                what = f"{batch}, beside a learner" if learner else str(batch)
                table.add_row(type(broker).__name__, what, f"{1 / each:,.0f}", f"{1e6 * each:.0f}")
            broker.close()
        console.print(f"{len(events):,} events")
        console.print(table)


if __name__ == "__main__":
    main()
