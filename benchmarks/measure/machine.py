"""The machine: its facts, and the rate of large matrix products, which all arithmetic is held against."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import torch

_SIZES = (1024, 1536, 2048)
_SUSTAINED_S = 0.1


class Peak:
    """Multiplies large square float32 matrices when asked."""

    def __init__(self) -> None:
        self._factors = [(torch.rand(n, n), torch.rand(n, n), torch.empty(n, n)) for n in _SIZES]
        self.flops()  # the first products pay for threads and buffers

    def flops(self) -> float:
        """The best rate of all sizes, each sustained for a while, in floating-point operations per second."""
        return max(self._rate(*factors) for factors in self._factors)

    def _rate(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> float:
        done, start = 0, time.perf_counter()
        while (seconds := time.perf_counter() - start) < _SUSTAINED_S:
            torch.mm(a, b, out=out)
            done += 1
        return done * 2 * len(a) ** 3 / seconds


def peak(threads: int, samples: int = 3) -> float:
    """The best of several samples."""
    torch.set_num_threads(threads)
    multiply = Peak()
    return max(multiply.flops() for _ in range(samples))


def facts(threads: int) -> dict[str, Any]:
    """What a reader of the figures has to know of the machine."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
        "load_at_start": os.getloadavg()[0],
        "threads": threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "peak_gflops": peak(threads, samples=1) / 1e9,
    }


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
