"""Times as people write them (numbers, ISO-8601 text, date-times, with and without an offset) to whole seconds.

A time without an offset is read in the schema's zone. Where clocks are put back, a local time comes twice and a rule
says which is meant; where they are put forward, some local times do not exist and are moved on by the gap. Both are
counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tracecvr.base.errors import UserError
from tracecvr.data.own_log.schema import Defects, Times

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = pl.duration(days=1)
_ISO = (
    r"^\s*(?<date>\d{4}-\d{2}-\d{2})(?:[T ](?<minutes>\d{2}:\d{2})(?::(?<seconds>\d{2})(?:[.,]\d+)?)?)?"
    r"\s*(?<offset>Z|z|UTC|[+-]\d{2}:?\d{2})?\s*$"
)
FIRST, LAST = 631_152_000, 4_102_444_800
"""1990 and 2100: a time outside is one whose unit is not what it was said to be."""


@dataclass(frozen=True)
class Read:
    """Seconds since 1970 (or plain numbers), null where there is no time, and how many of them needed a rule."""

    seconds: pl.Series
    naive: int = 0
    ambiguous: int = 0
    nonexistent: int = 0
    unreadable: int | None = None
    """Where the first value is that is no time at all."""


def read(values: pl.Series, times: Times, unit: str, defects: Defects) -> Read:
    """A column of times; its type decides where it can, else the unit."""
    if values.dtype == pl.Date:
        values = values.cast(pl.Datetime("us"))
    if isinstance(values.dtype, pl.Datetime):
        if values.dtype.time_zone is not None:
            return Read(values.dt.epoch("us") // 10**6)
        return _localised(values, times.zone, defects)
    given = _without(values, times.absent)
    if unit in _PER_SECOND:
        number = _whole(given)
        return Read(number // _PER_SECOND[unit], unreadable=_first(number.is_null() & given.is_not_null()))
    if given.dtype != pl.String:
        return Read(given.cast(pl.Int64, strict=False), unreadable=_first(given.is_not_null()))
    return _from_text(given, times.zone, defects)


def origin_of(times: Times) -> tuple[int, bool]:
    """Second 0 of the table, and whether times are counted from 1970."""
    text = times.origin
    if text.lstrip("+-").isdigit():
        return int(text), False
    origin = read(pl.Series([text]), times, "text", Defects())
    if origin.unreadable is not None:
        raise UserError(f"[time] origin = {text!r}: expected a date like 2026-03-01, or a number; correct the schema")
    return int(origin.seconds[0]), True


def _without(values: pl.Series, absent: tuple[str, ...]) -> pl.Series:
    """The values, null where they are empty or mean that there is none."""
    v = pl.col("v")
    if values.dtype == pl.String:
        values = values.str.strip_chars()
        gone = v.is_in(["", *absent])
    else:
        gone = (
            v.cast(pl.Float64).is_in([float(text) for text in absent if _is_number(text)]) | v.cast(pl.Float64).is_nan()
        )
    return values.to_frame("v").select(pl.when(~gone).then(v)).to_series()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _whole(values: pl.Series) -> pl.Series:
    """Whole numbers; what has a fraction is rounded down."""
    if values.dtype.is_float():
        values = values.floor()
    whole = values.cast(pl.Int64, strict=False)
    if values.dtype != pl.String:
        return whole
    return whole.fill_null(values.cast(pl.Float64, strict=False).floor().cast(pl.Int64, strict=False))


def _from_text(values: pl.Series, zone: str, defects: Defects) -> Read:
    parts = values.str.extract_groups(_ISO).struct.unnest()
    clock = parts.select(
        (pl.col("date") + "T" + pl.col("minutes").fill_null("00:00") + ":" + pl.col("seconds").fill_null("00"))
        .str.to_datetime("%Y-%m-%dT%H:%M:%S", time_unit="us", strict=False)
        .alias("clock"),
        _offset(pl.col("offset")).alias("offset"),
    )
    local = clock["clock"].set(clock["offset"].is_not_null(), None)
    naive = _localised(local, zone, defects)
    with_offset = clock["clock"].dt.epoch("us") // 10**6 - clock["offset"]
    return Read(
        with_offset.fill_null(naive.seconds),
        naive.naive,
        naive.ambiguous,
        naive.nonexistent,
        _first(clock["clock"].is_null() & values.is_not_null()),
    )


def _offset(text: pl.Expr) -> pl.Expr:
    """Seconds east of Greenwich."""
    digits = text.str.replace_all(":", "")
    hours, minutes = digits.str.slice(1, 2).cast(pl.Int64, strict=False), digits.str.slice(3, 2)
    east = 3600 * hours + 60 * minutes.cast(pl.Int64, strict=False)
    signed = pl.when(text.str.starts_with("-")).then(-east).otherwise(east)
    return pl.when(text.is_in(["Z", "z", "UTC"])).then(0).otherwise(signed)


def _localised(local: pl.Series, zone: str, defects: Defects) -> Read:
    """Local times of a zone as seconds since 1970."""
    naive = int(local.is_not_null().sum())
    if zone == "UTC" or not naive:
        return Read(local.dt.epoch("us") // 10**6, naive)
    early, late = (
        local.dt.replace_time_zone(zone, ambiguous=which, non_existent="null").dt.epoch("us") // 10**6
        for which in ("earliest", "latest")
    )
    twice = (early != late).fill_null(False)
    skipped = early.is_null() & local.is_not_null()
    seconds = late if defects.ambiguous_time == "latest" else early
    if defects.ambiguous_time == "null":
        seconds = seconds.set(twice, None)
    if defects.nonexistent_time == "shift" and skipped.any():
        # A day earlier clocks had not been changed yet: that day's offset moves the time on by the gap.
        before = local.to_frame("t").select(pl.col("t") - _DAY).to_series()
        shifted = before.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null").dt.epoch("us") // 10**6
        seconds = seconds.fill_null((shifted + 86_400).set(~skipped, None))
    return Read(seconds, naive, int(twice.sum()), int(skipped.sum()))


def _first(flags: pl.Series) -> int | None:
    return flags.arg_max() if flags.any() else None
