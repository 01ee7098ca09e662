"""A dataset as the events that a live system would have been sent, in the order in which they happened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from tracecvr.data.dataset import Dataset
from tracecvr.data.encoder import Encoder
from tracecvr.data.external_sort import Scratch


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
            frames.append(frame.select("click_id", "click_ts", *actions, *features))
    log = pl.concat(frames).filter(~(pl.col(actions[0]) < pl.col("click_ts")).fill_null(False))
    yield from _in_order(log, actions, features, start, end)


def _in_order(
    log: pl.DataFrame, actions: tuple[str, ...], features: list[str], start: int, end: int
) -> Iterator[dict[str, Any]]:
    times = [log.select(ts="click_ts", row=pl.int_range(pl.len()), kind=pl.lit(0))]
    for kind, action in enumerate(actions, start=1):
        times.append(log.select(ts=pl.col(action).cast(pl.Int64), row=pl.int_range(pl.len()), kind=pl.lit(kind)))
    due = pl.concat([t.with_columns(pl.col("ts").cast(pl.Int64)) for t in times])
    due = due.filter((pl.col("ts") >= start) & (pl.col("ts") < end)).sort("ts", "kind", "row")
    ids = log["click_id"]
    raw = log.select(features)
    for ts, row, kind in due.iter_rows():
        event: dict[str, Any] = {"type": actions[kind - 1] if kind else "click", "click_id": int(ids[row]), "ts": ts}
        yield event if kind else event | {"features": raw.row(row, named=True)}
