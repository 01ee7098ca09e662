"""The paper's sizes on a log in memory: 17 fields of Criteo's vocabularies by 16, 256-256-128, H = 6, batch 4,096.

Traffic is that of the real log, 11,000 clicks an hour, and so are the first three windows. The last three end after
2, 3 and 4 hours instead of 1, 7 and 30 days: an hour still has six reveals per click, of clicks of six ages, and nets
and batches keep their shapes, but the stream is in its steady state after four hours instead of a month.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from tracecvr.base import registry
from tracecvr.base.config import HOUR, MINUTE
from tracecvr.data.table import NEVER, ClickTable, Ints, Schema
from tracecvr.datasets.criteo import Criteo
from tracecvr.learn.engine import Engine
from tracecvr.plugins.completer import Completer
from tracecvr.runs.replay import Plan, Scored, replay
from tracecvr.stream.source import TableSource

HOURLY = 11_000
BATCH = 4_096
HORIZONS = (6 * MINUTE, 15 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR)
STEADY = HORIZONS[-1] // HOUR
"""Hours of stream after which every event of an hour is there, all of clicks of the stream."""
_RATE, _MEAN_DELAY = 0.23, HOUR


def dense(hours: int, hourly: int = HOURLY) -> ClickTable:
    """So many hours of stream after one hour of warm-up, with even traffic."""
    rng = np.random.default_rng(0)
    return _table(np.sort(rng.integers(0, (hours + 1) * HOUR, (hours + 1) * hourly)), split=HOUR)


def sparse(hours: int, before: int) -> ClickTable:
    """One click an hour, after a warm-up part of `before` clicks that is over by then.

    The long past is there because work of an interval that grew with the log would show.
    """
    rng, split = np.random.default_rng(0), HOUR + HORIZONS[-1]
    warm_up = np.sort(rng.integers(0, HOUR, before))
    return _table(np.concatenate([warm_up, split + HOUR * np.arange(hours) + MINUTE]), split)


def _table(click_ts: Ints, split: int) -> ClickTable:
    rng, clicks = np.random.default_rng(1), len(click_ts)
    features = tuple(column.feature for column in Criteo().columns())
    # A few ids make up most of a log's cells, as in Criteo's.
    x = np.column_stack([(f.size * rng.random(clicks) ** 3).astype(np.int32) for f in features])
    delay = rng.exponential(_MEAN_DELAY, clicks).astype(np.int64)
    action_ts = np.where(rng.random(clicks) < _RATE, click_ts + delay, NEVER)[:, None]
    schema = Schema(
        dataset="criteo",
        features=features,
        actions=("conversion",),
        horizons=HORIZONS,
        d_max=HORIZONS[-1],
        split=split,
        interval=HOUR,
        observed_until=int(click_ts[-1]) + HORIZONS[-1] + 1,
        conversions_at_click=Criteo.conversions_at_click,
    )
    return ClickTable(x, click_ts, np.arange(clicks), action_ts, schema)


class Stream:
    """A method at its default sizes, warmed up on at most an hour of clicks, and the hours of a log that follow."""

    def __init__(self, method: str, table: ClickTable, hourly: int = HOURLY) -> None:
        self.source = TableSource(table)
        self.plan = Plan().resolve(table)
        self.engine = Engine(registry.get("method", method)(warm_batch_size=BATCH), table.schema)
        share = min(1.0, hourly / int(np.searchsorted(table.click_ts, HOUR)))
        self.engine.warm_up(self.source.history(self.plan.split, "mature", round(HOUR * (1 - share))))

    def replayed(self) -> Iterator[Scored]:
        return replay(self.engine, self.source, self.plan)

    def tick(self, hour: int) -> int:
        """Learn from one hour of the stream; returns the number of its events."""
        return self.engine.tick(self.source, *self.plan.bounds(hour))


def multiply_adds(*widths: int) -> int:
    """Of a perceptron, per example, in its plain form, whatever the form in use."""
    return sum(a * b for a, b in pairwise(widths))


def trained(schema: Schema) -> int:
    """Multiply-adds of the served net: 168,064."""
    return multiply_adds(len(schema.features) * schema.embedding_dim, 256, 256, 128, 1)


def completer(schema: Schema) -> int:
    """Multiply-adds of TRACE's completer: features, states and visibility of the windows, and their number."""
    windows = len(schema.horizons) * (len(schema.actions) + 1)
    return multiply_adds(len(schema.features) * Completer.embedding_dim + windows + 16, *Completer.hidden, 1)
