"""The service besieged: how long a score takes while 1,000 idle and 200 slow connections are held open, against the
same client when nobody else is there, in turns in one run. Exit code 1 if the target is missed.

    python benchmarks/front.py             # about 2 minutes
    python benchmarks/front.py --quick     # seconds, with fewer connections and wider limits: what the test suite runs

Connections that the server closes are opened again at once. All of it is on the loopback interface. See
docs/live_performance.md.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import load
from load import Answer, Site
from measure import command
from measure.report import Figure
from tracecvr.base.config import DAY, HOUR
from tracecvr.data import prepared
from tracecvr.datasets.synthetic import Synthetic
from tracecvr.methods.trace import Trace
from tracecvr.online.dataset_events import events_of
from tracecvr.online.store.store import Settings, Store

_STEP_S = 0.1
_DRIBBLE_S = 1.0
"""How often a slow connection sends a byte."""


@dataclass(frozen=True)
class Size:
    """How many connections, how often and how long each side is measured, and how much wider limits are."""

    name: str
    idle: int
    slow: int
    rounds: int
    seconds: float
    loose: float


FULL = Size("full", 1_000, 200, 3, 15.0, 1.0)
QUICK = Size("quick", 300, 50, 1, 2.0, 10.0)


def main() -> None:
    given = command.parser(__doc__, "front", QUICK, FULL).parse_args()
    command.carry_out("front", given.size.name, given.out, lambda room: measured(given.size, room))


def measured(size: Size, room: Path) -> list[Figure]:
    """Quiet and besieged in turns, so that what else the machine does is in both."""
    dataset = Synthetic(clicks=2_000, days=2, split=DAY, d_max=2 * HOUR, horizons=(HOUR, 2 * HOUR), interval=HOUR)
    prepared.prepare_to(room / "base", dataset, None)
    store = Store.create(room / "store", room / "base", Trace(), (), Settings(warm_labels="mature"))
    features = next(e["features"] for e in events_of(dataset, None, DAY, 100 * DAY) if e["type"] == "click")
    quiet: list[Answer] = []
    besieged: list[Answer] = []
    told: Counter[str] = Counter()
    with ProcessPoolExecutor(2, mp_context=load._FORKED) as pool:
        pool.submit(load.learn, store.folder, 0).result()
        with load.served(replace(load.FULL, pace=10_000.0), store, room, features) as site:
            load.good(site, 1.0)  # what a first request pays for
            for _ in range(size.rounds):
                quiet += pool.submit(load.good, site, size.seconds).result()
                siege = pool.submit(besiege, site, size)
                time.sleep(2.0)
                besieged += pool.submit(load.good, site, size.seconds).result()
                told += siege.result()
    return _figures(size, quiet, besieged, told)


def _figures(size: Size, quiet: list[Answer], besieged: list[Answer], told: Counter[str]) -> list[Figure]:
    count, held = size.idle + size.slow, told["open"] / max(1, told["looks"])
    how = f"{held:,.0f} open on average, {told['opened']:,} opened; {size.rounds} turns of {size.seconds:.0f} s"
    name = f"a score beside {size.idle:,} idle and {size.slow} slow connections / alone, 99 % below"
    return [
        Figure("a score, 99 % below", _p99(quiet), "ms", how=f"{len(quiet):,} requests of one click, nobody else"),
        load._ratio(name, besieged, quiet, how, 3.0, replace(load.FULL, loose=size.loose)),
        Figure("connections not held, on average", count - held, "", 0.1 * count, "they must be there to be a siege"),
    ]


def _p99(answers: list[Answer]) -> float:
    return float(sorted(load._times(answers))[int(0.99 * len(answers))])


# In a process of its own.


def besiege(site: Site, size: Size) -> Counter[str]:
    """Hold connections on which nothing, half a head, or a body byte by byte is sent; open again what is closed."""
    asking = f"Host: localhost\r\nAuthorization: Bearer {site.other}\r\nContent-Length: 9999\r\n\r\n"
    heads = {
        b"": size.idle,
        b"GET / HTTP/1.1\r\nx: ": size.slow // 2,
        b"POST /v1/score HTTP/1.1\r\n" + asking.encode(): size.slow - size.slow // 2,
    }
    wanted = [head for head, count in heads.items() for _ in range(count)]
    told, end, dribble = Counter[str](), time.monotonic() + 2.0 + size.seconds, 0.0
    with selectors.DefaultSelector() as held:
        while time.monotonic() < end:
            for head in wanted:
                held.register(_opened(site, head), selectors.EVENT_READ, head)
            told["opened"] += len(wanted)
            if time.monotonic() > dribble:
                dribble = time.monotonic() + _DRIBBLE_S
                _dribble(held)
            wanted = _closed(held, _STEP_S)
            told["open"] += len(held.get_map())
            told["looks"] += 1
        for key in list(held.get_map().values()):
            _close(held, key)
    return told


def _opened(site: Site, head: bytes) -> socket.socket:
    where = urlsplit(site.url)
    found = socket.create_connection((where.hostname or "", where.port or 80), timeout=20)
    with suppress(OSError):
        found.sendall(head)
    found.setblocking(False)
    return found


def _dribble(held: selectors.BaseSelector) -> None:
    for key in held.get_map().values():
        if key.data:
            with suppress(OSError):
                key.fileobj.send(b"a")  # type: ignore[union-attr]


def _closed(held: selectors.BaseSelector, seconds: float) -> list[bytes]:
    """What was sent on those that were answered or closed, and are closed here, too."""
    found = []
    for key, _ in held.select(seconds):
        found.append(key.data)
        _close(held, key)
    time.sleep(seconds)  # closed in one moment, they are not opened again in one
    return found


def _close(held: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    held.unregister(key.fileobj)
    key.fileobj.close()  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
