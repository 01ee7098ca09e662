"""A dataset as the events that a live system would have been sent, in the order in which they happened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from tracecvr.base.errors import UserError
from tracecvr.data import prepared
from tracecvr.data.dataset import Dataset
from tracecvr.data.encoder import Encoder
from tracecvr.data.external_sort import Scratch
from tracecvr.data.table import TURNS
from tracecvr.online.store.starting_run import StartingRun


def log_of_table(table: Path) -> tuple[Dataset, Path | None, int]:
    """The dataset and the raw log that a table was prepared from, and its split."""
    if not table.exists():
        raise UserError(f"--source {table}: no such file or directory")
    if prepared.dataset_name(table) is None:
        raise UserError(f"{table}: not a prepared log; make one with `tracecvr prepare`")
    dataset, raw = prepared.reopen(table)
    return dataset, raw, dataset.split


def log_of_run(run: Path) -> tuple[Dataset, Path | None, int]:
    """The dataset and the raw log that a run was made over, and where it has ended."""
    origin = StartingRun.of(run)
    log = origin.log()
    if log is None or prepared.dataset_name(log) is None:
        return origin.dataset, log, origin.start.time
    return *prepared.reopen(log), origin.start.time


def events_of(dataset: Dataset, source: Path | None, start: int, end: int) -> Iterator[dict[str, Any]]:
    """Clicks and actions of [start, end) as JSON-ready objects. The log has to fit in memory."""
    features = list(dict.fromkeys(column.raw for column in dataset.columns()))
    actions = dataset.table_schema(Encoder(dataset.columns())).actions  # of a log of your own: its schema's
    with Scratch() as scratch:
        frames, rows = [], 0
        for part in dataset.parts(source, scratch):
            frame = part.frame
            if "click_id" not in frame.columns:
                frame = frame.with_row_index("click_id", rows)
            rows += part.rows
            turns = TURNS if "undone" in frame.columns else [pl.lit(None, pl.Int64).alias(name) for name in TURNS]
            frames.append(frame.select("click_id", "click_ts", *actions, *turns, *features))
    log = pl.concat(frames).filter(~(pl.col(actions[0]) < pl.col("click_ts")).fill_null(False))
    log = log.with_columns(prepared.ids_in_log(log["click_id"], dataset.given_ids(source)))
    due = pl.concat(
        log.select(ts=pl.col(name).cast(pl.Int64), row=pl.int_range(pl.len()), kind=pl.lit(kind))
        for kind, name in enumerate(("click_ts", *actions, *TURNS))
    )
    due = due.filter((pl.col("ts") >= start) & (pl.col("ts") < end)).sort("ts", "kind", "row")
    kinds = ("click", *actions, "refund", actions[0], "refund")
    ids = log["click_id"].to_list()
    raw = log.select(features)
    for ts, row, kind in due.iter_rows():
        event: dict[str, Any] = {"type": kinds[kind], "click_id": ids[row], "ts": ts}
        yield event if kind else event | {"features": raw.row(row, named=True)}
