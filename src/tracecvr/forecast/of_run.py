"""Forecasts of a finished run: its log as it was known at a past moment, and what the model had predicted by then."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracecvr.base.config import DAY, nearest
from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json
from tracecvr.data import prepared, raw_log
from tracecvr.data.encoder import Encoder, value_names
from tracecvr.data.prepared import Prepared
from tracecvr.data.table import ClickTable, Ints, Schema
from tracecvr.forecast.cells import Cells, count, outcomes_of
from tracecvr.forecast.estimators import DEFAULT
from tracecvr.forecast.forecast import LEVEL, forecast
from tracecvr.runs.replay import FullPlan


@dataclass(frozen=True, eq=False)
class Segments:
    """Which segment each click belongs to, from 0, and the segments' names."""

    number: Ints
    names: dict[int, str]


def segments_of(x: npt.NDArray[np.int32], schema: Schema, encoder: Encoder, by: str | None) -> Segments:
    """Segments by a feature; all clicks are one without. Of hashed features only ids are known."""
    if by is None:
        return Segments(np.zeros(len(x), np.int64), {0: "all"})
    names = [f.name for f in schema.features if not f.high]
    if by not in names:
        raise UserError(f"by {by}: no such feature{nearest(by, names)}; there are: {', '.join(names)}")
    place = [f.name for f in schema.features].index(by)
    ids = x[:, place].astype(np.int64)
    if schema.features[place].growth is not None:
        ids += x[:, place + 1].astype(np.int64) << 31
    present, number = np.unique(ids, return_inverse=True)
    raw = value_names(encoder.columns[place])
    return Segments(number, {at: raw.get(one, str(one)) for at, one in enumerate(present.tolist())})


@dataclass(frozen=True, eq=False)
class RunForecasts:
    """What can be asked of a run, with its log."""

    folder: Path
    log: Prepared

    @cached_property
    def plan(self) -> FullPlan:
        return FullPlan(**read_json(self.folder / "result.json")["plan"])

    @cached_property
    def log_odds(self) -> npt.NDArray[np.float32]:
        """What was served for each click of the table, among its clicks; NaN where none was judged."""
        table = self.log.table
        first, last = self.plan.judged_rows(table)
        served = np.full(len(table), np.nan, np.float32)
        kept = np.float32(np.log(table.schema.negatives_kept))  # scores are of all clicks, cells count those of the log
        served[first:last] = pl.read_parquet(self.folder / "scores.parquet")["log_odds"].to_numpy() - kept
        return served

    @property
    def last(self) -> int:
        """The last midnight (UTC) of the stream: when a forecast is made by default."""
        origin = self.log.origin or 0
        return (self.plan.until + origin) // DAY * DAY - origin

    def cells(self, by: str | None, at: int | None = None) -> tuple[Cells, Segments]:
        """Cells as known at a moment, by a feature."""
        table, at = self.log.table, self.last if at is None else at
        _, last = table.rows_between(0, at)  # a segment that comes later is not known
        if not last:
            raise UserError(f"at = {at} s is before the first click of the log: choose a later moment")
        segments = segments_of(np.asarray(table.x[:last]), table.schema, self.log.encoder, by)
        return count(outcomes_of(table, segments.number, self.log_odds), len(segments.names), at), segments

    def forecast(
        self, by: str | None, at: int | None = None, level: float = LEVEL, estimator: str = DEFAULT, days: Any = None
    ) -> pl.DataFrame:
        """Of each segment and day that was open at a moment, with what was known then alone."""
        cells, segments = self.cells(by, at)
        return forecast(cells, segments.names, level, estimator, self.log.origin, days)


def open_run(folder: Path) -> RunForecasts:
    """A run with its log, as its directory says where it is: a prepared table, or a raw log that is read again."""
    if not (folder / "result.json").is_file():
        raise UserError(f"{folder} holds no finished run: give the directory that `tracecvr run` wrote")
    source = read_json(folder / "run.json")["source"] or {}
    table = Path(source.get("path", "")).parent
    log = prepared.load(table) if ClickTable.exists(table) else prepared.prepare(*raw_log.reopened(folder))
    if log.table.fingerprint != read_json(folder / "result.json")["data"]["fingerprint"]:
        raise UserError(f"{folder}: its log has changed since; run it again")
    return RunForecasts(folder, log)
