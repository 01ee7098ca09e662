"""Intervals of a stream, measured: one after the other while a run goes on, and all of them when it has ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracecvr.base import metrics
from tracecvr.data.table import ClickTable
from tracecvr.runs.replay import FullPlan, Scored

_FACTS = {"start": pl.Int64, "clicks": pl.Int64, "conversions": pl.Int64}


@dataclass(frozen=True)
class Interval:
    """One interval that was predicted and then learnt from: what `on_interval` is called with.

    `metrics` compare what was predicted with final labels. The learner does not know these labels yet.
    """

    number: int
    """From 0."""
    total: int
    """Intervals of the whole stream."""
    start: int
    """Seconds since the log's origin."""
    clicks: int
    conversions: int
    """Of these clicks, by their final labels."""
    events: int
    """Events that were learnt from."""
    metrics: dict[str, float | None]
    """AUC, NLL, PCOC and others by name; None where the clicks do not define one, empty where no click counts."""
    origin: int | None = None

    @property
    def time(self) -> datetime | None:
        """When it starts, if the log has a calendar."""
        return None if self.origin is None else datetime.fromtimestamp(self.origin + self.start, UTC)


OnInterval = Callable[[Interval], object]
"""Called after each interval, in order."""


def finish_interval(scored: Scored, table: ClickTable, plan: FullPlan, origin: int | None) -> Interval:
    """An interval with its metrics, as `intervals.parquet` will have them."""
    first, _ = plan.judged_rows(table)
    counts = scored.row >= first
    label = np.asarray(table.label[scored.row[counts]])
    weight = table.weight(scored.row[counts], plan.outages)
    known = len(label) if weight is None else weight.any()
    measured = asdict(metrics.evaluate(scored.log_odds[counts], label, weight)) if known else {}
    start, clicks = max(scored.start, plan.judge_from) if len(label) else scored.start, len(label)
    return Interval(scored.number, len(plan), start, clicks, int(label.sum()), scored.reveals, measured, origin)


def interval_edges(plan: FullPlan, table: ClickTable) -> npt.NDArray[np.int64]:
    """Where each interval of a plan starts and the last one ends, among the judged clicks. An interval before
    `judge_from` is empty."""
    first, _ = plan.judged_rows(table)
    starts = np.searchsorted(table.arrival_ts, [plan.bounds(i)[0] for i in range(len(plan))] + [plan.until])
    edges: npt.NDArray[np.int64] = np.maximum(starts - first, 0)
    return edges


def by_interval(
    log_odds: npt.NDArray[np.float32],
    label: npt.NDArray[np.bool_],
    weight: npt.NDArray[np.float64] | None,
    plan: FullPlan,
    edges: npt.NDArray[np.int64],
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Metrics of each interval that has clicks, as a table and as means weighted by clicks."""
    rows, parts, stands_for = [], [], []
    for number, (first, last) in enumerate(pairwise(edges)):
        mine = None if weight is None else weight[first:last]
        if first == last or (mine is not None and not mine.any()):  # an outage hides what became of them
            continue
        measured = metrics.evaluate(log_odds[first:last], label[first:last], mine)
        parts.append(measured)
        stands_for.append(int(last - first) if mine is None else float(mine.sum()))
        facts = {
            "start": max(plan.bounds(number)[0], plan.judge_from),
            "clicks": int(last - first),
            "conversions": int(label[first:last].sum()),
        }
        rows.append(facts | asdict(measured))
    names = [name for name in rows[0] if name not in _FACTS]
    return pl.DataFrame(rows, _FACTS | dict.fromkeys(names, pl.Float64)), metrics.average(parts, stands_for)
