"""What single columns hold: times and their unit, ids, numbers, categories."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import polars as pl

from tracecvr.base.config import DAY
from tracecvr.data.encoder import WITH_COMMA, read_numbers
from tracecvr.data.own_log import times
from tracecvr.data.own_log.schema import DATES, Times

# Words by which people name clicks, conversions and other things, in columns, in files and in rows.

CLICK = ("click", "clk", "pv", "view", "impression", "visit")
_PAID = ("conver", "purchas", "buy", "bought", "order", "sale", "sold", "pay", "paid", "subscri")
CONVERSION = (*_PAID, "install", "signup", "lead")
"""The likeliest first: an app's subscription is paid for, its installation is a step on the way."""
REFUND = ("refund", "return", "cancel", "chargeback", "revers", "undone", "undo")
ACTION = ("cart", "basket", "fav", "wish", "add", "like", "share", "regist", "download", "open", "detail")
TYPE = ("event", "type", "action", "behavio", "kind", "activity", "status")
AMOUNT = ("amount", "price", "revenue", "value", "total", "money"), ("quantity", "qty", "units", "pieces")
"""Money, then pieces."""
LABEL = (*CONVERSION, "label", "target", "outcome", "success")


def has_word(name: str, words: Iterable[str]) -> bool:
    return any(word in name.lower() for word in words)


def is_amount_name(name: str) -> bool:
    return any(has_word(name, words) for words in AMOUNT)


# Columns.

ABSENT = (0, -1)
"""Numbers that often stand for a time that there is not."""

MARKERS = ("NULL", "null", "\\N", "-", "n/a", "N/A", "#N/A", "NA", "None", "none", "nan", "NaN")
"""Texts that often stand for a value that there is not."""

_NEVER = r"^(0000|0001|1900|1970|9999)-(01-01|00-00|12-31)"
"""Dates that often stand for a time that there is not."""

_YEARS = 15 * 365 * DAY
_BULK = 0.99
"""Share of the values that decides what a column is: a few mistakes do not."""

_TIME_NAME = re.compile(
    r"(^|[_\W])(ts|time|timestamp|date|datetime|seconds|at|clock)($|[_\W])|(time|stamp|date|_at|_ts)$"
)
_DELAY_NAME = re.compile(r"delay|lag|elapsed|latency|time_?to|(seconds|secs|minutes|mins|hours|days)_?(to|until|after)")
_DELAY_UNITS = {
    "ms": {"ms", "millis", "msec", "milliseconds"},
    "min": {"min", "mins", "minute", "minutes"},
    "h": {"h", "hr", "hrs", "hour", "hours"},
    "d": {"d", "day", "days"},
    "s": {"s", "sec", "secs", "second", "seconds"},
}
"""Words of a name that tell the unit of durations."""

_WRITTEN = ("text", "dd/mm/yyyy", "mm/dd/yyyy")
"""How times that are text may be written."""

_LABELS = ({"0", "1"}, {"0.0", "1.0"}, {"true", "false"}, {"yes", "no"}, {"y", "n"}, {"t", "f"})
_ID_NAME = re.compile(
    r"(^|[_\W])(id|uuid|guid|key|hash|user|item|sku|session)s?($|[_\W\d])"
    r"|(click|clk|cl|user|visitor|customer|client|session|cookie|device|item|product|order|event|request|campaign)id$"
)
_THOUSANDS = r"^[+-]?\d{1,3}(,\d{3})*(\.\d+)?$"
_CAMEL_ID = re.compile(r"[a-z]I[dD]s?$")


def is_id_name(name: str) -> bool:
    """Whether a column is named like an id.

    >>> [is_id_name(name) for name in ("click_id", "clickid", "adId", "gclid", "bid", "paid", "grid")]
    [True, True, True, True, False, False, False]
    """
    return bool(_ID_NAME.search(name.lower()) or _CAMEL_ID.search(name))


