"""What drawings are made of: SVG elements, texts that fit, markers, and scales from values to pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from markupsafe import Markup, escape

from tracecvr.bench.report.figure import Axis
from tracecvr.bench.report.palette import SERIES

_DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "1 2", "13 3", "6 2 1 2 1 2")
"""By style, so that colour is not all that tells lines apart."""


@dataclass(frozen=True)
class Drawing:
    """A drawn panel: its size in pixels, what somebody who cannot see it is told, and its elements."""

    width: float
    height: float
    words: str
    content: Markup

    def svg(self) -> Markup:
        """For a page, which has the style sheet."""
        box = f"0 0 {plain(self.width)} {plain(self.height)}"
        return element("svg", self.content, viewBox=box, role="img", aria_label=self.words, class_="plot")


def element(name: str, *children: Markup | str, **attributes: object) -> Markup:
    """An element; attributes that are None are left out, underscores stand for hyphens."""
    given = Markup("").join(
        Markup(' {}="{}"').format(Markup(key.rstrip("_").replace("_", "-") if key != "viewBox" else key), plain(value))
        for key, value in attributes.items()
        if value is not None and value != ""
    )
    inside = Markup("").join(escape(child) for child in children)
    tag = Markup(name)
    return Markup("<{}{}>{}</{}>").format(tag, given, inside, tag) if inside else Markup("<{}{}/>").format(tag, given)


def plain(value: object) -> str:
    """Numbers short, so that pages are small.

    >>> plain(12.30), plain(-0.04), plain("a")
    ('12.3', '0', 'a')
    """
    if isinstance(value, float):
        return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")
    return str(value)


def line(class_: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    d = f"M{plain(float(x1))} {plain(float(y1))}L{plain(float(x2))} {plain(float(y2))}"
    return element("path", d=d, class_=class_)


def text(x: float, y: float, content: str, class_: str = "", anchor: str | None = None) -> Markup:
    return element("text", content, x=x, y=y, class_=class_, text_anchor=anchor)


def class_of(style: int) -> str:
    """The class of a series: its colour, and how strong its line is."""
    weight = " ours" if style == 0 else "" if style < SERIES else " thin"
    return f"s s{style % SERIES}{weight}"


def dash_of(style: int) -> str:
    return _DASHES[style % len(_DASHES)]


def marker(style: int, x: float, y: float, r: float, title: str = "") -> Markup:
    """A point, hollow in every second turn through the colours."""
    tooltip = element("title", title) if title else ""
    return element("circle", tooltip, cx=x, cy=y, r=r, class_="m hollow" if style // SERIES % 2 else "m")


def draw_swatch(style: int) -> Markup:
    """A short piece of a line, 24 wide and 12 high."""
    stroke = element("path", d="M1 6H23", class_="l", stroke_dasharray=dash_of(style))
    return element("g", stroke, marker(style, 12, 6, 3.2), class_=class_of(style))


# Texts.


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


# Scales.


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
