"""Dataset: what the author of a reader writes. `read` gives raw rows; everything after that is the same for all.

A dataset's dataclass fields are its options (`--data-set key=value`). A log is read in parts, sorted and written in
slices, so that one bigger than memory is no different.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl

from tracecvr.base.config import Seconds, option, restore
from tracecvr.base.durations import duration, exact_duration
from tracecvr.base.errors import UserError
from tracecvr.data.column_files import Array, ColumnFiles
from tracecvr.data.encoder import Column, Encoder
from tracecvr.data.external_sort import ClickSorter, Scratch
from tracecvr.data.table import NEVER, TRUTH_PREFIX, TURNS, ClickTable, Schema

_BLOCK = 1 << 18
"""Clicks worked on at a time."""


@dataclass
class RawLog:
    """Rows as read, all of them or a part: `click_ts` and one column per action (seconds since the log's origin, null
    when absent) and the raw feature columns. `dropped` counts bad rows by reason, `counts` others that were left out.

    `click_id` is the number of the row, unless the reader gives one. `undone` and the other `TURNS`, if the
    reader gives them, are when the conversion was taken back, and stood again. Of clicks of the same second with the
    same `digest`, if the reader gives that, all but the first are dropped as duplicates.
    """

    frame: pl.DataFrame
    rows: int
    dropped: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    truth: tuple[str, ...] = ()


@dataclass
class Dataset:
    """Base of all datasets.

    You write `name`, `actions` (the conversion first), defaults of the options, `columns`, which says how raw columns
    become features, and `read`. Write `parts` instead of `read` for a log that may be bigger than memory.

    Examples
    --------
    >>> from tracecvr.datasets.synthetic import Synthetic
    >>> table, encoder = Synthetic(clicks=2000, interval=3600).prepare(None)
    >>> table.schema.interval
    3600
    """

    name: ClassVar[str]
    actions: ClassVar[tuple[str, ...]] = ("conversion",)
    needs_source: ClassVar[bool] = True
    embedding_dim: ClassVar[int] = 16
    estimator_hidden: ClassVar[tuple[int, ...]] = (128, 128, 128)
    window: ClassVar[int | None] = None
    windows: ClassVar[tuple[int, ...] | None] = None
    conversions_at_click: ClassVar[bool] = False

    horizons: tuple[Seconds, ...] = option((), "ends of the observation windows")
    d_max: Seconds = option(0, "attribution limit: later conversions do not count", above=0)
    split: Seconds = option(0, "end of the warm-up part, start of the stream", above=0)
    interval: Seconds = option(3600, "length of an interval of the stream", above=0)
    observed_until: Seconds = option(0, "where labels end; clicks whose d_max ends later are not scored", above=0)
    max_bad: float = option(0.01, "share of rows that may be dropped as bad", low=0, high=1)

    def read(self, source: Path | None) -> RawLog:
        """The raw log, from a file or a generator."""
        raise UserError(f"dataset {self.name!r} does not define read()")

    def parts(self, source: Path | None, scratch: Scratch) -> Iterator[RawLog]:
        """The raw log in parts of any order, of which one is held at a time; all of it in one, by default."""
        yield self.read(source)

    def columns(self) -> tuple[Column, ...]:
        """How raw columns become features."""
        raise UserError(f"dataset {self.name!r} does not define columns()")

    def prepare(
        self, source: Path | None, scratch: Scratch | None = None, folder: Path | None = None
    ) -> tuple[ClickTable, Encoder]:
        """Read, clean, sort and encode; the columns are written to `folder` as they are made, if one is given."""
        self.check_source(source)
        with scratch or Scratch() as room:
            preparation = _Preparation(self, str(source or self.name), room)
            for part in self.parts(source, room):
                preparation.add(part)
            return preparation.table(folder), preparation.encoder

    def check_source(self, source: Path | None) -> None:
        """Refuse a source where none is read, and its absence where one is."""
        if self.needs_source and source is None:
            raise UserError(f"dataset {self.name!r} reads a file: give it with --source FILE")
        if not self.needs_source and source is not None:
            raise UserError(f"{source}: not a table written by `tracecvr prepare`, and {self.name!r} reads no raw file")

    def files(self, source: Path | None) -> tuple[Path, ...]:
        """Every file that a log is made from: a run is another one if they change."""
        return () if source is None else (source,)

    def read_carried(self) -> dict[str, str]:
        """Small files that are needed to read the log again, by name: tables and runs keep a copy."""
        return {}

    @classmethod
    def reopen(cls, options: Mapping[str, Any], folder: Path) -> Dataset:  # noqa: ARG003
        """The dataset with recorded options, and with the copies that `folder` keeps."""
        return restore(cls, options)

    def origin(self) -> int | None:
        """The Unix time of the log's second 0; None if its times are not those of a calendar."""
        return None

    def given_ids(self, source: Path | None) -> pl.LazyFrame | None:
        """Ids as the log has them (`given_id`), some several times, if the table has keys (`click_id`) of them."""
        return None

    def table_schema(self, encoder: Encoder, notes: tuple[str, ...] = ()) -> Schema:
        """What the log consists of and how it is to be replayed."""
        same = {one.name: getattr(self, one.name) for one in fields(Schema) if hasattr(self, one.name)}
        return Schema(**same | {"dataset": self.name, "features": encoder.features, "notes": notes})


def usual(name: str, default: Any) -> Any:
    """An option that all datasets have, with another default."""
    return field(default=default, metadata=Dataset.__dataclass_fields__[name].metadata)


