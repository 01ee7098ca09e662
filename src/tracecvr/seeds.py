"""Randomness by name: every use has its own generator, made from the run's seed and what it is for.

No generator lives across uses, so a run resumed in the middle draws what an uninterrupted one draws.
"""

from __future__ import annotations

import numpy as np
import xxhash


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return xxhash.xxh3_64_intdigest(text.encode()) >> 1


def generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """A fresh NumPy generator for one purpose."""
    return np.random.Generator(np.random.PCG64(derive(seed, *purpose)))
