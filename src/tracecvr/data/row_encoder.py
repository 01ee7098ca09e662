"""RowEncoder: the ids of one click without a data frame. They are exactly those of `Encoder`.

Each column is compiled to one Python function of a value. The usual values take a few hundred nanoseconds. What is rare
(text where numbers are expected, floats where text is) is asked of `Encoder` itself, and remembered.
"""

from __future__ import annotations

import math
import re
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import xxhash

from tracecvr.data.encoder import MISSING_WORDS, Binned, Column, Encoder, Hashed, Modulo, Vocabulary
from tracecvr.data.table import Ids, Ints

Read = Callable[[Any], int]
"""The id of a value; below 0 if the value cannot be read: then `-1 - id` is the id of a missing value."""

_REMEMBERED = 4096
"""Rare values of a column whose ids are kept."""
_MOST = 1 << 63
_LARGE = 1 << 62
"""Whole numbers below it are read the same way by everybody, also as floats."""


class RowEncoder:
    """The columns of an encoder as functions of single values. `names` are the raw columns, each once, in the order in
    which the values of a click are given."""

    def __init__(self, encoder: Encoder, names: Sequence[str]) -> None:
        self._names = [column.raw for column in encoder.columns]
        self._reads = [(names.index(column.raw), compile_column(column)) for column in encoder.columns]

    def encode(self, clicks: Sequence[Sequence[Any]]) -> tuple[Ids, Counter[str]]:
        """(N, F) ids of clicks, and of each column how many values cannot be read: they are missing."""
        unreadable: Counter[str] = Counter()
        ids = np.array([self._row(values, unreadable) for values in clicks], dtype=np.int32)
        return ids.reshape(len(clicks), len(self._reads)), unreadable

    def _row(self, values: Sequence[Any], unreadable: Counter[str]) -> list[int]:
        row = [read(values[place]) for place, read in self._reads]
        if min(row, default=0) < 0:
            unreadable.update({name for name, given in zip(self._names, row, strict=True) if given < 0})
            row = [given if given >= 0 else -1 - given for given in row]
        return row


def compile_column(column: Column) -> Read:
    """The ids of one column, as a function of a value."""
    rare = _rare(column)
    match column:
        case Hashed():
            return _read_hashed(column, rare)
        case Vocabulary():
            return _vocabulary(column, rare)
        case Modulo():
            return _modulo(column, rare)
        case Binned():
            return _read_binned(column, rare)
    return rare


def _rare(column: Column) -> Read:
    """By the encoder itself. Types are part of what is remembered: 1, 1.0 and true are equal in Python."""
    encoder = Encoder((column,))

    def ask(value: Any) -> int:
        ids, unreadable = encoder.encode_values({column.raw: [value]})
        return -1 - int(ids[0, 0]) if unreadable else int(ids[0, 0])

    @lru_cache(_REMEMBERED)
    def remember(_: str, value: Any) -> int:
        return ask(value)

    def read(value: Any) -> int:
        return ask(value) if isinstance(value, list | dict) else remember(type(value).__name__, value)

    return read


def _text(value: Any) -> str | None:
    """The text that a value is written as; None where Python writes it otherwise than the encoder, or may."""
    if type(value) is str:
        return value
    if type(value) is int:
        return str(value) if -_MOST < value < _MOST else None
    if type(value) is float:
        return repr(value) if 1e-4 <= abs(value) < 1e16 or value == 0 else None
    return "" if value is None else None


_DECIMAL = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", re.ASCII)


def _number(value: Any) -> float | int | None:
    """A number, or a text that is plainly one; None of everything else."""
    if type(value) is str and _DECIMAL.fullmatch(value):
        return float(value) if "." in value else int(value)
    if type(value) is int:
        return value if -_MOST < value < _MOST else None
    return value if type(value) is float and abs(value) < 1e300 else None


def _read_hashed(column: Hashed, rare: Read) -> Read:
    size, digest = column.size, xxhash.xxh3_64_intdigest
    missing = digest(b"") % size

    def read(value: Any) -> int:
        if value is None:
            return missing
        text = value if type(value) is str else _text(value)  # most are: to ask takes as long as the hash
        return rare(value) if text is None else digest(text.encode()) % size

    return read


def _vocabulary(column: Vocabulary, rare: Read) -> Read:
    known = dict.fromkeys(MISSING_WORDS, 0) | {word: place for place, word in enumerate(column.words, start=2)}

    def read(value: Any) -> int:
        text = value if type(value) is str else _text(value)
        return rare(value) if text is None else known.get(text, 1)

    return read


def _modulo(column: Modulo, rare: Read) -> Read:
    size = column.size

    def read(value: Any) -> int:
        number = _number(value)
        if number is not None and abs(number) < _LARGE:
            return math.floor(number) % size
        return 0 if value is None else rare(value)

    return read


def _read_binned(column: Binned, rare: Read) -> Read:
    ends = edges(column)
    missing, point = bisect(ends, -1.0), column.decimal == "."

    def read(value: Any) -> int:
        if value is None:
            return missing
        if type(value) is str and not point:  # 1.234 is a thousand there
            return rare(value)
        number = value if type(value) is float and -1e300 < value < 1e300 else _number(value)
        return rare(value) if number is None else bisect(ends, float(number))

    return read


# Bins as other systems can use them, too: the least value of each, to the last bit.


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
