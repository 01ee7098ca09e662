"""`tracecvr forecast`: what the clicks of the last days will bring, by segment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracecvr.base.durations import log_day
from tracecvr.base.errors import UserError
from tracecvr.cli.live.arguments import AsJson

if TYPE_CHECKING:
    import polars as pl

    from tracecvr.forecast.of_run import Forecasts

_SHOWN = 40
"""Rows of the table; --json and --out have all."""


def forecast(
    model: Annotated[Path, typer.Argument(metavar="STORE|RUN", help="A live model, or the directory of a run.")],
    by: Annotated[str | None, typer.Option("--by", help="A feature: a row for each of its values and days.")] = None,
    at: Annotated[
        str | None, typer.Option(help="A past moment: a date, or a time since the log's start (45d).")
    ] = None,
    days: Annotated[int | None, typer.Option("--days", min=1, help="The last days; all that are open without.")] = None,
    level: Annotated[float, typer.Option("--level", help="The share of intervals that are to hold.")] = 0.9,
    estimator: Annotated[str, typer.Option("--estimator", help="blend, bf, ladder, model, credibility, ...")] = "blend",
    out: Annotated[Path | None, typer.Option("--out", help="Write all rows: a .parquet or .csv file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Forecast the final conversions of the last days' clicks, by segment, with intervals.

    Days are the 24 hours up to the moment of the forecast, and those before.
    """
    from tracecvr.api.own_tables import moment

    asked = _open(model)
    when = None if at is None else moment(at, asked.origin, "--at")
    frame = asked.forecast(by, when, level, estimator, days)
    if out is not None:
        _write(frame, out)
    if as_json:
        typer.echo(frame.write_json())
    elif out is None:
        _print(frame, level)


def _open(path: Path) -> Forecasts:
    from tracecvr.forecast.of_run import open_run

    if (path / "result.json").is_file():
        return open_run(path)
    if not (path / "store.json").is_file():
        raise UserError(f"{path}: neither a live model nor a finished run; give the directory of one")
    from tracecvr.cli.live.arguments import store_at
    from tracecvr.online.upkeep.forecast import forecasts_of

    return forecasts_of(store_at(path))


def _write(frame: pl.DataFrame, out: Path) -> None:
    if out.suffix == ".parquet":
        frame.write_parquet(out)
    elif out.suffix == ".csv":
        frame.write_csv(out)
    else:
        raise UserError(f"--out {out}: give a file that ends with .parquet or .csv")
    typer.echo(f"written: {out}")


def _print(frame: pl.DataFrame, level: float) -> None:
    from rich.table import Column, Table

    from tracecvr.cli.tables import console

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
    console().print(table)
    if len(frame) > _SHOWN:
        typer.echo(f"{len(frame) - _SHOWN:,} more rows: --days, --json or --out")
