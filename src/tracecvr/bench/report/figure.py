"""Figures as data: what is drawn, and what is said of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil, floor, log10

from tracecvr.base.config import DAY, HOUR

_DAY_STEPS = (*(n * HOUR / DAY for n in (1, 3, 6, 12)), 1, 2, 5, 7, 14, 30, 90, 365)


@dataclass(frozen=True)
class Axis:
    label: str
    days: bool = False
    """Values are days of the log, not numbers."""
    low: float | None = None
    high: float | None = None
    origin: int | None = None
    """Of days alone: the Unix time of day 0. With it, days are shown as dates."""
    digits: int = 4
    """Of values; ticks have as many as their steps call for."""

    def format_value(self, value: float, step: float | None = None) -> str:
        """A value of the axis in words; for a tick, with the digits that steps call for."""
        if self.days:
            return self._day(value, step)
        return f"{value:.{self.digits if step is None else max(0, -floor(log10(step) + 1e-9))}f}"

    def ticks(self, low: float, high: float, most: int) -> list[tuple[float, str]]:
        """At most so many round values between two, with their texts."""
        least = (high - low) / max(most, 1)
        step = next((step for step in _DAY_STEPS if self.days and step >= least), _step(least))
        values = [n * step for n in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]
        return [(value, self.format_value(value + 0.0, step)) for value in values]

    def _day(self, value: float, step: float | None) -> str:
        """A date, or a day of the log where dates are unknown; a tick of whole days has no hour."""
        if self.origin is None:
            return f"{'' if step else 'day '}{round(value, 2):g}"
        moment = datetime.fromtimestamp(self.origin + round(value * DAY), UTC)
        if step is None:
            return moment.strftime("%Y-%m-%d" if value == round(value) else "%Y-%m-%d %H:%M")
        return f"{moment.day} {moment:%b}" + ("" if step >= 1 else f" {moment:%H:%M}")


def _step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is no less.

    >>> _step(0.03), _step(7)
    (0.05, 10.0)
    """
    if least <= 0:
        return 1.0
    power = 10.0 ** floor(log10(least))
    return next(step for times in (1, 2, 5, 10) if (step := times * power) >= least * (1 - 1e-9))


@dataclass(frozen=True)
class Series:
    """A line. `style` is a number with a colour, a dash and a marker; 0 is ours, and those from 8 on are thinner."""

    name: str
    style: int
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Chart:
    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    level: float | None = None
    """A horizontal line that values are to be compared with; the axis reaches it."""


@dataclass(frozen=True)
class Bar:
    """A figure with its interval, if it has one; `sure` is drawn solid, others hollow."""

    name: str
    value: float
    style: int | None = None
    low: float | None = None
    high: float | None = None
    sure: bool = True
    text: str = ""
    """What stands beside it; by default the value."""


@dataclass(frozen=True)
class Bars:
    """Horizontal bars, one below the other. `base` is where they begin: zero, or the value that is right."""

    title: str
    axis: Axis
    bars: tuple[Bar, ...]
    base: float = 0.0


Panel = Chart | Bars


def say_what_is_drawn(panel: Panel) -> str:
    """For somebody who cannot see it."""
    about = f"{panel.y.label} by {panel.x.label}" if isinstance(panel, Chart) else panel.axis.label
    return f"{panel.title or 'Figure'}: {about}"


@dataclass(frozen=True)
class Figure:
    """Panels that belong together. `key` names its file and its place in the page."""

    key: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    columns: int = 1
    """Panels side by side on a wide screen."""

    def legend(self) -> dict[str, int]:
        """Series that a legend has to list, with their style: there is more than one in a panel."""
        charts = [panel for panel in self.panels if isinstance(panel, Chart) and len(panel.series) > 1]
        return {one.name: one.style for chart in charts for one in chart.series}
