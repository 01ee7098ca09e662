"""Randomness by name: every use has its own generator, made from the run's seed and what it is for.

No generator lives across uses, so a run resumed in the middle draws what an uninterrupted one draws.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import xxhash


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return xxhash.xxh3_64_intdigest(text.encode()) >> 1


def generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """A fresh NumPy generator for one purpose."""
    return np.random.Generator(np.random.PCG64(derive(seed, *purpose)))


def uniform(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each key, always the same for the same key: the finaliser of SplitMix64.

    >>> uniform(np.array([0, 1])).round(4).tolist() == uniform(np.array([0, 1, 2])).round(4).tolist()[:2]
    True
    """
    z = (keys.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)) / 2.0**53
