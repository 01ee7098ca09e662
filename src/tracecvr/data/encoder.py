"""Encoder: raw columns to embedding ids, fitted on the warm-up part alone.

Hashes are xxh3_64 of the UTF-8 text (a missing value is the empty text), modulo the table size: a fixed contract, so
that a saved model always reads the same ids.

Raw values are read by the kind of their column, by one rule, offline (`prepare`) and live (HTTP, files, brokers):
docs/online.md#values. What cannot be read is a missing value: encoding never fails.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import polars as pl
import polars_hash  # noqa: F401  (registers the .nchash namespace)
import xxhash

from tracecvr.base.config import refuse_missing
from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json, write_json
from tracecvr.data.scorer import make_reader
from tracecvr.data.table import Feature, Ids, Ints

_BLOCK = 1 << 18
"""Rows encoded at a time: a block of ids stays in the cache while its columns are laid side by side."""

MISSING_WORDS = ("", "NaN")
"""Texts that are no words of a vocabulary: they stand for a missing value."""

MOST_WORDS = 100_000
"""A column with more values belongs in a hashed feature: a vocabulary is kept in every copy of the model."""

WITH_COMMA = r"^\s*[+-]?(\d{1,3}(\.\d{3})+|\d+)(,\d+)?\s*$"
"""A number with a decimal comma, with points between thousands or without."""


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

    def fit(self, warm: pl.DataFrame) -> Column:
        """This column with what it learns from rows of the warm-up part, beside what it had learnt from others."""
        return self

    def ids(self) -> pl.Expr:
        raise NotImplementedError

    def clean(self, values: pl.Expr, dtype: pl.DataType | type[pl.DataType]) -> pl.Expr:
        """Raw values of one type as this kind reads them: null where they are missing or cannot be read."""
        raise NotImplementedError


@dataclass(frozen=True)
class TextColumn(Column):
    def clean(self, values: pl.Expr, dtype: pl.DataType | type[pl.DataType]) -> pl.Expr:
        return values.cast(pl.String)


@dataclass(frozen=True)
class Hashed(TextColumn):
    """Any value, hashed as text: unseen values get an id too."""

    kind = "hashed"

    def ids(self) -> pl.Expr:
        text: Any = pl.col(self.raw).cast(pl.String).fill_null("")
        hashed: pl.Expr = text.nchash.xxh3_64()
        return hashed % self.size


@dataclass(frozen=True)
class Vocabulary(TextColumn):
    """Every value of the warm-up part has an id of its own: no two values share one. Id 0 is for missing values, 1 for
    values that the warm-up part does not have, and the words follow in the order of their text."""

    kind = "vocabulary"
    learns = True
    size: int = 2
    words: tuple[str, ...] = ()

    def fit(self, warm: pl.DataFrame) -> Column:
        seen = warm.get_column(self.raw).cast(pl.String).drop_nulls().unique().to_list()
        words = sorted({*self.words, *seen} - {*MISSING_WORDS})
        if len(words) > MOST_WORDS:
            raise UserError(
                f"column {self.raw!r} has more than {MOST_WORDS:,} values: too many for a vocabulary; "
                'use kind = "hashed"'
            )
        return replace(self, size=len(words) + 2, words=tuple(words))

    def ids(self) -> pl.Expr:
        word = pl.col(self.raw).cast(pl.String)
        # An Enum keeps its index of words: a click alone costs no more than one among many.
        place = word.cast(pl.Enum(self.words), strict=False).to_physical().cast(pl.Int32)
        return pl.when(word.is_null() | word.is_in(MISSING_WORDS)).then(0).otherwise((place + 2).fill_null(1))


@dataclass(frozen=True)
class Modulo(Column):
    """Whole numbers, modulo the table size (the Taobao recipe); missing is 0."""

    kind = "modulo"

    def clean(self, values: pl.Expr, dtype: pl.DataType | type[pl.DataType]) -> pl.Expr:
        if dtype.is_integer():
            return values
        rounded = values.cast(pl.Float64, strict=False).floor().cast(pl.Int64, strict=False)
        return pl.coalesce(values.cast(pl.Int64, strict=False), rounded) if dtype == pl.String else rounded

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
    decimal: str = "."

    def clean(self, values: pl.Expr, dtype: pl.DataType | type[pl.DataType]) -> pl.Expr:
        return read_numbers(values, dtype, self.decimal)

    def fit(self, warm: pl.DataFrame) -> Column:
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


_KINDS: dict[str, type[Column]] = {c.kind: c for c in (Hashed, Vocabulary, Modulo, Binned)}


@dataclass(frozen=True)
class Encoder:
    """The columns of a log, in feature order."""

    columns: tuple[Column, ...]

    @property
    def features(self) -> tuple[Feature, ...]:
        return tuple(c.feature for c in self.columns)

    def fit(self, warm: pl.DataFrame) -> Encoder:
        """Learn ranges and vocabularies from the warm-up part, or from one more piece of it."""
        return Encoder(tuple(c.fit(warm) for c in self.columns))

    def keep(self) -> list[pl.Expr]:
        """What is kept of raw rows until the encoder is fitted: ids in few bytes, raw values where ids are learnt."""
        return [
            (pl.col(c.raw) if c.learns else c.ids().cast(_smallest(c.size))).alias(f"x{j}")
            for j, c in enumerate(self.columns)
        ]

    def finish(self, kept: pl.DataFrame) -> Ids:
        """(N, F) ids of what was kept."""
        ids = [
            made if c.learns else pl.col(f"x{j}")
            for j, (c, made) in enumerate(zip(self.columns, self._ids, strict=True))
        ]
        return _side_by_side(kept, ids)

    def encode(self, raw: pl.DataFrame) -> Ids:
        """(N, F) ids of raw rows; a missing column is an error, an unseen value is not."""
        self.check(raw)
        return _side_by_side(raw.select(pl.col(c.raw).alias(f"x{j}") for j, c in enumerate(self.columns)), self._ids)

    @cached_property
    def _ids(self) -> list[pl.Expr]:
        """Of columns named by their places. Built once, which takes as long as to evaluate them for a few rows."""
        return [replace(column, raw=f"x{j}").ids() for j, column in enumerate(self.columns)]

    def check(self, raw: pl.DataFrame) -> None:
        refuse_missing([c.raw for c in self.columns], raw.columns, "features")

    def save(self, path: Path) -> None:
        write_json(path, {"columns": [{"kind": c.kind} | asdict(c) for c in self.columns]})

    @classmethod
    def load(cls, path: Path) -> Encoder:
        return cls(tuple(_column(c) for c in read_json(path)["columns"]))


def _column(saved: dict[str, Any]) -> Column:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()}
    return _KINDS[fields.pop("kind")](**fields)


def read_numbers(values: pl.Expr, dtype: pl.DataType | type[pl.DataType], decimal: str) -> pl.Expr:
    """Finite numbers. With a decimal comma, text is a number only if it is written so: 1.234,50 or 12,5."""
    if decimal == "," and dtype == pl.String:
        plain = values.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
        values = pl.when(values.str.contains(WITH_COMMA)).then(plain.str.strip_chars())
    number = values.cast(pl.Float64, strict=False)
    return pl.when(number.is_finite()).then(number)


def value_names(column: Column) -> dict[int, str]:
    """Raw values by id, for people to read, as far as a column can tell: ranges of bins, words of a vocabulary."""
    if isinstance(column, Binned) and column.high > column.low:
        step = (column.high - column.low) / column.size
        ends = [column.low + step * i for i in range(column.size + 1)]
        if column.scale == "log":
            ends = [math.exp(end) - 2 for end in ends]
        return {i: f"{low:.4g} to {high:.4g}" for i, (low, high) in enumerate(pairwise(ends))}
    words: tuple[str, ...] = getattr(column, "words", ())
    return {0: "(missing)", 1: "(unseen)"} | dict(enumerate(words, start=2)) if words else {}


def _smallest(size: int) -> type[pl.DataType]:
    """The narrowest type that holds ids below `size`."""
    return pl.UInt8 if size <= 1 << 8 else pl.UInt16 if size <= 1 << 16 else pl.Int32


def _side_by_side(rows: pl.DataFrame, ids: list[pl.Expr]) -> Ids:
    named = [expression.cast(pl.Int32).alias(str(j)) for j, expression in enumerate(ids)]
    x = np.empty((len(rows), len(ids)), dtype=np.int32)
    for start in range(0, len(rows), _BLOCK):
        x[start : start + _BLOCK] = rows.slice(start, _BLOCK).select(named).to_numpy()
    return x


# Without a data frame.


class RowEncoder:
    """The columns of an encoder as functions of single values, which a click gives in the order of `names`: exactly the
    ids of `Encoder`, without a data frame, in a few hundred nanoseconds each, by the code that an export has for its
    clicks (`scorer.py`)."""

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


# The number by which a click is known, in tables, event logs and ledgers alike.


def click_key(click_id: object) -> int:
    """The number of a click: its id, if that is a whole number, else 63 bits of a hash of the text.

    >>> click_key(17), click_key("c-17")
    (17, 1085493075321268311)
    """
    if isinstance(click_id, int) and not isinstance(click_id, bool) and abs(click_id) < 1 << 63:
        return click_id
    if isinstance(click_id, str) and click_id:
        return xxhash.xxh3_64_intdigest(click_id.encode()) >> 1
    raise UserError(f"click_id is {click_id!r}: expected text, or a whole number of at most 63 bits")


def key_of_text(name: str) -> pl.Expr:
    """The same of a column of texts."""
    text: Any = pl.col(name)
    digest: pl.Expr = text.nchash.xxh3_64()
    return (digest // 2).cast(pl.Int64)
