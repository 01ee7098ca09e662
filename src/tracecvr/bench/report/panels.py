"""Panels as SVG: lines over an axis, horizontal bars, and rows by columns of squares."""

from __future__ import annotations

from math import ceil, sqrt

from markupsafe import Markup

from tracecvr.bench.report.elements import (
    Drawing,
    Scale,
    class_of,
    dash_of,
    element,
    limits,
    line,
    marker,
    plain,
    shorten,
    text,
    width_of,
)
from tracecvr.bench.report.figure import Bar, Bars, Chart, Heat, Panel, Series


def draw(panel: Panel, width: float) -> Drawing:
    if isinstance(panel, Chart):
        return _draw_chart(panel, width)
    return _draw_bars(panel, width) if isinstance(panel, Bars) else _draw_squares(panel, width)


# Lines.

_ABOVE, _BELOW = 30.0, 40.0
"""Pixels that the title of a chart takes, and the texts of its horizontal axis."""

_BETWEEN_MARKERS = 50.0
"""Pixels from one marker of a line to the next, at least."""


def _draw_chart(chart: Chart, width: float) -> Drawing:
    shown = [one for one in chart.series if one.x]
    height = width + 12 if chart.diagonal else max(min(0.46 * width, 380.0), 250.0)
    levels = [] if chart.level is None else [chart.level]
    y_limits = limits(chart.y, [*levels, *(y for one in shown for y in one.y)])
    x_limits = limits(chart.x, [x for one in shown for x in one.x], room=0.0)
    y = Scale(chart.y, *y_limits, height - _BELOW, _ABOVE if chart.title else 12)
    left = 14 + max((width_of(label) for _, label in y.ticks(6)), default=0.0)
    x = Scale(chart.x, *x_limits, left, width - 14.0)
    parts = _draw_axes(chart, x, y)
    if chart.diagonal:
        top = min(x.high, y.high)
        parts.append(line("rule", x(0), y(0), x(top), y(top)))
    if chart.level is not None and y.low <= chart.level <= y.high:
        parts.append(line("level", x.start, y(chart.level), x.end, y(chart.level)))
    parts += [_draw_series(chart, one, x, y) for one in sorted(shown, key=lambda one: -one.style)]
    return Drawing(width, height, chart.words, Markup("").join(parts))


def _draw_axes(chart: Chart, x: Scale, y: Scale) -> list[Markup]:
    parts = [text(0, 13, shorten(chart.title, 1.05 * x.end), "h")] if chart.title else []
    for value, label in y.ticks(6):
        parts.append(line("grid", x.start, y(value), x.end, y(value)))
        parts.append(text(x.start - 6, y(value) + 4, label, "t", "end"))
    parts.append(line("axis", x.start, y.start, x.end, y.start))
    longest = max((width_of(label) for _, label in x.ticks(99)), default=1.0)
    for value, label in x.ticks(max(2, min(int((x.end - x.start) / (longest + 14)), 9))):
        parts.append(line("axis", x(value), y.start, x(value), y.start + 4))
        parts.append(text(x(value), y.start + 16, label, "t", "middle"))
    parts.append(text((x.start + x.end) / 2, y.start + 33, chart.x.label, "a", "middle"))
    return parts


def _draw_series(chart: Chart, one: Series, x: Scale, y: Scale) -> Markup:
    # What lies beyond the axis is drawn at its edge.
    at = [(x(a), min(max(y(b), y.end), y.start)) for a, b in zip(one.x, one.y, strict=True)]
    parts = [element("title", one.name)]
    if len(at) > 1:
        points = " ".join(f"{plain(a)},{plain(b)}" for a, b in at)
        parts.append(element("polyline", points=points, class_="l", stroke_dasharray=dash_of(one.style)))
    every = 1 if one.area else ceil(len(at) * _BETWEEN_MARKERS / (x.end - x.start))
    for n in range((len(at) - 1) % every, len(at), every):
        tooltip = f"{one.name}, {chart.x.format_value(one.x[n])}: {chart.y.format_value(one.y[n])}"
        size = 1.2 + (x.end - x.start) / 34 * sqrt(one.area[n]) if one.area else 3.0
        parts.append(marker(0 if one.area else one.style, *at[n], size, tooltip))
    return element("g", *parts, class_=class_of(one.style))


# Bars.

_ROW = 21.0


def _draw_bars(panel: Bars, width: float) -> Drawing:
    left = min(max((width_of(bar.name) for bar in panel.bars), default=0.0), 0.45 * width) + 10
    values = [v for bar in panel.bars for v in (bar.value, bar.low, bar.high) if v is not None]
    low, high = min([panel.base, *values]), max([panel.base, *values])
    low, high = (low, high) if high > low else (panel.base, panel.base + 1.0)
    room = max((width_of(_say_value(panel, bar)) + 16 for bar in panel.bars), default=0.0)  # values stand in a column
    scale, top = Scale(panel.axis, low, high, left, width - room), 22.0
    foot = top + _ROW * len(panel.bars)
    parts = [text(0, 13, shorten(panel.title, 1.05 * width), "h")]
    for value, label in scale.ticks(max(2, min(int((scale.end - left) / 64), 6))):
        parts.append(line("grid", scale(value), top, scale(value), foot))
        parts.append(text(scale(value), foot + 14, label, "t", "middle"))
    parts.append(line("axis", scale(panel.base), top, scale(panel.base), foot))
    parts += [_draw_bar(panel, bar, scale, top + _ROW * number, width) for number, bar in enumerate(panel.bars)]
    half = width_of(panel.axis.label) / 2
    parts.append(text(min(max((left + scale.end) / 2, half), width - half), foot + 31, panel.axis.label, "a", "middle"))
    return Drawing(width, foot + 36.0, panel.words, Markup("").join(parts))


