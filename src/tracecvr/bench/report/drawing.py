"""Panels as SVG: lines over an axis, horizontal bars, and rows by columns of squares.

`drawing.svg.j2` has their elements, `colours.css` all colours. A drawing that stands alone has the light ones filled
in, since programs other than browsers know no variables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from itertools import accumulate
from math import ceil, floor, isfinite, log10
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tracecvr.base.config import DAY, HOUR
from tracecvr.base.errors import UserError
from tracecvr.base.files import write_atomically

# Figures as data: what is drawn, and what is said of it.

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


# Templates and style sheets.


@dataclass(frozen=True)
class Drawing:
    """A drawn panel: its size in pixels, its text for a screen reader, and its elements."""

    width: float
    height: float
    words: str
    content: Markup


@cache
def templates() -> Environment:
    loader = PackageLoader("tracecvr.bench.report", "")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters["px"] = "{:.1f}".format
    made.globals["shorten"] = shorten
    return made


def write(macro: str, *values: Any, file: str = "drawing.svg.j2") -> Markup:
    """What a macro of a template makes of values."""
    made: Callable[..., Markup] = getattr(templates().get_template(file).module, macro)
    return made(*values)


def read_style_sheet(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


@cache
def light_colours() -> dict[str, str]:
    return dict(re.findall(r"--(\w+): (#\w+);", read_style_sheet("colours.css").partition("@media")[0]))


def fill_in(css: str) -> str:
    """A style sheet with the light colours in place of variables.

    >>> fill_in("text { fill: var(--soft) }")
    'text { fill: #5b6067 }'
    """
    return re.sub(r"var\(--(\w+)\)", lambda named: light_colours()[named[1]], css)


# Numbers and texts.


def width_of(content: str) -> float:
    """About how many pixels a text takes; rather too many, since fonts differ."""
    return sum(8.4 if c.isupper() or c in "mw+=%…" else 4.2 if c in "ijlrtf.,:;'()[]| " else 7.2 for c in content)


def shorten(content: str, room: float) -> str:
    """A text, or as much of it as there is room for.

    >>> shorten("short", 40), shorten("a long one", 40)
    ('short', 'a lon…')
    """
    if width_of(content) <= room:
        return content
    while content and width_of(content + "…") > room:
        content = content[:-1]
    return content.rstrip() + "…"


@dataclass(frozen=True)
class Scale:
    """Values of an axis to pixels."""

    axis: Axis
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        return self.axis.ticks(self.low, self.high, most)


def limits(axis: Axis, values: Sequence[float], room: float = 0.04) -> tuple[float, float]:
    """From where to where an axis goes: as it says, else as far as its values, with a little room."""
    finite = [value for value in values if isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    spare = room * (high - low) if high > low else 0.05 * abs(high) or 1.0
    return (low - spare if axis.low is None else axis.low), (high + spare if axis.high is None else axis.high)


# Panels.


def draw(panel: Panel, width: float) -> Drawing:
    return _draw_chart(panel, width) if isinstance(panel, Chart) else _draw_bars(panel, width)


_ABOVE, _BELOW = 30.0, 40.0
"""Pixels that the title of a chart takes, and the texts of its horizontal axis."""

_BETWEEN_MARKERS = 50.0
"""Pixels from one marker of a line to the next, at least."""


def _draw_chart(chart: Chart, width: float) -> Drawing:
    shown = [one for one in chart.series if one.x]
    height = max(min(0.46 * width, 380.0), 250.0)
    levels = [] if chart.level is None else [chart.level]
    y_limits = limits(chart.y, [*levels, *(y for one in shown for y in one.y)])
    x_limits = limits(chart.x, [x for one in shown for x in one.x], room=0.0)
    y = Scale(chart.y, *y_limits, height - _BELOW, _ABOVE if chart.title else 12)
    left = 14 + max((width_of(label) for _, label in y.ticks(6)), default=0.0)
    x = Scale(chart.x, *x_limits, left, width - 14.0)
    longest = max((width_of(label) for _, label in x.ticks(99)), default=1.0)
    ticks = x.ticks(max(2, min(int((x.end - x.start) / (longest + 14)), 9)))
    series = [(one, *_place_series(chart, one, x, y)) for one in sorted(shown, key=lambda one: -one.style)]
    return Drawing(width, height, say_what_is_drawn(chart), write("chart", chart, x, y, ticks, series))


def _place_series(
    chart: Chart, one: Series, x: Scale, y: Scale
) -> tuple[list[tuple[float, float]], list[tuple[float, float, str]]]:
    """The points of a line, and its markers: where they are and what they say."""
    values = list(zip(one.x, one.y, strict=True))
    at = [(x(a), min(max(y(b), y.end), y.start)) for a, b in values]  # what lies beyond the axis is drawn at its edge
    says = [f"{one.name}, {chart.x.format_value(a)}: {chart.y.format_value(b)}" for a, b in values]
    every = ceil(len(at) * _BETWEEN_MARKERS / (x.end - x.start))
    return at, [(*at[n], says[n]) for n in range((len(at) - 1) % every, len(at), every)]


_ROW = 21.0
"""The height of a bar with the space around it."""


def _draw_bars(panel: Bars, width: float) -> Drawing:
    left = min(max((width_of(bar.name) for bar in panel.bars), default=0.0), 0.45 * width) + 10
    values = [v for bar in panel.bars for v in (bar.value, bar.low, bar.high) if v is not None]
    low, high = min([panel.base, *values]), max([panel.base, *values])
    low, high = (low, high) if high > low else (panel.base, panel.base + 1.0)
    said = [bar.text or panel.axis.format_value(bar.value) for bar in panel.bars]
    room = max((width_of(text) + 16 for text in said), default=0.0)  # values stand in a column
    scale, top = Scale(panel.axis, low, high, left, width - room), 22.0
    foot, half = top + _ROW * len(panel.bars), width_of(panel.axis.label) / 2
    middle = min(max((left + scale.end) / 2, half), width - half)
    rows = [(bar, text, top + _ROW * (n + 0.5)) for n, (bar, text) in enumerate(zip(panel.bars, said, strict=True))]
    ticks = scale.ticks(max(2, min(int((scale.end - left) / 64), 6)))
    content = write("bars", panel, scale, ticks, rows, top, foot, width, middle)
    return Drawing(width, foot + 36.0, say_what_is_drawn(panel), content)


_SQUARE, _SPACE = 20.0, 8.0
"""The height of a square, and the space beside a column of texts."""

_DIGITS = 33.0
"""Pixels that a number takes; in smaller squares, only the tooltip has it."""


def draw_squares(
    label: str,
    columns: Sequence[str],
    beside: Mapping[str, Sequence[str]],
    rows: Mapping[str, Sequence[tuple[str, str, str | None]]],
) -> Drawing:
    """Rows of squares by name, with columns of texts `beside` the names. Headings are turned, so that squares can be
    small. A square: what it says, the same in few letters, and its opacity, None if it is marked as good."""
    names, slant = (_widest(texts) for texts in (rows, columns))
    edges = list(accumulate((_widest((heading, *texts)) for heading, texts in beside.items()), initial=names))
    left, top = edges[-1], 26.0 + 0.75 * slant
    size, foot = (WIDE - left - 0.7 * slant) / max(len(columns), 1), top + _SQUARE * len(rows)
    content = write("squares", label, columns, beside, rows, edges, top, foot, size, _SQUARE, _SPACE, size >= _DIGITS)
    return Drawing(WIDE, foot + 22.0, label, content)


def _widest(texts: Iterable[str]) -> float:
    return max(map(width_of, texts), default=0.0) + _SPACE


# A whole figure as a document of its own, and as files.


WIDE, GAP = 1000.0, 24.0
"""The width that figures are drawn for, and what is between panels."""

_MARGIN, _TITLE, _LEGEND = 16.0, 30.0, 20.0
_FONT = '"Liberation Sans", Arial, Helvetica, sans-serif'


def draw_panels(figure: Figure) -> list[Drawing]:
    columns = min(figure.columns, len(figure.panels))
    return [draw(panel, (WIDE - GAP * (columns - 1)) / columns) for panel in figure.panels]


def write_document(figure: Figure, drawings: Sequence[Drawing] = ()) -> str:
    """A figure as the text of an SVG file, with all that it needs; of its panels, unless other drawings are given."""
    drawings = drawings or draw_panels(figure)
    columns, top, parts = max(min(figure.columns, len(drawings)), 1), _TITLE, []
    for first in range(0, len(drawings), columns):
        row = drawings[first : first + columns]
        parts += [(drawing, number * (drawing.width + GAP), top) for number, drawing in enumerate(row)]
        top += max(drawing.height for drawing in row) + GAP / 2
    entries, height = _place_legend(figure, top)
    own = f"text {{ font-family: {_FONT}; }}\n.plot .title {{ font-size: 16px; font-weight: 600; }}\n"
    css = Markup(fill_in(own + read_style_sheet("plot.css")))
    size = WIDE + 2 * _MARGIN, top + height + 2 * _MARGIN
    return str(write("document", figure, *size, _MARGIN, css, fill_in("var(--paper)"), parts, entries))


def _place_legend(figure: Figure, top: float) -> tuple[list[tuple[str, int, float, float]], float]:
    """Entries from left to right, in as many lines as it takes; and their height."""
    entries, left, base = [], 0.0, 12.0
    for name, style in figure.legend().items():
        wide = 32 + width_of(name) + 14
        if left and left + wide > WIDE:
            left, base = 0.0, base + _LEGEND
        entries.append((name, style, left, top + base))
        left += wide
    return entries, base + 4 if entries else 0.0


# Files: PNG for pages, PDF for papers, SVG for both.
# PNG and PDF need the extra `figures`, which turns the SVG into them. It has its own fonts, so that files look alike on
# every machine. The same figure gives the same bytes as SVG and PNG. As PDF it gives the same pages, but their objects
# come in another order each time.

_SCALE = 1.5
"""Pixels of a PNG for each pixel of the drawing."""


def save(figures: Sequence[Figure], folder: Path, kinds: Sequence[str]) -> list[Path]:
    if kinds:
        folder.mkdir(exist_ok=True)
    return [save_document(write_document(one), folder / f"{one.key}.{kind}") for one in figures for kind in kinds]


def save_document(document: str, path: Path) -> Path:
    """A figure as a file of the kind that its name says: .svg, .png or .pdf."""
    content = document.encode()
    if path.suffix != ".svg":
        try:
            from vl_convert import svg_to_pdf, svg_to_png
        except ImportError:
            raise UserError("figures as PNG or PDF need vl-convert: pip install 'tracecvr[figures]'") from None
        content = bytes(svg_to_pdf(document) if path.suffix == ".pdf" else svg_to_png(document, scale=_SCALE))
    write_atomically(path, lambda draft: draft.write_bytes(content))
    return path
