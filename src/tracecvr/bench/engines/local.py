"""Cells on this machine: in worker processes, which end when their parent does, however it ends; or in this process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tracecvr.base.processes import end_with_parent
from tracecvr.bench.runner import Bench, State, Watch, run_cell
from tracecvr.bench.suite import Cell

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), "1")
"""The environment of a process that runs cells: results depend on the number of threads."""


@dataclass(frozen=True)
class Local:
    workers: int

    def __call__(self, bench: Bench, waiting: Sequence[Cell], state: State, watch: Watch) -> None:
        """Hand cells out until none is left, and take in what workers say."""
        queue = list(waiting)
        crew = [_start(bench) for _ in range(min(self.workers, len(queue)))]
        try:
            for worker in crew:
                _hand_out(worker, queue)
            while any(worker.cell for worker in crew):
                watch(state)
                ready = wait([worker.pipe for worker in crew if worker.cell], timeout=1.0)
                for number, worker in enumerate(crew):
                    if worker.pipe in ready and not _listen(worker, state) and queue:
                        crew[number] = worker = _start(bench)
                    if worker.cell is None and worker.process.is_alive():
                        _hand_out(worker, queue)
            watch(state)
        finally:
            for worker in crew:
                worker.process.kill()  # whatever it was writing is whole or not there
                worker.process.join()


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Connection
    cell: Cell | None = None


def _start(bench: Bench) -> _Worker:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = start_process(_worker, (theirs, bench.out, bench.data, bench.log), ONE_THREAD)
    theirs.close()
    return _Worker(process, ours)


def _hand_out(worker: _Worker, queue: list[Cell]) -> None:
    if queue:
        worker.cell = queue.pop(0)
        with suppress(OSError):  # killed a moment ago: its end is heard of next
            worker.pipe.send(worker.cell)


def _listen(worker: _Worker, state: State) -> bool:
    """Take in what a worker says; False if it is dead."""
    assert worker.cell is not None
    name, worker.cell = worker.cell.name, None
    try:
        state.end(name, worker.pipe.recv())
    except (EOFError, OSError):
        worker.process.join()
        state.end(name, f"the worker process ended with code {worker.process.exitcode}; out of memory, perhaps")
        return False
    return True


def _worker(pipe: Connection, out: Path, data: str, log: Path) -> None:
    """What a worker process does: cells, until there are none or the parent is gone."""
    end_with_parent()
    while True:
        try:
            cell: Cell = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(run_cell(cell, out, data, log))


# Child processes: with their own environment, without Ctrl-C, and ended when the parent ends.


def start_process(target: Callable[..., None], args: tuple[Any, ...], environment: Mapping[str, str]) -> SpawnProcess:
    """A new process that calls `target`, which begins by `end_with_parent`. Whoever ends it kills it: what it was
    writing is whole or not there."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=args, daemon=True)
    resource_tracker.ensure_running()  # the first process starts it, which would unblock Ctrl-C below
    # A new process would run the script that this one runs, and start processes of its own. So it is hidden, unless
    # it is what has the target.
    main = {} if target.__module__ == "__main__" else {"__main__": ModuleType("__main__")}
    # Libraries read the environment when they are imported, so it has to be there from the start.
    with _replace_values(sys.modules, main), _replace_values(os.environ, environment):
        # Ctrl-C is ours to answer. A process inherits what is blocked, so none reaches it even while it imports.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    return process


@contextmanager
def _replace_values(mapping: MutableMapping[str, Any], changes: Mapping[str, Any]) -> Iterator[None]:
    """While it lasts, a mapping has other values."""
    before = {name: mapping.get(name) for name in changes}
    mapping.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del mapping[name]
            else:
                mapping[name] = value


# Cells one after the other in this process: for methods that no other process knows.


class Serial:
    def __call__(self, bench: Bench, waiting: Sequence[Cell], state: State, watch: Watch) -> None:
        threads = torch.get_num_threads()  # a cell has one, as in every engine
        try:
            for cell in waiting:
                watch(state)
                state.end(cell.name, run_cell(cell, bench.out, bench.data, bench.log))
            watch(state)
        finally:
            torch.set_num_threads(threads)
