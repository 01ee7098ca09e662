"""Bins as other systems can use them: the least value of each, to the last bit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from tracecvr.data.encoder import Binned, Encoder
from tracecvr.data.table import Ints


def edges(column: Binned) -> list[float]:
    """The least value of each bin but the first: the id of a value is the number of edges that it is not below.

    Found by bisection among all numbers there are, with the encoder's own arithmetic: its roundings are in it.
    """
    encoder, wanted = Encoder((column,)), np.arange(1, column.size)
    most = int(np.array(np.finfo(np.float64).max).view(np.int64))
    below, reached = np.full(len(wanted), -most), np.full(len(wanted), most)
    while (reached - 1 > below).any():
        middle = (below >> 1) + (reached >> 1) + (below & reached & 1)
        ids = encoder.encode(pl.DataFrame({column.raw: _numbers(middle)}))[:, 0]
        below, reached = np.where(ids < wanted, middle, below), np.where(ids < wanted, reached, middle)
    least: list[float] = _numbers(reached).tolist()
    return least


def _numbers(place: Ints) -> npt.NDArray[np.float64]:
    """Numbers by their place in the order of all that there are; the 0th is 0."""
    size: npt.NDArray[np.float64] = np.abs(place).view(np.float64)
    return np.where(place < 0, -size, size)
