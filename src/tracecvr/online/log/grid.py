"""How the time of an event log is divided, and how far ahead of it an event may be dated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracecvr.online.log.events import Event

UNBOUNDED = 1 << 62
"""A time that nothing is later than."""


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
        """Start and end of an interval."""
        start = self.split + number * self.interval
        return start, start + self.interval

    def closed(self, watermark: int) -> int:
        """How many intervals have ended by then."""
        return max(0, (watermark - self.split) // self.interval)

    def number(self, time: int) -> int:
        """The interval that a time is in."""
        return (time - self.split) // self.interval

    def limit(self, newest: int, since: int, clock: int) -> int:
        """The latest time that is believed, if the newest event so far was accepted when the clock showed `since`."""
        if self.advance is not None:
            return newest + self.advance + max(0, clock - since)
        if self.origin is not None:
            return clock - self.origin + self.skew
        return UNBOUNDED


@dataclass
class Reach:
    """How far time has come, and how far it may go: by the server's clock, or by the log's own progress."""

    newest: int
    limit: int
    advance: int | None = None
    soon: int = -1
    """Events that are dated later than the limit, but not later than this, are accepted once the clock has come to
    them: clients' clocks may be a little fast, and the server's may be put back for a while."""

    def divided(self, events: Sequence[Event]) -> tuple[Sequence[Event], Sequence[Event]]:
        """Events that are believed, and those that are dated too far ahead. In a log whose time is its own, each event
        bears out those that are dated no more than `advance` later."""
        if max((event.ts for event in events), default=0) <= self.limit:
            return events, ()
        if self.advance is not None:
            for ts in sorted({event.ts for event in events}):
                if ts > self.limit:
                    break
                self.limit = max(self.limit, ts + self.advance)
        believed = [event for event in events if event.ts <= self.limit]
        return believed, [event for event in events if event.ts > self.limit]

    def move(self, events: Sequence[Event]) -> None:
        """Time goes on with events that were accepted."""
        self.newest = max((self.newest, *(event.ts for event in events)))
        if self.advance is not None:
            self.limit = max(self.limit, self.newest + self.advance)
