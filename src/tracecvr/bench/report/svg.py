"""Figures as SVG: panels for a page, or a whole figure as a document of its own; and figures as files.

In a page, colours are the page's (CSS), so that a drawing is light or dark with it. Sizes are pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from tracecvr.base.errors import UserError
from tracecvr.base.files import write_atomically
from tracecvr.bench.report import elements, palette
from tracecvr.bench.report.elements import Drawing, element, plain, text, width_of
from tracecvr.bench.report.figure import Figure
from tracecvr.bench.report.panels import draw

WIDE, GAP = 1000.0, 24.0
"""The width that figures are drawn for, and what is between panels."""

_MARGIN, _TITLE, _LEGEND = 16.0, 30.0, 20.0
_FONT = '"Liberation Sans", Arial, Helvetica, sans-serif'


def draw_panels(figure: Figure) -> list[Drawing]:
    columns = min(figure.columns, len(figure.panels))
    return [draw(panel, (WIDE - GAP * (columns - 1)) / columns) for panel in figure.panels]


def draw_swatch(style: int) -> Markup:
    return element("svg", elements.draw_swatch(style), viewBox="0 0 24 12", width=24, height=12, aria_hidden="true")


def write_document(figure: Figure) -> str:
    """A figure as the text of an SVG file, with all that it needs: for notebooks and files."""
    columns = min(figure.columns, len(figure.panels))
    parts = [text(0, 16, figure.title, "title")]
    top = _TITLE
    drawings = draw_panels(figure)
    for first in range(0, len(drawings), columns):
        row = drawings[first : first + columns]
        for number, drawing in enumerate(row):
            parts.append(_move(drawing.content, number * (drawing.width + GAP), top, drawing.words))
        top += max(drawing.height for drawing in row) + GAP / 2
    legend, height = _draw_legend(figure)
    parts.append(_move(legend, 0.0, top))
    size = WIDE + 2 * _MARGIN, top + height + 2 * _MARGIN
    style = f"text {{ font-family: {_FONT}; }}\n.plot .title {{ font-size: 16px; font-weight: 600; }}\n"
    return str(
        element(
            "svg",
            element("title", figure.title),
            element("desc", figure.caption),
            element("style", Markup(palette.fill_in(style + palette.read_style_sheet("plot.css")))),
            element("rect", width=size[0], height=size[1], fill=palette.fill_in("var(--paper)")),
            _move(Markup("").join(parts), _MARGIN, _MARGIN),
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {plain(size[0])} {plain(size[1])}",
            width=size[0],
            height=size[1],
            class_="plot",
        )
    )


def _move(content: Markup, x: float, y: float, words: str | None = None) -> Markup:
    return element("g", content, transform=f"translate({plain(x)} {plain(y)})", aria_label=words)


def _draw_legend(figure: Figure) -> tuple[Markup, float]:
    """Entries from left to right, in as many lines as it takes; and their height."""
    parts, left, base = [], 0.0, 12.0
    for name, style in figure.legend().items():
        wide = 32 + width_of(name) + 14
        if left and left + wide > WIDE:
            left, base = 0.0, base + _LEGEND
        parts.append(_move(elements.draw_swatch(style), left, base - 10))
        parts.append(text(left + 30, base, name))
        left += wide
    return Markup("").join(parts), base + 4 if parts else 0.0


# Files: PNG for pages, PDF for papers, SVG for both.
# PNG and PDF need the extra `figures`, which turns the SVG into them. It has its own fonts, so that files look alike on
# every machine. The same figure gives the same bytes as SVG and PNG. As PDF it gives the same pages, but their objects
# come in another order each time.

KINDS = ("pdf", "png", "svg")
_SCALE = 1.5
"""Pixels of a PNG for each pixel of the drawing."""


def save(figures: Sequence[Figure], folder: Path, kinds: Sequence[str]) -> list[Path]:
    folder.mkdir(exist_ok=True)
    return [save_one(figure, folder / f"{figure.key}.{kind}", kind) for figure in figures for kind in kinds]


def save_one(figure: Figure, path: Path, kind: str) -> Path:
    """A figure as a file of one kind; returns its path."""
    content = _convert(write_document(figure), kind)

    def write(draft: Path) -> None:
        draft.write_bytes(content)

    write_atomically(path, write)
    return path


def _convert(document: str, kind: str) -> bytes:
    if kind == "svg":
        return document.encode()
    try:
        import vl_convert
    except ImportError:
        raise UserError("figures as PNG or PDF need vl-convert: pip install 'tracecvr[figures]'") from None
    return bytes(vl_convert.svg_to_pdf(document) if kind == "pdf" else vl_convert.svg_to_png(document, scale=_SCALE))
