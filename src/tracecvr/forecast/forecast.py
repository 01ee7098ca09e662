"""A forecast as a frame: by segment and day, what has come and what is expected in the end, with an interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from tracecvr.base.config import DAY
from tracecvr.base.errors import UserError
from tracecvr.base.metrics import Floats
from tracecvr.data.table import Ints
from tracecvr.forecast.cells import Cells
from tracecvr.forecast.estimators import DEFAULT, LEARNT_FROM, Estimates, estimate
from tracecvr.forecast.intervals import History

LEVEL = 0.9
"""Of intervals, by default."""
BESIDE = ("ladder", "bf")
"""Other estimates that are shown for comparison."""


def forecast(
    cells: Cells,
    names: Mapping[int, Any],
    level: float = LEVEL,
    origin: int | None = None,
    days: int | None = None,
) -> pl.DataFrame:
    """Of each segment and day that is still open: clicks, conversions so far, expected final conversions, their rate
    and an interval. `names` has segments by number, `days` how many of the last days are asked for."""
    if not 0 < level < 1:
        raise UserError(f"level = {level:g}: give a share between 0 and 1, such as 0.9")
    day = np.arange(max(0, cells.days - min(cells.lags, days or cells.lags)), cells.days)
    age = cells.days - 1 - day
    estimates = estimate(cells, day, age)
    final = estimates.final[DEFAULT].astype(np.float64)
    low, high = between(cells, day, age, estimates, level)
    segment, place = np.nonzero(cells.clicks[:, day] > 0)
    columns: dict[str, Any] = {
        "segment": [names.get(int(one), str(one)) for one in segment],
        "day": day_starts(cells, day[place], origin),
        "age_days": age[place],
        "clicks": cells.clicks[:, day][segment, place].astype(np.int64),
        "conversions": estimates.so_far[segment, place].astype(np.int64),
        "expected": final[segment, place],
        "low": low[segment, place],
        "high": high[segment, place],
    }
    columns |= {name: estimates.final[name][segment, place].astype(np.float64) for name in BESIDE}
    frame = pl.DataFrame(columns)
    rate = (pl.col("expected") / pl.col("clicks")).alias("rate")
    return frame.select(*frame.columns[:6], rate, *frame.columns[6:]).sort("day", "segment", descending=[True, False])


def between(
    cells: Cells, day: Ints, age: Ints, estimates: Estimates, level: float = LEVEL, estimator: str = DEFAULT
) -> tuple[Floats, Floats]:
    """(S, P) ends of the intervals of estimates, one for each day at its age."""
    final, so_far, recent = (
        a.astype(np.float64) for a in (estimates.final[estimator], estimates.so_far, estimates.recent)
    )
    low, high, some = np.empty_like(final), np.empty_like(final), cells.some(LEARNT_FROM)
    histories = {one: History(some, one, estimator, day[age == one]) for one in np.unique(age).tolist()}
    for place, (today, one) in enumerate(zip(day.tolist(), age.tolist(), strict=True)):
        had = so_far[:, place]
        lowest = -had if cells.takes_back else np.zeros_like(had)
        expected, history = final[:, place] - had, histories[one]
        width = history.widening(today, expected, level)
        ends = history.misses(today).between(expected, recent[:, place], level, lowest, width)
        low[:, place], high[:, place] = (had + end for end in ends)
    return low, high


def day_starts(cells: Cells, day: Ints, origin: int | None) -> pl.Series:
    """When days begin: dates, or seconds of a log without."""
    start = pl.Series(cells.at - (cells.days - day) * DAY)
    return start if origin is None else pl.from_epoch(start + origin).dt.replace_time_zone("UTC")
