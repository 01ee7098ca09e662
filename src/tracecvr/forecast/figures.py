"""Is the model still right today: NLL, PCOC and AUC of a day's clicks before their labels are final.

All three follow from how many clicks and how many final conversions each score has. Conversions so far are counted by
score; those that are still expected of a segment (the forecast) are spread over scores as the model predicts them.

The errors of earlier figures of the same age are partly known by now: once a share u of the missing conversions has
come, a share u of the error is visible. A figure is corrected by the mean error of its segment, shrunk to 0. Its
interval has the quantiles of past errors of segments of similar size, in units of their expected spread (chance, and
differences between days). The constants were chosen on days 42 to 49 of criteo_search.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from tracecvr.base.metrics import Floats
from tracecvr.data.table import Ints
from tracecvr.forecast.cells import BINS, Cells, Counts, Records, Tally
from tracecvr.forecast.estimators import DEFAULT, estimate, known_share
from tracecvr.forecast.forecast import chance, nearest_quantiles, tails

METRICS = ("nll", "pcoc", "auc")
MOST_SEGMENTS = 24
"""Segments of which figures are kept: those with the most clicks."""
_DAYS = 35
"""Past days whose figures count."""
_DUE = 0.5
"""A past figure is used once this share of its missing conversions has come."""
_SHRUNK = 10
"""Past days at which a segment's mean miss counts half."""
_NEAREST, _FEW = 100, 30
"""Past errors from which quantiles are taken. With fewer than the latter, intervals are twice those of chance."""
_CLICKS, _CONVERSIONS = 100, 5
"""Days of a segment with less are not learnt from."""


class ScoredTally(Tally):
    """Counts by score: of all clicks, and of some segments, which are numbered from 0; others have -1."""

    def __init__(self, d_max: int, segments: int, shift: int) -> None:
        super().__init__(d_max, (segments + 1) * BINS, shift)

    def count(self, segment: Ints, records: Records) -> None:
        """Count records, whose segments are given."""
        self.add(records["bin"].astype(np.int64), records)
        ours = segment >= 0
        self.add((segment[ours] + 1) * BINS + records["bin"][ours], records[ours])


@dataclass(frozen=True, eq=False)
class ScoredCells:
    """Cells of a tally by score."""

    by_score: Cells  # (G * BINS, D)

    @cached_property
    def segments(self) -> Cells:
        """(G, D) all clicks: the first series has those of all segments."""
        c, shape = self.by_score, (-1, BINS)
        n, scored, predicted = (a.reshape(*shape, c.days).sum(1) for a in (c.clicks, c.scored, c.predicted))
        conversions = c.conversions.reshape(*shape, c.days, c.lags + 1).sum(1)
        return Cells(c.at, n, conversions, scored, predicted, c.takes_back)

    def scores(self, counts: Counts) -> Floats:
        """(G, scores, P) of counts (G * BINS, P): without clicks that were not scored."""
        groups, days = len(counts) // BINS, counts.shape[1]  # there may be no days
        return counts.reshape(groups, BINS, days)[:, 1:].astype(np.float64)


@dataclass(frozen=True, eq=False)
class Expected:
    """Figures of days, (G, P) each, NaN where there is nothing to tell them from."""

    clicks: Floats
    conversions: Floats
    value: dict[str, Floats]
    luck: dict[str, Floats]
    """What chance alone makes of them."""


def expect(cells: ScoredCells, day: Ints, age: Ints) -> Expected:
    """Figures of days as expected at ages; at the last age they are final."""
    forecast, c = estimate(cells.segments, day, age), cells.by_score
    n, p, had = (cells.scores(a) for a in (c.clicks[:, day], c.predicted[:, day], c.conversions[:, day, age]))
    clicks, predicted = n.sum(1), p.sum(1)
    everything = np.maximum(cells.segments.clicks[:, day], 1)
    rest = (forecast.final[DEFAULT] - forecast.so_far).astype(np.float64) * clicks / everything
    spread = p / np.maximum(predicted, 1e-9)[:, None]
    positive = np.clip(had + rest[:, None] * spread, 0.0, n)
    negative, total = n - positive, positive.sum(1)
    rate = np.clip(p / np.maximum(n, 1e-9), 1e-9, 1 - 1e-9)
    score = np.log(rate / (1 - rate))
    with np.errstate(divide="ignore", invalid="ignore"):
        below = np.cumsum(negative, 1) - negative / 2
        value = {
            "nll": (n * np.logaddexp(0.0, score) - positive * score).sum(1) / clicks,
            "pcoc": np.where(total > 0.5, predicted / total, np.nan),
            "auc": (positive * below).sum(1) / (total * negative.sum(1)),
        }
        some = np.sqrt(np.maximum(np.abs(rest), 0.05))
        luck = {
            "nll": some * np.sqrt((spread * score**2).sum(1)) / clicks,
            "pcoc": value["pcoc"] * some / total,
            "auc": 0.3 * some / total,
        }
    return Expected(clicks, total, value, luck)


