"""What many open clicks cost: memory of learner and server, time of a tick, time of a restart.

    python benchmarks/open_clicks.py                            # a million and fifty million: an hour, 30 GB of disk
    python benchmarks/open_clicks.py --clicks 20000 --ticks 2   # seconds

Each interval has the same traffic, and d_max grows with the number of clicks that are to be open: what is learnt in a
tick is the same. Open clicks are written straight into the log's tables, which is several times faster; a learner
builds its ledger from them. Learners and servers are processes of their own, and ticks of few and of many
open clicks take turns, so that a busy machine is equally busy for both.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from measure import machine
from service_client import Client
from tracecvr.base import registry
from tracecvr.base.config import DAY, HOUR, MINUTE
from tracecvr.base.errors import UserError
from tracecvr.data import prepared
from tracecvr.data.table import Ints
from tracecvr.datasets.synthetic import Synthetic
from tracecvr.learn.stream_learning import StreamLearning
from tracecvr.online.learner.learner import Tick, open_learner
from tracecvr.online.ledger.ledger import MATURE
from tracecvr.online.log.event_log import EventLog
from tracecvr.online.log.events import Event
from tracecvr.online.store.store import Settings, Store

RATE, MEAN_DELAY = 0.1, 6 * HOUR
_PATIENCE = 120
"""Seconds within which a server answers."""


def made(folder: Path, clicks: int, hourly: int, method: str) -> Store:
    """A store that is about to have so many open clicks."""
    folder.mkdir()
    d_max = max(1, clicks // hourly - MATURE - 1) * HOUR
    horizons = tuple(sorted({min(h, d_max) for h in (15 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, d_max)}))
    dataset = Synthetic(clicks=20_000, days=3, split=2 * DAY, d_max=d_max, horizons=horizons, interval=HOUR)
    prepared.prepare_to(folder / "base", dataset, None)
    chosen = registry.get("method", method)(hidden=(64, 32), warm_epochs=1)
    settings = Settings(lateness=HOUR, keep=2)
    return Store.create(folder / "store", folder / "base", chosen, (), settings, stream=StreamLearning())


def fill(store: Store, clicks: int, hourly: int) -> int:
    """Let the learner have learnt the stream up to where so many clicks are open; how many intervals that took."""
    done = clicks // hourly
    end = store.grid.bounds(done)[0]
    log = store.log()
    for first in range(0, clicks, hourly):
        _fill_interval(log, len(store.schema.features), first, min(hourly, clicks - first), hourly, end)
    log.close_until(end)
    log.close()
    with open_learner(store) as learner:
        learner.ledger.rebuild(done, learner.ledger.rows + clicks, {})
        learner._save(done, Tick(done - 1, 0, 0, 0.0, ""), {})
    return done


def _fill_interval(log: EventLog, features: int, first: int, size: int, hourly: int, end: int) -> None:
    """Append clicks to a log, with their conversions that are known."""
    rng = np.random.default_rng(first)
    ts = log.grid.split + (np.arange(first, first + size) * HOUR) // hourly
    bought = ts + 1 + rng.exponential(MEAN_DELAY, size).astype(np.int64)
    known = (rng.random(size) < RATE) & (bought < end) & (bought - ts <= log.grid.d_max)
    ids = _ids(np.arange(first, first + size))
    with log._transaction():
        insert = "INSERT INTO events(event, kind, click, ts, seen, body) VALUES(?, ?, ?, ?, ?, ?)"
        body = json.dumps([1] * features)
        rows: list[tuple[Any, ...]] = [
            (f"c{key}", 0, key, at, at, body) for key, at in zip(ids.tolist(), ts.tolist(), strict=True)
        ]
        for key, at in zip(ids[known].tolist(), bought[known].tolist(), strict=True):
            rows.append((f"a1:{key}:{at}", 1, key, at, at, None))
        log._db.executemany(insert, rows)


def _ids(number: Ints) -> Ints:
    """Ids in no order, as hashes are."""
    return ((number.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(1)).astype(np.int64)


def send(store: Store, clicks: int, done: int, hourly: int, ticks: int) -> None:
    """Events of intervals that are to be learnt: new clicks, and conversions of open ones."""
    log, rng = store.log(), np.random.default_rng(1)
    for number in range(done, done + ticks):
        log.append(list(_events(store, clicks + (number - done) * hourly, number, hourly, rng)))
        log.close_until(store.grid.bounds(number)[1])
    log.close()


def _events(store: Store, first: int, number: int, hourly: int, rng: np.random.Generator) -> Iterator[Event]:
    start, end = store.grid.bounds(number)
    body = json.dumps([1] * len(store.reader.features))
    for click, ts in zip(
        _ids(np.arange(first, first + hourly)).tolist(), np.linspace(start, end - 1, hourly), strict=True
    ):
        yield Event(f"c{click}", 0, click, int(ts), None, body)
    ages = rng.exponential(MEAN_DELAY, int(RATE * hourly)) + 1
    bought = np.linspace(start, end - 1, len(ages)).astype(np.int64)
    which = np.clip(((bought - ages.astype(np.int64) - store.grid.split) * hourly) // HOUR, 0, first - 1)
    for click, ts in zip(_ids(which).tolist(), bought.tolist(), strict=True):
        yield Event(f"a1:{click}:{ts}", 1, click, ts, None, None)


# In processes of their own.


def learner(folder: str) -> None:
    """Be a learner that says, in lines of JSON, what it took to be ready, and then, for each line that it is sent, what
    a tick took."""
    since = time.monotonic()
    with open_learner(Store.open(Path(folder))) as learning:
        _say({"ready_s": time.monotonic() - since} | _used())
        for _ in sys.stdin:
            before, since = _used(), time.monotonic()
            assert learning.tick() is not None
            seconds = time.monotonic() - since  # with what is saved at its end
            used = {name: after - before[name] for name, after in _used().items()}
            database = learning.ledger.database
            pages = database._run("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()").get
            facts = {"s": seconds, "memory_gb": _own_memory("self"), "open": len(database), "ledger_gb": pages / 1e9}
            _say(used | facts)


def _say(facts: dict[str, float]) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


class LearnerProcess:
    """A learner in a process of its own, which learns when it is told to."""

    def __init__(self, store: Store) -> None:
        code = "import sys, open_clicks; open_clicks.learner(sys.argv[1])"
        self._since = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, str(store.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent,
        )
        self.ready = self._line()
        self.ticks: list[dict[str, float]] = []
        self.started_s = 0.0

    def tick(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.ticks.append(self._line())
        self.started_s = self.started_s or time.monotonic() - self._since

    def _line(self) -> dict[str, float]:
        assert self._process.stdout is not None
        content: dict[str, float] = json.loads(self._process.stdout.readline())
        return content

    def close(self) -> None:
        self._process.communicate()

    def facts(self) -> dict[str, Any]:
        """What its restart and its ticks took."""
        names = ("s", "processor_s", "read_mb", "written_mb")
        return {f"ticks_{name}": [tick[name] for tick in self.ticks] for name in names} | {
            "restart_s": self.ready["ready_s"],
            "restart_processor_s": self.ready["processor_s"],
            "started_s": self.started_s,
            "memory_gb": max(tick["memory_gb"] for tick in self.ticks),
            "open": self.ticks[-1]["open"],
            "ledger_gb": self.ticks[-1]["ledger_gb"],
        }


def _used() -> dict[str, float]:
    """What this process has used so far. What others do on the machine does not count."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "processor_s": usage.ru_utime + usage.ru_stime,
        "read_mb": usage.ru_inblock * 512 / 1e6,
        "written_mb": usage.ru_oublock * 512 / 1e6,
    }


