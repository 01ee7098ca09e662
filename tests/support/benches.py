"""A small suite for tests of benches, and the processes that they kill."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl

SUITE = """
about = "small"
metrics = ["auc", "nll", "ece"]
[set]
hidden = [16, 8]
batch_size = 256
warm_epochs = 1
warm_batch_size = 256
[data.synthetic]
clicks = 3000
days = 6
split = "3d"
d_max = "2d"
horizons = ["1h", "1d", "2d"]
interval = "6h"
[[row]]
method = "pretrain"
role = "lower"
[[row]]
method = "vanilla"
role = "zero"
[[row]]
method = "trace"
role = "ours"
[[row]]
method = "oracle"
role = "upper"
"""
FAILS = '[[row]]\nmethod = "dfsn"\nset = {window = "9d"}\n'


def machine_free(results: pl.DataFrame) -> pl.DataFrame:
    """The columns that depend on nothing but the log, the code and the seed."""
    return results.select(c for c in results.columns if not c.startswith(("time_", "memory_")))


def same(one: Path, other: Path) -> None:
    """The same bytes, apart from what depends on the machine."""
    a, b = (machine_free(pl.read_parquet(out / "results.parquet")) for out in (one, other))
    assert a.equals(b)
    assert (one / "table.md").read_bytes() == (other / "table.md").read_bytes()


def one_thread() -> dict[str, str]:
    """An environment for commands."""
    return os.environ | {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}


def until(holds: Callable[[], bool], seconds: float = 300) -> None:
    """Wait for something that has to come to pass."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    """Of a process, by its id."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def gone(pid: int) -> bool:
    """Ended, whether or not anybody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
