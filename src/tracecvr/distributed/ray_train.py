"""The same workers under Ray Train (an extra): on one machine or several, which all see the run's directory."""

from __future__ import annotations

import os
import tempfile
import threading
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from tracecvr.base.errors import UserError
from tracecvr.base.progress import Progress, ThrottledProgress, no_progress
from tracecvr.distributed.ray_cluster import connected
from tracecvr.distributed.workers import PATIENCE, as_rank, resumable
from tracecvr.nets.ranks import WorkerLostError
from tracecvr.runs.run import Job, Launch

_TELL_S = 0.5


def ray_launcher(address: str | None) -> Launch:
    """What has a job done by workers on a Ray cluster: that at `address`, or one of our own, on this machine."""
    return partial(_together, address)


def _together(address: str | None, job: Job, size: int, threads: int, progress: Progress) -> None:
    with connected(address, size * threads):
        import ray

        cores = int(ray.cluster_resources().get("CPU", 0))
        if cores < size * threads:
            raise UserError(
                f"the Ray cluster has {cores} cores, but {size} workers of {threads} threads need {size * threads}: "
                "give fewer --workers or --threads"
            )
        board = ray.remote(num_cpus=0)(_Board).remote()
        with tempfile.TemporaryDirectory(prefix="tracecvr-") as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray warns of its own use of itself
            training = _Training(partial(_loop, job, Path.cwd(), board), size, threads, folder)
            while training.is_alive():
                training.join(_TELL_S)
                if where := ray.get(board.seen.remote()):
                    progress(*where)
        if training.error is not None:
            raise _cause(training.error, size)


class _Training(threading.Thread):
    """Ray Train at work. In the main thread it would answer Ctrl-C itself, and end the process as if all were well."""

    def __init__(self, loop: Any, size: int, threads: int, folder: str) -> None:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        super().__init__(daemon=True)
        self.error: Exception | None = None
        self.trainer = TorchTrainer(
            loop,
            scaling_config=ScalingConfig(num_workers=size, resources_per_worker={"CPU": threads}),
            torch_config=TorchConfig(backend="gloo", timeout_s=int(PATIENCE.total_seconds())),
            # What Ray Train would store is stored by the run; after a failure its user is asked, as elsewhere.
            run_config=RunConfig(storage_path=folder, failure_config=FailureConfig(max_failures=0)),
        )
        self.start()

    def run(self) -> None:
        try:
            self.trainer.fit()
        except Exception as error:
            self.error = error


class _Board:
    """An actor on which the first worker writes where it is."""

    def __init__(self) -> None:
        self.where: tuple[str, int, int] | None = None

    def tell(self, where: tuple[str, int, int]) -> None:
        self.where = where

    def seen(self) -> tuple[str, int, int] | None:
        return self.where


def _loop(job: Job, folder: Path, board: Any) -> None:
    """What each worker does."""
    import torch.distributed as dist

    try:
        os.chdir(folder)  # paths of the command line are relative to where it was given
    except OSError:
        raise UserError(f"{folder} is not on every node of the cluster: run from a directory that all share") from None
    tell = ThrottledProgress(board.tell.remote, _TELL_S)
    as_rank(job, tell if dist.get_rank() == 0 else no_progress)


def _cause(error: Exception, size: int) -> Exception:
    """What to say of an error of Ray Train. It holds those of workers: what they raised, wrapped, or that one ended."""
    from ray.train import ControllerError

    if isinstance(error, ControllerError):
        reason = str(error.controller_failure).strip().splitlines() or [type(error.controller_failure).__name__]
        return UserError(f"Ray Train could not begin ({reason[-1]}): install the same versions on all nodes")
    failures: dict[int, Exception] = getattr(error, "worker_failures", {})
    raised = {rank: getattr(failure, "_base_exc", failure) for rank, failure in sorted(failures.items())}
    for rank, failure_of_rank in raised.items():
        if type(failure_of_rank).__module__.startswith("ray."):
            return resumable(f"worker {rank} of {size} is gone")
    for failure_of_rank in raised.values():
        if not isinstance(failure_of_rank, WorkerLostError):
            return failure_of_rank if isinstance(failure_of_rank, UserError) else error
    return resumable("a worker is gone") if raised else error
