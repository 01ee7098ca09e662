"""Rows of a log's files in one form, whatever its shape: ids, kinds, seconds and raw features.

Internal columns begin with an underscore: `_row` (number in the log), `_id`, and of a row per click `_click`, `_0`,
`_1`, ... (times of the click and of what follows it, refunds last) and `_amount0`, ... if the schema names amounts, of
a row per event `_kind` (0 the click, then what follows it), `_ts` and `_amount` (1 if the schema names none).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from tracecvr.base.errors import UserError
from tracecvr.data.encoder import key_of_text, read_numbers
from tracecvr.data.own_log import files, times
from tracecvr.data.own_log.files import LogFile
from tracecvr.data.own_log.schema import ActionColumns, File, LogSchema

_YES, _NO = ("1", "1.0", "true", "yes", "y", "t"), ("0", "0.0", "false", "no", "n", "f", "")
"""What a label says. An empty one says that it did not happen."""

_CORRECT = "correct the schema or the row"
_YEAR = 31_556_952


@dataclass
class Rows:
    """Reads the files of a schema. Defects are counted; `dropped` rows count as defects of the log."""

    schema: LogSchema
    source: Path | None = None
    read: int = 0
    first: int = 0  # number of the first row of the file that is being read
    counts: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)

    def open_files(self) -> list[tuple[File, LogFile]]:
        """Every file of the log with what the schema says of it; `source` stands for files that it says nothing of."""
        schema = self.schema
        kinds = schema.sources
        if self.source is not None:
            if any(kind.event or kind.time or kind.id for kind in kinds):
                raise UserError(f"{schema.path}: files are described one by one in [[file]]; leave out --source")
            kinds = (File((str(self.source.absolute()),)),)
        if not kinds:
            raise UserError(f"{schema.path}: no files: name them (files = [...]), or give --source")
        opened = []
        for kind in kinds:
            paths = [
                path for one in kind.path for path in files.matching_files(one, schema.path.parent / schema.folder)
            ]
            table = files.share_keys([files.open_file(path, schema.separator, schema.header) for path in paths])
            opened += [(kind, file) for file in table]
        return opened

    def clicks(self) -> Iterator[pl.DataFrame]:
        """A row per click: those that have a time and, if there are ids, one."""
        schema = self.schema
        for kind, file in self.open_files():
            key, at = kind.id or schema.click.id, kind.time or schema.click.time
            followed = [name for a in schema.kinds for name in (a.time, a.delay, a.label, a.amount) if name]
            for frame in self._batches(file, [*key, at, *followed]):
                self._check_ids(file, frame, key)
                clicked = self._seconds(file, frame, at, kind.unit or schema.click.unit)
                columns = [clicked.alias("_click")]
                for i, action in enumerate(schema.kinds):
                    columns.append(self._follow(file, frame, action, clicked).alias(f"_{i}"))
                    columns += [_amount(frame, action).alias(f"_amount{i}")] if action.amount else []
                selected = frame.with_columns(columns).select(
                    "_row", *self._id(key), r"^_click$|^_\d+$|^_amount\d+$", *self._features(frame)
                )
                clicked_at, followed_at = pl.col("_click").is_not_null(), pl.col("_0").is_not_null()
                label = schema.action[0].label
                converted = _words(frame[label]).is_in(_YES) if label else False
                yield self._keep(
                    selected,
                    label_without_time=~(pl.lit(converted) & ~followed_at & clicked_at),
                    null_click_id=pl.col("_id").is_not_null() if key else pl.lit(value=True),
                    conversion_without_click=clicked_at | ~followed_at,
                    null_click_time=clicked_at,
                )

    def events(self) -> Iterator[pl.DataFrame]:
        """A row per event that has an id, a time and a meaning."""
        schema = self.schema
        words = {schema.click.event: 0}
        words |= {word: kind for kind, action in enumerate(schema.kinds, start=1) for word in action.event}
        for kind, file in self.open_files():
            key, at = kind.id or schema.click.id, kind.time or schema.click.time
            column = "" if kind.event else kind.type or schema.click.type
            if not column and kind.event not in words:
                raise UserError(
                    f"{schema.path}: {file.path}: say what its rows are ([[file]] event or type, or [click] type)"
                )
            amounts = [action.amount for action in schema.kinds if action.amount in file.columns()]
            needed = [*key, at, *filter(None, [column]), *amounts]
            for frame in self._batches(file, needed, kind.event != schema.click.event):
                self._check_ids(file, frame, key)
                said = pl.col(column).cast(pl.String) if column else pl.lit(kind.event)
                which = said.replace_strict(words, default=None, return_dtype=pl.Int8)
                kinds = frame.with_columns(which.alias("_kind"))
                known = kinds.filter(pl.col("_kind").is_not_null())
                self.counts["other_event"] += len(kinds) - len(known)
                if (known["_kind"] == 0).any():  # rows of actions need no features, clicks do
                    file.refuse_missing([feature.raw for feature in schema.features])
                seconds = self._seconds(file, known, at, kind.unit or schema.click.unit)
                timed = known.with_columns(seconds.alias("_ts"), self._amounts(file, known))
                selected = timed.select("_row", *self._id(key), "_kind", "_ts", "_amount", *self._features(frame))
                yield self._keep(
                    selected,
                    null_click_id=pl.col("_id").is_not_null(),
                    null_action_time=(pl.col("_kind") == 0) | pl.col("_ts").is_not_null(),
                    null_click_time=pl.col("_ts").is_not_null(),
                )

    def _amounts(self, file: LogFile, events: pl.DataFrame) -> pl.Series:
        """What was bought, or taken back, in each event."""
        amount = pl.Series("_amount", [1.0]).new_from_index(0, len(events))
        for kind, action in enumerate(self.schema.kinds, start=1):
            mine = events["_kind"] == kind
            if action.amount and mine.any():
                file.refuse_missing([action.amount])
                amount = amount.zip_with(~mine, _amount(events, action))
        return amount.alias("_amount")

    def given_ids(self) -> pl.LazyFrame | None:
        """Ids as text (`given_id`) by their keys (`click_id`); None if there are none, or whole numbers."""
        click, keys = self.schema.click, [(kind.id or self.schema.click.id, file) for kind, file in self.open_files()]
        if click.whole_ids or not all(key for key, _ in keys):
            return None
        ids = pl.concat([file.scan.select(*self._id(key)) for key, file in keys]).drop_nulls()
        return ids.select(given_id().alias("given_id")).with_columns(key_of_text("given_id").alias("click_id"))

    def _batches(self, file: LogFile, columns: list[str], optional: bool = False) -> Iterator[pl.DataFrame]:
        """Numbered rows with these columns and the features; those are null if the file may lack them."""
        wanted = [column.raw for column in self.schema.features]
        if optional:
            there = file.columns()
            wanted = [name for name in wanted if name in there]
        self.first = self.read
        for frame in file.batches(list(dict.fromkeys([*columns, *wanted]))):
            numbered = frame.with_row_index("_row", self.read).with_columns(pl.col("_row").cast(pl.Int64))
            self.read += len(frame)
            yield numbered

    def _id(self, key: tuple[str, ...]) -> list[pl.Expr]:
        if not key:
            return []
        if self.schema.click.whole_ids:
            return [pl.col(key[0]).cast(pl.Int64).alias("_id")]
        texts = [pl.col(name).cast(pl.String) for name in key]
        return [(pl.concat_str(texts, separator="\x1f") if len(texts) > 1 else texts[0]).alias("_id")]

    def _features(self, frame: pl.DataFrame) -> list[pl.Expr]:
        """Raw features as their kinds read them: numbers where they are binned, else text."""
        expressions = []
        for column in self.schema.features:
            raw = pl.col(column.raw) if column.raw in frame.columns else pl.lit(None)
            expressions.append(column.clean(raw, frame.schema.get(column.raw, pl.Null())).alias(column.raw))
        return expressions

    def _seconds(self, file: LogFile, frame: pl.DataFrame, name: str, unit: str | None) -> pl.Series:
        how = self.schema.time
        unit = unit or how.unit
        parsed = times.read(frame[name], how, unit)
        advice = "correct the unit or the row, or list it in [time] absent"
        self._refuse(file, frame, name, parsed.unreadable, f"is no time in unit {unit!r}; {advice}")
        self.counts["naive_time"] += parsed.naive
        self.counts["ambiguous_time"] += parsed.ambiguous
        self.counts["nonexistent_time"] += parsed.nonexistent
        if times.origin_of(how)[1] and times.bounds_of(how) is None:
            wrong = times.first_true(~parsed.seconds.is_between(times.FIRST, times.LAST).fill_null(True))
            year = None if wrong is None else 1970 + parsed.seconds[wrong] // _YEAR
            advice = "correct [time] unit, or give a number as origin if times are not counted from 1970"
            self._refuse(file, frame, name, wrong, f"in unit {unit!r} is in the year {year}; {advice}")
        return parsed.seconds

    def _follow(self, file: LogFile, frame: pl.DataFrame, action: ActionColumns, clicked: pl.Series) -> pl.Series:
        """When an action of each click happened: as its time says or its delay, and its label if there is one."""
        if action.delay:
            unit = action.unit or "s"
            given = frame[action.delay]
            if action.decimal == "," and given.dtype == pl.String:
                given = given.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
            delay = times.read_delay(given, self.schema.time, unit)
            self._refuse(file, frame, action.delay, delay.unreadable, f"is not a duration in {unit!r}; {_CORRECT}")
            seconds = clicked + delay.seconds
        else:
            seconds = self._seconds(file, frame, action.time, action.unit)
        if not action.label:
            return seconds
        word = _words(frame[action.label])
        unknown = times.first_true(~word.is_in([*_YES, *_NO]))
        self._refuse(file, frame, action.label, unknown, f"is not 0 or 1; {_CORRECT}")
        not_happened = ~word.is_in(_YES)
        self.counts["time_without_label"] += int((seconds.is_not_null() & not_happened).sum())
        return seconds.set(not_happened, None)

    def _refuse(self, file: LogFile, frame: pl.DataFrame, name: str, row: int | None, reason: str) -> None:
        """Refuse a value for a reason, if there is one: `row` is its place in the frame."""
        if row is not None:
            place = int(frame["_row"][row]) - self.first + 1
            raise UserError(f"{file.path}: row {place}, column {name!r}: {frame[name][row]!r} {reason}")

    def _check_ids(self, file: LogFile, frame: pl.DataFrame, key: tuple[str, ...]) -> None:
        if not self.schema.click.whole_ids:
            return
        if len(key) != 1:
            raise UserError(f"{self.schema.path}: [click] whole_ids goes with an id of one column; leave it out")
        ids = frame[key[0]]
        wrong = times.first_true(ids.is_not_null() & ids.cast(pl.Int64, strict=False).is_null())
        self._refuse(file, frame, key[0], wrong, "is no whole number; leave out whole_ids in the schema")

    def _keep(self, frame: pl.DataFrame, **sound: pl.Expr) -> pl.DataFrame:
        """Rows that are sound in every respect; the others are counted by the first reason."""
        for reason, flags in sound.items():
            kept = frame.filter(flags)
            self.dropped[reason] += len(frame) - len(kept)
            frame = kept
        return frame


def given_id() -> pl.Expr:
    """An id of one column or several as people write it."""
    return pl.col("_id").str.replace_all("\x1f", "|", literal=True)


def _amount(frame: pl.DataFrame, action: ActionColumns) -> pl.Series:
    """How much was bought or taken back, null if unknown; refunds may be written as negative numbers."""
    number = read_numbers(pl.col(action.amount), frame.schema[action.amount], action.decimal).abs()
    return frame.select(pl.when(number > 0).then(number)).to_series()


def _words(labels: pl.Series) -> pl.Series:
    return labels.cast(pl.String).str.strip_chars().str.to_lowercase().fill_null("")
