"""Times as people write them (numbers, text, date-times, with and without an offset) to whole seconds.

A time without an offset is read in the schema's zone. Where clocks are put back, a local time comes twice and the
earlier is taken; where they are put forward, some local times do not exist and are moved on by the gap. Both are
counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import polars as pl

from tracecvr.base.config import DAY, HOUR, MINUTE
from tracecvr.base.errors import UserError
from tracecvr.data.own_log.schema import Times

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_SECONDS = {"min": MINUTE, "h": HOUR, "d": DAY}
_ONE_DAY = pl.duration(days=1)
_TIME_OF_DAY = r"(?:[T ,]+(?<hour>\d{1,2}):(?<minute>\d{2})(?::(?<second>\d{2})(?:[.,]\d+)?)?\s*(?<half>[AaPp][Mm])?)?"
_DIGITS_OF_DAY = r"(?:[T _-]?(?<hour>\d{2})(?<minute>\d{2})(?:(?<second>\d{2})(?:[.,]?\d+)?)?(?<half>[AaPp][Mm])?)?"
_OFFSET = r"\s*(?<offset>Z|z|UTC|[+-]\d{2}(?::?\d{2})?)?\s*$"
_TEXT = {
    "text": r"^\s*(?<year>\d{4})[-/.](?<month>\d{2})[-/.](?<day>\d{2})" + _TIME_OF_DAY + _OFFSET,
    "dd/mm/yyyy": r"^\s*(?<day>\d{1,2})[-/.](?<month>\d{1,2})[-/.](?<year>\d{4})" + _TIME_OF_DAY + _OFFSET,
    "mm/dd/yyyy": r"^\s*(?<month>\d{1,2})[-/.](?<day>\d{1,2})[-/.](?<year>\d{4})" + _TIME_OF_DAY + _OFFSET,
    "yyyymmdd": r"^\s*(?<year>\d{4})(?<month>\d{2})(?<day>\d{2})" + _DIGITS_OF_DAY + _OFFSET,
}
"""How text is taken apart, by unit."""

FIRST, LAST = 631_152_000, 4_102_444_800
"""1990 and 2100: a time outside is one whose unit is not what it was said to be."""


@dataclass(frozen=True)
class Read:
    """Seconds since 1970 (or plain numbers), null where there is no time, and how many of them needed a rule."""

    seconds: pl.Series
    naive: int = 0
    ambiguous: int = 0
    nonexistent: int = 0
    unreadable: int | None = None  # where the first value is that is no time at all


def read(values: pl.Series, times: Times, unit: str) -> Read:
    """A column of times; its type decides where it can, else the unit."""
    if values.dtype == pl.Date:
        values = values.cast(pl.Datetime("us"))
    if isinstance(values.dtype, pl.Datetime):
        if values.dtype.time_zone is not None:
            return Read(values.dt.epoch("us") // 10**6)
        return _localise(values, times.zone)
    given = _without(values, times.absent)
    if unit in _PER_SECOND:
        return _from_numbers(given, unit)
    if given.dtype.is_numeric() and unit == "yyyymmdd":
        given = _whole(given).cast(pl.String)
    if given.dtype != pl.String:
        return Read(given.cast(pl.Int64, strict=False), unreadable=first_true(given.is_not_null()))
    if unit not in _TEXT:
        return _by_format(given, unit, times.zone)
    return _from_text(given, _TEXT[unit], times.zone)


def read_delay(values: pl.Series, times: Times, unit: str) -> Read:
    given = _without(values, times.absent)
    if unit in _PER_SECOND:
        return _from_numbers(given, unit)
    amount = given.cast(pl.Float64, strict=False)
    seconds = (amount * _SECONDS[unit]).floor().cast(pl.Int64, strict=False)
    return Read(seconds, unreadable=first_true(seconds.is_null() & given.is_not_null()))


def origin_of(times: Times) -> tuple[int, bool]:
    """Second 0 of the table, and whether times are counted from 1970."""
    if is_count(times.origin):
        return int(times.origin), False
    return _moment(times.origin, times, "origin"), True


def bounds_of(times: Times) -> tuple[int, int] | None:
    """The first and the last second that a time may be of; None if the schema says nothing of it."""
    if not times.earliest and not times.latest:
        return None
    first = _moment(times.earliest, times, "earliest") if times.earliest else -(2**62)
    last = _moment(times.latest, times, "latest") if times.latest else 2**62
    return first, last


def is_count(text: str) -> bool:
    """Whether a moment is written as a number of seconds."""
    return text.lstrip("+-").isdigit()


def _moment(text: str, times: Times, key: str) -> int:
    if is_count(text):
        return int(text)
    moment = read(pl.Series([text]), times, "text")
    if moment.unreadable is not None:
        raise UserError(f"[time] {key} = {text!r}: expected a date like 2026-03-01, or a number; correct the schema")
    return int(moment.seconds[0])


def _without(values: pl.Series, absent: tuple[str, ...]) -> pl.Series:
    """The values, null where they are empty or mean that there is none."""
    v = pl.col("v")
    if values.dtype == pl.String:
        values = values.str.strip_chars()
        gone = v.is_in(["", *absent])
    else:
        numbers = pl.Series(absent, dtype=pl.String).cast(pl.Float64, strict=False).drop_nulls()
        gone = v.cast(pl.Float64).is_in(numbers.implode()) | v.cast(pl.Float64).is_nan()
    return values.to_frame("v").select(pl.when(~gone).then(v)).to_series()


def _from_numbers(given: pl.Series, unit: str) -> Read:
    number = _whole(given)
    return Read(number // _PER_SECOND[unit], unreadable=first_true(number.is_null() & given.is_not_null()))


def _whole(values: pl.Series) -> pl.Series:
    """Whole numbers; what has a fraction is rounded down."""
    if values.dtype.is_float():
        values = values.floor()
    whole = values.cast(pl.Int64, strict=False)
    if values.dtype != pl.String:
        return whole
    return whole.fill_null(values.cast(pl.Float64, strict=False).floor().cast(pl.Int64, strict=False))


def _from_text(values: pl.Series, pattern: str, zone: str) -> Read:
    parts = values.str.extract_groups(pattern).struct.unnest()
    hour = pl.col("hour").cast(pl.Int64).fill_null(0)
    half = pl.col("half").str.to_lowercase()
    hour = pl.when(half.is_null()).then(hour).otherwise(hour % 12 + pl.when(half == "pm").then(12).otherwise(0))
    date = (pl.col("year"), *(pl.col(name).str.zfill(2) for name in ("month", "day")))
    time = (hour.cast(pl.String).str.zfill(2), *(pl.col(name).fill_null("00") for name in ("minute", "second")))
    digits, offset = pl.concat_str(*date, *time), pl.col("offset").replace(["Z", "z", "UTC"], "+0000")
    offset = offset.str.replace(r"^(...)$", "${1}00")  # +02
    clock = parts.select(
        (digits + offset)
        .str.to_datetime("%Y%m%d%H%M%S%z", time_unit="us", time_zone="UTC", strict=False)
        .alias("aware"),
        pl.when(offset.is_null())
        .then(digits)
        .str.to_datetime("%Y%m%d%H%M%S", time_unit="us", strict=False)
        .alias("local"),
    )
    naive = _localise(clock["local"], zone)
    return replace(
        naive,
        seconds=(clock["aware"].dt.epoch("us") // 10**6).fill_null(naive.seconds),
        unreadable=first_true(clock["aware"].is_null() & clock["local"].is_null() & values.is_not_null()),
    )


def _by_format(values: pl.Series, form: str, zone: str) -> Read:
    """Text as a format of strptime describes it."""
    try:
        clock = values.str.strptime(pl.Datetime("us"), form, strict=False)
    except pl.exceptions.PolarsError as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"[time] unit = {form!r}: not a format that strptime knows ({reason})") from None
    wrong = first_true(clock.is_null() & values.is_not_null())
    if getattr(clock.dtype, "time_zone", None) is not None:
        return Read(clock.dt.epoch("us") // 10**6, unreadable=wrong)
    return replace(_localise(clock, zone), unreadable=wrong)


def _localise(local: pl.Series, zone: str) -> Read:
    """Local times of a zone as seconds since 1970."""
    naive = int(local.is_not_null().sum())
    if zone == "UTC" or not naive:
        return Read(local.dt.epoch("us") // 10**6, naive)
    early, late = (_in_zone(local, zone, which) for which in ("earliest", "latest"))
    twice = (early != late).fill_null(False)
    skipped = early.is_null() & local.is_not_null()
    if skipped.any():
        # A day earlier clocks had not been changed yet: that day's offset moves the time on by the gap.
        before = local.to_frame("t").select(pl.col("t") - _ONE_DAY).to_series()
        early = early.fill_null((_in_zone(before, zone, "earliest") + DAY).set(~skipped, None))
    return Read(early, naive, int(twice.sum()), int(skipped.sum()))


def _in_zone(local: pl.Series, zone: str, ambiguous: Literal["earliest", "latest"]) -> pl.Series:
    return local.dt.replace_time_zone(zone, ambiguous=ambiguous, non_existent="null").dt.epoch("us") // 10**6


def first_true(flags: pl.Series) -> int | None:
    return flags.arg_max() if flags.any() else None
