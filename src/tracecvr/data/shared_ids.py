"""How many values of a hashed column share an id with another value: two that do cannot be told apart by a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracecvr.data.encoder import Column, Growing, Hashed

MOST_VALUES = 2_000_000
"""Values of a column that are counted: of a column with more, the first so many that are met."""

_Hashes = npt.NDArray[np.uint64]


@dataclass
class SharedIds:
    """Counts values of the hashed columns of a log, frame by frame."""

    columns: tuple[Column, ...]
    hashes: dict[str, _Hashes] = field(default_factory=dict)

    def add(self, frame: pl.DataFrame) -> None:
        """Take note of the values of some clicks."""
        for column in self._hashed():
            text: Any = pl.col(column.raw).cast(pl.String).drop_nulls().unique()
            new = frame.select(text.nchash.xxh3_64().alias("hash"))["hash"].to_numpy()
            known = self.hashes.get(column.raw, np.empty(0, np.uint64))
            if len(known) < MOST_VALUES:
                self.hashes[column.raw] = np.union1d(known, new)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Of each hashed column: values that share an id with another, and all values."""
        return {column.raw: self._count(self.hashes[column.raw], column.size) for column in self._hashed()}

    def _hashed(self) -> list[Hashed]:
        return [column for column in self.columns if isinstance(column, Hashed) and not isinstance(column, Growing)]

    def _count(self, hashes: _Hashes, size: int) -> tuple[int, int]:
        _, each = np.unique(hashes % np.uint64(size), return_counts=True)
        return int(each[each > 1].sum()), len(hashes)
