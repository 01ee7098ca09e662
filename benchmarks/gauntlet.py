"""The gauntlet: methods over many logs, each with one hardship, and what that shows of every method: docs/gauntlet.md.

    python benchmarks/gauntlet.py --out gauntlet
    python benchmarks/gauntlet.py --logs jump,outage --methods es_dfm,telescoped --seeds 0-2 --out some
    python benchmarks/gauntlet.py --out gauntlet --collect     # into docs/results, and the summary into the package

```
DIR/gauntlet.json     which logs, in order, and which are absent
DIR/NAME/             an ordinary bench of each log
DIR/gauntlet.parquet  one row per method and log: see `regret.py`
DIR/table.md, regret.svg
```
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from math import sqrt
from pathlib import Path
from typing import Any

import polars as pl
from markupsafe import Markup

import regret
from regret import Standing, standings
from tracecvr.api.comparisons import carry_out
from tracecvr.base import config
from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json, write_json, write_parquet, write_text
from tracecvr.base.registry import Given
from tracecvr.bench import engines, suite
from tracecvr.bench.findings import FINDINGS
from tracecvr.bench.outcome import Outcome
from tracecvr.bench.report import drawing
from tracecvr.bench.report.drawing import Drawing, width_of
from tracecvr.bench.report.figure import Figure
from tracecvr.bench.runner import BenchEngine, Request
from tracecvr.bench.suite import title_of
from tracecvr.bench.text_tables import Table, Text, figure_cell
from tracecvr.datasets.hardships import HARDSHIPS

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "gauntlet"


# The logs.


@dataclass(frozen=True)
class Log:
    """A log: options of its dataset, settings of every row, and its raw file, if it is a real one."""

    name: str
    data: str
    options: dict[str, str]
    settings: dict[str, str] = field(default_factory=dict)
    file: str = ""
    about: str = ""
    """Of hardships, the dataset says it."""


_JUDGED_FROM = {
    "new_campaign": "17d",  # from its start on
    "jump": "17d",  # from the jump on
    "outage": "16d",  # from its end on: of earlier clicks, recorded labels are wrong
    "slower": "17d",  # from then on
}
LOGS = (
    *(
        Log(name, "hardships", {"hardship": name}, {"judge_from": _JUDGED_FROM[name]} if name in _JUDGED_FROM else {})
        for name in HARDSHIPS
    ),
    Log(
        "criteo_search",
        "criteo_search",
        {"every": "40"},
        {"interval": "6h"},
        "criteo_search.parquet",
        "real: every 40th click of three months of shopping ads, delays of up to 30 days",
    ),
    Log(
        "cryptokitties",
        "cryptokitties",
        {"every": "16"},
        {"interval": "6h", "judge_from": "60d"},
        "cryptokitties.parquet",
        "real, not an ad log: every 16th birth, three actions, rates that fall to a third and rise again",
    ),
    Log(
        "taobao",
        "taobao",
        {"observed_until": "9d"},
        {"interval": "3h"},
        "taobao_slice.csv",
        "real: 929 users, few purchases, warm-up shorter than d_max",
    ),
)


def source_of(log: Log) -> Path | None:
    """The raw log, in the folder that TRACECVR_DATA names or in ../shared/data; None if it has none or is not there."""
    path = Path(os.environ.get("TRACECVR_DATA", Path("..", "shared", "data"))) / log.file
    return path if log.file and path.is_file() else None


def run(request: Request, logs: Sequence[Log], out: Path, engine: BenchEngine) -> dict[str, str]:
    """Carry out a suite on every log that is at hand, or the rest of it. Returns failed cells with their reason."""
    present = [log for log in logs if not log.file or source_of(log) is not None]
    out.mkdir(parents=True, exist_ok=True)
    facts = {
        "suite": request.suite.name,
        "about": request.suite.about,
        "seeds": list(request.seeds),
        "methods": list(request.methods),
        "settings": dict(request.settings),
        "logs": [asdict(log) for log in present],
        "absent": [log.name for log in logs if log not in present],
        "tracecvr": version("tracecvr"),
    }
    write_json(out / "gauntlet.json", facts)
    failed: dict[str, str] = {}
    for log in present:
        bench = replace(
            request,
            data=log.data,
            source=source_of(log),
            data_settings=tuple(f"{key}={value}" for key, value in log.options.items()),
            settings=log.settings | dict(request.settings),
        )
        state = carry_out(bench, out / log.name, engine)
        failed |= {f"{log.name}/{cell}": why for cell, why in state.failed.items()}
    write(out)
    return failed


# What it shows.


def write(out: Path) -> None:
    """`gauntlet.parquet`, tables and the figure, of the logs that are finished by now."""
    facts = read_json(out / "gauntlet.json")
    parts = [_measure(out / log["name"], log) for log in facts["logs"]]
    field = Field(pl.concat([pl.DataFrame(schema=regret.SCHEMA), *(part for part in parts if part is not None)]), facts)
    write_parquet(out / "gauntlet.parquet", field.frame)
    text = [f"# {facts['suite']}: {facts['about']}", *_notes(field), *(table.markdown() for table in tables(field))]
    write_text(out / "table.md", "\n\n".join(text) + "\n")
    write_text(out / "regret.svg", draw(field))


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


# The figure: methods by logs, as squares.

_DARKEST = 0.05
"""Regret in NLL from which on a square is darkest."""

_HIGH, _GAP = 20.0, 8.0
"""The height of a square, and the space beside a column of texts."""

_ROOM = 33.0
"""Pixels that a number takes; in smaller squares, only the tooltip has it."""

_SQUARES = """
{% from "drawing.svg.j2" import text %}
{% for log in logs %}
<text transform="translate({{ (left + size * (loop.index0 + 0.5) + 3) | px }} {{ (top - 6) | px }}) rotate(-45)" class="t">{{ log }}</text>
{% endfor %}
{% for heading, edge, _ in beside %}
{{ text(edge, top - 6, heading, "t", "end") }}
{% endfor %}
{% for name, y, squares in rows %}
{% set row = loop.index0 %}
{{ text(name_end, y + 14, name, "n", "end") }}
{% for _, edge, texts in beside %}
{{ text(edge, y + 14, texts[row], "v", "end") }}
{% endfor %}
{% for log, says, short, opacity in squares %}
{% set x = left + size * loop.index0 %}
<rect x="{{ (x + 1) | px }}" y="{{ (y + 1) | px }}" width="{{ (size - 2) | px }}" height="18" class="heat{{ " light" if opacity is none }}"{% if opacity is not none %} fill-opacity="{{ opacity }}"{% endif %}><title>{{ name }}, {{ log }}: {{ says }}</title></rect>
{% if has_room %}
{{ text(x + size / 2, y + 14, short, "c", "middle") }}
{% endif %}
{% endfor %}
{% endfor %}
{{ text(0, foot + 15, "NLL above that of the best method of each log", "a") }}
"""  # noqa: E501

_STYLE = """
.plot .c { font-size: 11px; }
.heat { fill: var(--bad); }
.heat.light { fill: var(--good); fill-opacity: .2; }
"""

_CAPTION = (
    "Each column is a log with one hardship. Green: the best method of the log that knows no future, or one whose "
    "difference to it is not statistically significant. Red: the darker, the larger the regret in NLL; "
    f"{_DARKEST} or more is darkest. Methods are sorted by their worst regret; near best counts green squares. "
    "Oracle, which knows final labels, is last."
)


def draw(field: Field) -> str:
    """The figure as the text of an SVG file. Headings of columns are turned, so that squares can be small."""
    standing, logs, width = field.standings, list(field.logs), drawing.WIDE
    names = _widest(*(one.label for one in standing))
    beside = {
        "worst": [figure_cell(one.worst).text for one in standing],
        "near best": ["" if one.role == "upper" else str(one.near_best) for one in standing],
    }
    sides = [_widest(heading, *texts) for heading, texts in beside.items()]
    left, slant = names + sum(sides), _widest(*logs)
    size, top = (width - left - 0.7 * slant) / max(len(logs), 1), 0.75 * slant
    edges = [names + sum(sides[: n + 1]) - _GAP for n in range(len(sides))]
    rows = [
        (one.label, top + _HIGH * row, [(log, *_shade(field.rows.get((one.label, log)))) for log in logs])
        for row, one in enumerate(standing)
    ]
    foot = top + _HIGH * len(rows)
    content = (
        drawing.templates()
        .from_string(_SQUARES)
        .render(
            logs=logs,
            beside=[(heading, edge, texts) for (heading, texts), edge in zip(beside.items(), edges, strict=True)],
            rows=rows,
            name_end=names - _GAP,
            left=left,
            top=top,
            foot=foot,
            size=size,
            has_room=size >= _ROOM,
        )
    )
    figure = Figure("regret", "Regret of every method on every log", _CAPTION, ())
    return drawing.compose(figure, [Drawing(width, foot + 22.0, figure.title, Markup(content))], _STYLE)


def _widest(*texts: str) -> float:
    return max(map(width_of, texts), default=0.0) + _GAP


def _shade(cell: Mapping[str, Any] | None) -> tuple[str, str, str | None]:
    """Of a square: its number in words and in few letters, and how dark it is; None if it is marked as good."""
    if cell is None:
        return "n/a", "n/a", "0.00"
    value = cell["regret"]
    strength = 0.65 * sqrt(min(max(value / _DARKEST, 0.0), 1.0))
    short = f"{value:.4f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.2f}"
    return f"{value:.4f}", short, None if cell["near_best"] is True else f"{strength:.2f}"


# What is taken into the docs and the package.


def collect(out: Path, folder: Path = RESULTS, packaged: Path = FINDINGS) -> None:
    """Tables, results and the figure for the docs; and the summary that is part of the package."""
    write(out)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("gauntlet.json", "gauntlet.parquet", "table.md"):
        shutil.copyfile(out / name, folder / name)
    drawing.save_document((out / "regret.svg").read_text(encoding="utf-8"), folder / "regret.png")
    write_findings(pl.read_parquet(out / "gauntlet.parquet"), read_json(out / "gauntlet.json")["seeds"], packaged)


def write_findings(frame: pl.DataFrame, seeds: Sequence[int], path: Path) -> None:
    """What is packaged of methods as they are by default: one line each."""
    logs = frame["log"].n_unique()
    methods = {}
    for one in standings(frame):
        if one.role != "upper" and one.label == title_of(one.method):
            worst = "failed on a log" if one.worst is None else f"worst regret {one.worst:.4f} ({one.worst_log})"
            methods[one.method] = f"{worst}; near the best on {one.near_best} of {logs} logs"
    write_json(path, {"seeds": list(seeds), "methods": methods})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory of the gauntlet; the same command resumes")
    parser.add_argument("--logs", default="", metavar="A,B", help="only these logs")
    parser.add_argument("--methods", default="", metavar="A,B", help="only rows of these methods")
    parser.add_argument("--seeds", default="0", metavar="0-4")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of every row")
    parser.add_argument("--workers", type=int, help="processes; all cores by default")
    parser.add_argument("--collect", action="store_true", help="run nothing: take its outcome into the docs")
    given = parser.parse_args()
    try:
        if given.collect:
            collect(given.out)
        else:
            failed = run(*_ask(given), given.out, engines.choose("local", given.workers))
            print((given.out / "table.md").read_text(encoding="utf-8"))  # noqa: T201
            for cell, why in failed.items():
                print(f"failed: {cell}: {why}")  # noqa: T201
    except UserError as error:
        parser.error(str(error))


def _ask(given: argparse.Namespace) -> tuple[Request, list[Log]]:
    """What is asked for: the bench of every log, and the logs."""
    known = {log.name: log for log in LOGS}
    names = [name for name in given.logs.split(",") if name]
    config.refuse_unknown(names, known, "--logs", "log")
    request = Request(
        suite=suite.load(str(Path(__file__).with_suffix(".toml"))),
        data="",
        settings=config.pairs(given.set, "--set"),
        methods=tuple(Given(name) for name in given.methods.split(",") if name),
        seeds=suite.seeds_of(given.seeds),
    )
    return request, [known[name] for name in names or known]


if __name__ == "__main__":
    main()
