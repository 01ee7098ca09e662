"""Panels as SVG text. Colours are the page's (CSS), so that a drawing is light or dark with it; sizes are pixels.

A panel is drawn for a width, once for wide screens and once for phones, so that its text keeps its size on both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isfinite, log, sqrt

from markupsafe import Markup, escape

from tracecvr.bench.report.figure import STYLES, Axis, Bar, Bars, Chart, Panel, Series

LINE = 15.0
"""Height of a line of text."""

DASHES = ("", "7 3", "", "2 3", "9 3 2 3", "", "5 2", "1 2")
MARKERS = ("circle", "square", "diamond", "triangle", "circle", "square", "diamond", "triangle")
_BETWEEN_MARKERS = 50.0
"""Pixels from one marker of a line to the next, at least."""

_ROW = 21.0


def drawn(panel: Panel, width: float, keys: dict[str, int]) -> Markup:
    """A panel of that width; `keys` number the series of its figure, for the page's script."""
    return _bars(panel, width) if isinstance(panel, Bars) else _chart(panel, width, keys)


def swatch(style: int | None) -> Markup:
    """A short piece of a line, for legends."""
    mark = _marker(style, 12, 6, 3.6) if style is not None else Markup("")
    line = _element("path", d="M1 6H23", class_="l", stroke_dasharray=_dash(style))
    return _element(
        "svg", line, mark, class_=_class(style), viewBox="0 0 24 12", width=24, height=12, aria_hidden="true"
    )


# Primitives.


def _element(name: str, *children: Markup | str, **attributes: object) -> Markup:
    """An element; attributes that are None are left out, underscores stand for hyphens."""
    given = Markup("").join(
        Markup(' {}="{}"').format(Markup(key.rstrip("_").replace("_", "-") if key != "viewBox" else key), _plain(value))
        for key, value in attributes.items()
        if value is not None and value != ""
    )
    inside = Markup("").join(escape(child) for child in children)
    tag = Markup(name)
    return Markup("<{}{}>{}</{}>").format(tag, given, inside, tag) if inside else Markup("<{}{}/>").format(tag, given)


def _plain(value: object) -> str:
    """Numbers short, so that pages are small.

    >>> _plain(12.30), _plain(-0.04), _plain("a")
    ('12.3', '0', 'a')
    """
    if isinstance(value, float):
        return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")
    return str(value)


def _text(x: float, y: float, content: str, class_: str = "", anchor: str | None = None) -> Markup:
    return _element("text", content, x=x, y=y, class_=class_, text_anchor=anchor)


def _class(style: int | None) -> str:
    return "s other" if style is None else f"s s{style % STYLES}"


def _dash(style: int | None) -> str | None:
    return None if style is None else DASHES[style % STYLES]


def _marker(style: int | None, x: float, y: float, r: float, title: str = "") -> Markup:
    """A point; its shape goes with the style, so that colour is not all that tells methods apart."""
    shape = "circle" if style is None else MARKERS[style % STYLES]
    tooltip = _element("title", title) if title else ""
    if shape == "circle":
        return _element("circle", tooltip, cx=x, cy=y, r=r, class_="m")
    if shape == "square":
        return _element("rect", tooltip, x=x - 0.9 * r, y=y - 0.9 * r, width=1.8 * r, height=1.8 * r, class_="m")
    n = _plain
    if shape == "diamond":
        r *= 1.3
        return _element(
            "path", tooltip, d=f"M{n(x)} {n(y - r)}l{n(r)} {n(r)} {n(-r)} {n(r)} {n(-r)} {n(-r)}z", class_="m"
        )
    r *= 1.2
    return _element("path", tooltip, d=f"M{n(x)} {n(y - r)}l{n(r)} {n(1.8 * r)}h{n(-2 * r)}z", class_="m")


def _figure(width: float, height: float, words: str, *children: Markup) -> Markup:
    return _element(
        "svg", *children, viewBox=f"0 0 {_plain(width)} {_plain(height)}", role="img", aria_label=words, class_="plot"
    )


