"""Forecasts of a log as it was known at a moment, with what a model had predicted by then: of a finished run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from tracecvr.base.config import DAY, refuse_unknown
from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json
from tracecvr.data import prepared
from tracecvr.data.encoder import Encoder, value_names
from tracecvr.data.prepared import Prepared
from tracecvr.data.table import ClickTable, Ints, Schema
from tracecvr.forecast.cells import Cells, count, outcomes_of, records_of
from tracecvr.forecast.figures import MOST_SEGMENTS, ScoredCells, ScoredTally, compare
from tracecvr.forecast.forecast import LEVEL, day_starts, forecast
from tracecvr.runs.replay import FullPlan
from tracecvr.runs.run import read_result


def segments_of(
    x: npt.NDArray[np.int32], schema: Schema, encoder: Encoder, by: str | None
) -> tuple[Ints, dict[int, str]]:
    """Which segment each click belongs to, from 0, by a feature, and the segments' names; all clicks are one without a
    feature. Of hashed features only ids are known."""
    if by is None:
        return np.zeros(len(x), np.int64), {0: "all"}
    names = [f.name for f in schema.features]
    refuse_unknown([by], names, "by", "feature")
    place = names.index(by)
    present, number = np.unique(x[:, place].astype(np.int64), return_inverse=True)
    raw = value_names(encoder.columns[place])
    return number, {at: raw.get(one, str(one)) for at, one in enumerate(present.tolist())}


@dataclass(frozen=True, eq=False)
class Forecasts:
    """What can be asked about a log and what a model predicted of it."""

    table: ClickTable
    encoder: Encoder
    log_odds: npt.NDArray[np.float32]
    """What was served for each click, among the clicks of the table; NaN where nothing was."""
    last: int
    """When a forecast is made unless another moment is given."""
    origin: int | None = None

    def cells(self, by: str | None, at: int | None = None) -> tuple[Cells, dict[int, str]]:
        table, at = self.table, self.last if at is None else at
        _, last = table.rows_between(0, at)  # a segment that comes later is not known
        if not last:
            raise UserError(f"at = {at} s is before the first click of the log: choose a later moment")
        number, names = segments_of(np.asarray(table.x[:last]), table.schema, self.encoder, by)
        return count(outcomes_of(table, number, self.log_odds), len(names), at), names

    def forecast(
        self,
        by: str | None = None,
        at: int | None = None,
        level: float = LEVEL,
        days: int | None = None,
    ) -> pl.DataFrame:
        """Of each segment and day that was open at a moment, with what was known then alone."""
        cells, names = self.cells(by, at)
        return forecast(cells, names, level, self.origin, days)

    def figures(self, by: str | None = None, age: int = 0, level: float = LEVEL) -> pl.DataFrame:
        """Of each whole day of the stream, and of its largest segments: NLL, PCOC and AUC as expected so many days
        after its end, from what was known then alone, beside the final ones where the log has them."""
        table = self.table
        first = int(table.click_ts[np.flatnonzero(~np.isnan(self.log_odds))[0]])  # of the stream
        segment, names = segments_of(np.asarray(table.x), table.schema, self.encoder, by)
        before = np.bincount(segment[: table.rows_between(0, first)[1]], minlength=len(names))
        largest = np.sort(np.argsort(-before, kind="stable")[:MOST_SEGMENTS]) if by else np.empty(0, np.int64)
        number = np.full(len(names), -1)
        number[largest] = np.arange(len(largest))
        at = self.last - (-table.schema.d_max // DAY) * DAY
        tally = ScoredTally(table.schema.d_max, len(largest), -at % DAY)
        records = records_of(outcomes_of(table, segment, self.log_odds), 0, at, tally.shift)
        tally.count(number[records["segment"]], records)
        cells = ScoredCells(tally.cells(at))
        begins = cells.by_score.start(np.arange(cells.by_score.days))
        days = np.flatnonzero((begins >= first) & (begins + (1 + age) * DAY <= self.last))
        frame = compare(cells, ["all", *(names[one] for one in largest.tolist())], days, age, level)
        return frame.with_columns(day_starts(cells.by_score, frame["day"].to_numpy(), self.origin).alias("day"))


def of_run(folder: Path, log: Prepared) -> Forecasts:
    """The forecasts of a finished run of a log; by default those of the last midnight (UTC) of its stream."""
    table, plan = log.table, FullPlan(**read_json(folder / "result.json")["plan"])
    files = [folder / name for name in ("not_judged.parquet", "scores.parquet")]
    parts = [pl.read_parquet(file)["log_odds"].to_numpy() for file in files if file.is_file()]
    served, (_, end) = np.full(len(table), np.nan, np.float32), plan.stream_rows(table)
    kept = np.float32(np.log(table.schema.negatives_kept))  # scores are of all clicks, cells count those of the log
    served[end - sum(map(len, parts)) : end] = np.concatenate(parts) - kept
    origin = log.origin or 0
    last = max((plan.until + origin) // DAY * DAY - origin, 0) or plan.until
    return Forecasts(table, log.encoder, served, last, log.origin)


def open_run(folder: Path) -> Forecasts:
    """A run with its log, as its directory says where it is: a prepared table, or a raw log that is read again."""
    result = read_result(folder)
    source = read_json(folder / "run.json")["source"] or {}
    table = Path(source.get("path", "")).parent
    log = prepared.load(table) if ClickTable.exists(table) else prepared.open_log(*prepared.reopen(folder))
    if log.table.fingerprint != result["data"]["fingerprint"]:
        raise UserError(f"{folder}: its log has changed since; run it again")
    return of_run(folder, log)