def intervals(cells: ScoredCells, day: int, age: int, level: float) -> dict[str, Floats]:
    """Of each metric and series, (3, G): the figure of a day as expected at an age, corrected by past misses, and the
    ends of its interval."""
    now = day + 1 + age
    share = known_share(cells.segments, np.array([now]))[0, 0]  # the first series is of all clicks
    past = np.arange(max(0, day - _DAYS), day)
    old = np.minimum(now - 1 - past, cells.segments.lags)
    due = 1 - (1 - share[old]) / max(1 - share[age], 1e-9)
    past, old, due = (a[due >= _DUE] for a in (past, old, due))
    then, by_now = expect(cells, past, np.full(len(past), age)), expect(cells, past, old)
    asked = expect(cells, np.array([day]), np.array([age]))
    used = (then.clicks >= _CLICKS) & (then.conversions >= _CONVERSIONS)
    made = {}
    for metric in METRICS:
        good = used & np.isfinite(then.value[metric]) & np.isfinite(by_now.value[metric])
        miss = np.where(good, (by_now.value[metric] - then.value[metric]) / due, 0.0)
        weight, luck = good * due, then.luck[metric]
        mean = _mean(miss, weight, 0.0, 0.0)
        of_others = _mean(miss, weight, miss * weight, weight)  # of each day: by the other days
        apart = miss - of_others
        of_all = (apart**2 - luck**2)[0, good[0]]  # what a day has in common for all segments
        common = max(float(of_all.mean()), 0.0) if len(of_all) else 0.0
        size = np.sqrt(luck**2 + common)[good]
        off = apart[good] / size
        value, unit = asked.value[metric][:, 0], np.nan_to_num(asked.luck[metric][:, 0], posinf=0.0)
        unit = np.sqrt(unit**2 + common)
        order = np.argsort(size, kind="stable")
        z = np.full((2, len(value)), 2.0) * chance(level)[:2, None]
        if len(size) >= _FEW:
            days = np.broadcast_to(past, good.shape)[good]
            z = nearest_quantiles(size[order], off[order], unit, tails(off, days, level, _NEAREST)[:2], _NEAREST)
        value = value + mean[:, 0]
        ends = np.stack([value, value + np.minimum(z[0], 0) * unit, value + np.maximum(z[1], 0) * unit])
        made[metric] = np.clip(ends, 0.0, 1.0 if metric == "auc" else np.inf)
    return made


def _mean(miss: Floats, weight: Floats, left_out: Floats | float, its_weight: Floats | float) -> Floats:
    """The mean miss of each series without what is left out, shrunk to 0."""
    sums = (miss * weight).sum(1, keepdims=True) - left_out
    weights = weight.sum(1, keepdims=True) - its_weight
    counted = np.maximum((weight > 0).sum(1, keepdims=True) - (np.asarray(its_weight) > 0), 0)
    mean: Floats = sums / np.maximum(weights, 1e-9) * counted / (counted + _SHRUNK)
    return mean


def compare(cells: ScoredCells, names: list[str], days: Ints, age: int, level: float) -> pl.DataFrame:
    """Of each series and day: each figure as expected at an age, its interval, and the final one where it is known."""
    final = expect(cells, days, np.full(len(days), cells.segments.lags))
    parts = []
    for place, day in enumerate(days.tolist()):
        known = day + 1 + cells.segments.lags <= cells.segments.days
        columns: dict[str, object] = {"segment": names, "day": np.full(len(names), day)}
        columns["clicks"] = final.clicks[:, place].astype(np.int64)
        for metric, ends in intervals(cells, day, age, level).items():
            columns |= dict(zip((metric, f"{metric}_low", f"{metric}_high"), ends, strict=True))
            columns[f"{metric}_final"] = final.value[metric][:, place] if known else np.full(len(names), np.nan)
        parts.append(pl.DataFrame(columns))
    return pl.concat(parts).filter(pl.col("clicks") > 0).fill_nan(None)