def _draw_bar(panel: Bars, bar: Bar, scale: Scale, top: float, width: float) -> Markup:
    middle = top + _ROW / 2
    parts = [text(scale.start - 7, middle + 4, shorten(bar.name, scale.start - 10), "n", "end")]
    if bar.value is not None:
        a, b = sorted((scale(panel.base), scale(bar.value)))
        tooltip = element("title", f"{bar.name}: {_say_value(panel, bar)}")
        shape = {"x": a, "y": top + 4, "width": max(b - a, 1.0), "height": _ROW - 8}
        parts.append(element("rect", tooltip, **shape, class_="b" if bar.sure else "b hollow"))
        if bar.low is not None and bar.high is not None:
            reach = f"M{plain(scale(bar.low))} {plain(middle)}H{plain(scale(bar.high))}"
            ends = "".join(f"M{plain(scale(end))} {plain(middle - 4)}v8" for end in (bar.low, bar.high))
            parts.append(element("path", d=reach + ends, class_="reach"))
    parts.append(text(width, middle + 4, _say_value(panel, bar), "v", "end"))
    return element("g", *parts, class_="s s0 ours" if bar.style == 0 else "s plain")  # one alone in colour


def _say_value(panel: Bars, bar: Bar) -> str:
    return bar.text or panel.axis.format_value(bar.value)


# Squares.

_HIGH, _GAP = 20.0, 8.0
_ROOM = 33.0
"""Pixels that a number takes; in smaller squares, only the tooltip has it."""


def _draw_squares(panel: Heat, width: float) -> Drawing:
    """Headings of columns are turned, so that squares can be small."""
    names = _widest(*panel.names)
    sides = [_widest(heading, *texts) for heading, texts in panel.beside]
    left, slant = names + sum(sides), _widest(*panel.columns)
    size = (width - left - 0.7 * slant) / max(len(panel.columns), 1)
    top = 26.0 + 0.75 * slant
    parts = [text(0, 13, shorten(panel.title, 1.05 * width), "h")]
    for n, heading in enumerate(panel.columns):
        turn = f"translate({plain(left + size * (n + 0.5) + 3)} {plain(top - 6)}) rotate(-45)"
        parts.append(element("text", heading, transform=turn, class_="t"))
    edges = [names + sum(sides[: n + 1]) - _GAP for n in range(len(sides))]
    columns = list(zip(edges, panel.beside, strict=True))
    parts += [text(edge, top - 6, heading, "t", "end") for edge, (heading, _) in columns]
    for row, name in enumerate(panel.names):
        base = top + _HIGH * row + 14
        parts.append(text(names - _GAP, base, name, "n", "end"))
        parts += [text(edge, base, texts[row], "v", "end") for edge, (_, texts) in columns]
        parts += [_draw_square(panel, row, n, left + size * n, base - 14, size) for n in range(len(panel.columns))]
    foot = top + _HIGH * len(panel.names)
    parts.append(text(0, foot + 15, shorten(panel.axis.label, width), "a"))
    return Drawing(width, foot + 22.0, panel.words, Markup("").join(parts))


def _widest(*texts: str) -> float:
    return max(map(width_of, texts), default=0.0) + _GAP


def _draw_square(panel: Heat, row: int, column: int, x: float, y: float, size: float) -> Markup:
    value, light = panel.values[row][column], panel.light[row][column]
    tooltip = element("title", f"{panel.names[row]}, {panel.columns[column]}: {panel.axis.format_value(value)}")
    strength = 0.0 if value is None else 0.65 * sqrt(min(max(value / panel.top, 0.0), 1.0))
    shape = {"x": x + 1, "y": y + 1, "width": size - 2, "height": _HIGH - 2}
    opacity = None if light else f"{strength:.2f}"
    parts = [element("rect", tooltip, **shape, class_="heat light" if light else "heat", fill_opacity=opacity)]
    if size >= _ROOM:
        parts.append(text(x + size / 2, y + 14, _abbreviate(value), "c", "middle"))
    return Markup("").join(parts)


def _abbreviate(value: float | None) -> str:
    """A number in few letters.

    >>> _abbreviate(0.01234), _abbreviate(-0.002), _abbreviate(3.19), _abbreviate(None)
    ('.0123', '-.0020', '3.19', 'n/a')
    """
    if value is None:
        return "n/a"
    return f"{value:.4f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.2f}"
