"""The gauntlet: a suite that is run on many logs, each with one hardship, and what it shows of every method.

```
DIR/gauntlet.json     which logs, in order, and which are absent
DIR/NAME/             an ordinary bench of each log
DIR/gauntlet.parquet  one row per method and log
DIR/table.md, figures/regret.svg
```

regret    NLL minus that of the best method on that log whose role is not `upper`
excess    NLL minus that of the true rates, on synthetic logs
logistic  NLL minus that of the logistic regression

Each has an interval for other days and other seeds: a bootstrap over days of the stream, or over its intervals where it
has fewer than five days, widened by how much NLL differs between seeds if there are several.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import version
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import polars as pl

from tracecvr.base import config, metrics
from tracecvr.base.config import DAY
from tracecvr.base.files import read_json, write_json, write_parquet, write_text
from tracecvr.bench import stats
from tracecvr.bench.outcome import Outcome, numbers
from tracecvr.bench.report import drawing
from tracecvr.bench.report.drawing import Figure
from tracecvr.bench.runner import Request, State
from tracecvr.bench.stats import Difference, Floats, Spread
from tracecvr.bench.suite import Log
from tracecvr.bench.text_tables import Table, Text, figure_cell
from tracecvr.data.table import ClickTable
from tracecvr.runs.replay import FullPlan

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
    facts, frame = read_json(out / "gauntlet.json"), pl.DataFrame(schema=SCHEMA)
    for log in facts["logs"]:
        if (out / log["name"] / "results.parquet").is_file():
            outcome = Outcome(out / log["name"])
            about = log["about"] or next(iter(outcome.bench["log"]["notes"]), "")
            measured = measure(outcome, log["name"], about)
            frame = frame if measured is None else pl.concat([frame, measured])
    write_parquet(out / "gauntlet.parquet", frame)
    text = [f"# {facts['suite']}: {facts['about']}", *_notes(frame, facts), *(t.markdown() for t in tables(frame))]
    write_text(out / "table.md", "\n\n".join(text) + "\n")
    (out / "figures").mkdir(exist_ok=True)
    figures = [drawing.save_document(draw(frame), out / "figures" / f"regret.{kind}") for kind in kinds or ["svg"]]
    return [out / "gauntlet.parquet", out / "table.md", *figures]


def _notes(frame: pl.DataFrame, facts: Mapping[str, Any]) -> list[str]:
    fair = [one for one in standings(frame) if one["role"] != "upper"]
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


# How each method did on one log, beside the best that knows no future.

SCHEMA = (
    dict.fromkeys(("log", "about", "method", "label", "role"), pl.String)
    | dict.fromkeys(("seeds", "clicks", "conversions"), pl.Int64)
    | {"nll": pl.Float64, "pcoc": pl.Float64}
    | {f"{name}{end}": pl.Float64 for name in ("regret", "excess", "logistic") for end in ("", "_low", "_high")}
    | dict.fromkeys(("best", "near_best"), pl.Boolean)
    | {"over": pl.String, "seconds": pl.Float64}
)
"""Columns of `gauntlet.parquet`. `near_best`: it is the best, or the interval of its regret includes zero; null for
upper bounds, and where no interval is known."""

Score = tuple[Spread, Floats]
"""NLL over seeds, and of each interval as their mean."""


def measure(outcome: Outcome, log: str, about: str) -> pl.DataFrame | None:
    """A row per method of a finished bench; methods of which a seed failed are left out. None without any."""
    frames, scores = {}, dict[Any, Score]()
    for line in outcome.lines:
        spread, frame = line.spread("nll"), outcome.mean_intervals(line, "nll")
        if len(line.cells) == len(outcome.bench["seeds"]) and spread is not None and frame is not None:
            frames[line], scores[line] = frame, (spread, numbers(frame["mean"]))
    if not (fair := [line for line in scores if line in outcome.fair]):
        return None
    best = min(fair, key=lambda line: scores[line][0].mean)
    intervals = frames[best]  # start, clicks and references: the same for all methods
    others = {"regret": scores[best], "logistic": _score(intervals, numbers(intervals["logistic_nll"]))}
    if (truth := _truth(outcome, intervals)) is not None:
        others["excess"] = truth
    # Two or three seeds say little about one method, so all are taken together.
    reach = pooled_reach([spread for spread, _ in scores.values()])
    rows = []
    for line, ours in scores.items():
        gaps = {name: _difference(intervals, ours, other, reach) for name, other in others.items()}
        regret = gaps["regret"]
        near = None if line not in fair or regret.low is None else not regret.clear
        facts = {"log": log, "about": about, "method": line.facts["method"], "label": line.name}
        facts |= {"role": line.facts["role"], "seeds": len(line.cells), "nll": ours[0].mean, "pcoc": line.mean("pcoc")}
        facts |= {name: line.cells[name][0] for name in ("clicks", "conversions")}
        facts |= {"best": line is best, "near_best": line is best or near, "over": regret.over}
        facts |= {name: gap.mean for name, gap in gaps.items()} | {"seconds": line.seconds}
        facts |= {f"{name}_{end}": getattr(gap, end) for name, gap in gaps.items() for end in ("low", "high")}
        rows.append(facts)
    return pl.DataFrame(rows, SCHEMA)


def _score(intervals: pl.DataFrame, nll: Floats) -> Score:
    """Of a reference: the same for all seeds."""
    return Spread(float(np.average(nll, weights=numbers(intervals["clicks"]))), None, 1), nll


def _truth(outcome: Outcome, intervals: pl.DataFrame) -> Score | None:
    """Of the true rates, where the log knows them."""
    data = outcome.out / "data"
    table = ClickTable.load(data) if ClickTable.exists(data) else None
    if table is None or "p" not in table.truth:
        return None
    result = read_json(outcome.out / "cells" / outcome.results["cell"][0] / "result.json")
    first, last = FullPlan(**result["plan"]).judged_rows(table)
    p = np.asarray(table.truth["p"][first:last], dtype=np.float64)
    loss = metrics.nll(np.log(p / (1 - p)), np.asarray(table.label[first:last]))
    edges = np.cumsum([0, *intervals["clicks"]])[:-1]
    return _score(intervals, np.add.reduceat(loss, edges) / numbers(intervals["clicks"]))


def _difference(intervals: pl.DataFrame, ours: Score, theirs: Score, reach: float) -> Difference:
    """NLL of one minus that of another, with an interval for other days and other seeds."""
    start = intervals["start"]
    days = ((start - start.min()) // DAY).n_unique()
    shortest = int(start.diff().drop_nulls().min() or DAY)  # type: ignore[arg-type]
    block = DAY if days >= stats.ENOUGH_DAYS else shortest  # seconds of the stream that are drawn together
    mean = ours[0].mean - theirs[0].mean
    over = stats.over_days(start.to_numpy(), numbers(intervals["clicks"]), ours[1], theirs[1], block)
    if over is None:
        return Difference(mean, None, None, None, ours[0].n)
    return stats.widen(over, mean, reach * sqrt(bool(ours[0].sd) + bool(theirs[0].sd)))


def pooled_reach(spreads: Sequence[Spread]) -> float:
    """How far a mean over seeds may be from the truth if all figures vary alike; 0 for one seed."""
    variances = [one.sd**2 for one in spreads if one.sd is not None]
    if not variances:
        return 0.0
    seeds = spreads[0].n
    return stats.quantile((seeds - 1) * len(variances)) * sqrt(fmean(variances) / seeds)


def standings(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Each method over all logs: the smallest worst regret first, upper bounds last. `worst` is None if it failed on a
    log."""
    whole = pl.len() == frame["log"].n_unique()
    made = frame.group_by("label", maintain_order=True).agg(
        pl.first("method", "role"),
        near_best=pl.col("near_best").fill_null(False).sum(),
        worst=pl.when(whole).then(pl.max("regret")),
        worst_log=pl.col("log").get(pl.col("regret").arg_max()),
    )
    return made.sort(pl.col("role") == "upper", pl.col("worst").is_null(), "worst", maintain_order=True).to_dicts()


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
    for one in standings(frame):
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
    ranked, logs, cells = standings(frame), list(_best(frame)), _cells(frame)
    beside = {
        "worst": [figure_cell(one["worst"]).text for one in ranked],
        "near best": ["" if one["role"] == "upper" else str(one["near_best"]) for one in ranked],
    }
    squares = {one["label"]: [_shade(cells.get((one["label"], log))) for log in logs] for one in ranked}
    figure = Figure("regret", "Regret of every method on every log", _CAPTION, ())
    label = "NLL above that of the best method of each log"
    return drawing.write_document(figure, [drawing.draw_squares(label, logs, beside, squares)])


def _shade(cell: Mapping[str, Any] | None) -> tuple[str, str, str | None]:
    """Of a square: its number in words and in few letters, and how dark it is; None if it is marked as good."""
    if cell is None:
        return "n/a", "n/a", "0.00"
    value = cell["regret"]
    strength = 0.65 * sqrt(min(max(value / _DARKEST, 0.0), 1.0))
    short = f"{value:.4f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.2f}"
    return f"{value:.4f}", short, None if cell["near_best"] is True else f"{strength:.2f}"
