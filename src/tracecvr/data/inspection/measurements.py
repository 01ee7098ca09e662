"""What a log tells once it is cleaned: delays, where clicks and labels end, and columns that give the label away."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from tracecvr.base.config import DAY, HOUR, MINUTE
from tracecvr.base.errors import UserError
from tracecvr.base.progress import Progress
from tracecvr.data.external_sort import Scratch
from tracecvr.data.own_log.cleaning import Cleaner
from tracecvr.data.own_log.rows import Rows
from tracecvr.data.own_log.schema import LogSchema
from tracecvr.data.table import Ints

ROUND = (
    *(n * MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * HOUR for n in (1, 2, 3, 6, 12)),
    *(n * DAY for n in (1, 2, 3, 5, 7, 10, 14, 21, 30, 45, 60, 90)),
)
"""Durations that people use."""

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
LEAK = 0.97
"""AUC from which a single column is taken to know the label."""

_FOREVER = 100 * 365 * DAY
_SAMPLE = 100_000
_FEW = 20


@dataclass
class Measured:
    """Times are in seconds since the origin of the schema that the log was read with."""

    first_click: int
    last_click: int
    last_seen: int
    clicks: int
    delays: dict[str, Ints]  # of each action, sorted
    leaks: dict[str, str] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)
    """How many of each other action came after a conversion of the same click."""

    @property
    def doubts(self) -> list[str]:
        """Actions that never come without a conversion before them: they may be what takes it back."""
        suspects = [name for name, n in self.after.items() if n and n == len(self.delays[name])]
        return [
            f"every {name!r} comes after a conversion of its click: if it takes the conversion back, describe it in "
            "[refund] in place of [[action]]"
            for name in suspects
        ]

    @property
    def conversion(self) -> Ints:
        return next(iter(self.delays.values()))

    @cached_property
    def labels(self) -> ProposedLabels:
        return _labels(self)

    def labels_with(self, d_max: int) -> ProposedLabels:
        """What goes with an attribution limit that is given."""
        return _labels(self, d_max)

    def to_json(self) -> dict[str, Any]:
        """Delays as quantiles and curves."""
        return {action: self._curve(delays) for action, delays in self.delays.items()}

    def _curve(self, delays: Ints) -> dict[str, Any]:
        if not len(delays):
            return {"count": 0, "quantiles_s": {}, "curve": []}
        ages = [age for age in ROUND if age < delays[-1]] + [int(delays[-1])]
        by = np.searchsorted(delays, ages, side="right") / len(delays)
        return {
            "count": len(delays),
            "quantiles_s": {str(q): int(np.quantile(delays, q, method="higher")) for q in QUANTILES},
            "curve": [{"age_s": age, "share": round(float(share), 4)} for age, share in zip(ages, by, strict=True)],
        }


@dataclass(frozen=True)
class ProposedLabels:
    """Candidates for what the schema calls [labels]."""

    d_max: int
    later: float
    """Share of the conversions that come later than d_max."""
    horizons: tuple[int, ...]
    split: int
    interval: int
    observed_until: int


def measure(schema: LogSchema, progress: Progress) -> Measured:
    """Clean the whole log by a draft of its schema and look at what comes out."""
    delays: dict[str, list[Ints]] = {name: [] for name in schema.names}
    first, last, seen, clicks = _FOREVER * 100, -1, -1, 0
    sample: list[pl.DataFrame] = []
    after = dict.fromkeys(schema.names[1:], 0)
    with Scratch(progress=progress) as scratch:
        cleaner = Cleaner(Rows(schema), _FOREVER)
        for part in cleaner.parts(scratch):
            if not len(part):
                continue
            times = part.select("click_ts", *schema.names)
            first, last = min(first, times["click_ts"].min()), max(last, times["click_ts"].max())  # type: ignore[type-var,assignment]
            seen = max(seen, *(int(t) for t in times.max().row(0) if t is not None))
            for name, parts in delays.items():
                parts.append((times[name] - times["click_ts"]).drop_nulls().to_numpy())
            for name in after:
                after[name] += int((part[name] >= part[schema.names[0]]).sum())
            sample.append(part.gather_every(max(1, clicks // _SAMPLE), clicks % 7))
            clicks += len(part)
    if not clicks:
        raise UserError("the log has no click that could be read: look at the columns and describe it by hand")
    every = pl.concat(sample)
    every = every.gather_every(max(1, len(every) // _SAMPLE))
    sorted_delays = {name: np.sort(np.concatenate(parts)) for name, parts in delays.items()}
    leaks = {c.raw: why for c in schema.features if (why := leak(every[c.raw], every[schema.names[0]].is_not_null()))}
    return Measured(first, last, seen, clicks, sorted_delays, leaks, after)


def leak(values: pl.Series, label: pl.Series) -> str | None:
    """How a column gives the label away, if it does. Three ways: by being there, by its size, by its categories."""
    if min(label.sum(), (~label).sum()) < _FEW:
        return None
    text, number = values.cast(pl.String), values.cast(pl.Float64, strict=False)
    there = (text.is_not_null() & ~text.is_in(["", "0", "0.0", "-1"])).fill_null(False)
    size = number.fill_nan(None).fill_null(-np.inf)
    ways = {"being there": _auc(there.cast(pl.Float64), label), "its size": _auc(size, label)}
    if text.n_unique() * _FEW <= len(text):
        ways["its categories"] = _by_category(text, label)
    how, best = max(ways.items(), key=lambda way: way[1])
    return f"{how} alone tells the label (AUC {best:.3f})" if best >= LEAK else None


def _by_category(text: pl.Series, label: pl.Series) -> float:
    """The rate of each category in every second row, as a prediction for the others."""
    rows = pl.DataFrame({"value": text.fill_null(""), "label": label.cast(pl.Float64)}).with_row_index()
    known, asked = rows.filter(pl.col("index") % 2 == 0), rows.filter(pl.col("index") % 2 == 1)
    rates = known.group_by("value").agg(pl.col("label").mean().alias("rate"))
    joined = asked.join(rates, on="value", how="left", maintain_order="left")
    return _auc(joined["rate"].fill_null(joined["rate"].mean()), joined["label"] > 0)


def _auc(score: pl.Series, label: pl.Series) -> float:
    """AUC of a score or of its negative, whichever is better."""
    positive, negative = int(label.sum()), int((~label).sum())
    if not positive or not negative:
        return 0.5
    ranks = float(score.rank("average").filter(label).sum())
    auc = (ranks - positive * (positive + 1) / 2) / (positive * negative)
    return max(auc, 1 - auc)


def _labels(measured: Measured, given: int | None = None) -> ProposedLabels:
    delays, until = measured.conversion, measured.last_seen + 1
    if not len(delays):
        raise UserError("the log has no conversion that could be read: look at the columns and describe it by hand")
    span = until - measured.first_click
    needed = int(np.quantile(delays, 0.99, method="higher"))
    able = [age for age in ROUND if 3 * age <= span] or [max(1, span // 3)]
    d_max = next((age for age in able if age >= needed), able[-1]) if given is None else given
    marks = [int(np.quantile(delays, q, method="higher")) for q in QUANTILES[:-1]]
    ends = {next((age for age in ROUND if age >= mark), d_max) for mark in marks}
    horizons = (*sorted(end for end in ends if end < d_max), d_max)
    last = max(min(measured.last_click, until - d_max), measured.first_click + 1)
    step = next(s for s in (DAY, HOUR, MINUTE, 1) if last - measured.first_click >= 5 * s or s == 1)
    split = (measured.first_click + round(0.4 * (last - measured.first_click))) // step * step
    split = max(split, measured.first_click + 1)
    wanted = max(1, (last - split) // 48)
    interval = next((age for age in ROUND if age >= wanted), HOUR) if wanted < HOUR else HOUR
    later = float((delays > d_max).mean())
    return ProposedLabels(d_max, later, horizons, split, interval, until)
