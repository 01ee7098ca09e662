"""Rows by columns of squares, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from markupsafe import Markup

from tracecvr.bench.report.elements import Drawing, element, plain, shorten, text, width_of
from tracecvr.bench.report.figure import Heat

_ROW, _TITLE, _BELOW = 20.0, 20.0, 22.0
"""Pixels of a row, of the title and of the text below."""

_GAP = 8.0
_ROOM = 33.0
"""Pixels between columns of texts, and those that a number takes; in smaller squares, only the tooltip has it."""


def draw(panel: Heat, width: float) -> Drawing:
    """Headings of columns are turned, so that squares can be small. Where even so there is no room for numbers, names
    are cut and what stands beside them is left out."""
    beside, names, longest = panel.beside, _widest(panel.names), _widest(panel.columns)
    sides = [_widest((heading, *texts)) for heading, texts in beside]
    slanted = (width - names - sum(sides) - 0.7 * longest) / max(len(panel.columns), 1) >= _ROOM
    if not slanted:
        beside, sides, names = (), [], min(names, 0.36 * width)
    left = names + sum(sides)
    size = (width - left - (0.7 * longest if slanted else 2.0)) / max(len(panel.columns), 1)
    top = _TITLE + (0.75 if slanted else 1.0) * longest + 6
    parts = [text(0, 13, shorten(panel.title, 1.05 * width), "h")]
    for n, heading in enumerate(panel.columns):
        turn = f"translate({plain(left + size * (n + 0.5) + 3)} {plain(top - 6)}) rotate({-45 if slanted else -90})"
        parts.append(element("text", heading, transform=turn, class_="t"))
    edges = [names + sum(sides[: n + 1]) - _GAP for n in range(len(sides))]
    columns = list(zip(edges, beside, strict=True))
    parts += [text(edge, top - 6, heading, "t", "end") for edge, (heading, _) in columns]
    for row, name in enumerate(panel.names):
        base = top + _ROW * row + 14
        parts.append(text(names - _GAP, base, shorten(name, names - _GAP), "n", "end"))
        parts += [text(edge, base, texts[row], "v", "end") for edge, (_, texts) in columns]
        parts += [_square(panel, row, n, left + size * n, base - 14, size) for n in range(len(panel.columns))]
    foot = top + _ROW * len(panel.names)
    parts.append(text(0, foot + 15, shorten(panel.axis.label, width), "a"))
    return Drawing(width, foot + _BELOW, panel.words, Markup("").join(parts))


def _widest(texts: Sequence[str]) -> float:
    return max(map(width_of, texts), default=0.0) + _GAP


def _square(panel: Heat, row: int, column: int, x: float, y: float, size: float) -> Markup:
    value, light = panel.values[row][column], panel.light[row][column]
    tooltip = element("title", f"{panel.names[row]}, {panel.columns[column]}: {panel.axis.format_value(value)}")
    strength = 0.0 if value is None else 0.65 * sqrt(min(max(value / panel.top, 0.0), 1.0))
    shape = {"x": x + 1, "y": y + 1, "width": size - 2, "height": _ROW - 2}
    opacity = None if light else f"{strength:.2f}"
    parts = [element("rect", tooltip, **shape, class_="heat light" if light else "heat", fill_opacity=opacity)]
    if size >= _ROOM:
        parts.append(text(x + size / 2, y + 14, short(value), "c", "middle"))
    return Markup("").join(parts)


def short(value: float | None) -> str:
    """A number in few letters.

    >>> short(0.01234), short(-0.002), short(3.19), short(None)
    ('.0123', '-.0020', '3.19', 'n/a')
    """
    if value is None:
        return "n/a"
    return f"{value:.4f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.2f}"
