"""The gauntlet: a suite that is run on many logs, each with one hardship, and what it shows of every method.

```
DIR/gauntlet.json     which logs, in order, and which are absent
DIR/NAME/             an ordinary bench of each log
DIR/gauntlet.parquet  one row per method and log: see `regret`
DIR/table.md, figures/regret.svg
```
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import version
from math import sqrt
from pathlib import Path
from typing import Any

import polars as pl

from tracecvr.base import config
from tracecvr.base.files import read_json, write_json, write_parquet, write_text
from tracecvr.bench import regret
from tracecvr.bench.outcome import Outcome
from tracecvr.bench.report import drawing
from tracecvr.bench.report.figure import Figure
from tracecvr.bench.runner import Request, State
from tracecvr.bench.suite import Log
from tracecvr.bench.text_tables import Table, Text, figure_cell

FINDINGS = Path(__file__).with_name("gauntlet_results.json")


@cache
def load_findings() -> dict[str, Any]:
    """What the gauntlet has shown, packaged by `docs/collect.py`: `seeds`, and under `methods` a line for each."""
    content: dict[str, Any] = read_json(FINDINGS)
    return content


def run(request: Request, names: Sequence[str], out: Path, bench: Callable[[Request, Path], State]) -> dict[str, str]:
    """Have `bench` carry out a suite on each of its logs, or those named. Returns failed cells with their reason."""
    known = {log.name: log for log in request.suite.logs}
    config.refuse_unknown(names, known, "--logs", "log")
    logs = [known[name] for name in names or known]
    present = [log for log in logs if not log.file or source_of(log) is not None]
    out.mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {"suite": request.suite.name, "about": request.suite.about, "seeds": list(request.seeds)}
    facts |= {"methods": list(request.methods), "settings": dict(request.settings), "tracecvr": version("tracecvr")}
    facts |= {"logs": [asdict(log) for log in present], "absent": [log.name for log in logs if log not in present]}
    write_json(out / "gauntlet.json", facts)
    failed: dict[str, str] = {}
    for log in present:
        options = tuple(f"{key}={value}" for key, value in log.options.items())
        settings = log.settings | dict(request.settings)
        mine = replace(request, data=log.data, source=source_of(log), data_settings=options, settings=settings)
        failed |= {f"{log.name}/{cell}": why for cell, why in bench(mine, out / log.name).failed.items()}
    write(out)
    return failed


def source_of(log: Log) -> Path | None:
    """The raw log, in the folder that TRACECVR_DATA names or in ../shared/data; None if it has none or is not there."""
    path = Path(os.environ.get("TRACECVR_DATA", Path("..", "shared", "data"))) / log.file
    return path if log.file and path.is_file() else None


def write(out: Path, kinds: Sequence[str] = ()) -> list[Path]:
    """`gauntlet.parquet` and tables of the logs that are finished by now, and the figure as a file of each kind, SVG by
    default. Returns what was written."""
    facts, frame = read_json(out / "gauntlet.json"), pl.DataFrame(schema=regret.SCHEMA)
    for log in facts["logs"]:
        if (out / log["name"] / "results.parquet").is_file():
            outcome = Outcome(out / log["name"])
            about = log["about"] or next(iter(outcome.bench["log"]["notes"]), "")
            measured = regret.measure(outcome, log["name"], about)
            frame = frame if measured is None else pl.concat([frame, measured])
    write_parquet(out / "gauntlet.parquet", frame)
    text = [f"# {facts['suite']}: {facts['about']}", *_notes(frame, facts), *(t.markdown() for t in tables(frame))]
    write_text(out / "table.md", "\n\n".join(text) + "\n")
    (out / "figures").mkdir(exist_ok=True)
    figures = [drawing.save_document(draw(frame), out / "figures" / f"regret.{kind}") for kind in kinds or ["svg"]]
    return [out / "gauntlet.parquet", out / "table.md", *figures]


def _notes(frame: pl.DataFrame, facts: Mapping[str, Any]) -> list[str]:
    fair = [one for one in regret.standings(frame) if one["role"] != "upper"]
    logs, seeds = frame["log"].n_unique(), facts["seeds"]
    notes = [f"{logs} logs, {len(fair)} methods that know no future; seeds {', '.join(map(str, seeds))}."]
    if len(seeds) == 1:
        notes.append("One seed: variation between seeds is not known; intervals are over days.")
    if absent := facts["absent"]:
        notes.append(f"Left out, because their files are not at hand (TRACECVR_DATA): {', '.join(absent)}.")
    if fair:
        first, most = fair[0], max(fair, key=lambda one: one["near_best"])
        notes.append(
            f"{first['label']} has the smallest worst regret: {figure_cell(first['worst']).text}, on "
            f"{first['worst_log']}. {most['label']} is near the best on most logs: {most['near_best']} of {logs}."
        )
    return notes


# Tables.


def tables(frame: pl.DataFrame) -> list[Table]:
    """Regret, PCOC, the logistic regression, and the logs; none before a log is finished."""
    if not len(frame):
        return []
    best, cells = _best(frame), _cells(frame)
    title = "Regret: NLL above that of the best method of each log"
    regrets = Table(title, ["method", "worst", "near best", *best])
    pcoc = Table("PCOC: predicted over observed conversions", ["method", *best])
    logistic = Table("NLL minus that of the logistic regression", ["method", "worse", *best])
    logs = Table("The logs", ["log", "hardship", "clicks judged", "conversions", "best method", "its NLL"])
    for one in regret.standings(frame):
        mine, name = [cells.get((one["label"], log)) for log in best], Text(one["label"])
        near = Text("" if one["role"] == "upper" else f"{one['near_best']} of {len(best)}")
        regrets.rows.append([name, figure_cell(one["worst"]), near, *(_star(cell, "regret") for cell in mine)])
        pcoc.rows.append([name, *(figure_cell(None if cell is None else cell["pcoc"], 3) for cell in mine)])
        worse = sum(cell is not None and (cell["logistic_low"] or 0.0) > 0 for cell in mine)
        logistic.rows.append([name, Text(str(worse)), *(_star(cell, "logistic", "+") for cell in mine)])
    truth = [figure_cell(None if one["excess"] is None else -one["excess"]) for one in best.values()]
    regrets.rows.append([Text("true rates"), Text(""), Text(""), *truth])
    for log, one in best.items():
        counts = f"{one['clicks']:,}", f"{one['conversions']:,}"
        logs.rows.append([*map(Text, (log, one["about"], *counts, one["label"], f"{one['nll']:.4f}"))])
    regrets.notes = [
        "\\* The interval excludes zero. It is for other days of the log (bootstrap) and other seeds, not for other "
        "logs. Near best: the best (bold), or without a star.",
        "Oracle knows final labels, so that it is no candidate. It is no bound either: it sees a click once.",
        "Intervals are not corrected for the number of comparisons.",
    ]
    logistic.notes.append(
        "Worse: on how many logs the method is clearly worse than it. \\* The interval excludes zero."
    )
    return [regrets, pcoc, logistic, logs]


def _best(frame: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """The row of the best method of each log."""
    return {row["log"]: row for row in frame.filter("best").iter_rows(named=True)}


def _cells(frame: pl.DataFrame) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["label"], row["log"]): row for row in frame.iter_rows(named=True)}


def _star(cell: Mapping[str, Any] | None, name: str, sign: str = "") -> Text:
    if cell is None:
        return Text("failed")
    value, low, high = (cell[f"{name}{end}"] for end in ("", "_low", "_high"))
    star = "*" if low is not None and (low > 0 or high < 0) else ""
    return Text("n/a" if value is None else f"{value:{sign}.4f}{star}", bold=name == "regret" and cell["best"])


# The figure.

_DARKEST = 0.05
"""Regret in NLL from which on a square is darkest."""

_CAPTION = (
    "Each column is a log with one hardship. Green: the best method of the log that knows no future, or one whose "
    "difference to it is not statistically significant. Red: the darker, the larger the regret in NLL; "
    f"{_DARKEST} or more is darkest. Methods are sorted by their worst regret; near best counts green squares. "
    "Oracle, which knows final labels, is last."
)


def draw(frame: pl.DataFrame) -> str:
    """Methods by logs, as squares: the text of an SVG file."""
    standings, logs, cells = regret.standings(frame), list(_best(frame)), _cells(frame)
    beside = {
        "worst": [figure_cell(one["worst"]).text for one in standings],
        "near best": ["" if one["role"] == "upper" else str(one["near_best"]) for one in standings],
    }
    squares = {one["label"]: [_shade(cells.get((one["label"], log))) for log in logs] for one in standings}
    figure = Figure("regret", "Regret of every method on every log", _CAPTION, ())
    label = "NLL above that of the best method of each log"
    return drawing.compose(figure, [drawing.draw_squares(label, logs, beside, squares)])


def _shade(cell: Mapping[str, Any] | None) -> tuple[str, str, str | None]:
    """Of a square: its number in words and in few letters, and how dark it is; None if it is marked as good."""
    if cell is None:
        return "n/a", "n/a", "0.00"
    value = cell["regret"]
    strength = 0.65 * sqrt(min(max(value / _DARKEST, 0.0), 1.0))
    short = f"{value:.4f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.2f}"
    return f"{value:.4f}", short, None if cell["near_best"] is True else f"{strength:.2f}"
