"""Cells as tasks of a Ray cluster (an extra): Ray places them, and starts those of a lost worker or node again.

All nodes must see the bench directory under one path, on a filesystem whose locks hold between machines: each task
checks it. So a cell that starts again goes on from its checkpoint, and never runs beside an attempt that still lives.
"""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracecvr.base.errors import UserError
from tracecvr.base.files import is_locked, sha256
from tracecvr.bench.engines.local import ONE_THREAD
from tracecvr.bench.runner import Bench, State, Watch, run_cell
from tracecvr.bench.suite import Cell
from tracecvr.data.table import ClickTable
from tracecvr.runs.run import versions

_LOSSES = 5
"""How often a cell may lose its worker before it is given up: one that kills its worker would do so for ever."""

_BASE_BYTES, _PER_TABLE_BYTE = 750 * 2**20, 3
"""Memory of a cell. Measured peaks by the size of the table: 476 MB (4 MB), 1,080 (176), 1,286 (353), 3,860 (1,403); a
worker of Ray has 110 MB more."""


@dataclass(frozen=True)
class OnRay:
    """The cluster at an address; without one, a Ray of this machine alone."""

    address: str | None = None

    def __call__(self, bench: Bench, waiting: Sequence[Cell], state: State, watch: Watch) -> None:
        """Submit all cells, then listen until all have ended."""
        with connect(self.address):
            import ray

            out = bench.out.resolve()
            place = Place(out, bench.data, bench.log, Path.cwd(), sha256(out / "bench.json"), versions())
            memory, env = memory_of(bench.log), {"env_vars": ONE_THREAD}
            warn_if_nothing_fits(ray.nodes(), memory)
            options = {"num_cpus": 1, "memory": memory, "max_retries": _LOSSES, "runtime_env": env}
            task = ray.remote(retry_exceptions=False, **options)(run_on_node)
            at_work = {task.options(name=cell.name).remote(cell, place): cell.name for cell in waiting}
            try:
                while at_work:
                    watch(state)
                    ended, _ = ray.wait(list(at_work), timeout=1.0)
                    for ref in ended:
                        state.end(at_work.pop(ref), _failure(ref))
                watch(state)
            finally:
                for ref in at_work:
                    ray.cancel(ref, force=True)
                if at_work:  # no process is left that holds a cell's directory
                    ray.wait(list(at_work), num_returns=len(at_work), timeout=10.0)


@dataclass(frozen=True)
class Place:
    """What a task must find on its node to give the same bytes as any other."""

    out: Path
    data: str
    log: Path
    cwd: Path
    bench_sha256: str
    versions: dict[str, str]


class UnfitError(Exception):
    """A node cannot run cells of this bench."""


def _failure(ref: Any) -> str | None:
    """What came of a task: why its cell failed, or None. What keeps a node from running any cell ends the bench."""
    import ray
    from ray.exceptions import LocalRayletDiedError, NodeDiedError, OutOfMemoryError, RayError, WorkerCrashedError

    try:
        failure: str | None = ray.get(ref)
        return failure
    except (LocalRayletDiedError, NodeDiedError, OutOfMemoryError, WorkerCrashedError) as error:
        return f"its worker was lost {_LOSSES + 1} times ({type(error).__name__}); out of memory, perhaps"
    except RayError as error:
        cause = getattr(error, "cause", error)
        if isinstance(cause, UnfitError):
            raise UserError(str(cause)) from None
        reason = _reason(cause)
        raise UserError(f"a node could not begin a cell ({reason}): install the same versions on all nodes") from None


def memory_of(log: Path) -> int:
    """Bytes that a cell declares to need: what a worker takes by itself, and three times the table."""
    return _BASE_BYTES + _PER_TABLE_BYTE * sum(path.stat().st_size for path in log.iterdir())


def warn_if_nothing_fits(nodes: Sequence[dict[str, Any]], memory: int) -> None:
    """A cluster may grow on demand, so that this is no error."""
    offers = [node["Resources"] for node in nodes if node["Alive"]]
    if not any(offer.get("CPU", 0) >= 1 and offer.get("memory", 0) >= memory for offer in offers):
        logging.getLogger(__name__).warning(
            "no node offers 1 CPU and %d MB of memory, which a cell needs: cells wait until one does", memory // 2**20
        )


# On a node.


def run_on_node(cell: Cell, place: Place) -> str | None:
    """The task: run a cell in this worker process; why it failed, or None."""
    _refuse_if_unfit(place)
    with suppress(OSError):  # only methods that are given as files are looked for from there
        os.chdir(place.cwd)
    return run_cell(cell, place.out, place.data, place.log)


def _refuse_if_unfit(place: Place) -> None:
    host = socket.gethostname()
    described = place.out / "bench.json"
    if not described.is_file() or sha256(described) != place.bench_sha256:
        raise UnfitError(f"{host} does not see {place.out}: {_ONE_PATH}")
    if not is_locked(place.out):
        raise UnfitError(
            f"{host} sees {place.out}, but not that it is locked here: mount it so that flock holds between machines"
        )
    if not ClickTable.exists(place.log):
        raise UnfitError(f"{host} does not see {place.log}: {_ONE_PATH}")
    for name, ours in place.versions.items():
        if (theirs := versions()[name]) != ours:
            raise UnfitError(f"{host} has {name} {theirs}, here is {ours}: install the same versions on all nodes")


_ONE_PATH = "all nodes need the bench and its log under one path, on one filesystem"


# The cluster: reached, or started on this machine, and left as it was.


_REACH_S = 5.0
_OBJECTS = 256 * 2**20
"""Bytes of shared memory for a cluster of our own: logs are read from disk by whoever needs them, results are small."""


@contextmanager
def connect(address: str | None = None) -> Iterator[None]:
    """While it lasts, Ray is at hand: a cluster on this machine alone, which ends with it, or the one at `address`:
    `auto` (one that runs here), `HOST:PORT` or `ray://HOST:PORT`. If the process is connected
    already, that connection is used, and kept."""
    import ray

    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else every cluster that is started reports to its makers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about versions to come, and about what an error says, too
        try:
            if address is not None:
                _check_reachable(address)
            own = {"object_store_memory": _OBJECTS, "include_dashboard": False} if address is None else {}
            ray.init(address or "local", logging_level=logging.ERROR, log_to_driver=False, **own)
        except (OSError, RuntimeError, ValueError) as error:
            where = "could not be started on this machine" if address is None else f"at {address} could not be reached"
            raise UserError(f"the Ray cluster {where}: {_reason(error)}") from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Ray itself takes minutes to notice that nobody is there."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host:
        if address not in ("auto", "local"):
            raise UserError(f"--address {address}: give auto, HOST:PORT or ray://HOST:PORT")
        return
    if not port.isdecimal():
        raise UserError(f"--address {address}: {port!r} is no port")
    with socket.create_connection((host.strip("[]"), int(port)), _REACH_S):
        pass


def _reason(error: Exception) -> str:
    message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (message.strip().splitlines() or [type(error).__name__])[0].rstrip(".")
