"""What a log seems to be, and the rules that all shapes share: ids, features, amounts, which action is first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import polars as pl

from tracecvr.base.errors import UserError
from tracecvr.data.inspection.columns import Profile, Sampled
from tracecvr.data.inspection.said import Said
from tracecvr.data.inspection.words import AMOUNT, CLICK, LABEL
from tracecvr.data.own_log.schema import RESERVED

MOST_TYPES = 30


_ROW_NUMBER = re.compile(r"^__index_level_\d+__$|^unnamed|^index$|^row(_?(id|nr|no|num|number|index))?$|^column_1$|^$")


@dataclass
class GuessedAction:
    """Something that follows a click: the column of its time or of its delay and of its label, or the word for it."""

    name: str
    time: str = ""
    event: str = ""
    why: str = ""
    delay: str = ""
    label: str = ""
    unit: str = ""
    """Of a delay."""
    amount: str = ""
    decimal: str = "."


@dataclass
class GuessedFile:
    """Files of a log whose files differ: their column of times, and the word for their rows or the column of words."""

    log: Sampled
    time: str
    unit: str
    event: str = ""
    type: str = ""


@dataclass
class Guess:
    """What a log seems to be."""

    shape: str
    click: Profile
    id: tuple[str, ...]
    whole_ids: bool
    type: str = ""
    event: str = ""
    actions: list[GuessedAction] = field(default_factory=list)
    refund: GuessedAction | None = None
    features: list[Profile] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    by_file: list[GuessedFile] = field(default_factory=list)


def has_word(name: str, words: Sequence[str]) -> bool:
    return any(word in name.lower() for word in words)


def first_named(columns: Iterable[Profile], words: Sequence[str]) -> Profile | None:
    """The column named by the earliest of the words."""
    there = list(columns)
    return next((one for word in words for one in there if word in one.name.lower()), None)


def time_columns(columns: Mapping[str, Profile]) -> list[Profile]:
    timed = [one for one in columns.values() if one.unit is not None]
    if not timed:
        seen = ", ".join(columns)
        raise UserError(
            f"no column looks like times (numbers since 1970, ISO-8601 text or date-times); columns are: {seen}. A log "
            "needs the time of each click; describe it by hand as docs/own_log.md says"
        )
    return timed


def share_of_rows(one: Profile) -> str:
    return f"in {one.happened / one.rows:.1%} of the rows"


def put_conversion_first(guess: Guess) -> None:
    """The conversion first; say so where its name does not tell."""
    named = [one for word in LABEL for one in guess.actions if word in (one.label or one.time or one.event).lower()]
    if named:
        guess.actions.remove(named[0])
        guess.actions.insert(0, named[0])
    if guess.actions and (not named or len(dict.fromkeys(one.name for one in named)) > 1):
        names = ", ".join(one.name for one in guess.actions)
        guess.doubts.append(f"the conversion is taken to be {guess.actions[0].name!r}; candidates were {names}")


def words_by_frequency(kinds: Profile) -> list[str]:
    """The words of a column, the most frequent first."""
    counts = kinds.values.drop_nulls().cast(pl.String).value_counts(sort=True)
    return [str(word) for word in counts[kinds.name].to_list()]


def find_amounts(guess: Guess, bought: Mapping[str, Profile], back: Mapping[str, Profile]) -> None:
    """Find the columns that say how much was bought and how much was taken back, in money or in pieces."""
    assert guess.refund is not None
    for words in AMOUNT:
        paid, refunded = ([one for one in rows.values() if _is_amount(one, words)] for rows in (bought, back))
        pairs = [(one, other) for one in paid for other in refunded]
        if not pairs:
            continue
        one, other = max(pairs, key=lambda pair: pair[0].name == pair[1].name)
        for action, column in ((guess.actions[0], one), (guess.refund, other)):
            action.amount, action.decimal = column.name, column.decimal
        return


def _is_amount(one: Profile, words: Sequence[str]) -> bool:
    """Whether a column says of nearly every row how much it was."""
    if one.unit is not None or not one.number or one.named_id or not has_word(one.name, words):
        return False
    return bool(((one.values.cast(pl.Float64, strict=False) != 0).sum()) >= 0.9 * max(one.rows, 1))


def rows_of_columns(columns: Mapping[str, Profile], rows: pl.Series) -> dict[str, Profile]:
    return {name: rows_of_column(one, rows) for name, one in columns.items() if one.unit is None}


def rows_of_column(one: Profile, rows: pl.Series) -> Profile:
    values = one.values.filter(rows)
    distinct = 0 if values.dtype.is_nested() else values.drop_nulls().n_unique()
    return replace(one, values=values, nulls=values.null_count(), distinct=distinct)


def find_id(columns: Sequence[Profile], rows: int, said: Said) -> tuple[tuple[str, ...], bool]:
    """The column that tells clicks apart, if one does; a name that says click is believed sooner."""
    if said.id:
        return _said_id([one for one in columns if one.name in said.id], said)
    candidates = [one for one in columns if one.unit is None and one.named_id]
    able = [one for one in candidates if one.distinct >= 0.9 * one.filled and one.filled >= 0.5 * rows]
    if not able:
        return (), False
    best = max(able, key=lambda one: (has_word(one.name, CLICK), one.distinct))
    return (best.name,), best.whole


def _said_id(columns: Sequence[Profile], said: Said) -> tuple[tuple[str, ...], bool]:
    """The id that was said, if it tells clicks apart."""
    together = pl.DataFrame([one.values for one in columns]).drop_nulls()
    distinct = together.n_unique() if len(together) else 0
    if 2 * distinct < len(together):
        raise UserError(
            f"id: {', '.join(map(repr, said.id))} does not tell clicks apart: there are {distinct:,} different ones in "
            f"{len(together):,} clicks that were looked at"
        )
    return said.id, len(columns) == 1 and columns[0].whole


def find_id_of_several(columns: Sequence[Profile]) -> tuple[str, ...]:
    """The fewest columns that tell clicks apart together; names of ids are believed sooner."""
    candidates = sorted((one for one in columns if one.unit is None), key=lambda one: not one.named_id)
    for size in range(2, len(candidates) + 1):
        for together in combinations(candidates, size):
            rows = pl.DataFrame([one.values for one in together]).drop_nulls()
            if len(rows) and rows.n_unique() >= 0.99 * len(rows):
                return tuple(one.name for one in together)
    return ()


def say_several(guess: Guess) -> None:
    """Say that an id is made of several columns."""
    guess.doubts.append(
        f"no single column tells clicks apart: a click is taken to be one value of {', '.join(guess.id)}, and "
        "later clicks with the same value to be duplicates of it"
    )


def short_name(name: str) -> str:
    """A name for an action from that of its column."""
    text = name.lower()
    for end in ("_time", "_timestamp", "_ts", "_at", "_date", "_datetime", "time"):
        text = text.removesuffix(end) or text
    return "".join(c if c.isalnum() else "_" for c in text).strip("_") or "action"


def add_features(guess: Guess, columns: Sequence[Profile], said: Said) -> None:
    for one in columns:
        asked = said.features is None or one.name in said.features
        why = "not asked for" if not asked else None if said.features else _no_feature(one)
        if why is None:
            guess.features.append(one)
        else:
            guess.left_out[one.name] = why
            if one.comma and asked:
                guess.doubts.append(f"{one.name!r} is left out: {why}")


def _no_feature(one: Profile) -> str | None:
    if one.name in RESERVED:
        return f"{one.distinct:,} different in {one.filled:,} rows; rename the column if it is a feature"
    if one.of_folder:
        return "from the names of folders"
    if one.unit is not None:
        return "a time"
    if one.comma:
        return f"numbers whose commas may stand before decimals or between thousands ({one.examples()}): write 1234.5"
    if _ROW_NUMBER.search(one.name.lower()) and one.whole and one.distinct == one.filled:
        return "the number of the row"
    if one.filled == 0 or one.distinct == 0:
        return "empty, or nested, on clicks"
    if one.distinct == 1 and one.nulls == 0:
        return "one value"
    if one.distinct > 0.9 * one.filled and one.filled > 20 and (one.named_id or not one.number):
        return "another value in nearly every row"
    return None
