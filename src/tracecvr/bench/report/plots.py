"""Figures as files: PDF for papers, PNG for pages. Needs matplotlib: the extra `figures`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tracecvr.base.errors import UserError
from tracecvr.base.files import write_atomically
from tracecvr.bench.report.figure import Axis, Bars, Chart, Figure, Panel, Series
from tracecvr.bench.report.svg import limits

COLOURS = ("#bf4a00", "#1d1f21", "#2078b4", "#8a7400", "#a83f82", "#007f61", "#6a51c8", "#8c564b")
_GREY, _BAR, _SOFT = "#b4b7bc", "#8b93a0", "#5b6067"
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), "-", ":", "-.", "-", (0, (4, 1.5)), (0, (1, 1.5)))
_MARKERS = "osD^osD^"
_FIXED: Any = {
    "pdf.fonttype": 42,
    "font.size": 8,
    "xtick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "0",
}
_METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Producer": None, "Creator": "tracecvr"},
    "png": {"Software": "tracecvr"},
}
"""Neither dates nor versions, so that the same figures give the same bytes."""
_WIDTH = 7.0
_DPI = 150


def save(figures: Sequence[Figure], folder: Path, kinds: Sequence[str]) -> list[Path]:
    """One file per figure and kind, `pdf` or `png`."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise UserError("figures as files need matplotlib: pip install 'tracecvr[figures]'") from None
    folder.mkdir(exist_ok=True)
    written = []
    with mpl.rc_context(_FIXED):
        for figure in figures:
            canvas = drawn(figure)
            for kind in kinds:
                path = folder / f"{figure.key}.{kind}"
                keep = partial(canvas.savefig, format=kind, dpi=_DPI, metadata=_METADATA[kind])
                write_atomically(path, keep)
                written.append(path)
    return written


def drawn(figure: Figure) -> Any:
    """A figure of matplotlib with an axes for each panel."""
    from matplotlib.figure import Figure as Canvas

    columns = min(figure.columns, len(figure.panels))
    heights = _heights(figure, columns)
    canvas = Canvas(figsize=(_WIDTH, sum(heights)), layout="constrained")
    places = list(canvas.subplots(len(heights), columns, squeeze=False, height_ratios=heights).flat)
    for panel, place in zip(figure.panels, places, strict=False):
        _draw(panel, place, most_ticks=3 if columns > 2 else 6)
    for number, panel in enumerate(figure.panels):
        # Once in a row of panels, bars' names on the left and lines' on the right: long ones leave no room otherwise.
        if number % columns and isinstance(panel, Bars) and _names(panel) == _names(figure.panels[number - 1]):
            places[number].tick_params(labelleft=False)
        last = (number + 1) % columns == 0 or number + 1 == len(figure.panels)
        if isinstance(panel, Chart) and (last or _names(panel) != _names(figure.panels[number + 1])):
            _legend(panel, places[number])
    for place in places[len(figure.panels) :]:
        place.remove()
    return canvas


def _names(panel: Panel) -> list[str]:
    """Of bars, or of the lines that a legend tells apart."""
    if isinstance(panel, Bars):
        return [bar.name for bar in panel.bars]
    return [one.name for one in panel.series if one.style is not None]


def _legend(chart: Chart, place: Any) -> None:
    if len(_names(chart)) > 1:
        place.legend(fontsize=6, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _heights(figure: Figure, columns: int) -> list[float]:
    """Inches of each row of panels."""
    each = [0.6 + 0.17 * len(p.bars) if isinstance(p, Bars) else 1.2 * _WIDTH / columns / 2 for p in figure.panels]
    each = [max(height, 1.7) for height in each]
    return [max(each[n : n + columns]) for n in range(0, len(each), columns)]


def _draw(panel: Panel, place: Any, most_ticks: int) -> None:
    place.set_title(panel.title, loc="left", fontsize=8, fontweight="bold")
    if isinstance(panel, Bars):
        _bars(panel, place, min(most_ticks, 4))  # names take a part of the width
    else:
        _chart(panel, place, most_ticks)


def _bars(panel: Bars, place: Any, most_ticks: int) -> None:
    names = _names(panel)
    for n, bar in enumerate(panel.bars):
        if bar.value is None:
            continue
        colour = COLOURS[0] if bar.style == 0 else _BAR
        place.barh(n, bar.value, height=0.6, color=colour if bar.sure else "white", edgecolor=colour)
        if bar.low is not None and bar.high is not None:
            place.plot([bar.low, bar.high], [n, n], color="black", linewidth=0.8, marker="|", markersize=4)
    if panel.target is not None:
        place.axvline(panel.target, color=_SOFT, linewidth=0.7, linestyle=":")
    place.axvline(0, color=_SOFT, linewidth=0.7)
    place.set_yticks(range(len(names)), names, fontsize=7)
    place.invert_yaxis()
    place.set_xlabel(panel.axis.label)
    low, high = place.get_xlim()
    _set_ticks(place.set_xticks, panel.axis, low, high, most_ticks)


def _set_ticks(set_ticks: Any, axis: Axis, low: float, high: float, most: int) -> None:
    """As in the report: matplotlib's own are too many for a small panel."""
    ticks = axis.ticks(low, high, most)
    set_ticks([at for at, _ in ticks], [text for _, text in ticks])


def _chart(chart: Chart, place: Any, most_ticks: int) -> None:
    for one in sorted(chart.series, key=lambda one: one.style is not None):
        _line(chart, one, place)
    if chart.x.unit == "age":
        place.set_xscale("log")
    x_low, x_high = limits(chart.x, [x for one in chart.series for x in one.x], 0.07 if chart.scatter else 0.0)
    y_low, y_high = limits(chart.y, [y for one in chart.series for y in one.y])
    place.set(xlim=(x_low, x_high), ylim=(y_low, y_high), xlabel=chart.x.label, ylabel=chart.y.label)
    place.minorticks_off()
    for set_ticks, axis, low, high in (
        (place.set_xticks, chart.x, x_low, x_high),
        (place.set_yticks, chart.y, y_low, y_high),
    ):
        _set_ticks(set_ticks, axis, low, high, most_ticks)
    if chart.diagonal:
        place.plot([0, x_high], [0, x_high], color=_SOFT, linewidth=0.7, linestyle=":")
    if chart.level is not None:
        place.axhline(chart.level, color=_SOFT, linewidth=0.7, linestyle=":")
    for at, _ in chart.rules:
        place.axvline(at, color=_SOFT, linewidth=0.5, linestyle=":")


def _line(chart: Chart, one: Series, place: Any) -> None:
    if one.style is None:
        look: dict[str, Any] = {"color": _GREY, "linewidth": 0.6, "marker": "o" if chart.scatter else None}
    else:
        look = {"color": COLOURS[one.style], "marker": _MARKERS[one.style], "label": one.name}
        look |= {"linestyle": _DASHES[one.style], "linewidth": 1.6 if one.style == 0 else 1.0}
    look |= {"linestyle": "none"} if chart.scatter else {"markevery": max(1, len(one.x) // 8)}
    place.plot(one.x, one.y, markersize=3, **look)
