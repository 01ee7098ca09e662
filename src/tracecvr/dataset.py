"""Dataset: what the author of a reader writes. `read` gives raw rows; everything after that is the same for all.

A dataset's dataclass fields are its options (`--data-set key=value`). The encoder is fitted on the warm-up part alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import polars as pl

from tracecvr.clicks import NEVER, ClickTable, Schema
from tracecvr.config import Seconds, option
from tracecvr.encode import Column, Encoder
from tracecvr.errors import UserError


@dataclass
class RawLog:
    """Rows as read: `click_ts` and one column per action (seconds since the log's origin, null when absent), the raw
    feature columns, and whatever the reader had to drop, counted by reason. `counts` tells what a recipe left out on
    purpose: it is reported, and unlike `dropped` not held against the log."""

    frame: pl.DataFrame
    rows: int
    dropped: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    truth: tuple[str, ...] = ()


@dataclass
class Dataset:
    """Base of all datasets. Subclasses give `name`, `actions` (conversion first), defaults, `columns` and `read`."""

    name: ClassVar[str]
    actions: ClassVar[tuple[str, ...]] = ("conversion",)
    needs_source: ClassVar[bool] = True
    embedding_dim: ClassVar[int] = 16
    estimator_hidden: ClassVar[tuple[int, ...]] = (128, 128, 128)
    window: ClassVar[int | None] = None

    horizons: tuple[Seconds, ...] = option((), "ends of the observation windows")
    d_max: Seconds = option(0, "attribution limit: later conversions do not count", above=0)
    split: Seconds = option(0, "end of the warm-up part, start of the stream", above=0)
    interval: Seconds = option(3600, "length of an interval of the stream", above=0)
    observed_until: Seconds = option(0, "where labels end; clicks whose d_max ends later are not scored", above=0)
    max_bad: float = option(0.01, "share of rows that may be dropped as bad", low=0, high=1)

    def read(self, source: Path | None) -> RawLog:
        """The raw log, from a file or a generator."""
        raise UserError(f"dataset {self.name!r} does not define read()")

    def columns(self) -> tuple[Column, ...]:
        """How raw columns become features."""
        raise UserError(f"dataset {self.name!r} does not define columns()")

    def prepare(self, source: Path | None) -> tuple[ClickTable, Encoder]:
        """Read, clean, sort and encode."""
        if self.needs_source and source is None:
            raise UserError(f"dataset {self.name!r} reads a file: give it with --source FILE")
        if not self.needs_source and source is not None:
            raise UserError(f"{source}: not a table written by `tracecvr prepare`, and {self.name!r} reads no raw file")
        where = str(source or self.name)
        raw = self._cleaned(self.read(source), where)
        frame = _sorted(raw)
        self._check_split(frame, where)
        encoder = Encoder(self.columns()).fit(frame.head(int(frame["click_ts"].search_sorted(self.split))))
        table = ClickTable(
            x=encoder.encode(frame),
            click_ts=frame["click_ts"].to_numpy().astype(np.int64),
            click_id=frame["click_id"].to_numpy().astype(np.int64),
            action_ts=frame.select(pl.col(self.actions).cast(pl.Int64).fill_null(NEVER)).to_numpy(order="c"),
            schema=self._schema(encoder, raw.notes),
            counts={"rows": raw.rows, "clicks": len(frame)}
            | raw.counts
            | {f"dropped_{k}": v for k, v in raw.dropped.items()},
            truth={name: frame[name].to_numpy() for name in raw.truth},
        )
        return table, encoder

    def _schema(self, encoder: Encoder, notes: tuple[str, ...]) -> Schema:
        return Schema(
            dataset=self.name,
            features=encoder.features,
            actions=self.actions,
            horizons=self.horizons,
            d_max=self.d_max,
            split=self.split,
            interval=self.interval,
            observed_until=self.observed_until,
            embedding_dim=self.embedding_dim,
            estimator_hidden=self.estimator_hidden,
            window=self.window,
            notes=notes,
        )

    def _cleaned(self, raw: RawLog, where: str) -> RawLog:
        """Drop conversions before their click, refuse negative times and too many bad rows."""
        if "click_id" not in raw.frame.columns:
            raw.frame = raw.frame.with_row_index("click_id")
        _check_clicks(raw, where)
        for name in ("click_ts", *self.actions):
            negative = raw.frame.filter(pl.col(name) < 0)
            if len(negative):
                raise UserError(f"{where}: row {negative['click_id'][0] + 1}: negative {name} {negative[name][0]}")
        early = (raw.frame[self.actions[0]] < raw.frame["click_ts"]).fill_null(False)
        raw.dropped = {"conversion_before_click": int(early.sum())} | raw.dropped
        if early.any():
            raw.frame = raw.frame.filter(~early)
        bad = sum(raw.dropped.values())
        if bad > self.max_bad * raw.rows:
            counts = ", ".join(f"{v} {k}" for k, v in raw.dropped.items() if v)
            raise UserError(
                f"{where}: {bad} of {raw.rows} rows are bad ({counts}), more than max_bad = {self.max_bad:g}; "
                f"clean the log, or allow it with --data-set max_bad={bad / raw.rows + 0.005:.2f}"
            )
        _check_clicks(raw, where)
        return raw

    def _check_split(self, frame: pl.DataFrame, where: str) -> None:
        first, last = frame["click_ts"][0], frame["click_ts"][-1]
        if not first < self.split <= last:
            part = "stream" if last < self.split else "warm-up part"
            raise UserError(
                f"{where}: split = {self.split} s leaves no {part}: clicks run from {first} to {last} s; "
                "set another with --data-set split=..."
            )


def _check_clicks(raw: RawLog, where: str) -> None:
    if raw.frame.is_empty():
        left_out = "".join(f", {n} {reason}" for reason, n in (raw.counts | raw.dropped).items() if n)
        raise UserError(f"{where}: the log has no clicks ({raw.rows} rows read{left_out})")


def first_of_each(rows: pl.DataFrame) -> pl.Series:
    """Which rows repeat no earlier one. Compared by 64-bit hashes, a third of the memory of the rows themselves: among
    16 million different rows, two are taken for equal with probability 1e-5."""
    return rows.hash_rows().is_first_distinct()


def picked(columns: list[pl.Series], rows: pl.Series) -> pl.DataFrame:
    """These rows, by number, of all columns. Empties the list as it goes, so that a large log is never held twice."""
    return pl.DataFrame([columns.pop(0).rechunk().gather(rows) for _ in range(len(columns))])


def _sorted(raw: RawLog) -> pl.DataFrame:
    order = raw.frame.select(pl.arg_sort_by("click_ts", "click_id")).to_series()
    columns, raw.frame = raw.frame.get_columns(), raw.frame.clear()
    return picked(columns, order)
