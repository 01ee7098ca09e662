"""Figures as SVG: panels for a page, or a whole figure as a document of its own; and figures as files.

In a page, colours are the page's (CSS), so that a drawing is light or dark with it. Sizes are pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from tracecvr.base.errors import UserError
from tracecvr.base.files import write_atomically
from tracecvr.bench.report.drawing import Drawing, draw, fill_in, read_style_sheet, width_of, write
from tracecvr.bench.report.figure import Figure

WIDE, GAP = 1000.0, 24.0
"""The width that figures are drawn for, and what is between panels."""

_MARGIN, _TITLE, _LEGEND = 16.0, 30.0, 20.0
_FONT = '"Liberation Sans", Arial, Helvetica, sans-serif'


def draw_panels(figure: Figure) -> list[Drawing]:
    columns = min(figure.columns, len(figure.panels))
    return [draw(panel, (WIDE - GAP * (columns - 1)) / columns) for panel in figure.panels]


def write_document(figure: Figure) -> str:
    """A figure as the text of an SVG file, with all that it needs: for notebooks and files."""
    columns, top, parts = min(figure.columns, len(figure.panels)), _TITLE, []
    drawings = draw_panels(figure)
    for first in range(0, len(drawings), columns):
        row = drawings[first : first + columns]
        parts += [(drawing, number * (drawing.width + GAP), top) for number, drawing in enumerate(row)]
        top += max(drawing.height for drawing in row) + GAP / 2
    entries, height = _place_legend(figure, top)
    style = f"text {{ font-family: {_FONT}; }}\n.plot .title {{ font-size: 16px; font-weight: 600; }}\n"
    css = Markup(fill_in(style + read_style_sheet("plot.css")))
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

KINDS = ("pdf", "png", "svg")
_SCALE = 1.5
"""Pixels of a PNG for each pixel of the drawing."""


def save(figures: Sequence[Figure], folder: Path, kinds: Sequence[str]) -> list[Path]:
    folder.mkdir(exist_ok=True)
    return [save_one(figure, folder / f"{figure.key}.{kind}", kind) for figure in figures for kind in kinds]


def save_one(figure: Figure, path: Path, kind: str) -> Path:
    """A figure as a file of one kind; returns its path."""
    content = _convert(write_document(figure), kind)
    write_atomically(path, lambda draft: draft.write_bytes(content))
    return path


def _convert(document: str, kind: str) -> bytes:
    if kind == "svg":
        return document.encode()
    try:
        import vl_convert
    except ImportError:
        raise UserError("figures as PNG or PDF need vl-convert: pip install 'tracecvr[figures]'") from None
    return bytes(vl_convert.svg_to_pdf(document) if kind == "pdf" else vl_convert.svg_to_png(document, scale=_SCALE))