def server(folder: Path) -> float:
    """Gigabytes of a server's own memory after some requests."""
    words = [sys.executable, "-m", "tracecvr.cli", "serve", str(folder), "--no-learn", "--port", "8977"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        features = dict.fromkeys(Store.open(folder).reader.features, 1)
        with Client("http://127.0.0.1:8977", retries=1) as client:
            for attempt in range(20 + _PATIENCE):
                try:
                    client.score([features] * 50)
                except UserError:  # it does not listen yet
                    time.sleep(1)
                    if attempt == _PATIENCE:
                        raise
        return _own_memory(str(process.pid))
    finally:
        process.kill()
        process.wait()


def _own_memory(process: str) -> float:
    """Gigabytes of anonymous memory: pages of files are the cache's."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024 / 1e9


def filled(room: Path, clicks: int, hourly: int, ticks: int, method: str) -> Store:
    """A store with so many open clicks, and events of some more intervals in its log."""
    store = made(room, clicks, hourly, method)
    send(store, clicks, fill(store, clicks, hourly), hourly, ticks)
    return store


def measured(stores: list[Store], ticks: int) -> list[dict[str, Any]]:
    """What open clicks cost. Ticks of all stores take turns: whatever else the machine does, it does to all of them.
    The first of a store comes right after its start."""
    processes: list[LearnerProcess] = []
    try:
        for store in stores:
            processes.append(LearnerProcess(store))
            processes[-1].tick()
        for _ in range(ticks - 1):
            for process in processes:
                process.tick()
    finally:
        for process in processes:
            process.close()
    return [
        process.facts() | {"server_memory_gb": server(store.folder)}
        for process, store in zip(processes, stores, strict=True)
    ]


def _ratio(results: list[dict[str, Any]], name: str) -> float:
    """How many times as much as with the fewest clicks a tick takes with the most: of medians."""
    least, most = (float(np.median(result[name])) for result in (results[0], results[-1]))
    return most / least


def main() -> None:
    text, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=text, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clicks", type=int, nargs="+", default=[1_000_000, 50_000_000], help="how many are open")
    parser.add_argument("--hourly", type=int, default=25_000, help="clicks of an interval")
    parser.add_argument("--ticks", type=int, default=9, help="how many are measured")
    parser.add_argument("--method", default="defer")
    parser.add_argument("--room", type=Path, default=None, help="where the stores are made, and removed")
    parser.add_argument("--out", type=Path, default=Path("runs/open_clicks.json"), help="the JSON that is written")
    given = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="tracecvr_open_", dir=given.room) as room:
        stores = []
        for clicks in given.clicks:
            hourly = min(given.hourly, clicks // 30)
            stores.append(filled(Path(room) / str(clicks), clicks, hourly, given.ticks, given.method))
        results = measured(stores, given.ticks)
    for clicks, result in zip(given.clicks, results, strict=True):
        console.print_json(json.dumps({"clicks": clicks} | result))
    for name in ("ticks_s", "ticks_processor_s"):
        console.print(f"{name}: {_ratio(results, name):.2f} times")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(
        json.dumps({"machine": machine.facts(1), "clicks": given.clicks, "results": results}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
