"""RowEncoder: the ids of clicks without a data frame. They are exactly those of `Encoder`.

Each column is compiled to one Python function of a value, which takes a few hundred nanoseconds: by the code that an
export has for its clicks (`scorer.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracecvr.data.encoder import MISSING_WORDS, Binned, Column, Encoder, Vocabulary
from tracecvr.data.scorer import make_reader
from tracecvr.data.table import Ids, Ints


class RowEncoder:
    """The columns of an encoder as functions of single values, which a click gives in the order of `names`."""

    def __init__(self, encoder: Encoder, names: Sequence[str]) -> None:
        self._names = names
        described = [describe_column(column) for column in encoder.columns]
        self._reads = [(names.index(one["raw"]), make_reader(one)) for one in described]
        self._missing = [one["missing"] for one in described]

    def encode(self, clicks: Sequence[Sequence[Any]]) -> tuple[Ids, Counter[str]]:
        """(N, F) ids of clicks, and of each column how many values cannot be read: they are missing."""
        unreadable: Counter[str] = Counter()
        ids = np.array([self._row(values, unreadable) for values in clicks], dtype=np.int32)
        return ids.reshape(len(clicks), len(self._reads)), unreadable

    def _row(self, values: Sequence[Any], unreadable: Counter[str]) -> list[int | None]:
        row = [read(values[place]) for place, read in self._reads]
        if None in row:
            unread = {place for (place, _), known in zip(self._reads, row, strict=True) if known is None}
            unreadable.update(self._names[place] for place in unread if values[place] is not None)
            row = [missing if known is None else known for known, missing in zip(row, self._missing, strict=True)]
        return row


def describe_column(column: Column) -> dict[str, Any]:
    """All that a scorer has to know of a column."""
    ids = Encoder((column,)).encode(pl.DataFrame({column.raw: [None]}))
    facts: dict[str, Any] = {"kind": column.kind, "missing": int(ids[0, 0])} | asdict(column)
    if isinstance(column, Binned):
        facts["edges"] = edges(column)
    if isinstance(column, Vocabulary):
        words = facts.pop("words")
        facts["ids"] = dict.fromkeys(MISSING_WORDS, 0) | {word: place for place, word in enumerate(words, start=2)}
    return facts


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
