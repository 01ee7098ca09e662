"""Encoder: raw columns to embedding ids. Fitted on the warm-up part alone, saved beside the table and the model.

Hashes are xxh3_64 of the UTF-8 text (a missing value is the empty text), modulo the table size: a fixed contract, so
that a saved model reads the same ids for ever.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import polars_hash  # noqa: F401  (registers the .nchash namespace)

from tracecvr.clicks import Feature, Ids
from tracecvr.errors import UserError
from tracecvr.files import read_json, write_json

_BLOCK = 1 << 18
"""Rows encoded at a time: a block of ids stays in the cache while its columns are laid side by side."""


@dataclass(frozen=True)
class Column:
    """How one raw column becomes one feature. Subclasses say how values become ids in [0, size)."""

    kind: ClassVar[str]
    learns: ClassVar[bool] = False
    raw: str
    size: int
    table: str | None = None
    one_hot: bool = False

    @property
    def feature(self) -> Feature:
        return Feature(self.raw, self.size, self.table or self.raw, self.one_hot)

    def fitted(self, warm: pl.DataFrame) -> Column:
        """This column with what it learns from rows of the warm-up part, beside what it had learnt from others."""
        return self

    def ids(self) -> pl.Expr:
        raise NotImplementedError


@dataclass(frozen=True)
class Hashed(Column):
    """Any value, hashed as text: unseen values get an id too."""

    kind = "hashed"

    def ids(self) -> pl.Expr:
        text: Any = pl.col(self.raw).cast(pl.String).fill_null("")
        hashed: pl.Expr = text.nchash.xxh3_64()
        return hashed % self.size


@dataclass(frozen=True)
class Modulo(Column):
    """Whole numbers, modulo the table size (the Taobao recipe); missing is 0."""

    kind = "modulo"

    def ids(self) -> pl.Expr:
        return pl.col(self.raw).fill_null(0) % self.size


@dataclass(frozen=True)
class Binned(Column):
    """Numbers in equal-width bins between the warm-up part's extremes; missing is -1, later values are clipped.

    `scale="log"` bins log(2 + v): counts are heavy-tailed, and equal widths put nearly all of them in the first bin.
    """

    kind = "binned"
    learns = True
    scale: str = "linear"
    low: float = math.inf
    high: float = -math.inf

    def fitted(self, warm: pl.DataFrame) -> Column:
        if warm.is_empty():
            return self
        low, high = warm.select(self._value().min().alias("low"), self._value().max().alias("high")).row(0)
        return replace(self, low=min(self.low, low), high=max(self.high, high))

    def ids(self) -> pl.Expr:
        # By the inverse: polars divides so, too, except where there is one row, and an id must not depend on that.
        inverse = 1 / max(self.high - self.low, 1e-9)
        position = (self._value() - self.low) * inverse * self.size
        return position.floor().clip(0, self.size - 1)

    def _value(self) -> pl.Expr:
        value = pl.col(self.raw).cast(pl.Float64).fill_null(-1.0)
        return (value.clip(lower_bound=-1.0) + 2.0).log() if self.scale == "log" else value


_KINDS: dict[str, type[Column]] = {c.kind: c for c in (Hashed, Modulo, Binned)}


@dataclass(frozen=True)
class Encoder:
    """The columns of a log, in feature order."""

    columns: tuple[Column, ...]

    @property
    def features(self) -> tuple[Feature, ...]:
        return tuple(c.feature for c in self.columns)

    @property
    def learns(self) -> bool:
        """Whether there is anything to be learnt from the warm-up part."""
        return any(c.learns for c in self.columns)

    def fit(self, warm: pl.DataFrame) -> Encoder:
        """Learn ranges from the warm-up part, or from one more piece of it."""
        return Encoder(tuple(c.fitted(warm) for c in self.columns))

    def kept(self) -> list[pl.Expr]:
        """What has to be kept of raw rows until the encoder is fitted: ids, in as few bytes as they take, except where
        ids depend on what is learnt. `finish` makes ids of it."""
        return [
            (pl.col(c.raw) if c.learns else c.ids().cast(_smallest(c.size))).alias(f"x{j}")
            for j, c in enumerate(self.columns)
        ]

    def finish(self, kept: pl.DataFrame) -> Ids:
        """(N, F) ids of what was kept."""
        ids = [replace(c, raw=f"x{j}").ids() if c.learns else pl.col(f"x{j}") for j, c in enumerate(self.columns)]
        return _side_by_side(kept, ids)

    def encode(self, raw: pl.DataFrame) -> Ids:
        """(N, F) ids of raw rows; a missing column is an error, an unseen value is not."""
        self.check(raw)
        return _side_by_side(raw, self._ids)

    @cached_property
    def _ids(self) -> list[pl.Expr]:
        """Built once: for a few rows, that takes as long as to evaluate them."""
        return [c.ids() for c in self.columns]

    def check(self, raw: pl.DataFrame) -> None:
        """Refuse rows that lack a column."""
        missing = [c.raw for c in self.columns if c.raw not in raw.columns]
        if missing:
            raise UserError(f"column {missing[0]!r} is missing; expected {', '.join(c.raw for c in self.columns)}")

    def save(self, path: Path) -> None:
        write_json(path, {"columns": [{"kind": c.kind} | asdict(c) for c in self.columns]})

    @classmethod
    def load(cls, path: Path) -> Encoder:
        columns = read_json(path)["columns"]
        return cls(tuple(_KINDS[c.pop("kind")](**c) for c in columns))


def _smallest(size: int) -> type[pl.DataType]:
    """The narrowest type that holds ids below `size`."""
    return pl.UInt8 if size <= 1 << 8 else pl.UInt16 if size <= 1 << 16 else pl.Int32


def _side_by_side(rows: pl.DataFrame, ids: list[pl.Expr]) -> Ids:
    named = [expression.cast(pl.Int32).alias(str(j)) for j, expression in enumerate(ids)]
    x = np.empty((len(rows), len(ids)), dtype=np.int32)
    for start in range(0, len(rows), _BLOCK):
        x[start : start + _BLOCK] = rows.slice(start, _BLOCK).select(named).to_numpy()
    return x
