"""`report.html`: what a bench found, in one file that opens without a network.

The figure that decides stands first, with one sentence that says what came out; then the other figures, then tables.
Figures are SVG, drawn here: small, printable, light or dark with the page, and readable without the script, which adds
nothing but a switch of the theme and highlighting. A chart library's script alone would be ten times the page. The same
SVG, with its colours filled in, becomes files (`--png`, `--pdf`, `--svg`) and pictures in notebooks (`svg.document`).

Rooms: a bench becomes sentences (`sentences`) and figures (`figures`, with `comparisons`, `over_time`, `log_figures`
and what they share, `scene`). A figure is data (`figure`). It is drawn by `charts` and `bars` out of `elements` with
the colours of `palette`; `svg` puts panels together, `image_files` writes files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import polars as pl
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from tracecvr.base.durations import log_day
from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json, write_text
from tracecvr.base.glossary import TERMS, Term, meaning_of, terms_in
from tracecvr.bench import results, segments
from tracecvr.bench.outcome import Outcome
from tracecvr.bench.report import image_files, palette, svg
from tracecvr.bench.report.figure import Figure
from tracecvr.bench.report.figures import figures
from tracecvr.bench.report.sentences import headline, summary
from tracecvr.bench.suite import Cell, Row
from tracecvr.bench.tables import learning_of, of_layout
from tracecvr.bench.text_tables import Table


def write(out: Path, kinds: Sequence[str] = ()) -> list[Path]:
    """Draw the report of a bench, finished or not, and each figure as a file of each kind. Returns what was written."""
    outcome = open_bench(out)
    made = figures(outcome)
    write_text(out / "report.html", _page(outcome, made))
    written = [out / "report.html"]
    return written + (image_files.save(made, out / "figures", kinds) if kinds else [])


def open_bench(out: Path) -> Outcome:
    """What a bench directory holds by now; cells that were finished since its results were written are gathered."""
    if not (out / "bench.json").is_file():
        raise UserError(f"{out}: no bench.json: give the directory that `tracecvr bench` wrote as --out")
    bench = read_json(out / "bench.json")
    cells = [
        Cell(Row(**row | {"plugins": tuple(row["plugins"])}), seed) for row in bench["rows"] for seed in bench["seeds"]
    ]
    path = out / "results.parquet"
    known = set(pl.read_parquet(path, columns=["cell"])["cell"]) if path.is_file() else None
    if known is None or any(
        cell.name not in known and results.is_finished(out / "cells" / cell.name) for cell in cells
    ):
        results.write(out, cells)
    return Outcome(out)


_ALARMS = 5
"""Alarms that the page shows."""

# The page.


@dataclass(frozen=True)
class _Drawn:
    """A figure with its drawings and its data as tables."""

    figure: Figure
    wide: list[Markup]
    narrow: list[Markup]
    whole: list[Markup]
    legend: list[tuple[int, str, Markup]]
    tables: list[Table]


def _page(outcome: Outcome, made: list[Figure]) -> str:
    ours = outcome.of_role("ours")
    content = {
        "bench": outcome.bench,
        "suite": outcome.suite,
        "clicks": max(outcome.results["clicks"], default=0),
        "conversions": max(outcome.results["conversions"], default=0),
        "ours": "" if ours is None else ours.name,
        "headline": headline(outcome),
        "sentences": summary(outcome),
        "unfinished": _unfinished(outcome),
        "facts": _facts(outcome),
        "command": _command(outcome.bench),
    }
    return render_page(content, made, _tables(outcome))


def render_page(content: Mapping[str, Any], made: list[Figure], tables: list[Table]) -> str:
    """The page of figures and tables; `content` is what else its template names."""
    room = resources.files(__name__)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["meaning"] = meaning_of
    template = environment.from_string((room / "page.html.j2").read_text(encoding="utf-8"))
    css = palette.variables() + svg.style_sheet() + (room / "page.css").read_text(encoding="utf-8")
    keys = {name: number for number, name in enumerate(dict.fromkeys(n for one in made for n in one.every_name()))}
    legend = _common_legend(made, keys)
    return (
        template.render(
            content,
            css=Markup(css),
            js=Markup((room / "page.js").read_text(encoding="utf-8")),
            tables=tables,
            legend=legend,
            drawn=[_draw(figure, keys, {name for _, name, _ in legend}) for figure in made],
            glossary=_glossary(made, tables),
        )
        + "\n"
    )


def _common_legend(made: list[Figure], keys: Mapping[str, int]) -> list[tuple[int, str, Markup]]:
    """The legend of the page: rows that look the same in several figures stand in it once."""
    styles: dict[str, set[int]] = {}
    uses = Counter(name for figure in made for name in figure.legend())
    for figure in made:
        for name, style in figure.legend().items():
            styles.setdefault(name, set()).add(style)
    shared = {name: one for name, (one, *others) in styles.items() if not others and uses[name] > 1}
    return [(keys[name], name, svg.swatch(style)) for name, style in sorted(shared.items(), key=lambda one: one[1])]


def _draw(figure: Figure, keys: dict[str, int], common: set[str]) -> _Drawn:
    """A figure with a legend of its own for what the page's legend does not have."""
    wide = svg.panels(figure, svg.WIDE, min(figure.columns, len(figure.panels)), keys)
    narrow = svg.panels(figure, svg.NARROW, figure.narrow_columns, keys)
    whole = svg.panels(replace(figure, panels=figure.whole), svg.WIDE, 1, keys)
    own = {} if figure.legend().keys() <= common else figure.legend()
    legend = [(keys[name], name, svg.swatch(style)) for name, style in own.items()]
    tables = [panel.table() for panel in figure.whole or figure.panels]
    drawn = [[drawing.svg() for drawing in some] for some in (wide, narrow, whole)]
    return _Drawn(figure, drawn[0], drawn[1], drawn[2], legend, tables)


