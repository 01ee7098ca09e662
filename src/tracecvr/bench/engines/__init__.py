"""Where cells run: in processes of this machine, or as tasks of a Ray cluster. An engine is a `runner.BenchEngine`."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tracecvr.base import config
from tracecvr.base.errors import UserError

if TYPE_CHECKING:
    from tracecvr.bench.runner import BenchEngine

NAMES = ("local", "ray")


def choose(name: str, workers: int | None = None, address: str | None = None) -> BenchEngine:
    """The engine of that name: `local` with so many workers, or as many as cores; `ray` at an address, or a new one."""
    config.check_choice(name, NAMES, "--engine")
    if name == "local":
        from tracecvr.bench.engines.local import Local

        if address is not None:
            raise UserError(f"--address {address} is for --engine ray: a local bench runs on this machine alone")
        return Local(workers or os.cpu_count() or 1)
    from tracecvr.bench.engines.ray import OnRay

    if workers is not None:
        raise UserError("--workers is for --engine local: with Ray, each node says how many CPUs it has")
    if find_spec("ray") is None:
        raise UserError("--engine ray needs Ray: pip install 'tracecvr[ray]'")
    return OnRay(address)
