"""How well clicks that have not converted yet are judged: P(y | x, trajectory so far) at each age, as the stream runs.

A click is asked about at exact ages, the horizons, with the model of that moment and what is known by then. Only clicks
of the stream are, from the plan's `judge_from` on: labels of warm-up clicks were learnt from. Three estimates are
compared:

- `posterior`, the method's own given the trajectory so far;
- `static`, the served rate p, which does not know that the click has not converted yet;
- `survival`, p S(e) / (1 - p + p S(e)), which knows that and nothing else; S(e) = P(delay > e | converts) is counted on
  the warm-up part alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from tracecvr.base import metrics
from tracecvr.base.config import DAY
from tracecvr.learn.engine import Engine
from tracecvr.stream.reveal import After, Reveals
from tracecvr.stream.source import TableHistory, TableSource

ESTIMATES = ("posterior", "static", "survival")
_BLOCK = 65536
_COLUMNS: dict[str, type[pl.DataType]] = {
    "age_s": pl.Int64,
    "estimate": pl.String,
    "clicks": pl.Int64,
    "conversions": pl.Int64,
} | dict.fromkeys(metrics.Metrics.__dataclass_fields__, pl.Float64)


@dataclass(frozen=True, eq=False)
class OpenClicks:
    """Clicks of a stream that starts at `split` and is asked about in every `every`-th interval; none that was clicked
    before `judge_from`."""

    source: TableSource
    split: int
    interval: int
    every: int
    judge_from: int = 0

    @cached_property
    def ages(self) -> tuple[int, ...]:
        """Horizons at which the outcome is still open."""
        schema = self.source.schema
        return tuple(end for end in schema.horizons if end < schema.d_max)

    def events(self, number: int) -> Reveals:
        """Clicks that reach an age in an interval without having converted; none if the interval is not sampled."""
        start = self.split + number * self.interval
        end = start + self.interval if number % self.every == 0 else start
        events = self.source.reveals(tuple(After(age, seen=False) for age in self.ages), start, end)
        ours = torch.from_numpy(self.source.table.click_ts[events.row.numpy()] >= max(self.split, self.judge_from))
        return events.take(ours.nonzero()[:, 0])

    def judged(self, engine: Engine, number: int) -> npt.NDArray[np.float32]:
        """Log-odds (n, 2) of the engine for the events of an interval: posterior and static."""
        events = self.events(number)
        return np.stack([engine.posterior_log_odds(events), engine.score(events.x)], axis=1)

    def evaluate(
        self, judged: npt.NDArray[np.float32], intervals: int, history: TableHistory
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Metrics of each estimate at each age, from what was judged in all intervals: of the whole stream, and of each
        of its days (`start`), by which the luck of days can be told."""
        events = [self.events(number) for number in range(intervals)]
        row, age = (np.concatenate([getattr(e, name).numpy() for e in events]) for name in ("row", "trigger"))
        day = np.repeat(np.arange(intervals) * self.interval // DAY, [len(e) for e in events])
        label, whole, days = self.source.table.label[row], [], []
        for number, seconds in enumerate(self.ages):
            mine = np.flatnonzero(age == number)
            posterior, static = judged[mine].astype(np.float64).T
            survival = static + np.log(survives(history, seconds))
            for estimate, log_odds in zip(ESTIMATES, (posterior, static, survival), strict=True):
                facts = {"age_s": seconds, "estimate": estimate}
                whole += [facts | self._measure(log_odds, label[mine])] if len(mine) else []
                for one in np.unique(day[mine]):
                    then = day[mine] == one
                    start = {"start": self.split + int(one) * DAY}
                    days.append(start | facts | self._measure(log_odds[then], label[mine][then]))
        return pl.DataFrame(whole, _COLUMNS), pl.DataFrame(days, {"start": pl.Int64, **_COLUMNS})

    def _measure(self, log_odds: npt.NDArray[np.float64], label: npt.NDArray[np.bool_]) -> dict[str, float | None]:
        weight = metrics.population_weight(label, self.source.schema.negatives_kept)
        measured = metrics.as_dict(metrics.evaluate(log_odds, label, weight))
        return {"clicks": len(label), "conversions": int(label.sum())} | measured


def survives(history: TableHistory, age: int) -> float:
    """S(age) among the conversions of a history; of mature clicks alone if there are any, since of others early
    conversions are known and late ones are not. Never 0: half a conversion is allowed to come later."""
    later = total = later_mature = total_mature = 0
    for b in history.batches(_BLOCK, None):
        converted, late = b.truth.bool(), b.delay[:, 0] > age
        later, total = later + int((converted & late).sum()), total + int(converted.sum())
        later_mature += int((converted & late & b.mature).sum())
        total_mature += int((converted & b.mature).sum())
    if total_mature:
        later, total = later_mature, total_mature
    return max(later, 0.5) / max(total, 1)