def _glossary(made: list[Figure], tables: list[Table]) -> list[Term]:
    """All words that figures and tables use."""
    texts = [text for figure in made for text in figure.texts()]
    texts += [text for table in tables for text in (table.title, *table.headings, *table.notes)]
    used = {term.name for term in terms_in("\n".join(texts))} | {name for figure in made for name in figure.rows()}
    return [term for term in TERMS if term.name in used]


def _tables(outcome: Outcome) -> list[Table]:
    made = of_layout(outcome) if outcome.lines else []
    path = outcome.out / "segments.parquet"
    by_segment = pl.read_parquet(path) if path.is_file() else pl.DataFrame()
    return made + (segments.tables(outcome.results, by_segment) if len(by_segment) and outcome.lines else [])


def _unfinished(outcome: Outcome) -> list[tuple[str, str]]:
    """Cells without a result, and why."""
    path, done = outcome.out / "failed.json", set(outcome.results["cell"])
    failed: dict[str, str] = read_json(path) if path.is_file() else {}
    names = [f"{row['name']}~seed{seed}" for row in outcome.bench["rows"] for seed in outcome.bench["seeds"]]
    return [(name, failed.get(name, "not finished")) for name in names if name not in done]


def _facts(outcome: Outcome) -> dict[str, str]:
    """What a reader needs to judge the figures by, or to repeat them."""
    bench = outcome.bench
    facts = {
        "data": bench["data"],
        "fingerprint of the log": bench["fingerprint"],
        "options of the log": _settings(bench["data_options"]),
        "seeds": ", ".join(map(str, bench["seeds"])),
        "settings of all rows": _settings(outcome.suite["settings"] | bench["settings"]) or "the methods' defaults",
        "cells": f"{len(outcome.results)} of {len(bench['rows']) * len(bench['seeds'])} finished",
    }
    if (learning := learning_of(bench)) is not None:
        facts["learning settings"] = learning
    if (judged := bench.get("judged")) is not None:
        facts["clicks judged"] = f"{log_day(judged['from'])} to {log_day(judged['until'])} of the log"
    if (period := bench.get("tuning", {}).get("period")) is not None:
        facts["settings tuned on"] = (
            f"{log_day(period['start'])} to {log_day(period['until'])}, seeds {_value(period['seeds'])}"
        )
    if len(outcome.results):
        path = outcome.out / "cells" / outcome.results["cell"][0] / "result.json"
        result: dict[str, Any] = read_json(path) if path.is_file() else {}
        facts |= {"versions": _settings(result["versions"], " ")} if result else {}
        facts |= _alarms(result)
    if (outcome.out / "log.json").is_file():
        log = read_json(outcome.out / "log.json")
        facts["rows of the log"] = _settings({name: f"{count:,}" for name, count in log["counts"].items()}, " ")
        facts |= {f"note {n}": note for n, note in enumerate(log["notes"], start=1)}
    return facts


def _alarms(result: Mapping[str, Any]) -> dict[str, str]:
    """What was not as expected in the stream, by one of the methods.

    >>> _alarms({"method": "vanilla", "alarms": [{"text": "traffic changed since day 3"}]})
    {'alarm 1, by vanilla': 'traffic changed since day 3'}
    """
    texts = [alarm["text"] for alarm in result.get("alarms", [])]
    shown = {f"alarm {n}, by {result['method']}": text for n, text in enumerate(texts[:_ALARMS], start=1)}
    return shown | ({"more alarms": str(len(texts) - _ALARMS)} if len(texts) > _ALARMS else {})


def _settings(settings: dict[str, Any], sign: str = "=") -> str:
    return ", ".join(f"{key}{sign}{_value(value)}" for key, value in settings.items())


def _value(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _command(bench: dict[str, Any]) -> str:
    """The command that the bench was made by, but for paths."""
    words = [f"tracecvr bench {bench['suite']['name']} --data {bench['data']}"]
    words += [f"--seeds {','.join(map(str, bench['seeds']))}"] if bench["seeds"] != [0] else []
    words += [f"--methods {','.join(bench['methods'])}"] if bench["methods"] else []
    words += [f"--learning {bench['suite']['learning']}"] if "learning" in bench["suite"] else []
    words += [f"--data-set {pair}" for pair in bench["data_settings"]]
    words += [f"--set {key}={value}" for key, value in bench["settings"].items()]
    source = bench.get("source", bench["data"] != "synthetic")  # collected results do not say where the log was
    words += ["--source ..."] if source else []
    words += ["--tuned ..."] if bench["tuned"] else []
    return " ".join([*words, "--out ..."])
