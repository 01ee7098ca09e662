"""What a notebook shows, and progress while it waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from markupsafe import Markup, escape

from tracecvr.base.progress import Progress, no_progress
from tracecvr.bench.text_tables import Table, Text

_STYLE = Markup(
    "<style>.tracecvr table{border-collapse:collapse;margin:.4em 0}"
    ".tracecvr th,.tracecvr td{padding:.15em .7em;text-align:right;white-space:nowrap}"
    ".tracecvr th:first-child,.tracecvr td:first-child{text-align:left}"
    ".tracecvr td.text{text-align:left;white-space:normal}"
    ".tracecvr thead th{border-bottom:1px solid currentColor}"
    ".tracecvr p{margin:.3em 0;max-width:60em}</style>"
)


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
    """Parts of a page in a notebook's cell."""
    return str(Markup('<div class="tracecvr">{}{}</div>').format(_STYLE, Markup("").join(parts)))


def facts(title: str, content: Mapping[str, str]) -> Markup:
    """Names and what is to be said of them."""
    rows = [Markup('<tr><th>{}</th><td class="text">{}</td></tr>').format(*pair) for pair in content.items()]
    return Markup("<table><caption><b>{}</b></caption><tbody>{}</tbody></table>").format(title, Markup("").join(rows))


def table(content: Table) -> Markup:
    """A table of figures with its notes."""
    head = Markup("").join(Markup("<th>{}</th>").format(heading) for heading in content.headings)
    body = Markup("").join(_row(row) for row in content.rows)
    caption = Markup("<caption><b>{}</b></caption>").format(content.title)
    made = Markup("<table>{}<thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(caption, head, body)
    return made + paragraphs(content.notes)


def paragraphs(lines: Sequence[str]) -> Markup:
    """Sentences below a table."""
    return Markup("").join(Markup("<p>{}</p>").format(line) for line in lines)


def _row(row: Sequence[Text]) -> Markup:
    return Markup("<tr>{}</tr>").format(Markup("").join(Markup("<td>{}</td>").format(_place(one)) for one in row))


def _place(place: Text) -> Markup:
    if place.bold:
        return Markup("<b>{}</b>").format(place.text)
    return Markup("<u>{}</u>").format(place.text) if place.underline else escape(place.text)
