"""`report.html`: what a bench found, in one file that opens without a network and has no script.

What came out stands first, in words (`sentences`); then figures (`figures`), drawn as SVG (`drawing`); then tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from markupsafe import Markup

from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json, write_text
from tracecvr.base.glossary import terms_in
from tracecvr.bench.outcome import Outcome, is_finished, write_results
from tracecvr.bench.report import drawing
from tracecvr.bench.report.drawing import say_what_is_drawn
from tracecvr.bench.report.figures import make_figures
from tracecvr.bench.report.sentences import summarise
from tracecvr.bench.suite import Cell, Row
from tracecvr.bench.tables import describe_learning, make_tables
from tracecvr.bench.text_tables import Table


def write(out: Path, kinds: Sequence[str] = ()) -> list[Path]:
    """Draw the report of a bench, finished or not, and each figure as a file of each kind. Returns what was written."""
    outcome = open_bench(out)
    figures, tables = make_figures(outcome), make_tables(outcome) if outcome.lines else []
    texts = [text for one in figures for text in (one.title, one.caption, *map(say_what_is_drawn, one.panels))]
    texts += [text for table in tables for text in (table.title, *table.headings, *table.notes)]
    path, done = out / "failed.json", set(outcome.results["cell"])
    failed: dict[str, str] = read_json(path) if path.is_file() else {}
    names = [f"{row['name']}~seed{seed}" for row in outcome.bench["rows"] for seed in outcome.bench["seeds"]]
    template = drawing.templates().get_template("page.html.j2")
    page = template.render(
        bench=outcome.bench,
        suite=outcome.suite,
        clicks=max(outcome.results["clicks"], default=0),
        conversions=max(outcome.results["conversions"], default=0),
        ours=getattr(outcome.of_role("ours"), "name", ""),
        sentences=summarise(outcome),
        unfinished=[(name, failed.get(name, "not finished")) for name in names if name not in done],
        facts=_list_facts(outcome),
        command=_command(outcome.bench),
        css=Markup("".join(map(drawing.read_style_sheet, ("colours.css", "plot.css", "page.css")))),
        tables=tables,
        drawn=[(figure, drawing.draw_panels(figure)) for figure in figures],
        glossary=terms_in("\n".join(texts)),
    )
    write_text(out / "report.html", page + "\n")
    return [out / "report.html", *drawing.save(figures, out / "figures", kinds)]


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
    if known is None or any(cell.name not in known and is_finished(out / "cells" / cell.name) for cell in cells):
        write_results(out, cells)
    return Outcome(out)


def render_table(table: Table) -> Markup:
    """A table alone, as pages have it."""
    return drawing.write("show", table, file="table.html.j2")


def _list_facts(outcome: Outcome) -> dict[str, str]:
    bench = outcome.bench
    facts = {
        "fingerprint of the log": bench["fingerprint"],
        "options of the log": _settings(bench["data_options"]),
        "settings of all rows": _settings(outcome.suite["settings"] | bench["settings"]) or "the methods' defaults",
        "cells": f"{len(outcome.results)} of {len(bench['rows']) * len(bench['seeds'])} finished",
    }
    if (learning := describe_learning(bench)) is not None:
        facts["learning settings"] = learning
    if outcome.period is not None:
        facts["clicks judged"] = f"{outcome.period} of the log"
    if len(outcome.results):
        path = outcome.out / "cells" / outcome.results["cell"][0] / "result.json"
        facts |= {"versions": _settings(read_json(path)["versions"], " ")} if path.is_file() else {}
    if (log := bench.get("log")) is not None:
        facts["rows of the log"] = _settings({name: f"{count:,}" for name, count in log["counts"].items()}, " ")
        facts |= {f"note {n}": note for n, note in enumerate(log["notes"], start=1)}
    return facts


def _settings(settings: dict[str, Any], sign: str = "=") -> str:
    texts = {key: ",".join(map(str, v)) if isinstance(v, list) else str(v) for key, v in settings.items()}
    return ", ".join(f"{key}{sign}{text}" for key, text in texts.items())


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