@dataclass(frozen=True)
class Profile:
    """One column. `unit` is set if it holds times; `relative` if they are not counted from 1970; `either` if day and
    month of its dates could be the other way round."""

    name: str
    values: pl.Series
    unit: str | None = None
    relative: bool = False
    naive: bool = False
    absent: tuple[str, ...] = ()
    number: bool = False
    whole: bool = False
    either: bool = False
    decimal: str = "."  # what stands before the decimals of its numbers
    comma: bool = False  # whether it holds numbers with commas that may stand between thousands: 1,234 or 1,234.50
    of_folder: bool = False  # whether it is no column of a file, but what the names of folders say (`day=31`)

    @cached_property
    def distinct(self) -> int:
        """How many different values it has; 0 if they are nested."""
        bytes_or_nested = self.values.dtype.is_nested() or self.values.dtype == pl.Binary
        return 0 if bytes_or_nested else self.values.drop_nulls().n_unique()

    @property
    def nulls(self) -> int:
        return self.values.null_count()

    @property
    def is_delay(self) -> bool:
        return self.number and self.unit is None and bool(_DELAY_NAME.search(self.name.lower()))

    @property
    def delay_unit(self) -> str | None:
        """The unit of durations that its name tells."""
        words = set(self.name.lower().split("_"))
        return next((unit for unit, names in _DELAY_UNITS.items() if words & names), None)

    @property
    def is_label(self) -> bool:
        """Whether it says yes or no of every row."""
        if self.unit is not None or self.distinct != 2 or self.nulls:
            return False
        return {word.lower() for word in self.values.cast(pl.String).unique()} in _LABELS

    @property
    def named_id(self) -> bool:
        return is_id_name(self.name)

    @property
    def rows(self) -> int:
        return len(self.values)

    @property
    def filled(self) -> int:
        return self.rows - self.nulls

    @property
    def happened(self) -> pl.Series:
        """Which of its times are there."""
        return self.values.is_not_null() & ~self.values.cast(pl.String).is_in(self.absent).fill_null(False)

    @property
    def holds(self) -> str:
        """What it seems to hold, for people."""
        if self.unit is not None:
            what = {"text": "times as text", "datetime": "times"}.get(self.unit)
            what = what or f"times {'as' if self.unit in DATES else 'in'} {self.unit}"
            what += " from an origin of their own" if self.relative else " without an offset" if self.naive else ""
        elif self.number:
            what = ("whole numbers" if self.whole else "numbers") + (" with a decimal comma" * (self.decimal == ","))
        else:
            what = "text" if self.distinct else "nested or empty"
        empty = f", {self.nulls / max(self.rows, 1):.1%} empty" if self.nulls else ""
        return f"{what}, {self.distinct:,} different{empty}"

    def examples(self, count: int = 3) -> str:
        """A few of its values, in words."""
        if self.values.dtype.is_nested():
            return ""
        texts = [str(value) for value in self.values.drop_nulls().unique(maintain_order=True).head(count)]
        return ", ".join(text if len(text) <= 30 else f"{text[:30]}..." for text in texts)


def profile(values: pl.Series) -> Profile:
    """What a column holds."""
    if values.dtype == pl.String:
        values = values.str.strip_chars().replace("", None)
    if values.dtype.is_float():
        values = values.fill_nan(None)
    plain = Profile(values.name, values)
    if not plain.distinct:
        return plain
    if values.dtype.is_temporal():
        zone = getattr(values.dtype, "time_zone", None)
        is_time = values.dtype == pl.Date or isinstance(values.dtype, pl.Datetime)
        return replace(plain, unit="datetime", naive=zone is None) if is_time else plain
    absent: tuple[str, ...] = ()
    if values.dtype == pl.String:
        absent = tuple(values.filter(values.is_in(MARKERS)).unique().sort().to_list())
    if len(absent) == plain.distinct:
        return plain
    numbers = values.cast(pl.Float64, strict=False) if values.dtype != pl.Boolean else values.cast(pl.Float64).clear()
    if len(numbers) and numbers.null_count() == plain.nulls + int(values.is_in(absent).sum() if absent else 0):
        one = _of_numbers(plain, numbers)
        is_time = one.unit is not None or one.is_delay
        return replace(one, absent=(*one.absent, *absent)) if is_time else one
    return _of_text(plain, absent)


