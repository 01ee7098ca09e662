"""The gauntlet: a suite that is run on many logs, each with one hardship, and what it shows of every method.

```
DIR/gauntlet.json     which logs, in order, and which are absent
DIR/NAME/             an ordinary bench of each log
DIR/gauntlet.parquet  one row per method and log: see `regret`
DIR/table.md, figures/
```
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl

from tracecvr.base import config
from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json, write_json, write_parquet, write_text
from tracecvr.bench import regret
from tracecvr.bench.outcome import Outcome
from tracecvr.bench.regret import Standing, standings
from tracecvr.bench.report import drawing
from tracecvr.bench.report.figure import Axis, Figure, Heat
from tracecvr.bench.runner import Request
from tracecvr.bench.suite import Log, Suite
from tracecvr.bench.text_tables import Table, Text, figure_cell


def choose_logs(suite: Suite, names: Sequence[str]) -> tuple[Log, ...]:
    known = {log.name: log for log in suite.logs}
    config.refuse_unknown(names, known, "--logs", "log")
    return tuple(known[name] for name in names or known)


def begin(request: Request, logs: Sequence[Log], out: Path) -> tuple[dict[str, Request], tuple[str, ...]]:
    """Write down which logs there are. Returns the bench of each that is at hand, and the names of the others."""
    if request.tuned.methods:
        raise UserError("--tuned: its settings were chosen on one log; the gauntlet has many")
    sources = {log.name: source_of(log) for log in logs}
    present = [log for log in logs if not log.file or sources[log.name] is not None]
    absent = tuple(log.name for log in logs if log not in present)
    out.mkdir(parents=True, exist_ok=True)
    facts = {
        "suite": request.suite.name,
        "about": request.suite.about,
        "seeds": list(request.seeds),
        "methods": list(request.methods),
        "settings": dict(request.settings),
        "logs": [asdict(log) for log in present],
        "absent": list(absent),
        "tracecvr": version("tracecvr"),
    }
    write_json(out / "gauntlet.json", facts)
    benches = {
        log.name: replace(
            request,
            data=log.data,
            source=sources[log.name],
            data_settings=tuple(f"{key}={value}" for key, value in log.options.items()),
            settings=log.settings | dict(request.settings),
        )
        for log in present
    }
    return benches, absent


def source_of(log: Log) -> Path | None:
    """The raw log, in the folder that TRACECVR_DATA names or in ../shared/data; None if it has none or is not there."""
    path = Path(os.environ.get("TRACECVR_DATA", Path("..", "shared", "data"))) / log.file
    return path if log.file and path.is_file() else None


def write(out: Path, kinds: Sequence[str] = ()) -> list[Path]:
    """`gauntlet.parquet` and tables of the logs that are finished by now, and the figure as a file of each kind, SVG by
    default. Returns what was written."""
    facts = read_json(out / "gauntlet.json")
    parts = [_measure(out / log["name"], log) for log in facts["logs"]]
    field = Field(pl.concat([pl.DataFrame(schema=regret.SCHEMA), *(part for part in parts if part is not None)]), facts)
    write_parquet(out / "gauntlet.parquet", field.frame)
    text = [f"# {facts['suite']}: {facts['about']}", *_notes(field), *(table.markdown() for table in tables(field))]
    write_text(out / "table.md", "\n\n".join(text) + "\n")
    figures = drawing.save([heat_map(field)], out / "figures", kinds or ("svg",))
    return [out / "gauntlet.parquet", out / "table.md", *figures]


def _measure(folder: Path, log: Mapping[str, str]) -> pl.DataFrame | None:
    if not (folder / "results.parquet").is_file():
        return None
    about = log["about"] or next(iter(read_json(folder / "bench.json")["log"]["notes"]), "")
    return regret.measure(Outcome(folder), log["name"], about)


@dataclass(frozen=True)
class Field:
    """All methods on all logs. `facts` is what gauntlet.json has."""

    frame: pl.DataFrame
    facts: Mapping[str, Any]

    @cached_property
    def standings(self) -> list[Standing]:
        return standings(self.frame)

    @cached_property
    def logs(self) -> dict[str, str]:
        """Finished logs, each with its hardship."""
        return dict(self.frame.unique("log", maintain_order=True).select("log", "about").iter_rows())

    @cached_property
    def rows(self) -> dict[tuple[str, str], dict[str, Any]]:
        return {(row["label"], row["log"]): row for row in self.frame.iter_rows(named=True)}

    @property
    def fair(self) -> list[Standing]:
        """Methods that know no future."""
        return [one for one in self.standings if one.role != "upper"]

    def best_on(self, log: str) -> dict[str, Any]:
        return self.frame.filter((pl.col("log") == log) & pl.col("best")).row(0, named=True)


def _notes(field: Field) -> list[str]:
    seeds = field.facts["seeds"]
    count = f"{len(field.logs)} logs, {len(field.fair)} methods that know no future"
    notes = [f"{count}; seeds {', '.join(map(str, seeds))}."]
    if len(seeds) == 1:
        notes.append("One seed: variation between seeds is not known; intervals are over days.")
    if absent := field.facts["absent"]:
        notes.append(f"Left out, because their files are not at hand (TRACECVR_DATA): {', '.join(absent)}.")
    if field.fair:
        first, most = field.fair[0], max(field.fair, key=lambda one: one.near_best)
        notes.append(
            f"{first.label} has the smallest worst regret: {figure_cell(first.worst).text}, on {first.worst_log}. "
            f"{most.label} is near the best on most logs: {most.near_best} of {len(field.logs)}."
        )
    return notes


# Tables.


def tables(field: Field) -> list[Table]:
    return [_regrets(field), _pcoc(field), _logistic(field), _logs(field)] if len(field.frame) else []


def _regrets(field: Field) -> Table:
    table = Table(
        "Regret: NLL above that of the best method of each log", ["method", "worst", "near best", *field.logs]
    )
    for one in field.standings:
        near = Text("" if one.role == "upper" else f"{one.near_best} of {len(field.logs)}")
        row = [Text(one.label), figure_cell(one.worst), near]
        for log in field.logs:
            cell = field.rows.get((one.label, log))
            row.append(Text("failed") if cell is None else Text(_star(cell, "regret"), bold=cell["best"]))
        table.rows.append(row)
    excess = [field.best_on(log)["excess"] for log in field.logs]
    truth = [figure_cell(None if value is None else -value) for value in excess]
    table.rows.append([Text("true rates"), Text(""), Text(""), *truth])
    table.notes += [
        "\\* The interval excludes zero. It is for other days of the log (bootstrap) and other seeds, not for other "
        "logs. Near best: the best (bold), or without a star.",
        "Oracle knows final labels, so that it is no candidate. It is no bound either: it sees a click once.",
        "Intervals are not corrected for the number of comparisons.",
    ]
    return table


def _pcoc(field: Field) -> Table:
    table = Table("PCOC: predicted over observed conversions", ["method", *field.logs])
    for one in field.standings:
        cells = [field.rows.get((one.label, log), {}) for log in field.logs]
        table.rows.append([Text(one.label), *(figure_cell(cell.get("pcoc"), 3) for cell in cells)])
    return table


def _logistic(field: Field) -> Table:
    table = Table("NLL minus that of the logistic regression", ["method", "worse", *field.logs])
    for one in field.standings:
        cells = [field.rows.get((one.label, log)) for log in field.logs]
        worse = sum(1 for cell in cells if cell is not None and (cell["logistic_low"] or 0.0) > 0)
        texts = ["failed" if cell is None else _star(cell, "logistic", sign="+") for cell in cells]
        table.rows.append([Text(one.label), Text(str(worse)), *map(Text, texts)])
    table.notes.append("Worse: on how many logs the method is clearly worse than it. \\* The interval excludes zero.")
    return table


def _logs(field: Field) -> Table:
    table = Table("The logs", ["log", "hardship", "clicks judged", "conversions", "best method", "its NLL"])
    for log, about in field.logs.items():
        best = field.best_on(log)
        counts = [f"{best['clicks']:,}", f"{best['conversions']:,}"]
        table.rows.append([Text(log), Text(about), *map(Text, [*counts, best["label"], f"{best['nll']:.4f}"])])
    return table


def _star(cell: Mapping[str, Any], figure: str, sign: str = "") -> str:
    value, low, high = (cell[f"{figure}{end}"] for end in ("", "_low", "_high"))
    clear = low is not None and (low > 0 or high < 0)
    return "n/a" if value is None else f"{value:{sign}.4f}{'*' if clear else ''}"


# The figure.

_DARKEST = 0.05
"""Regret in NLL from which on a square is darkest."""


def heat_map(field: Field) -> Figure:
    standing, logs = field.standings, list(field.logs)
    cells = [[field.rows.get((one.label, log)) for log in logs] for one in standing]
    heat = Heat(
        title="",
        axis=Axis("NLL above that of the best method of each log"),
        names=tuple(one.label for one in standing),
        columns=tuple(logs),
        values=tuple(tuple(None if cell is None else cell["regret"] for cell in row) for row in cells),
        light=tuple(tuple(cell is not None and cell["near_best"] is True for cell in row) for row in cells),
        beside=(
            ("worst", tuple(figure_cell(one.worst).text for one in standing)),
            ("near best", tuple("" if one.role == "upper" else str(one.near_best) for one in standing)),
        ),
        top=_DARKEST,
    )
    caption = (
        "Each column is a log with one hardship. Green: the best method of the log that knows no future, or one whose "
        "difference to it is not statistically significant. Red: the darker, the larger the regret in NLL; "
        f"{_DARKEST} or more is darkest. Methods are sorted by their worst regret; near best counts green squares. "
        "Oracle, which knows final labels, is last."
    )
    return Figure("regret", "Regret of every method on every log", caption, (heat,))
