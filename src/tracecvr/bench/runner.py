"""Carries out the cells of a bench in worker processes of one thread each; killed at any moment, it goes on.

The parent hands out cells and writes the results; a worker does nothing but runs, each in its own directory, so that
what comes out does not depend on how many workers there are. Workers end when their parent does, however it ends.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from tracecvr import config, prepared, registry
from tracecvr.bench import results
from tracecvr.bench.suite import Cell, Row, Suite, rows_of
from tracecvr.clicks import ClickTable, Schema, read_manifest
from tracecvr.errors import UserError
from tracecvr.files import locked, read_json, write_json
from tracecvr.plugins.rehearsal import events_per_idle_click
from tracecvr.run import Spec, refuse_if_other, run
from tracecvr.spec import dataset_of, signature, spec_of

_TELL_S = 0.2
"""How often a worker tells where it is."""

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), "1")


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    suite: Suite
    data: str
    source: Path | None = None
    data_settings: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    tuned: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass
class State:
    """Where a bench is: what is shown while it runs."""

    cells: tuple[Cell, ...]
    weight: dict[str, float]
    """Expected cost of each cell, in units that only their ratios matter of."""
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    at: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    """Cells at work: stage, done, total."""
    started: float = field(default_factory=time.monotonic)
    before: float = 0.0
    """Weight that was done before this session."""

    def seconds_left(self) -> float | None:
        """By how much weight was done since the start; None before anything was."""
        total, now = sum(self.weight.values()), sum(self.weight[name] for name in (*self.done, *self.failed))
        now += sum(self.weight[name] * _share(*where) for name, where in self.at.items())
        gained = now - self.before
        return (total - now) * (time.monotonic() - self.started) / gained if gained > 1e-3 * total else None


Watch = Callable[[State], None]


@dataclass(frozen=True)
class Bench:
    """A directory and the cells that belong into it."""

    out: Path
    cells: tuple[Cell, ...]
    data: str
    log: Path
    schema: Schema


@contextmanager
def opened(request: Request, out: Path) -> Iterator[Bench]:
    """Hold a bench directory, with its log prepared and `bench.json` written, or known to be this bench's."""
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        yield _opened(request, out)


def carry_out(bench: Bench, workers: int, watch: Watch = lambda _: None) -> State:
    """Run every cell that is not finished, then write `results.parquet` and `failed.json`."""
    state = State(bench.cells, {cell.name: _weight(cell.row, bench.schema) for cell in bench.cells})
    waiting = []
    for cell in bench.cells:
        if results.finished(bench.out / "cells" / cell.name):
            state.done.append(cell.name)
        else:
            waiting.append(cell)
    state.before = sum(state.weight[name] for name in state.done)
    if waiting:
        _work_off(bench, waiting, min(workers, len(waiting)), state, watch)
    results.write(bench.out, bench.cells)
    if state.failed:
        write_json(bench.out / "failed.json", state.failed)
    else:
        (bench.out / "failed.json").unlink(missing_ok=True)
        shutil.rmtree(bench.out / "warm", ignore_errors=True)  # nobody is left to share with
    return state


# The directory.


def _opened(request: Request, out: Path) -> Bench:
    begun = (out / "bench.json").exists()
    if not begun and any(path.name not in (".lock", "data") and not _is_draft(path) for path in out.iterdir()):
        raise UserError(f"{out} is not empty and holds no bench of ours: choose another --out")
    asked = _asked(request)
    if begun:
        refuse_if_other(asked, read_json(out / "bench.json"), str(out), "bench")
    for draft in filter(_is_draft, (*out.iterdir(), *(out / "cells").glob("*"))):  # of a process killed while it wrote
        shutil.rmtree(draft) if draft.is_dir() else draft.unlink()
    log = _log(request, out)
    manifest = read_manifest(log)
    schema = Schema.from_json(manifest["schema"])
    rows = rows_of(request.suite, schema, request.methods, request.settings, request.tuned)
    facts = {
        "fingerprint": manifest["fingerprint"],
        "data_options": manifest["options"],
        "rows": [asdict(row) | {"plugins": list(row.plugins)} for row in rows],
    }
    if begun:
        refuse_if_other(facts, read_json(out / "bench.json"), str(out), "bench")
    else:
        source = signature(() if request.source is None else (request.source,))
        write_json(out / "bench.json", asked | facts | {"source": source})
    (out / "cells").mkdir(exist_ok=True)
    cells = tuple(Cell(row, seed) for row in rows for seed in request.seeds)
    return Bench(out, cells, request.data, log, schema)


def _asked(request: Request) -> dict[str, Any]:
    return {
        "suite": request.suite.to_json(),
        "data": request.data,
        "data_settings": list(request.data_settings),
        "seeds": list(request.seeds),
        "methods": list(request.methods),
        "settings": dict(request.settings),
        "tuned": {name: dict(given) for name, given in request.tuned.items()},
        "tracecvr": version("tracecvr"),
    }


