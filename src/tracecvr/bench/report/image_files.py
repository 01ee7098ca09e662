"""Figures as files: PNG for pages, PDF for papers, SVG for both.

PNG and PDF need the extra `figures`, which turns the SVG into them. It has its own fonts, so that files look alike on
every machine. The same figure gives the same bytes as SVG and PNG. As PDF it gives the same pages, but their objects
come in another order each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tracecvr.base.errors import UserError
from tracecvr.base.files import write_atomically
from tracecvr.bench.report import svg
from tracecvr.bench.report.figure import Figure

KINDS = ("pdf", "png", "svg")
_SCALE = 1.5
"""Pixels of a PNG for each pixel of the drawing."""


def save(figures: Sequence[Figure], folder: Path, kinds: Sequence[str]) -> list[Path]:
    folder.mkdir(exist_ok=True)
    return [save_one(figure, folder / f"{figure.key}.{kind}", kind) for figure in figures for kind in kinds]


def save_one(figure: Figure, path: Path, kind: str) -> Path:
    """A figure as a file of one kind; returns its path."""
    content = _convert(svg.write_document(figure), kind)

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
