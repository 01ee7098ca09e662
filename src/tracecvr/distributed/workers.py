"""Data-parallel runs: worker processes on this machine that compute each batch together. See `ranks` for how.

This process holds the run's directory and watches; the workers do the rest, and the first of them writes. If one ends
before its time, all are ended, and the run goes on from its last checkpoint when it is resumed.
"""

from __future__ import annotations

import math
import multiprocessing
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tracecvr.base.errors import UserError
from tracecvr.base.progress import Progress, ThrottledProgress, no_progress
from tracecvr.distributed.processes import end_with_parent, start_process, thread_settings
from tracecvr.nets.ranks import Ranks, WorkerLostError, sharing_batches
from tracecvr.runs.run import Job

PATIENCE = timedelta(minutes=10)
"""How long a worker waits for the others: none does anything alone for long. If one ends, that is seen at once."""

_TELL_S, _GRACE_S = 0.2, 3.0


def run_workers(job: Job, size: int, threads: int = 1, progress: Progress = no_progress) -> list[Any]:
    """What `job` returns in each of so many processes, which are joined as ranks; the first one's progress is told."""
    with tempfile.TemporaryDirectory(prefix="tracecvr-") as folder:
        crew = [_started(job, Path(folder) / "store", rank, size, threads) for rank in range(size)]
        try:
            return _listened(crew, progress)
        finally:
            for worker in crew:
                worker.process.kill()
                worker.process.join()


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Connection


def _started(job: Job, store: Path, rank: int, size: int, threads: int) -> _Worker:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    loopback = {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}
    process = start_process(_worker, (theirs, job, store, rank, size), thread_settings(threads) | loopback)
    theirs.close()
    return _Worker(process, ours)


def _listened(crew: Sequence[_Worker], progress: Progress) -> list[Any]:
    """Take in what workers say until all have answered or one has failed."""
    answers: dict[int, Any] = {}
    lost: dict[int, Exception] = {}
    until = math.inf
    while len(answers) < len(crew) and time.monotonic() < until:
        waiting = {w.pipe: rank for rank, w in enumerate(crew) if rank not in answers | lost}
        for pipe in wait(list(waiting), timeout=0.5):
            assert isinstance(pipe, Connection)
            rank = waiting[pipe]
            kind, content = _heard(crew[rank], rank, len(crew))
            if kind == "at":
                progress(*content)
            elif kind == "answer":
                answers[rank] = content
            elif isinstance(content, WorkerLostError):
                lost[rank] = content
                until = min(until, time.monotonic() + _GRACE_S)  # whoever was lost will be heard of
            else:
                raise content
    if lost:
        raise resumable(str(next(iter(lost.values()))))
    return [answers[rank] for rank in range(len(crew))]


def _heard(worker: _Worker, rank: int, size: int) -> tuple[str, Any]:
    try:
        message: tuple[str, Any] = worker.pipe.recv()
        return message
    except (EOFError, OSError):
        worker.process.join()
    code = worker.process.exitcode or 0
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    perhaps = " (out of memory, perhaps)" if code == -signal.SIGKILL else ""
    return "raised", resumable(f"worker {rank} of {size} {how}{perhaps}")


def resumable(what: str) -> UserError:
    """The error for a run that has lost a worker."""
    return UserError(f"{what}, so the run stops: continue it with --resume")


def _worker(pipe: Connection, job: Job, store: Path, rank: int, size: int) -> None:
    end_with_parent()
    try:
        dist.init_process_group("gloo", f"file://{store}", PATIENCE, size, rank)
        tell = ThrottledProgress(lambda where: pipe.send(("at", where)), _TELL_S)
        answer = "answer", as_rank(job, tell if rank == 0 else no_progress)
    except Exception as error:
        answer = "raised", error if isinstance(error, UserError) else with_trace(error, rank)
    with suppress(OSError, EOFError):
        pipe.send(answer)
        pipe.recv()  # until the parent ends it: others may still be reading what this process has sent them


def as_rank(job: Job, progress: Progress) -> Any:
    """Do a job as one of the processes that torch.distributed has brought together; a single one is alone."""
    with nullcontext() if dist.get_world_size() == 1 else sharing_batches(Ranks()):
        return job(progress)


def with_trace(error: Exception, rank: int) -> Exception:
    """An error that nobody expected, with where it happened: that is lost on the way to the parent."""
    error.add_note(f"in worker {rank}:\n{traceback.format_exc()}")
    return error
