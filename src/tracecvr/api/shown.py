"""What a notebook shows: tables, figures, and progress while it waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from markupsafe import Markup

from tracecvr.base.progress import Progress, no_progress
from tracecvr.bench.report import drawing
from tracecvr.bench.report.drawing import Figure

_STYLE = Markup(
    "<style>.tracecvr table{border-collapse:collapse;margin:.4em 0}"
    ".tracecvr th,.tracecvr td{padding:.15em .7em;text-align:right;white-space:nowrap}"
    ".tracecvr th:first-child,.tracecvr td:first-child{text-align:left}"
    ".tracecvr td.text{text-align:left;white-space:normal}"
    ".tracecvr thead th{border-bottom:1px solid currentColor}"
    ".tracecvr p{margin:.3em 0;max-width:60em}</style>"
)


@dataclass(frozen=True)
class Picture:
    """A figure that shows itself in a notebook."""

    figure: Figure

    def markup(self) -> Markup:
        """The figure as SVG, with its caption."""
        return Markup(drawing.write_document(self.figure)) + Markup("<p>{}</p>").format(self.figure.caption)

    def _repr_html_(self) -> str:
        return str(self.markup())


@contextmanager
def progress(wanted: bool, title: str = "") -> Iterator[Progress]:
    """A bar on a terminal, a line now and then elsewhere; nothing if it is not wanted."""
    if not wanted:
        yield no_progress
        return
    from rich.console import Console

    from tracecvr.base.progress_display import Display

    # In a notebook, rich would ask for ipywidgets: lines do.
    with Display(Console(stderr=True, force_jupyter=False), title) as display:
        yield display


def page(*parts: Markup) -> str:
    return str(Markup('<div class="tracecvr">{}{}</div>').format(_STYLE, Markup("").join(parts)))