def _of_numbers(plain: Profile, numbers: pl.Series) -> Profile:
    known = numbers.drop_nulls().drop_nans()
    whole = bool((known.floor() == known).all() and (known.abs() < 2**63).all())
    if plain.values.dtype == pl.String and plain.values.str.contains(r"^[+-]?0\d|\.").any():
        whole = False  # 007 is a text, and another one than 7; so is 7.0
    real = known.filter(~known.is_in([float(value) for value in ABSENT]))
    absent = tuple(str(value) for value in ABSENT if (known == value).any())
    plain = replace(plain, number=True, whole=whole)
    is_time_name = bool(_TIME_NAME.search(plain.name.lower()))
    if not len(real) or plain.distinct < 2 or (plain.named_id and not is_time_name):
        return plain
    if _DELAY_NAME.search(plain.name.lower()):
        return replace(plain, absent=tuple(text for text in absent if text == "-1"))
    for unit, scale in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        if _are_moments(real / scale):
            return replace(plain, unit=unit, absent=absent)
    if whole and (is_time_name or bool((real >= 10**11).all())):
        moments = times.read(real, Times(), "yyyymmdd").seconds
        if moments.count() >= _BULK * len(real) and _are_moments(moments.drop_nulls()):
            return replace(plain, unit="yyyymmdd", naive=True, absent=absent)
    if whole and is_time_name and plain.distinct > 20:
        absent = tuple(text for text in absent if text == "-1")  # second 0 of its own clock is a time
        return replace(plain, unit="s", relative=True, absent=absent)
    return plain


def _are_moments(seconds: pl.Series) -> bool:
    """Whether nearly all of these lie within some years of each other, and can be times since 1970."""
    inside = seconds.filter(seconds.is_between(times.FIRST, times.LAST))
    return len(inside) >= max(_BULK * len(seconds), 1) and _extent(inside) < _YEARS


def _of_text(plain: Profile, absent: tuple[str, ...]) -> Profile:
    if plain.values.dtype != pl.String:
        return plain
    never = plain.values.str.contains(_NEVER) & (plain.values.is_duplicated())
    values = plain.values.set((plain.values.is_in(absent) | never).fill_null(False), None)
    readings = {unit: times.read(values, Times(), unit) for unit in _WRITTEN}
    able = {unit: one for unit, one in readings.items() if one.seconds.count() >= max(0.95 * values.count(), 1)}
    if not able:
        return _with_commas(plain)
    # Of a day and a month that can be either way round, the reading is likelier that puts the log into less time.
    unit = min(able, key=lambda name: _extent(able[name].seconds))
    best = able[unit]
    odd = plain.values.filter(best.seconds.is_null()).drop_nulls().unique().sort().to_list()  # missing ones among them
    return replace(plain, unit=unit, naive=best.naive > 0, absent=tuple(odd[:10]), either=len(able) > 1)


def _with_commas(plain: Profile) -> Profile:
    """Text that is numbers with a decimal comma, if every value is written so."""
    known = plain.values.drop_nulls()
    if known.str.contains(_THOUSANDS).all():
        return replace(plain, comma=True)
    if not known.str.contains(WITH_COMMA).all():
        return plain
    numbers = plain.values.to_frame("v").select(read_numbers(pl.col("v"), pl.String, ",")).to_series()
    return replace(plain, values=numbers.alias(plain.name), number=True, decimal=",")


def _extent(seconds: pl.Series) -> float:
    low, high = seconds.quantile((1 - _BULK) / 2), seconds.quantile((1 + _BULK) / 2)
    return float(high - low)  # type: ignore[operator]
