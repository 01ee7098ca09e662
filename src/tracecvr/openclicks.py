"""How well clicks that have not converted yet are judged: P(y | x, trajectory so far) at each age, as the stream runs.

A click is asked about at exact ages, the horizons, with the model of that moment and what is known by then. Only clicks
of the stream are: labels of warm-up clicks were learnt from. Three estimates are compared:

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

from tracecvr import metrics
from tracecvr.engine import Engine
from tracecvr.reveal import After, Reveals
from tracecvr.source import TableHistory, TableSource

ESTIMATES = ("posterior", "static", "survival")
_BLOCK = 65536


@dataclass(frozen=True, eq=False)
class OpenClicks:
    """Clicks of a stream that starts at `split` and is asked about in every `every`-th interval."""

    source: TableSource
    split: int
    interval: int
    every: int

    @cached_property
    def ages(self) -> tuple[int, ...]:
        """Horizons at which the outcome is still open."""
        schema = self.source.schema
        return tuple(end for end in schema.horizons if end < schema.d_max)

    def events(self, number: int) -> Reveals:
        """Clicks that reach an age in an interval without having converted; none if the interval is not sampled."""
        start = self.split + number * self.interval
        end = start + self.interval if number % self.every == 0 else start
        found = self.source.reveals(tuple(After(age, seen=False) for age in self.ages), start, end)
        ours = torch.from_numpy(self.source.table.click_ts[found.row.numpy()] >= self.split)
        return found.take(ours.nonzero()[:, 0])

    def judged(self, engine: Engine, number: int) -> npt.NDArray[np.float32]:
        """Log-odds (n, 2) of the engine for the events of an interval: posterior and static."""
        events = self.events(number)
        return np.stack([engine.posterior_log_odds(events), engine.score(events.x)], axis=1)

    def evaluated(self, judged: npt.NDArray[np.float32], intervals: int, history: TableHistory) -> pl.DataFrame:
        """Metrics of each estimate at each age, from what was judged in all intervals."""
        events = [self.events(number) for number in range(intervals)]
        row = np.concatenate([e.row.numpy() for e in events])
        age = np.concatenate([e.trigger.numpy() for e in events])
        label = self.source.table.label[row]
        rows = []
        for number, seconds in enumerate(self.ages):
            mine = age == number
            if not mine.any():
                continue
            posterior, static = judged[mine].astype(np.float64).T
            survival = static + np.log(survives(history, seconds))
            for estimate, log_odds in zip(ESTIMATES, (posterior, static, survival), strict=True):
                facts = {"age_s": seconds, "estimate": estimate, "clicks": int(mine.sum())}
                weight = metrics.population_weight(label[mine], self.source.schema.negatives_kept)
                found = metrics.as_dict(metrics.evaluate(log_odds, label[mine], weight))
                rows.append(facts | {"conversions": int(label[mine].sum())} | found)
        texts = {"age_s": pl.Int64, "estimate": pl.String, "clicks": pl.Int64, "conversions": pl.Int64}
        return pl.DataFrame(rows, texts | dict.fromkeys(metrics.Metrics.__dataclass_fields__, pl.Float64))


def survives(history: TableHistory, age: int) -> float:
    """S(age) among the conversions of a history; of mature clicks alone if there are any, since of others early
    conversions are known and late ones are not. Never 0: half a conversion is allowed to come later."""
    later = total = later_mature = total_mature = 0
    for b in history.batches(_BLOCK, None):
        assert b.delay is not None
        assert b.truth is not None
        converted, late = b.truth.bool(), b.delay[:, 0] > age
        later, total = later + int((converted & late).sum()), total + int(converted.sum())
        later_mature += int((converted & late & b.mature).sum())
        total_mature += int((converted & b.mature).sum())
    if total_mature:
        later, total = later_mature, total_mature
    return max(later, 0.5) / max(total, 1)