@dataclass(frozen=True)
class _Scale:
    """Values of an axis to pixels."""

    axis: Axis
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (self.end - self.start) * self._share(value)

    def _share(self, value: float) -> float:
        if self.axis.unit == "age":
            return log(max(value, self.low) / self.low) / log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        return self.axis.ticks(self.low, self.high, most)


def limits(axis: Axis, values: Sequence[float], room: float = 0.04) -> tuple[float, float]:
    """From where to where an axis goes: as it says, else as far as its values, with a little room."""
    finite = [value for value in values if isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if axis.unit == "age":
        return axis.low or max(low, 1.0), max(axis.high or high, 2.0)
    if axis.unit == "places":
        return -0.3, max(len(axis.places) - 0.7, 0.3)
    spare = room * (high - low) if high > low else 0.05 * abs(high) or 1.0
    return (low - spare if axis.low is None else axis.low), (high + spare if axis.high is None else axis.high)


# Charts.


def _chart(chart: Chart, width: float, keys: dict[str, int]) -> Markup:
    named = [one for one in chart.series if one.style is not None and one.x]
    beside = chart.labels and not chart.scatter and len(named) > 1
    room = min(max((_wide(one.name) for one in named), default=0.0), 0.3 * width)
    beside = beside and len({_cut(one.name, room) for one in named}) == len(named)  # else the legend has to do
    right = room + 18 if beside else 14.0
    height = width + 12 if chart.diagonal else max(min(0.46 * width, 380.0), 250.0)
    y_low, y_high = limits(chart.y, [y for one in chart.series for y in one.y])
    x_low, x_high = limits(chart.x, [x for one in chart.series for x in one.x], room=0.07 if chart.scatter else 0.0)
    y = _Scale(chart.y, y_low, y_high, height - 40, 30 if chart.title else 12)
    y_ticks = y.ticks(6)
    left = 14 + max((_wide(text) for _, text in y_ticks), default=0.0)
    x = _Scale(chart.x, x_low, x_high, left, width - right)
    parts = [_axes(chart, x, y, y_ticks)]
    order = sorted(chart.series, key=lambda one: (one.style is not None, -(one.style or 0)))  # ours on top
    parts += [_series(chart, one, x, y, keys[one.name]) for one in order if one.x]
    if beside:
        parts.append(_names(named, x, y, keys, room))
    if chart.scatter:
        parts.append(_point_names(chart.series, x, y, keys, width))
    return _figure(width, height, chart.words(), *parts)


def _axes(chart: Chart, x: _Scale, y: _Scale, y_ticks: list[tuple[float, str]]) -> Markup:
    parts = [_text(0, 13, _cut(chart.title, 1.05 * x.end), "h")] if chart.title else []
    for value, text in y_ticks:
        parts.append(_element("path", d=f"M{_plain(x.start)} {_plain(y(value))}H{_plain(x.end)}", class_="grid"))
        parts.append(_text(x.start - 6, y(value) + 4, text, "t", "end"))
    parts.append(_element("path", d=f"M{_plain(x.start)} {_plain(y.start)}H{_plain(x.end)}", class_="axis"))
    longest = max((_wide(text) for _, text in x.ticks(99)), default=1.0)
    for value, text in x.ticks(max(2, min(int((x.end - x.start) / (longest + 14)), 9))):
        parts.append(_element("path", d=f"M{_plain(x(value))} {_plain(y.start)}v4", class_="axis"))
        parts.append(_text(x(value), y.start + 16, text, "t", "middle"))
    parts.append(_text((x.start + x.end) / 2, y.start + 33, chart.x.label, "a", "middle"))
    if chart.diagonal:
        top = min(x.high, y.high)
        ends = f"M{_plain(x(0))} {_plain(y(0))}L{_plain(x(top))} {_plain(y(top))}"
        parts.append(_element("path", d=ends, class_="rule"))
    if chart.level is not None and y.low <= chart.level <= y.high:
        parts.append(_element("path", d=f"M{_plain(x.start)} {_plain(y(chart.level))}H{_plain(x.end)}", class_="rule"))
    for at, text in chart.rules:
        if x.low <= at <= x.high:
            parts.append(_element("path", d=f"M{_plain(x(at))} {_plain(y.start)}V{_plain(y.end)}", class_="rule"))
            before = x(at) + _wide(text) + 6 > x.end
            parts.append(_text(x(at) + (-4 if before else 4), y.start - 7, text, "t", "end" if before else None))
    return Markup("").join(parts)


def _series(chart: Chart, one: Series, x: _Scale, y: _Scale, key: int) -> Markup:
    at = [(x(a), min(max(y(b), y.end), y.start)) for a, b in zip(one.x, one.y, strict=True)]
    parts = [_element("title", one.name)]
    if not chart.scatter and len(at) > 1:
        points = " ".join(f"{_plain(a)},{_plain(b)}" for a, b in at)
        parts.append(_element("polyline", points=points, class_="l", stroke_dasharray=_dash(one.style)))
    if one.style is not None or chart.scatter or len(at) == 1:
        every = 1 if one.area or chart.scatter else ceil(len(at) * _BETWEEN_MARKERS / (x.end - x.start))
        for n in range((len(at) - 1) % every, len(at), every):
            tooltip = f"{one.name}, {chart.x.shown(one.x[n])}: {chart.y.shown(one.y[n])}"
            if one.area:
                size = 1.2 + (x.end - x.start) / 34 * sqrt(one.area[n])
                parts.append(
                    _element("circle", _element("title", tooltip), cx=at[n][0], cy=at[n][1], r=size, class_="m")
                )
            else:
                parts.append(_marker(one.style, *at[n], 4.5 if chart.scatter else 3.0, tooltip))
    return _element("g", *parts, class_=_class(one.style), data_k=key)


def _names(named: Sequence[Series], x: _Scale, y: _Scale, keys: dict[str, int], room: float) -> Markup:
    """Names beside the lines' ends, moved apart where they would overlap."""
    wanted = sorted((min(max(y(one.y[-1]), y.end), y.start), one.name, one) for one in named)
    parts = []
    for at, (_, _, one) in zip(apart([w[0] for w in wanted], y.start), wanted, strict=True):
        end = x(one.x[-1]), min(max(y(one.y[-1]), y.end), y.start)
        lead = f"M{_plain(end[0] + 4)} {_plain(end[1])}L{_plain(x.end + 8)} {_plain(at)}"
        name = _text(x.end + 11, at + 4, _cut(one.name, room), "n")
        parts.append(
            _element(
                "g", _element("path", d=lead, class_="lead"), name, class_=_class(one.style), data_k=keys[one.name]
            )
        )
    return Markup("").join(parts)


def _point_names(series: Sequence[Series], x: _Scale, y: _Scale, keys: dict[str, int], width: float) -> Markup:
    """Names beside points, where they cover neither a point nor another name; else the legend has to do."""
    points = [(x(a), y(b)) for one in series for a, b in zip(one.x, one.y, strict=True)]
    taken = [(a - 4, b - 4, a + 4, b + 4) for a, b in points]
    parts = []
    for one in sorted((one for one in series if one.style is not None), key=lambda one: one.style or 0):
        a, b, wide = x(one.x[-1]), y(one.y[-1]), 1.12 * _wide(one.name)
        places = [(a + 8, b + 4), (a - 8 - wide, b + 4), (a - wide / 2, b - 9), (a - wide / 2, b + 18)]
        for left, base in places:
            box = (left, base - 11, left + wide, base + 3)
            inside = left >= x.start and left + wide <= width and base - 11 >= y.end - 8 and base <= y.start
            if inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                label = _text(left, base, one.name, "n")
                parts.append(_element("g", label, class_=_class(one.style), data_k=keys[one.name]))
                break
    return Markup("").join(parts)


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def apart(wanted: Sequence[float], high: float, gap: float = LINE - 1) -> list[float]:
    """Rising positions moved so that none is closer than `gap` to the next, and none is above `high`.

    >>> apart([10, 12, 50], 60, 10)
    [10, 20, 50]
    >>> apart([55, 58], 60, 10)
    [50.0, 60.0]
    """
    places = list(wanted)
    for n in range(1, len(places)):
        places[n] = max(places[n], places[n - 1] + gap)
    if places and places[-1] > high:
        places[-1] = float(high)
        for n in range(len(places) - 2, -1, -1):
            places[n] = float(min(places[n], places[n + 1] - gap))
    return places


def _wide(text: str) -> float:
    """About how many pixels a text takes; rather too many, since fonts differ."""
    return sum(8.4 if c.isupper() or c in "mw+=%…" else 4.2 if c in "ijlrtf.,:;'()[]| " else 7.2 for c in text)


def _cut(text: str, room: float) -> str:
    """A text, or as much of it as there is room for.

    >>> _cut("short", 40), _cut("a long one", 40)
    ('short', 'a lon…')
    """
    if _wide(text) <= room:
        return text
    while text and _wide(text + "…") > room:
        text = text[:-1]
    return text.rstrip() + "…"


# Bars.


def _bars(panel: Bars, width: float) -> Markup:
    """Names stand left of their bars, or above them where that would leave too little room."""
    longest = max((_wide(bar.name) for bar in panel.bars), default=0.0)
    above = longest > 0.38 * width
    left = 4.0 if above else longest + 10
    values = [v for bar in panel.bars for v in (bar.value, bar.low, bar.high) if v is not None]
    low, high = min([0.0, *values]), max([0.0, *values])
    texts = [_wide(_beside(panel, bar)) + 16 for bar in panel.bars]
    room = max(texts, default=0.0)  # texts stand right of all that is drawn, in a column
    low, high = (low, high) if high > low else (0.0, 1.0)
    scale = _Scale(panel.axis, low, high, left, width - room)
    row = _ROW + (LINE if above else 0.0)
    top = 22.0
    height = top + row * len(panel.bars) + 36
    foot = height - 36
    parts = [_text(0, 13, panel.title, "h")]
    for value, text in scale.ticks(max(2, min(int((scale.end - left) / 64), 6))):
        parts.append(_element("path", d=f"M{_plain(scale(value))} {_plain(top)}V{_plain(foot)}", class_="grid"))
        parts.append(_text(scale(value), foot + 14, text, "t", "middle"))
    parts.append(_element("path", d=f"M{_plain(scale(0.0))} {_plain(top)}V{_plain(foot)}", class_="axis"))
    for number, bar in enumerate(panel.bars):
        parts.append(_bar(panel, bar, scale, top + row * number + (LINE if above else 0.0), above, width))
    if panel.target is not None and low <= panel.target <= high:
        parts.append(_element("path", d=f"M{_plain(scale(panel.target))} {_plain(top)}V{_plain(foot)}", class_="rule"))
    parts.append(_text((left + scale.end) / 2, foot + 31, panel.axis.label, "a", "middle"))
    return _figure(width, height, panel.words(), *parts)


def _bar(panel: Bars, bar: Bar, scale: _Scale, top: float, above: bool, width: float) -> Markup:
    middle = top + _ROW / 2
    name = (
        _text(4, top - 1, _cut(bar.name, width - 8), "n")
        if above
        else _text(scale.start - 7, middle + 4, bar.name, "n", "end")
    )
    parts = [name]
    if bar.value is not None:
        a, b = sorted((scale(0.0), scale(bar.value)))
        tooltip = _element("title", f"{bar.name}: {_beside(panel, bar)}")
        shape = {"x": a, "y": top + 4, "width": max(b - a, 1.0), "height": _ROW - 8}
        parts.append(_element("rect", tooltip, **shape, class_="b" if bar.sure else "b hollow"))
        if bar.low is not None and bar.high is not None:
            reach = f"M{_plain(scale(bar.low))} {_plain(middle)}H{_plain(scale(bar.high))}"
            ends = "".join(f"M{_plain(scale(end))} {_plain(middle - 4)}v8" for end in (bar.low, bar.high))
            parts.append(_element("path", d=reach + ends, class_="reach"))
    parts.append(_text(width, middle + 4, _beside(panel, bar), "v", "end"))
    return _element("g", *parts, class_="s s0" if bar.style == 0 else "s plain")  # ours alone in colour


def _beside(panel: Bars, bar: Bar) -> str:
    return bar.text or panel.axis.shown(bar.value)
