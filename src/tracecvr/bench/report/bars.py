"""Horizontal bars, as SVG."""

from __future__ import annotations

from markupsafe import Markup

from tracecvr.bench.report.elements import LINE, Drawing, Scale, element, line, plain, shorten, text, width_of
from tracecvr.bench.report.figure import Bar, Bars

_ROW = 21.0
_TOP, _BELOW = 22.0, 36.0
"""Pixels that the title takes, and the texts of the axis."""


def draw(panel: Bars, width: float) -> Drawing:
    """Names stand left of their bars, or above them where that would leave too little room."""
    longest = max((width_of(bar.name) for bar in panel.bars), default=0.0)
    above = longest > 0.38 * width
    left = 4.0 if above else longest + 10
    values = [v for bar in panel.bars for v in (bar.value, bar.low, bar.high) if v is not None]
    low, high = min([panel.base, *values]), max([panel.base, *values])
    low, high = (low, high) if high > low else (panel.base, panel.base + 1.0)
    room = max((width_of(_beside(panel, bar)) + 16 for bar in panel.bars), default=0.0)  # values stand in a column
    scale = Scale(panel.axis, low, high, left, width - room)
    row = _ROW + (LINE if above else 0.0)
    foot = _TOP + row * len(panel.bars)
    parts = [text(0, 13, shorten(panel.title, 1.05 * width), "h")]
    for value, label in scale.ticks(max(2, min(int((scale.end - left) / 64), 6))):
        parts.append(line("grid", scale(value), _TOP, scale(value), foot))
        parts.append(text(scale(value), foot + 14, label, "t", "middle"))
    parts.append(line("axis", scale(panel.base), _TOP, scale(panel.base), foot))
    for number, bar in enumerate(panel.bars):
        parts.append(_bar(panel, bar, scale, _TOP + row * number + (LINE if above else 0.0), above, width))
    middle = min(max((left + scale.end) / 2, width_of(panel.axis.label) / 2), width - width_of(panel.axis.label) / 2)
    parts.append(text(middle, foot + 31, panel.axis.label, "a", "middle"))
    return Drawing(width, foot + _BELOW, panel.words, Markup("").join(parts))


def _bar(panel: Bars, bar: Bar, scale: Scale, top: float, above: bool, width: float) -> Markup:
    middle = top + _ROW / 2
    if above:
        parts = [text(4, top - 1, shorten(bar.name, width - 8), "n")]
    else:
        parts = [text(scale.start - 7, middle + 4, bar.name, "n", "end")]
    if bar.value is not None:
        a, b = sorted((scale(panel.base), scale(bar.value)))
        tooltip = element("title", f"{bar.name}: {_beside(panel, bar)}")
        shape = {"x": a, "y": top + 4, "width": max(b - a, 1.0), "height": _ROW - 8}
        parts.append(element("rect", tooltip, **shape, class_="b" if bar.sure else "b hollow"))
        if bar.low is not None and bar.high is not None:
            reach = f"M{plain(scale(bar.low))} {plain(middle)}H{plain(scale(bar.high))}"
            ends = "".join(f"M{plain(scale(end))} {plain(middle - 4)}v8" for end in (bar.low, bar.high))
            parts.append(element("path", d=reach + ends, class_="reach"))
    parts.append(text(width, middle + 4, _beside(panel, bar), "v", "end"))
    return element("g", *parts, class_="s s0 ours" if bar.style == 0 else "s plain")  # ours alone in colour


def _beside(panel: Bars, bar: Bar) -> str:
    return bar.text or panel.axis.format_value(bar.value)