def _log(request: Request, out: Path) -> Path:
    """The prepared log: the user's own, or one that is prepared here, once."""
    if request.source is not None and ClickTable.exists(request.source):
        prepared.options_of(request.source, dataset_of(request.data, ()), bool(request.data_settings))
        return request.source.resolve()
    if not ClickTable.exists(out / "data"):
        defaults = request.suite.data.get(request.data, {})
        given = config.pairs(request.data_settings, "--data-set")
        dataset = dataset_of(request.data, [f"{k}={v}" for k, v in (defaults | given).items()])
        prepared.prepare_to(out / "data", dataset, request.source)
    return (out / "data").resolve()


def _is_draft(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(".tmp")


def _weight(row: Row, schema: Schema) -> float:
    """What a cell costs, roughly: a part for warm-up and scoring, and one for each time that a click is shown."""
    method = registry.get("method", row.method)()
    method.schema = schema
    shown = len(schema.horizons) if "rehearsal" in row.plugins else events_per_idle_click(method.schedule())
    return 1.0 + shown * int(row.settings.get("passes", "1"))


# The workers.


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Connection
    cell: Cell | None = None


def _work_off(bench: Bench, waiting: list[Cell], workers: int, state: State, watch: Watch) -> None:
    queue = sorted(waiting, key=lambda cell: -state.weight[cell.name])  # the longest first: no straggler at the end
    crew = [_started(bench) for _ in range(workers)]
    try:
        for worker in crew:
            _hand_out(worker, queue, state)
        while any(worker.cell for worker in crew):
            watch(state)
            ready = wait([worker.pipe for worker in crew if worker.cell], timeout=1.0)
            for number, worker in enumerate(crew):
                if worker.pipe in ready and not _listened(worker, state) and queue:
                    crew[number] = worker = _started(bench)
                if worker.cell is None and worker.process.is_alive():
                    _hand_out(worker, queue, state)
        watch(state)
    finally:
        for worker in crew:
            worker.process.kill()  # whatever it was writing is whole or not there
            worker.process.join()


def _started(bench: Bench) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(_ONE_THREAD)  # read when a library is imported, so it has to be there when the process starts
    try:
        process = context.Process(target=_worker, args=(theirs, bench.out, bench.data, bench.log), daemon=True)
        # Ctrl-C is the parent's to answer. A worker inherits what is blocked, so none reaches it even while it imports.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    theirs.close()
    return _Worker(process, ours)


def _hand_out(worker: _Worker, queue: list[Cell], state: State) -> None:
    if queue:
        worker.cell = queue.pop(0)
        state.at[worker.cell.name] = ("start", 0, 1)
        with suppress(OSError):  # killed a moment ago: its end is heard of next
            worker.pipe.send(worker.cell)


def _listened(worker: _Worker, state: State) -> bool:
    """Take in what a worker says; False if it is dead."""
    assert worker.cell is not None
    name = worker.cell.name
    try:
        kind, content = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join()
        state.failed[name] = f"the worker process ended with code {worker.process.exitcode}; out of memory, perhaps"
        state.at.pop(name, None)
        worker.cell = None
        return False
    if kind == "at":
        state.at[name] = content
        return True
    state.at.pop(name, None)
    worker.cell = None
    if kind == "done":
        state.done.append(name)
    else:
        state.failed[name] = content
    return True


def _worker(pipe: Connection, out: Path, data: str, log: Path) -> None:
    """What a worker process does: cells, until there are none or the parent is gone."""
    _end_with_parent()
    while True:
        try:
            cell: Cell = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(_outcome(cell, out, data, log, _Teller(pipe)))


def spec_of_cell(cell: Cell, data: str, log: Path) -> Spec:
    """The run that a cell is."""
    row = cell.row
    return spec_of(row.method, row.plugins, data, log, row.settings, seed=cell.seed)


def _outcome(cell: Cell, out: Path, data: str, log: Path, tell: _Teller) -> tuple[str, str]:
    try:
        run(spec_of_cell(cell, data, log), out / "cells" / cell.name, resume=True, progress=tell, shared=out / "warm")
    except UserError as error:
        return "failed", str(error)
    except Exception as error:
        logging.getLogger(__name__).exception("cell %s", cell.name)
        return "failed", f"{type(error).__name__}: {error}"
    return "done", ""


class _Teller:
    """A run's progress, told to the parent now and then."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe, self.told = pipe, 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.told >= _TELL_S:
            self.told = now
            self.pipe.send(("at", (stage, done, total)))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _share(stage: str, done: int, total: int) -> float:
    """How much of a cell is done, from the stage that it is in."""
    return 0.1 + 0.9 * done / max(total, 1) if stage == "stream" else 0.0
