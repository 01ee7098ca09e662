"""A log of your own, Parquet or CSV, as its schema describes it (`tracecvr inspect` proposes one)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from tracecvr.base.config import Seconds, option, restore
from tracecvr.base.errors import UserError
from tracecvr.data.dataset import Dataset, RawLog
from tracecvr.data.encoder import Column, Encoder
from tracecvr.data.external_sort import Scratch
from tracecvr.data.outages import pair
from tracecvr.data.own_log import schema as schemas
from tracecvr.data.own_log.cleaning import Cleaner
from tracecvr.data.own_log.rows import Rows
from tracecvr.data.own_log.schema import LogSchema
from tracecvr.data.own_log.times import origin_of
from tracecvr.data.table import Schema

_CARRIED = "schema.toml"


@dataclass
class Logs(Dataset):
    """A log of your own: one row per click with the times of what followed, or one row per event. `schema` says what
    the columns mean and what to do with each defect; an option that is given wins over it.

    >>> Logs().name
    'logs'
    """

    name = "logs"
    needs_source = False

    schema: str = option("", "the TOML file that describes the log (--schema does the same)")
    horizons: tuple[Seconds, ...] = option((), "ends of the observation windows; the schema's by default")
    d_max: Seconds = option(0, "attribution limit; the schema's by default", low=0)
    split: Seconds = option(0, "end of the warm-up part; the schema's by default", low=0)
    interval: Seconds = option(0, "length of an interval of the stream; the schema's by default", low=0)
    observed_until: Seconds = option(0, "where labels end; the schema's by default", low=0)
    max_bad: float | None = option(None, "share of rows that may be dropped; the schema's by default", low=0, high=1)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if not self.schema:
            return
        labels = self.described.labels
        for name in ("horizons", "d_max", "split", "interval", "observed_until"):
            setattr(self, name, getattr(self, name) or getattr(labels, name))
        if self.max_bad is None:
            self.max_bad = self.described.defects.max_bad

    @cached_property
    def described(self) -> LogSchema:
        """What the schema says."""
        if not self.schema:
            raise UserError("dataset 'logs' needs a schema: give --schema FILE (`tracecvr inspect LOG` proposes one)")
        return schemas.load(Path(self.schema))

    def check_source(self, source: Path | None) -> None:
        Rows(self.described, source).open_files()

    def files(self, source: Path | None) -> tuple[Path, ...]:
        described = self.described
        return described.path, *(file.path for _, file in Rows(described, source).open_files())

    def read_carried(self) -> dict[str, str]:
        described = self.described
        folder = "" if described.folder else f"folder = {json.dumps(str(described.path.parent.absolute()))}\n"
        return {_CARRIED: folder + described.path.read_text(encoding="utf-8")}

    @classmethod
    def reopen(cls, options: Mapping[str, Any], folder: Path) -> Dataset:
        return restore(cls, {**options, "schema": str(folder / _CARRIED)})

    def columns(self) -> tuple[Column, ...]:
        return self.described.features

    def origin(self) -> int | None:
        second_0, since_1970 = origin_of(self.described.time)
        return second_0 if since_1970 else None

    def given_ids(self, source: Path | None) -> pl.LazyFrame | None:
        return Rows(self.described, source).given_ids()

    def table_schema(self, encoder: Encoder, notes: tuple[str, ...] = ()) -> Schema:
        described = self.described
        return replace(
            super().table_schema(encoder, notes),
            actions=described.names,
            window=described.labels.window,
            negatives_kept=described.labels.negatives_kept,
            outages=pair(described.labels.outages, f"{described.path}: [labels] outages"),
        )

    def parts(self, source: Path | None, scratch: Scratch) -> Iterator[RawLog]:
        cleaner = Cleaner(Rows(self.described, source), self.d_max)
        for clicks in cleaner.parts(scratch):
            if len(clicks):
                yield RawLog(clicks, 0, notes=self._notes())
        # What was counted is complete only now.
        yield RawLog(clicks.clear(), cleaner.rows.read, *cleaner.report(), self._notes())

    def _notes(self) -> tuple[str, ...]:
        kept = self.described.labels.negatives_kept
        if kept == 1:
            return ()
        return (
            f"{100 * kept:g}% of the clicks without a conversion are in the log: odds are multiplied by {kept:g}, "
            f"metrics count each such click {1 / kept:g} times",
        )
