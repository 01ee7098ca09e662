"""Lines over an axis, as SVG."""

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
from tracecvr.bench.report.figure import Chart, Series

_BETWEEN_MARKERS = 50.0
"""Pixels from one marker of a line to the next, at least."""

_ABOVE, _BELOW = 30.0, 40.0
"""Pixels that the title takes, and the texts of the horizontal axis."""


def draw(chart: Chart, width: float) -> Drawing:
    """A chart of that width."""
    shown = [one for one in chart.series if one.x]
    height = width + 12 if chart.diagonal else max(min(0.46 * width, 380.0), 250.0)
    levels = [] if chart.level is None else [chart.level]
    y_limits = limits(chart.y, [*levels, *(y for one in shown for y in one.y)])
    x_limits = limits(chart.x, [x for one in shown for x in one.x], room=0.0)
    y = Scale(chart.y, *y_limits, height - _BELOW, _ABOVE if chart.title else 12)
    y_ticks = y.ticks(6)
    left = 14 + max((width_of(label) for _, label in y_ticks), default=0.0)
    x = Scale(chart.x, *x_limits, left, width - 14.0)
    parts = [_axes(chart, x, y, y_ticks), *_guides(chart, x, y)]
    parts += [_series(chart, one, x, y) for one in sorted(shown, key=lambda one: -one.style)]
    return Drawing(width, height, chart.words, Markup("").join(parts))


def _axes(chart: Chart, x: Scale, y: Scale, y_ticks: list[tuple[float, str]]) -> Markup:
    parts = [text(0, 13, shorten(chart.title, 1.05 * x.end), "h")] if chart.title else []
    for value, label in y_ticks:
        parts.append(line("grid", x.start, y(value), x.end, y(value)))
        parts.append(text(x.start - 6, y(value) + 4, label, "t", "end"))
    parts.append(line("axis", x.start, y.start, x.end, y.start))
    longest = max((width_of(label) for _, label in x.ticks(99)), default=1.0)
    for value, label in x.ticks(max(2, min(int((x.end - x.start) / (longest + 14)), 9))):
        parts.append(line("axis", x(value), y.start, x(value), y.start + 4))
        parts.append(text(x(value), y.start + 16, label, "t", "middle"))
    parts.append(text((x.start + x.end) / 2, y.start + 33, chart.x.label, "a", "middle"))
    return Markup("").join(parts)


def _guides(chart: Chart, x: Scale, y: Scale) -> list[Markup]:
    """What values are compared with: the diagonal, or a level."""
    parts = []
    if chart.diagonal:
        top = min(x.high, y.high)
        parts.append(line("rule", x(0), y(0), x(top), y(top)))
    if chart.level is not None and y.low <= chart.level <= y.high:
        parts.append(line("level", x.start, y(chart.level), x.end, y(chart.level)))
    return parts


def _series(chart: Chart, one: Series, x: Scale, y: Scale) -> Markup:
    at = [(x(a), _inside(y, b)) for a, b in zip(one.x, one.y, strict=True)]
    parts = [element("title", one.name)]
    if len(at) > 1:
        points = " ".join(f"{plain(a)},{plain(b)}" for a, b in at)
        parts.append(element("polyline", points=points, class_="l", stroke_dasharray=dash_of(one.style)))
    every = 1 if one.area else ceil(len(at) * _BETWEEN_MARKERS / (x.end - x.start))
    for n in range((len(at) - 1) % every, len(at), every):
        tooltip = f"{one.name}, {chart.x.format_value(one.x[n])}: {chart.y.format_value(one.y[n])}"
        if one.area:
            size = 1.2 + (x.end - x.start) / 34 * sqrt(one.area[n])
            parts.append(element("circle", element("title", tooltip), cx=at[n][0], cy=at[n][1], r=size, class_="m"))
        else:
            parts.append(marker(one.style, *at[n], 3.0, tooltip))
    return element("g", *parts, class_=class_of(one.style))


def _inside(y: Scale, value: float) -> float:
    """What lies beyond the axis is drawn at its edge."""
    return min(max(y(value), y.end), y.start)
