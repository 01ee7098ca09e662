"""How the time of an event log is divided, and how far ahead of it an event may be dated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

UNBOUNDED = 1 << 62


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
