"""Rows by columns of squares, as SVG."""

from __future__ import annotations

from math import sqrt

from markupsafe import Markup

from tracecvr.bench.report.elements import Drawing, cut, element, plain, text, width_of
from tracecvr.bench.report.figure import Heat

_ROW, _TITLE, _BELOW = 20.0, 20.0, 22.0
"""Pixels of a row, of the title and of the text below."""

_ROOM = 33.0
"""Pixels that a number takes; in squares that are smaller, only the tooltip has it."""


def drawn(panel: Heat, width: float) -> Drawing:
    """Headings of columns are turned, so that squares can be small."""
    names = max((width_of(name) for name in panel.names), default=0.0) + 8
    sides = [max(map(width_of, (heading, *texts))) + 8 for heading, texts in panel.beside]
    longest = max(map(width_of, panel.columns), default=0.0)
    left, count = names + sum(sides), max(len(panel.columns), 1)
    slanted = (width - left - 0.7 * longest) / count >= _ROOM
    size = (width - left - (0.7 * longest if slanted else 2.0)) / count
    top = _TITLE + (0.75 if slanted else 1.0) * longest + 6
    parts = [text(0, 13, cut(panel.title, 1.05 * width), "h")]
    for n, heading in enumerate(panel.columns):
        at = left + size * (n + 0.5)
        turn = f"translate({plain(at + 3)} {plain(top - 6)}) rotate({-45 if slanted else -90})"
        parts.append(element("text", heading, transform=turn, class_="t"))
    edges = [names + sum(sides[: n + 1]) - 8 for n in range(len(sides))]
    parts += [text(edge, top - 6, heading, "t", "end") for edge, (heading, _) in zip(edges, panel.beside, strict=True)]
    for number, name in enumerate(panel.names):
        base = top + _ROW * number
        parts.append(text(names - 8, base + 14, name, "n", "end"))
        parts += [
            text(x, base + 14, texts[number], "v", "end") for x, (_, texts) in zip(edges, panel.beside, strict=True)
        ]
        parts += [_square(panel, number, n, left + size * n, base, size) for n in range(len(panel.columns))]
    foot = top + _ROW * len(panel.names)
    parts.append(text(left, foot + 15, cut(panel.axis.label, width - left), "a"))
    return Drawing(width, foot + _BELOW, panel.words(), Markup("").join(parts))


def _square(panel: Heat, row: int, column: int, x: float, y: float, size: float) -> Markup:
    value, light = panel.values[row][column], panel.light[row][column]
    tooltip = element("title", f"{panel.names[row]}, {panel.columns[column]}: {panel.axis.shown(value)}")
    strength = 0.0 if value is None else 0.65 * sqrt(min(max(value / panel.top, 0.0), 1.0))
    shape = {"x": x + 1, "y": y + 1, "width": size - 2, "height": _ROW - 2}
    opacity = None if light else f"{strength:.2f}"
    parts = [element("rect", tooltip, **shape, class_="heat light" if light else "heat", fill_opacity=opacity)]
    if size >= _ROOM:
        parts.append(text(x + size / 2, y + 14, short(value), "t", "middle"))
    return Markup("").join(parts)


def short(value: float | None) -> str:
    """A number in few letters.

    >>> short(0.01234), short(-0.002), short(3.19), short(None)
    ('.0123', '-.0020', '3.19', 'n/a')
    """
    if value is None:
        return "n/a"
    return f"{value:.4f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.2f}"