class _Preparation:
    """A table in the making: parts of a log go in, are checked, learnt from and sorted, and come out as columns."""

    def __init__(self, dataset: Dataset, where: str, scratch: Scratch) -> None:
        self.dataset, self.where, self.scratch = dataset, where, scratch
        self.encoder = Encoder(dataset.columns())
        self.actions = dataset.table_schema(self.encoder).actions  # what cannot be is refused before anything is read
        self.rows = 0
        self.notes: tuple[str, ...] = ()
        self.truth: tuple[str, ...] = ()
        self.sorter = ClickSorter(scratch)
        self.first, self.last = NEVER, -1
        self.bad, self.counts = Counter(conversion_before_click=0), Counter[str]()
        self.early = (pl.col(self.actions[0]) < pl.col("click_ts")).fill_null(False)

    def add(self, part: RawLog) -> None:
        """Check the clicks of a part, learn from those before the split, and keep of them what the table needs."""
        frame = part.frame
        if "click_id" not in frame.columns:
            frame = frame.with_row_index("click_id", self.sorter.rows)
        self.encoder.check(frame)
        for clicks in frame.iter_slices(_BLOCK):
            self._check_times(clicks)
            self._learn(clicks.filter(~self.early))
            kept = ["click_ts", "click_id", *self.actions, *part.truth]
            kept += [name for name in ("digest", *TURNS) if name in frame.columns]
            self.sorter.add(clicks.select(*kept, *self.encoder.keep()))
        self.rows += part.rows
        self.bad.update(part.dropped)
        self.counts.update(part.counts)
        self.notes, self.truth = part.notes, part.truth

    def table(self, folder: Path | None) -> ClickTable:
        self._check_log()
        total, done, clicks = self.sorter.rows, 0, 0
        columns = ColumnFiles(self.scratch, folder)
        for rows in self.sorter.slices():
            done += len(rows)
            if "digest" in rows.columns:
                rows = self._without(rows, "duplicates", ~pl.struct("click_ts", "digest").is_first_distinct())
            sound = self._without(rows, "conversion_before_click", self.early)
            columns.append(self._block(sound))
            clicks += len(sound)
            self.scratch.progress("write", done, total)
        self._check_bad()
        dropped = {f"dropped_{reason}": n for reason, n in self.bad.items()}
        counts = {"rows": self.rows, "clicks": clicks} | self.counts | dropped
        return ClickTable.assemble(columns, self.dataset.table_schema(self.encoder, self.notes), counts)

    def _learn(self, sound: pl.DataFrame) -> None:
        if len(sound):
            self.first = min(self.first, sound.select(pl.col("click_ts").min()).item())
            self.last = max(self.last, sound.select(pl.col("click_ts").max()).item())
        if self.first < self.dataset.split:
            self.encoder = self.encoder.fit(sound.filter(pl.col("click_ts") < self.dataset.split))

    def _without(self, rows: pl.DataFrame, reason: str, bad: pl.Expr) -> pl.DataFrame:
        flags = rows.select(bad).to_series()
        self.bad[reason] += int(flags.sum())
        return rows.filter(~flags) if flags.any() else rows

    def _block(self, rows: pl.DataFrame) -> dict[str, Array]:
        actions = pl.col(self.actions).cast(pl.Int64).fill_null(NEVER)
        block: dict[str, Array] = {
            "x": self.encoder.finish(rows),
            "click_ts": rows["click_ts"].to_numpy().astype(np.int64, copy=False),
            "click_id": rows["click_id"].to_numpy().astype(np.int64, copy=False),
            "action_ts": rows.select(actions).to_numpy(order="c"),
        }
        if "undone" in rows.columns:
            turns = rows.select(pl.col(TURNS).cast(pl.Int64).fill_null(NEVER))
            block["refund_ts"] = turns.to_numpy(order="c")
        return block | {f"{TRUTH_PREFIX}{name}": rows[name].to_numpy() for name in self.truth}

    def _check_times(self, clicks: pl.DataFrame) -> None:
        for name in ("click_ts", *self.actions):
            negative = clicks.filter(pl.col(name) < 0)
            if len(negative):
                row = negative["click_id"][0] + 1
                raise UserError(f"{self.where}: row {row}: negative {name} {negative[name][0]}")

    def _check_log(self) -> None:
        """Refuse a log without clicks, with too many bad ones, or all on one side of the split."""
        split = self.dataset.split
        if self.last < 0:  # none is sound
            self.bad["conversion_before_click"] = self.sorter.rows
        if self.sorter.rows:
            self._check_bad()
        if self.last < 0:
            left_out = "".join(f", {n} {reason}" for reason, n in (self.counts | self.bad).items() if n)
            raise UserError(f"{self.where}: the log has no clicks ({self.rows} rows read{left_out})")
        d_max, until = self.dataset.d_max, self.dataset.observed_until
        if until - d_max < self.first:
            raise UserError(
                f"{self.where}: d_max = {exact_duration(d_max)}: labels end {duration(until - self.first)} after the "
                "first click, so no click has a final label; give a shorter d_max, or another observed_until"
            )
        if not self.first < split <= self.last:
            part = "stream" if self.last < split else "warm-up part"
            raise UserError(
                f"{self.where}: split = {split} s leaves no {part}: clicks run from {self.first} to {self.last} s; "
                "set another with --data-set split=..."
            )

    def _check_bad(self) -> None:
        bad, most = self.bad.total(), self.dataset.max_bad
        if bad > most * self.rows:
            counts = ", ".join(f"{n} {reason}" for reason, n in self.bad.items() if n)
            raise UserError(
                f"{self.where}: {bad} of {self.rows} rows are bad ({counts}), more than max_bad = {most:g}; "
                f"clean the log, or allow it with --data-set max_bad={bad / self.rows + 0.005:.2f}"
            )
