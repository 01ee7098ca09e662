"""What a log tells once it is cleaned: delays, where clicks and labels end, and columns that give the label away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import polars as pl

from tracecvr.base.config import DAY, HOUR, MINUTE
from tracecvr.base.errors import UserError
from tracecvr.base.progress import Progress
from tracecvr.data.external_sort import Scratch
from tracecvr.data.own_log.cleaning import Cleaner
from tracecvr.data.own_log.rows import Rows
from tracecvr.data.own_log.schema import Labels, LogSchema
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
    values: dict[str, int] = field(default_factory=dict)  # of each feature, how many different values clicks have
    orphans: int = 0  # conversions whose click is not in the log

    @property
    def doubts(self) -> list[str]:
        """Times that are far from the others, and actions that may be what takes a conversion back."""
        doubts = [
            f"{count:,} {what.removesuffix('s') if count == 1 else what} with a time that is far from all others: a "
            "mistake, it seems, and dropped (see `earliest` and `latest` in [time])"
            for what, count in self.outliers.items()
            if count
        ]
        if len(self.conversions) > _FEW and not quantile(self.conversions, 0.5):
            doubts.append(
                "most conversions have the same time as their click: is it the time of the conversion, and is the time "
                "of day in another column?"
            )
        late = len(self.conversions) - len(self.usual)
        if late and quantile(self.conversions, 0.99) > self.labels.d_max:
            doubts.append(
                f"{late:,} conversions come much later than the others: d_max is chosen without them, and they do not "
                "count"
            )
        return doubts + [
            f"every {name!r} comes after a conversion of its click: if it takes the conversion back, describe it in "
            "[refund] in place of [[action]]; if it is what you pay for, make it the first [[action]]"
            for name, count in self.after.items()
            if count and count == len(self.delays[name])
        ]

    @cached_property
    def labels(self) -> Labels:
        """What suits the log."""
        return self.propose_labels()

    def propose_labels(self, d_max: int | None = None) -> Labels:
        """What suits the log, with an attribution limit that is given or found."""
        delays, until = self.conversions, self.last_seen + 1
        if d_max is None:
            span, needed = until - self.first_click, quantile(self.usual, 0.99)
            able = [age for age in ROUND if 3 * age <= span] or [max(1, span // 3)]
            d_max = next((age for age in able if age >= needed), able[-1])
        ends = {next((age for age in ROUND if age >= quantile(delays, q)), d_max) for q in QUANTILES[:-1]}
        horizons = (*sorted(end for end in ends if end < d_max), d_max)
        split, interval = self._choose_grid(max(min(self.last_click, until - d_max), self.first_click + 1))
        return Labels(d_max, horizons, split, interval, until)

    @property
    def conversions(self) -> Ints:
        """Delays of conversions; `inspect_files` refuses a log without any."""
        return next(iter(self.delays.values()))

    @property
    def usual(self) -> Ints:
        """Those that are not later than the others by far."""
        return self.conversions[self.conversions <= _FAR * max(quantile(self.conversions, 0.95), HOUR)]

    def _choose_grid(self, last: int) -> tuple[int, int]:
        """Where the stream starts, and intervals with clicks enough to learn from, if that leaves enough of them."""
        first = self.first_click
        step = next(s for s in (DAY, HOUR, MINUTE, 1) if last - first >= 5 * s or s == 1)
        split = max((first + round(WARM_UP * (last - first))) // step * step, first + 1)
        rate = self.clicks / max(self.last_click - first, 1)
        wanted = min(INTERVAL_CLICKS / max(rate, 1e-9), (last - split) / INTERVALS)
        interval = next((age for age in reversed(ROUND) if age <= wanted), max(1, int(wanted)))
        return split, min(interval, DAY)

    def move(self, seconds: int) -> Measured:
        """The same with times since an origin that is so much earlier."""
        first, last, seen = (at + seconds for at in (self.first_click, self.last_click, self.last_seen))
        return replace(self, first_click=first, last_click=last, last_seen=seen)


def quantile(delays: Ints, share: float) -> int:
    return int(np.quantile(delays, share, method="higher"))


def measure(schema: LogSchema, progress: Progress) -> Measured:
    """Clean the whole log by a draft of its schema and look at what comes out."""
    conversion, *others = schema.names
    delays, after, days = {name: list[Ints]() for name in schema.names}, dict.fromkeys(others, 0), list[pl.DataFrame]()
    sample, clicks = list[pl.DataFrame](), 0
    cleaner = Cleaner(Rows(schema), schema.labels.d_max)
    with Scratch(progress=progress) as scratch:
        for part in cleaner.parts(scratch):
            if not len(part):
                continue
            days += [_count_by_day(part[name], kind) for kind, name in enumerate(("click_ts", *schema.names))]
            for name, parts in delays.items():
                parts.append((part[name] - part["click_ts"]).drop_nulls().to_numpy())
            for name in others:
                after[name] += int((part[name] >= part[conversion]).sum())
            sample.append(part.gather_every(max(1, clicks // _SAMPLE), clicks % 7))
            clicks += len(part)
    _refuse_wrong_times(schema, cleaner.dropped, clicks, sum(map(len, delays[conversion])))
    if not clicks:
        raise UserError("the log has no click that could be read: look at the columns and describe it by hand")
    first, last, seen, outliers = _find_outliers(pl.concat(days))
    for word in ("click", "conversion", "action"):  # so far from now that the draft has left them out already
        outliers[f"{word}s"] += cleaner.dropped[f"{word}_out_of_range"] + cleaner.counts[f"{word}_out_of_range"]
    sorted_delays = {name: np.sort(np.concatenate(parts)) for name, parts in delays.items()}
    sorted_delays = {name: all_[: np.searchsorted(all_, seen - first, "right")] for name, all_ in sorted_delays.items()}
    every = pl.concat(sample)
    every = every.gather_every(max(1, len(every) // _SAMPLE))
    inside = every.filter(pl.col("click_ts").is_between(first, last)).sort("click_ts")
    features = [column.raw for column in schema.features]
    return Measured(
        first,
        last,
        seen,
        clicks,
        sorted_delays,
        {name: why for name in features if (why := leak(every[name], every[conversion].is_not_null()))},
        after,
        outliers,
        {name: _share_unseen(inside[name]) for name in features},
        {name: inside[name].n_unique() for name in features},
        cleaner.dropped["conversion_without_click"],
    )


def _refuse_wrong_times(schema: LogSchema, dropped: Mapping[str, int], clicks: int, conversions: int) -> None:
    """Refuse columns of times by which most clicks or conversions are lost: they may be swapped."""
    early, wide = dropped["conversion_before_click"], schema.shape == "clicks"
    lost = dropped["null_click_time"] + (dropped["conversion_without_click"] if wide else 0)
    first = schema.action[0]
    other = f", {first.time or first.delay!r} for the conversion's" if wide else ""
    advice = (
        f"{schema.click.time!r} is taken for the time of the click{other}: are they swapped? Or in another zone "
        "(--zone)? Rename the columns, or describe the log by hand as docs/own_log.md says"
    )
    if early > conversions:
        raise UserError(f"{early:,} of {early + conversions:,} conversions come before their click; {advice}")
    if lost > clicks:
        raise UserError(f"{lost:,} of {lost + clicks:,} clicks have no time; {advice}")


def _count_by_day(times: pl.Series, kind: int) -> pl.DataFrame:
    """How many times there are of each day, and the first and last: enough to find outliers, however long a log is."""
    t = pl.col("t")
    days = times.cast(pl.Int64).drop_nulls().to_frame("t").group_by((t // DAY).alias("day"))
    summary = days.agg(pl.len().cast(pl.Int64).alias("n"), t.min().alias("low"), t.max().alias("high"))
    return summary.with_columns(pl.lit(min(kind, 2), pl.Int8).alias("kind"))


def _find_outliers(days: pl.DataFrame) -> tuple[int, int, int, dict[str, int]]:
    """The first and last click and the last of anything, but for outliers; and how many of these there are."""
    clicks = days.filter(pl.col("kind") == 0).group_by("day").agg(pl.col("n").sum()).sort("day")
    part = clicks["n"].cum_sum() / clicks["n"].sum()
    low, high = (int(clicks["day"].filter(part >= share)[0]) for share in (_TAIL, 1 - _TAIL))
    reach = high - low + 1
    sound = pl.col("day").is_between(low - reach, high + reach)
    kept, gone = days.filter(sound), days.filter(~sound)
    names = ("clicks", "conversions", "actions")
    outliers = {name: int(gone.filter(pl.col("kind") == kind)["n"].sum()) for kind, name in enumerate(names)}
    own = kept.filter(pl.col("kind") == 0)
    first, last, seen = own["low"].min(), own["high"].max(), kept["high"].max()
    return first, last, seen, outliers  # type: ignore[return-value]


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
