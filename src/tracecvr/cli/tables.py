"""What the command line prints: results, listings and the outcome of checks, as tables."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from inspect import getdoc
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from tracecvr.base import config, registry
from tracecvr.base.durations import duration, log_day

if TYPE_CHECKING:
    import polars as pl

    from tracecvr.api.replays import Result
    from tracecvr.checks import CheckOutcome
    from tracecvr.data.inspection.inspect_log import Inspection


_SHOWN = 40
"""Rows of a forecast that are printed; --out has all."""


def console() -> Console:
    """As wide as the terminal; wide enough for every table where there is none."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def result(outcome: Result) -> None:
    """What came out of a run, and what the log's reader has to tell."""
    out, content = console(), outcome.table()
    table = Table(title=content.title, title_justify="left", box=SIMPLE_HEAD)
    for heading in content.headings:
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    for row in content.rows:
        table.add_row(*(place.text for place in row))
    out.print(table)
    for note in content.notes:
        out.print(note, markup=False, soft_wrap=True)


def bench(folder: Path, failed: Mapping[str, str]) -> None:
    """The tables of a bench or a gauntlet, what failed, and where everything is."""
    out = Console(highlight=False, soft_wrap=True)
    out.print((folder / "table.md").read_text(encoding="utf-8"), markup=False)
    for name, message in failed.items():
        out.print(f"failed: {name}: {message}", markup=False)
    if failed:
        out.print("the same command again tries the failed cells once more", markup=False)
    many = (folder / "gauntlet.parquet").exists()
    results, drawn = ("gauntlet.parquet", "figures/regret.svg") if many else ("results.parquet", "report.html")
    kind = "figure" if many else "report"
    out.print(f"results: {folder / results}  tables: {folder / 'table.md'}  {kind}: {folder / drawn}", markup=False)


def show_inspection(inspection: Inspection) -> None:
    """Columns, delays and defects of a log that was looked at."""
    from tracecvr.data.inspection.measurements import QUANTILES, quantile

    out = console()
    table = Table("column", "holds", "for example", box=SIMPLE_HEAD)
    for one in inspection.columns:
        table.add_row(*(text.replace("[", "\\[") for text in (one.name, one.holds, one.examples())))
    out.print(table)
    for action, delays in inspection.measured.delays.items():
        marks = [f"{q:.0%} by {duration(quantile(delays, q))}" for q in QUANTILES if len(delays)]
        words = f"delay of {action}: {len(delays):,} came after a click"
        out.print("; ".join(filter(None, (words, ", ".join(marks)))), markup=False)
    out.print()
    for name, count in inspection.counts.items():
        if count:
            out.print(f"{name}: {count:,}")
    for doubt in inspection.doubts:
        out.print(f"in doubt: {doubt}", markup=False, soft_wrap=True)
    for name, why in inspection.measured.leaks.items():
        out.print(f"left out: {name}: {why}", markup=False, soft_wrap=True)
    out.print()


def show_forecast(frame: pl.DataFrame, level: float) -> None:
    figures = ("clicks", "so far", "expected", f"{level:.0%} interval", "rate")
    table = Table("day", "segment", *(Column(name, justify="right") for name in figures), box=None)
    for row in frame.head(_SHOWN).iter_rows(named=True):
        day = row["day"]
        table.add_row(
            log_day(day) if isinstance(day, int) else f"{day:%Y-%m-%d %H:%M}",
            row["segment"],
            f"{row['clicks']:,}",
            f"{row['conversions']:,}",
            f"{row['expected']:,.1f}",
            f"{row['low']:,.1f} to {row['high']:,.1f}",
            f"{row['rate']:.4f}",
        )
    out = console()
    out.print(table)
    if len(frame) > _SHOWN:
        out.print(f"{len(frame) - _SHOWN:,} more rows: --days or --out")


def describe(kind: str) -> list[dict[str, Any]]:
    """Everything of a kind that is found, with its options, ready for JSON."""
    words: dict[str, str] = {}
    if kind == "method":  # of others it would load torch for nothing
        from tracecvr.bench.gauntlet import load_findings

        words = load_findings()["methods"]
    return [
        {
            "name": name,
            "summary": " ".join((getdoc(cls) or "").split(">>>")[0].split("\n\n")[0].split()),
            "reference": getattr(cls, "reference", ""),
            "gauntlet": words.get(name, ""),
            "options": [asdict(o) for o in config.options(cls)],
        }
        for name, cls in registry.available(kind).items()
    ]


def listing(kind: str) -> None:
    """Everything of a kind: the first sentence of what it does, and options that not all have. `--json` has all."""
    rows = describe(kind)
    options = [[o["name"] for o in row["options"]] for row in rows]
    shared = [name for name in options[0] if len(rows) > 1 and all(name in each for each in options)]
    tried = ["in the gauntlet"] if kind == "method" else []
    table = Table(kind, "what it does", "own options", *tried, box=SIMPLE_HEAD)
    for row, names in zip(rows, options, strict=True):
        summary = row["summary"].partition(". ")[0].removesuffix(".")
        own = ", ".join(name for name in names if name not in shared)
        table.add_row(row["name"], summary, own, *[row["gauntlet"]] * len(tried))
    out = console()
    out.print(table)
    if shared:
        out.print(f"options of all: {', '.join(shared)}", soft_wrap=True)


def outcomes(report: Sequence[CheckOutcome]) -> None:
    from tracecvr import checks

    table = Table("method", "check", "outcome", "why")
    for outcome in report:
        table.add_row(outcome.method, outcome.check, outcome.status, outcome.reason)
    Console().print(table)
    Console().print(checks.summary(report))
