"""What many open clicks cost: memory of learner and server, time of a tick, time of a restart.

    python benchmarks/open_clicks.py                            # a million and fifty million: minutes, 10 GB of disk
    python benchmarks/open_clicks.py --clicks 20000 --ticks 2   # seconds

Each interval has the same traffic, and d_max grows with the number of clicks that are to be open: what is learnt in a
tick is the same. Open clicks are written straight into the ledger, since their log would be several times larger; the
ticks that are measured come from the log. Learner and server are processes of their own.
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
import numpy.typing as npt
from rich.console import Console

from measure import child, machine
from tracecvr.base import registry
from tracecvr.base.config import DAY, HOUR, MINUTE
from tracecvr.base.errors import UserError
from tracecvr.data import prepared
from tracecvr.data.table import NEVER, Ints
from tracecvr.datasets.synthetic import Synthetic
from tracecvr.learn.stream_learning import StreamLearning
from tracecvr.online.client import Client
from tracecvr.online.events import Event, body_of
from tracecvr.online.learner import Tick, opened
from tracecvr.online.ledger import MATURE, Ledger
from tracecvr.online.store import Settings, Store

RATE, MEAN_DELAY = 0.1, 6 * HOUR
_PATIENCE = 120
"""Seconds within which a server answers."""


def made(folder: Path, clicks: int, hourly: int, method: str) -> Store:
    """A store that is about to have so many open clicks."""
    d_max = max(1, clicks // hourly - MATURE - 1) * HOUR
    horizons = tuple(sorted({min(h, d_max) for h in (15 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, d_max)}))
    dataset = Synthetic(clicks=20_000, days=3, split=2 * DAY, d_max=d_max, horizons=horizons, interval=HOUR)
    prepared.prepare_to(folder / "base", dataset, None)
    chosen = registry.get("method", method)(hidden=(64, 32), warm_epochs=1)
    settings = Settings(lateness=HOUR, keep=2)
    return Store.create(folder / "store", folder / "base", chosen, (), settings, stream=StreamLearning())


def fill(store: Store, clicks: int, hourly: int) -> int:
    """Let the learner have learnt the stream up to where so many clicks are open; how many intervals that took."""
    with opened(store) as learner:
        ledger, log = learner.ledger, store.log()
        done = clicks // hourly
        end = store.grid.bounds(done)[0]
        noted = [_filled(ledger, first, min(hourly, clicks - first), hourly, end) for first in range(0, clicks, hourly)]
        row, ts = (np.concatenate(parts) for parts in zip(*noted, strict=True))
        ledger._note(row, np.ones_like(row), ts, ts)
        ledger.files.clicks.sync()  # all of it, as it would have been bit by bit
        ledger.done = done
        log.close_until(end)
        learner.prequential.keep(clicks)
        learner._save(done, Tick(done - 1, 0, 0, 0.0, ""), {})
        log.close()
        return done


def _filled(ledger: Ledger, first: int, size: int, hourly: int, end: int) -> tuple[Ints, Ints]:
    """Append clicks to a ledger; the rows and times of their conversions that are known."""
    rng, features = np.random.default_rng(first), ledger.schema.features
    ts = ledger.grid.split + (np.arange(first, first + size) * HOUR) // hourly
    bought = ts + 1 + rng.exponential(MEAN_DELAY, size).astype(np.int64)
    known = (rng.random(size) < RATE) & (bought < end) & (bought - ts <= ledger.grid.d_max)
    action = np.full((size, len(ledger.schema.actions)), NEVER)
    action[known, 0] = bought[known]
    block: dict[str, npt.NDArray[Any]] = {
        "x": np.stack([rng.integers(0, f.size, size) for f in features], 1).astype(np.int32),
        "click_ts": ts,
        "click_id": _ids(np.arange(first, first + size)),
        "action_ts": action,
        "known_ts": action,
        "arrival_ts": ts,
        "refund_ts": np.full(size, NEVER),
        "erased": np.zeros(size, np.bool_),
        "score": np.full(size, np.nan, np.float32),
        "version": np.full(size, -1),
    }
    number = ledger.files.clicks.append(block)
    ledger.files.by_id.add(block["click_id"], number)
    return number[known], bought[known]


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
    body = body_of([1] * len(store.reader.features))
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


def learner(folder: str) -> dict[str, Any]:
    """What it costs until a learner is ready, and each tick; its own memory."""
    since, begun = time.monotonic(), _used()
    with opened(Store.open(Path(folder))) as learning:
        ready, used = time.monotonic() - since, [_used()]
        ticks, memory = [], [_own_memory("self")]
        while True:
            since = time.monotonic()
            if learning.tick() is None:
                break
            ticks.append(time.monotonic() - since)  # with what is saved at its end
            used.append(_used())
            memory.append(_own_memory("self"))
        facts = {f"ticks_{name}": np.diff([use[name] for use in used]).tolist() for name in begun}
        return facts | {
            "restart_s": ready,
            "restart_processor_s": used[0]["processor_s"] - begun["processor_s"],
            "ticks_s": ticks,
            "memory_gb": max(memory),
            "open": len(learning.ledger.table),
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


def measured(room: Path, clicks: int, hourly: int, ticks: int, method: str) -> dict[str, Any]:
    """What so many open clicks cost."""
    since = time.monotonic()
    store = made(room, clicks, hourly, method)
    done = fill(store, clicks, hourly)
    filled = time.monotonic() - since
    send(store, clicks, done, hourly, ticks)
    code = "import json, sys, open_clicks; print(json.dumps(open_clicks.learner(sys.argv[1])))"
    ended = child.Child("learner", [sys.executable, "-c", code, str(store.folder)]).wait()
    facts: dict[str, Any] = json.loads(ended.output.splitlines()[-1])
    size = sum(path.stat().st_size for path in (store.folder / "ledger").iterdir())
    return facts | {
        "clicks": clicks,
        "fill_s": filled,
        "learner_wall_s": ended.wall_s,
        "server_memory_gb": server(store.folder),
        "ledger_gb": size / 1e9,
        "bytes_per_click": size / facts["open"],
    }


def main() -> None:
    text, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=text, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clicks", type=int, nargs="+", default=[1_000_000, 50_000_000], help="how many are open")
    parser.add_argument("--hourly", type=int, default=25_000, help="clicks of an interval")
    parser.add_argument("--ticks", type=int, default=5, help="how many are measured")
    parser.add_argument("--method", default="defer")
    parser.add_argument("--room", type=Path, default=None, help="where the stores are made, and removed")
    parser.add_argument("--out", type=Path, default=Path("runs/open_clicks.json"), help="the JSON that is written")
    given = parser.parse_args()
    results, console = [], Console()
    for clicks in given.clicks:
        with tempfile.TemporaryDirectory(prefix="tracecvr_open_", dir=given.room) as room:
            results.append(measured(Path(room), clicks, min(given.hourly, clicks // 30), given.ticks, given.method))
        console.print_json(json.dumps(results[-1]))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({"machine": machine.facts(1), "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
