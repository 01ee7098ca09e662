"""Ids of single values by way of data frames, as `prepare` makes them: what live values are compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from tracecvr.data.encoder import Column, Encoder, TextColumn
from tracecvr.data.scorer import to_float

TYPES: dict[type, type[pl.DataType]] = {bool: pl.Boolean, int: pl.Int64, float: pl.Float64, str: pl.String}


def encode_alone(encoder: Encoder, columns: Mapping[str, list[Any]]) -> tuple[list[list[int]], Counter[str]]:
    """Ids of raw values by column, and of each column how many values cannot be read."""
    ids, unreadable = [], Counter[str]()
    for row in zip(*columns.values(), strict=True):
        click = dict(zip(columns, row, strict=True))
        cleaned = [clean(column, click[column.raw]) for column in encoder.columns]
        ids.append([encode(column, value) for column, value in zip(encoder.columns, cleaned, strict=True)])
        lost = [column.raw for column, value in zip(encoder.columns, cleaned, strict=True) if value[0] is None]
        unreadable.update(name for name in set(lost) if click[name] is not None)
    return ids, unreadable


def encode(column: Column, value: pl.Series) -> int:
    return int(Encoder((replace(column, raw="value"),)).encode(value.to_frame())[0, 0])


def clean(column: Column, value: Any) -> pl.Series:
    """A value as its column reads it: null if it is missing or cannot be read."""
    if type(value) is int and not -(2**63) <= value < 2**63:
        value = to_float(value)
    kind = TYPES.get(type(value))
    if kind is None or (kind is pl.Boolean and not isinstance(column, TextColumn)):
        value, kind = None, pl.Int64
    series = pl.Series("value", [value], kind)
    return series.to_frame().select(column.clean(pl.col("value"), kind)).to_series()
