"""What a log tells once it is cleaned: delays, where clicks and labels end, and columns that give the label away."""

from __future__ import annotations

from collections.abc import Mapping
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
WARM_UP = 0.5
"""Share of the time in which clicks can be scored that is proposed for warm-up."""

INTERVAL_CLICKS, INTERVALS = 200, 24
"""Clicks that an interval should have, and intervals that a stream should have at least."""

LEAK = 0.97
"""AUC from which a single column is taken to know the label."""

_FOREVER = 100 * 365 * DAY
_SAMPLE = 100_000
_FEW = 20
_TAIL = 0.01
"""Share of the clicks at either end of a log that does not decide where it begins and ends."""

_FAR = 10
"""Delays so many times the 95 % quantile are put in doubt, if they alone would lengthen d_max."""


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
    outliers: dict[str, int] = field(default_factory=dict)
    """How many clicks and actions have times that are far from all others; the times above are without them."""
    unseen: dict[str, float] = field(default_factory=dict)
    """Of each feature, the share of the later clicks that have a value which no earlier one has."""
    values: dict[str, int] = field(default_factory=dict)
    """Of each feature, how many different values clicks have."""

    @property
    def doubts(self) -> list[str]:
        """Times that are far from the others, and actions that never come without a conversion before them: they may
        be what takes it back."""
        far = [
            f"{_say_count(count, what)} with a time that is far from all others: taken for a mistake, and dropped (see "
            "`earliest` and `latest` in [time])"
            for what, count in self.outliers.items()
            if count
        ]
        if (late := self.labels.far) > 0:
            far.append(
                f"{late:,} conversions come much later than the others: d_max is chosen without them, and they do not "
                "count"
            )
        suspects = [name for name, n in self.after.items() if n and n == len(self.delays[name])]
        return far + [
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
    far: int = 0
    """Conversions that are later than the others by far."""
    warm_clicks: int = 0
    """About how many clicks are before the split,"""
    interval_clicks: int = 0
    """and how many are in an interval."""


def measure(schema: LogSchema, progress: Progress) -> Measured:
    """Clean the whole log by a draft of its schema and look at what comes out."""
    days, delays, clicks = _Days(), {name: list[Ints]() for name in schema.names}, 0
    sample: list[pl.DataFrame] = []
    after = dict.fromkeys(schema.names[1:], 0)
    cleaner = Cleaner(Rows(schema), _FOREVER)
    with Scratch(progress=progress) as scratch:
        for part in cleaner.parts(scratch):
            if not len(part):
                continue
            days.add(part, schema.names)
            for name, parts in delays.items():
                parts.append((part[name] - part["click_ts"]).drop_nulls().to_numpy())
            for name in after:
                after[name] += int((part[name] >= part[schema.names[0]]).sum())
            sample.append(part.gather_every(max(1, clicks // _SAMPLE), clicks % 7))
            clicks += len(part)
    _refuse_wrong_times(schema, cleaner.dropped, clicks, sum(map(len, delays[schema.names[0]])))
    if not clicks:
        raise UserError("the log has no click that could be read: look at the columns and describe it by hand")
    every = pl.concat(sample)
    every = every.gather_every(max(1, len(every) // _SAMPLE))
    first, last, seen, outliers = days.without_outliers()
    for word in ("click", "conversion", "action"):  # so far from now that the draft has left them out already
        outliers[f"{word}s"] = outliers.get(f"{word}s", 0) + cleaner.rows.met(f"{word}_out_of_range")
    sorted_delays = {name: np.sort(np.concatenate(parts)) for name, parts in delays.items()}
    sorted_delays = {name: all_[: np.searchsorted(all_, seen - first, "right")] for name, all_ in sorted_delays.items()}
    label = every[schema.names[0]].is_not_null()
    leaks = {c.raw: why for c in schema.features if (why := leak(every[c.raw], label))}
    inside = every.filter(pl.col("click_ts").is_between(first, last)).sort("click_ts")
    unseen = {c.raw: _share_unseen(inside[c.raw]) for c in schema.features}
    values = {c.raw: inside[c.raw].n_unique() for c in schema.features}
    return Measured(first, last, seen, clicks, sorted_delays, leaks, after, outliers, unseen, values)


def _refuse_wrong_times(schema: LogSchema, dropped: Mapping[str, int], clicks: int, conversions: int) -> None:
    """Refuse a reading of the columns of times by which most clicks or conversions are lost: they may be swapped."""
    early, wide = dropped["conversion_before_click"], schema.shape == "clicks"
    lost = dropped["null_click_time"] + (dropped["conversion_without_click"] if wide else 0)
    first = schema.actions[0]
    other = f", {first.time or first.delay!r} for the conversion's" if wide else ""
    advice = (
        f"{schema.click.time!r} is taken for the time of the click{other}: are they swapped? Rename the columns, or "
        "describe the log by hand as docs/own_log.md says"
    )
    if early > conversions:
        raise UserError(f"{early:,} of {early + conversions:,} conversions come before their click; {advice}")
    if lost > clicks:
        raise UserError(f"{lost:,} of {lost + clicks:,} clicks have no time; {advice}")


class _Days:
    """How many clicks and actions there are of each day, and the first and last of them: enough to find times that are
    far from all others, however long the log is."""

    def __init__(self) -> None:
        self.frames: list[pl.DataFrame] = []

    def add(self, part: pl.DataFrame, actions: tuple[str, ...]) -> None:
        """Count the times of a part."""
        for kind, name in enumerate(("click_ts", *actions)):
            times = part.select(pl.col(name).cast(pl.Int64).alias("t")).drop_nulls()
            day = times.group_by((pl.col("t") // DAY).alias("day")).agg(*_SUMMARY)
            self.frames.append(day.with_columns(pl.lit(min(kind, 2), pl.Int8).alias("kind")))

    def without_outliers(self) -> tuple[int, int, int, dict[str, int]]:
        """The first and last click and the last of anything, but for outliers; and how many of these there are."""
        every = pl.concat(self.frames)
        days = every.group_by("kind", "day").agg(pl.col("n").sum(), pl.col("low").min(), pl.col("high").max())
        clicks = days.filter(pl.col("kind") == 0).sort("day")
        part = clicks["n"].cum_sum() / clicks["n"].sum()
        low = int(clicks["day"].filter(part >= _TAIL)[0])
        high = int(clicks["day"].filter(part >= 1 - _TAIL)[0])
        reach = high - low + 1
        sound = pl.col("day").is_between(low - reach, high + reach)
        kept, gone = days.filter(sound), days.filter(~sound)
        clicks = kept.filter(pl.col("kind") == 0)
        names = ("clicks", "conversions", "actions")
        outliers = {name: int(gone.filter(pl.col("kind") == kind)["n"].sum()) for kind, name in enumerate(names)}
        return _extreme(clicks["low"].min()), _extreme(clicks["high"].max()), _extreme(kept["high"].max()), outliers


_SUMMARY = (pl.len().cast(pl.Int64).alias("n"), pl.col("t").min().alias("low"), pl.col("t").max().alias("high"))


def _say_count(count: int, what: str) -> str:
    return f"{count:,} {what.removesuffix('s') if count == 1 else what}"


def _extreme(value: object) -> int:
    assert isinstance(value, int)
    return value


def _share_unseen(in_order: pl.Series) -> float:
    """The share of the later half of a column whose value is nowhere in the earlier half."""
    half = len(in_order) // 2
    later = in_order[half:].drop_nulls()
    return float((~later.is_in(in_order[:half].drop_nulls().unique().implode())).mean() or 0.0)  # type: ignore[arg-type]


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
    return _auc(joined["rate"].fill_null(known["label"].mean()), joined["label"] > 0)


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
    usual = delays[delays <= _FAR * max(int(np.quantile(delays, 0.95, method="higher")), HOUR)]
    needed = int(np.quantile(usual, 0.99, method="higher"))
    able = [age for age in ROUND if 3 * age <= span] or [max(1, span // 3)]
    d_max = next((age for age in able if age >= needed), able[-1]) if given is None else given
    marks = [int(np.quantile(delays, q, method="higher")) for q in QUANTILES[:-1]]
    ends = {next((age for age in ROUND if age >= mark), d_max) for mark in marks}
    horizons = (*sorted(end for end in ends if end < d_max), d_max)
    far = len(delays) - len(usual) if np.quantile(delays, 0.99, method="higher") > d_max else 0
    split, interval = _grid(measured, max(min(measured.last_click, until - d_max), measured.first_click + 1))
    rate = measured.clicks / max(measured.last_click - measured.first_click, 1)
    warm, each = round(rate * (split - measured.first_click)), round(rate * interval)
    later = float((delays > d_max).mean())
    return ProposedLabels(d_max, later, horizons, split, interval, until, far, warm, each)


def _grid(measured: Measured, last: int) -> tuple[int, int]:
    """Where the stream starts and how long its intervals are: half of the clicks that can be scored are for warm-up,
    and an interval has clicks enough to learn from, if that leaves enough intervals."""
    first = measured.first_click
    step = next(s for s in (DAY, HOUR, MINUTE, 1) if last - first >= 5 * s or s == 1)
    split = max((first + round(WARM_UP * (last - first))) // step * step, first + 1)
    rate = measured.clicks / max(measured.last_click - first, 1)
    wanted = min(INTERVAL_CLICKS / max(rate, 1e-9), (last - split) / INTERVALS)
    interval = next((age for age in reversed(ROUND) if age <= wanted), max(1, int(wanted)))
    return split, min(interval, DAY)
