"""Times: as events tell them, as the log keeps them, in whole seconds since its origin, and how they are divided.

How a number is to be read is declared when a store is made, never guessed. Text is ISO 8601 with a zone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tracecvr.base.errors import UserError
from tracecvr.data.own_log.times import FIRST, LAST

UNITS = {
    "log": "whole seconds since the log's origin",
    "unix": "Unix seconds",
    "unix-ms": "Unix milliseconds",
    "iso": "ISO 8601 text with a zone",
}
"""How a store may declare its events' times."""
_EPOCH, _SECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(seconds=1)
_LIMIT = 1 << 53
"""Numbers beyond this are no times: some parsers of JSON would round them, too."""
UNBOUNDED = 1 << 62
_EXAMPLE = "2026-01-31T12:00:00Z"


@dataclass(frozen=True)
class Times:
    """How the times of a store's events are written, and when its log begins."""

    unit: str = "log"
    origin: int | None = None
    """The Unix time of the log's second 0; None of a log without a calendar."""

    def read(self, ts: object) -> int:
        """Seconds since the origin, or an error that says what was expected."""
        if self.unit == "log" and type(ts) is int and 0 <= ts < _LIMIT:
            return ts
        if isinstance(ts, str) and self.origin is not None:
            return self._since_origin(ts, unix_time(ts, "ts"))
        if self.unit in ("log", "iso") or not isinstance(ts, int | float) or isinstance(ts, bool):
            raise self._wrong(ts)
        if not abs(ts) < _LIMIT:  # or NaN
            raise self._wrong(ts)
        return self._since_origin(ts, math.floor(ts) // (1000 if self.unit == "unix-ms" else 1))

    def iso(self, seconds: int) -> str | None:
        """Seconds since the origin as text; None if the origin is unknown or the time is beyond what text can tell."""
        unix = None if self.origin is None else self.origin + seconds
        if unix is None or not 0 <= unix < LAST:
            return None
        return (_EPOCH + unix * _SECOND).strftime("%Y-%m-%dT%H:%M:%SZ")

    def show(self, seconds: int) -> int | str:
        """Seconds since the origin as the store's events would have them."""
        if self.origin is None or self.unit == "log":
            return seconds
        if self.unit == "iso":
            return self.iso(seconds) or seconds
        return (self.origin + seconds) * (1000 if self.unit == "unix-ms" else 1)

    def facts(self, seconds: int) -> dict[str, Any]:
        """What a client has to know: the unit, the origin, and one moment as an example."""
        return {
            "unit": self.unit,
            "ts": self._expected,
            "origin": self.iso(0),
            "origin_unix": self.origin,
            "example": {"ts": self.show(seconds), "means": self.iso(seconds)},
        }

    def _since_origin(self, ts: object, unix: int) -> int:
        assert self.origin is not None
        if not FIRST <= unix < LAST:
            raise UserError(
                f"ts is {quote(ts)}: expected {UNITS[self.unit]}, and that is before 1990 or after 2100; "
                "is it in another unit?"
            )
        if unix < self.origin:
            raise UserError(f"ts is {quote(ts)}: that is before the log's origin, {self.iso(0)}")
        return unix - self.origin

    def _wrong(self, ts: object) -> UserError:
        example = "" if self.origin is None else f", such as {_EXAMPLE}"
        return UserError(f"ts is {quote(ts)}: expected {self._expected}{example}")

    @property
    def _expected(self) -> str:
        return UNITS[self.unit] + ("" if self.origin is None or self.unit == "iso" else f", or {UNITS['iso']}")


@dataclass(frozen=True)
class AskedTimes:
    """How times are to be written, as far as somebody said so."""

    unit: str | None = None
    origin: int | None = None

    def settle(self, origin: int | None, start: int | None) -> Times:
        """With a calendar, times are Unix seconds by default. A log without one keeps its own time, and second
        `start` is taken to be now. `start` is None if the log has a calendar and does not say which."""
        unit = self.unit or ("log" if origin is None else "unix")
        first = origin if self.origin is None else self.origin
        if first is None and start is not None:
            first = int(time.time()) - start
        if first is None and unit != "log":
            raise UserError(
                f"--time {unit}: the log does not say when its second 0 is; prepare it again or give --origin"
            )
        return Times(unit, first)


@dataclass(frozen=True)
class Grid:
    """How time is divided: intervals from the split on, and what counts as late or as dated too far ahead."""

    split: int
    interval: int
    lateness: int
    d_max: int
    skew: int = 60
    """How far ahead of the server's clock an event may be dated."""
    origin: int | None = None
    """The Unix time of the log's second 0."""
    advance: int | None = None
    """Of a log whose time is its own: how far ahead of its newest event, beside the time that has passed since, the
    next one may be dated. None if the server's clock says how far that is."""

    def bounds(self, number: int) -> tuple[int, int]:
        start = self.split + number * self.interval
        return start, start + self.interval

    def closed(self, watermark: int) -> int:
        return max(0, self.number(watermark))

    def number(self, time: int) -> int:
        return (time - self.split) // self.interval

    def limit(self, newest: int, since: int, clock: int) -> int:
        """The latest time that is believed, if the newest event so far was accepted when the clock showed `since`."""
        if self.advance is not None:
            return newest + self.advance + max(0, clock - since)
        if self.origin is not None:
            return clock - self.origin + self.skew
        return UNBOUNDED

    def raise_limit(self, limit: int, times: Iterable[int]) -> int:
        """In a log whose time is its own, each event bears out those that are dated no more than `advance` later."""
        for ts in sorted(times) if self.advance is not None else ():
            if ts > limit:
                break
            limit = max(limit, ts + (self.advance or 0))
        return limit


def unix_time(text: str, name: str) -> int:
    """Unix seconds of an ISO 8601 text with a zone; a fraction is rounded down."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"{name} is {quote(text)}: expected {UNITS['iso']}, such as {_EXAMPLE}") from None
    if moment.tzinfo is None:
        raise UserError(f"{name} is {quote(text)}: it has no zone; add one, such as Z or +01:00")
    return (moment - _EPOCH) // _SECOND


def quote(value: object) -> str:
    """A value as a message may show it: Python refuses to print numbers of many thousand digits."""
    if isinstance(value, int) and abs(value) >> 64:
        return "a number of more than 64 bits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
