"""Durations as text: for people to read, and as options and schemas take them (`config.duration` reads those)."""

from __future__ import annotations

from datetime import UTC, datetime

from tracecvr.base.config import DAY, HOUR, MINUTE


def duration(seconds: float) -> str:
    """Roughly, for people.

    >>> duration(59), duration(150), duration(3600), duration(9000), duration(7 * 86400 + 60)
    ('59 s', '2 min', '1 h', '2 h 30 min', '7 d')
    """
    if seconds < MINUTE:
        return f"{seconds:.0f} s"
    days, hours = int(seconds // DAY), int(seconds % DAY // HOUR)
    parts = {"d": days, "h": hours, "min": 0 if days else int(seconds % HOUR // MINUTE)}
    return " ".join(f"{count} {unit}" for unit, count in parts.items() if count)


def exact_duration(seconds: int) -> str:
    """As an option takes it.

    >>> [exact_duration(s) for s in (90, 900, 7200, 86400)]
    ['90s', '15min', '2h', '1d']
    """
    for unit, size in (("d", DAY), ("h", HOUR), ("min", MINUTE)):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def moment(seconds: int, origin: int | None = None) -> str:
    """A time of the log: by the calendar, if the Unix time of its second 0 is known.

    >>> moment(43200), moment(90, 1_767_225_600)
    ('day 0.5', '2026-01-01 00:01 UTC')
    """
    if origin is None:
        return log_day(seconds)
    return datetime.fromtimestamp(origin + seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def log_day(seconds: int) -> str:
    """A time of the log.

    >>> log_day(31 * 86400), log_day(86400 + 43200)
    ('day 31', 'day 1.5')
    """
    return f"day {round(seconds / DAY, 1):g}"
