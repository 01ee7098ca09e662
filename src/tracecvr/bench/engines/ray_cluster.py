"""Ray (an extra): reach a cluster, or start one on this machine, and leave it as it was found."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from tracecvr.base.errors import UserError

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
            if address is None:
                ray.init(
                    "local",
                    object_store_memory=_OBJECTS,
                    include_dashboard=False,
                    logging_level=logging.ERROR,
                    log_to_driver=False,
                )
            else:
                _check_reachable(address)
                ray.init(address, logging_level=logging.ERROR, log_to_driver=False)
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
