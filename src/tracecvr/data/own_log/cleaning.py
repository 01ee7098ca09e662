"""From rows to clicks with what followed them: duplicates, orphans, skewed clocks, refunds. Everything is counted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

import polars as pl

from tracecvr.base.errors import UserError
from tracecvr.data.encoder import key_of_text
from tracecvr.data.external_sort import Scratch, partition
from tracecvr.data.own_log.rows import Rows, given_id
from tracecvr.data.own_log.times import bounds_of, origin_of
from tracecvr.data.table import TURNS

_LOOKED_AT = 2
"""Frames from which the size of a row in memory is known: of a file, the first one has no rows."""

_COPIES = 3
"""How often rows of a part are held at once while they are joined."""

_UNKNOWN, _ROUNDING = 1e-3, 1e-9
"""An amount for conversions of which none is known, and the share of what was bought that is nothing."""


class Cleaner:
    """Clicks of a log, part by part; counts are complete when all parts are taken."""

    def __init__(self, rows: Rows, d_max: int) -> None:
        self.rows, self.schema, self.d_max = rows, rows.schema, d_max
        self.counts, self.dropped = rows.counts, rows.dropped
        self.origin, _ = origin_of(self.schema.time)
        self.bounds = bounds_of(self.schema.time)
        self.events = self.schema.shape == "events"
        self.with_ids = bool(self.schema.click.id) or any(file.id for file in self.schema.sources)
        self.empty = pl.DataFrame()
        self.refund_kind = len(self.schema.action) + 1 if self.schema.refund is not None else None

    def report(self) -> tuple[dict[str, int], dict[str, int]]:
        """How many rows were dropped for each reason, and what was met in the others: docs/own_log.md explains all."""
        return dict(sorted((+self.dropped).items())), dict(sorted((+self.counts).items()))

    def parts(self, scratch: Scratch) -> Iterator[pl.DataFrame]:
        """Frames of clicks with all that the table needs, of any number; the last one is empty."""
        expected = sum(file.rows() for _, file in self.rows.open_files())
        rows = self._with_progress(self.rows.events() if self.events else self.rows.clicks(), scratch, expected)
        start = list(islice(rows, _LOOKED_AT))
        size = _COPIES * expected * sum(frame.estimated_size() for frame in start) // max(self.rows.read, 1)
        rows = chain(start, rows)
        for part in partition(rows, "_id", int(size), scratch) if self.with_ids else rows:
            yield self._of_events(part) if self.events else self._of_clicks(part)
        yield self._of_events(self.empty) if self.events else self._of_clicks(self.empty)

    def _with_progress(self, frames: Iterator[pl.DataFrame], scratch: Scratch, expected: int) -> Iterator[pl.DataFrame]:
        for frame in frames:
            scratch.progress("read", self.rows.read, max(self.rows.read, expected))
            self.empty = frame.clear()
            yield frame
        scratch.progress("read", self.rows.read, self.rows.read)

    def _of_events(self, rows: pl.DataFrame) -> pl.DataFrame:
        clicks = rows.filter(pl.col("_kind") == 0).rename({"_ts": "_click"}).drop("_kind")
        actions = rows.filter(pl.col("_kind") > 0).select("_row", "_id", "_kind", "_ts", "_amount")
        return self._with_actions(self._once(clicks, ["_click"]), self._distinct(actions))

    def _of_clicks(self, rows: pl.DataFrame) -> pl.DataFrame:
        times = [f"_{i}" for i in range(len(self.schema.kinds))]
        rows = self._once(rows, ["_click", *times]) if self.with_ids else rows.with_columns(pl.col("_row").alias("_id"))
        amounts = {name: f"_amount{name[1:]}" for name in times}
        actions = [
            rows.select(
                "_row",
                "_id",
                pl.lit(i, pl.Int8).alias("_kind"),
                pl.col(name).alias("_ts"),
                (pl.col(amounts[name]) if amounts[name] in rows.columns else pl.lit(1.0)).alias("_amount"),
            )
            for i, name in enumerate(times, start=1)
        ]
        clicks = rows.drop(times, *(name for name in amounts.values() if name in rows.columns))
        return self._with_actions(clicks, pl.concat(actions).drop_nulls("_ts"))

    def _distinct(self, actions: pl.DataFrame) -> pl.DataFrame:
        """Actions without copies: counted as two, a conversion that is there twice would outlive a refund."""
        first = pl.struct("_id", "_kind", "_ts", "_amount").is_first_distinct()
        for word, count in self._count_kinds(actions.filter(~first)):
            self.counts[f"duplicate_{word}"] += count
        return actions.filter(first)

    def _count_kinds(self, actions: pl.DataFrame) -> Iterator[tuple[str, int]]:
        """How many conversions, other actions and refunds there are."""
        for kind, count in actions["_kind"].value_counts().iter_rows():
            yield "conversion" if kind == 1 else "refund" if kind == self.refund_kind else "action", count

    def _once(self, clicks: pl.DataFrame, facts: list[str]) -> pl.DataFrame:
        """The first click of each id."""
        kept = clicks.filter(pl.col("_id").is_first_distinct())
        if len(kept) < len(clicks):
            facts = ["_id", *facts, *(column.raw for column in self.schema.features)]
            self.counts["duplicate_click_differs"] += clicks.select(pl.struct(facts).n_unique()).item() - len(kept)
            self.dropped["duplicate_click"] += len(clicks) - len(kept)
        return kept

    def _with_actions(self, clicks: pl.DataFrame, actions: pl.DataFrame) -> pl.DataFrame:
        known = actions.join(clicks.select("_id", "_click"), on="_id", how="left")
        for word, count in self._count_kinds(known.filter(pl.col("_click").is_null())):
            self.dropped[f"{word}_without_click"] += count
        known = known.filter(pl.col("_click").is_not_null())
        if self.bounds is not None:
            clicks, known = self._in_range(clicks, known, *self.bounds)
        refunds = known.filter(pl.col("_kind") == self.refund_kind) if self.refund_kind else known.clear()
        clicks, known = self._in_order(clicks, known.filter(pl.col("_kind") <= len(self.schema.action)))
        first = known.group_by("_id", "_kind").agg(pl.col("_ts").min())
        for kind, name in enumerate(self.schema.names, start=1):
            mine = first.filter(pl.col("_kind") == kind).select("_id", pl.col("_ts").alias(name))
            clicks = clicks.join(mine, on="_id", how="left", maintain_order="left")
            word = "repeated_conversion" if kind == 1 else "repeated_action"
            self.counts[word] += int((known["_kind"] == kind).sum()) - len(mine)
        conversion = pl.col(self.schema.names[0])
        late = conversion - pl.col("_click") > self.d_max
        self.counts["conversion_after_d_max"] += int(clicks.select(late.sum()).item() or 0)
        if self.refund_kind:
            clicks = self._with_refunds(clicks, known.filter(pl.col("_kind") == 1), refunds)
        return self._finish(clicks)

    def _in_range(
        self, clicks: pl.DataFrame, actions: pl.DataFrame, first: int, last: int
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Clicks and actions with times that can be. If a conversion's time is wrong, the click's label is unknown."""
        wrong = clicks.filter(~pl.col("_click").is_between(first, last))
        self.dropped["click_out_of_range"] += len(wrong)
        clicks, actions = _without(wrong, clicks, actions)
        outside = actions.filter(~pl.col("_ts").is_between(first, last))
        wrong = outside.filter(pl.col("_kind") == 1).unique("_id")
        self.dropped["conversion_out_of_range"] += len(wrong)
        self.counts["action_out_of_range"] += int((outside["_kind"] > 1).sum())
        clicks, actions = _without(wrong, clicks, actions)
        return clicks, actions.filter(pl.col("_ts").is_between(first, last))

    def _in_order(self, clicks: pl.DataFrame, actions: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Clicks and actions of which none comes before its click any more."""
        delay, skew = pl.col("_ts") - pl.col("_click"), self.schema.defects.skew
        skewed, early = delay.is_between(-skew, -1), delay < -skew
        gone = actions.filter(early & (pl.col("_kind") == 1)).unique("_id")
        self.dropped["conversion_before_click"] += len(gone)
        clicks, actions = _without(gone, clicks, actions)
        self.counts["clock_skew"] += int(actions.select(skewed.sum()).item())
        self.counts["action_before_click"] += len(actions.filter(early & (pl.col("_kind") > 1)))
        sound = actions.filter(~early)
        return clicks, sound.with_columns(pl.max_horizontal("_ts", "_click").alias("_ts"))

    def _with_refunds(self, clicks: pl.DataFrame, bought: pl.DataFrame, refunds: pl.DataFrame) -> pl.DataFrame:
        """Clicks with the moments at which as much had been taken back as was bought, and at which more was bought."""
        conversion = self.schema.names[0]
        refunds = refunds.select("_id", "_ts", "_amount").join(clicks.select("_id", conversion), on="_id")
        none, before = pl.col(conversion).is_null(), pl.col("_ts") < pl.col(conversion)
        self.counts["refund_without_conversion"] += int(refunds.select(none.sum()).item())
        self.counts["refund_before_conversion"] += int(refunds.select(before.sum()).item())
        steps = _steps(bought, refunds.filter(~none & ~before))
        stood, stands, fresh = pl.col("stood"), pl.col("stands"), pl.col("conversions") > 0
        for name, part, rows in (
            ("refund_partial", stands, "refunds"),
            ("refund_repeated", ~stands & ~stood & ~fresh, "refunds"),
            ("conversion_after_refund", ~stood, "conversions"),
        ):
            self.counts[name] += int(steps.filter(part)[rows].sum())
        clicks = clicks.join(_turns(steps), on="_id", how="left", maintain_order="left")
        limit = pl.col("_click") + self.d_max
        counts = (pl.col(conversion) <= limit) & (pl.col("undone") <= limit)
        by_then = pl.sum_horizontal((pl.col(name) <= limit).fill_null(False) for name in TURNS)
        in_time, gone = clicks.select(counts.sum(), (counts & (by_then % 2 == 1)).sum().alias("gone")).row(0)
        self.counts["refund"] += gone
        self.counts["refund_after_d_max"] += clicks["undone"].count() - in_time
        return clicks

    def _finish(self, clicks: pl.DataFrame) -> pl.DataFrame:
        """The columns of the table, in seconds since the origin."""
        features = [column.raw for column in self.schema.features]
        self.counts["null_feature"] += int(clicks.select(pl.sum_horizontal(pl.col(features).null_count())).item())
        early = clicks.filter(pl.col("_click") < self.origin)
        if len(early):
            raise UserError(
                f"{self.schema.path}: row {early['_row'].min() + 1} of the log: the click is earlier than "  # type: ignore[operator]
                f"[time] origin = {self.schema.time.origin}; choose an earlier origin"
            )
        times = [name for name in (*self.schema.names, *TURNS) if name in clicks.columns]
        by_text = self.with_ids and not self.schema.click.whole_ids
        clicks = clicks.with_columns(given_id().alias("_given")) if by_text else clicks
        return clicks.select(
            (pl.col("_click") - self.origin).alias("click_ts"),
            (key_of_text("_given") if by_text else pl.col("_id")).alias("click_id"),
            *(pl.col(name) - self.origin for name in times),
            *features,
        )


def _without(gone: pl.DataFrame, *frames: pl.DataFrame) -> tuple[pl.DataFrame, ...]:
    if gone.is_empty():
        return frames
    return tuple(frame.join(gone, on="_id", how="anti", maintain_order="left") for frame in frames)


def _steps(bought: pl.DataFrame, refunds: pl.DataFrame) -> pl.DataFrame:
    """Of clicks that have refunds, the seconds in which something was bought or taken back, and whether anything stood
    before and stands after. A refund of unknown amount takes back all; any takes back a conversion of unknown amount.
    """
    mine = bought.join(refunds.select("_id").unique(), on="_id", how="semi")
    amount = pl.col("_amount")
    plus = mine.group_by("_id", "_ts").agg(
        pl.len().alias("conversions"), amount.fill_null(_UNKNOWN).sum().alias("plus")
    )
    minus = refunds.group_by("_id", "_ts").agg(
        pl.len().alias("refunds"), amount.sum().alias("minus"), amount.is_null().any().alias("all")
    )
    steps = plus.join(minus, on=["_id", "_ts"], how="full", coalesce=True).sort("_id", "_ts")
    steps = steps.with_columns(pl.col("conversions", "plus", "refunds", "minus").fill_null(0))
    steps = steps.with_columns(pl.col("plus").cum_sum().over("_id").alias("ever"))
    steps = steps.with_columns(pl.when("all").then("ever").otherwise("minus").alias("minus"))
    level = (pl.col("plus") - pl.col("minus")).cum_sum().over("_id")
    steps = steps.with_columns(level.alias("level"))
    least = pl.min_horizontal(pl.col("level").cum_min().over("_id"), 0)  # no more is taken back than was bought
    stands = (pl.col("level") - least > _ROUNDING * pl.col("ever")).alias("stands")
    return steps.with_columns(stands).with_columns(
        pl.col("stands").shift(1).over("_id").fill_null(pl.lit(value=True)).alias("stood")
    )


def _turns(steps: pl.DataFrame) -> pl.DataFrame:
    """When each click's conversion was taken back, stood again, and was taken back again."""
    turned = steps.filter(pl.col("stands") != pl.col("stood"))
    times = [pl.col("_ts").get(place, null_on_oob=True).alias(name) for place, name in enumerate(TURNS)]
    return turned.group_by("_id", maintain_order=True).agg(times)
