"""Which column is what: the click's id and time, actions, refunds, the type of an event, features.

Nothing that changes labels is guessed silently: where another reading is possible, `doubts` says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import polars as pl

from tracecvr.base.errors import UserError
from tracecvr.data.inspection.columns import ACTION, AMOUNT, CLICK, CONVERSION, LABEL, REFUND, TYPE, Profile, has_word
from tracecvr.data.inspection.tables import NOTHING_SAID, Said, Sampled, refuse_feature
from tracecvr.data.own_log.schema import ActionColumns, File

_MOST_TYPES = 30
_FEW_VALUES, _FEW_ROWS = 20, 100
"""A column may have another value in each of so many rows by chance."""
_FOLLOW_UP = (*CONVERSION, *REFUND)
_BY_HAND = "describe it by hand as docs/own_log.md says"


@dataclass
class Reading:
    """What a log seems to be, in the terms of its schema."""

    shape: str
    time: Profile  # the column of the click's time
    id: tuple[str, ...] = ()
    ids: dict[str, str] = field(default_factory=dict)
    """The column of the click's id in each table, if they have different names."""
    whole_ids: bool = False
    type: str = ""
    event: str = ""
    actions: list[ActionColumns] = field(default_factory=list)
    refund: ActionColumns | None = None
    files: list[tuple[File, Sampled]] = field(default_factory=list)  # if files differ
    features: list[Profile] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    seen: dict[str, str] = field(default_factory=dict)  # of actions by name: how often, or how, they are in the log

    def add(self, action: ActionColumns, seen: str, is_refund: bool) -> None:
        if is_refund and self.refund is not None:
            both = ", ".join((*self.refund.event, *action.event)) or f"{self.refund.time}, {action.time}"
            used = "they all are" if action.event else f"only {self.refund.time!r} is"
            self.doubts.append(f"{both} look like refunds: {used} taken for them")
            self.refund = replace(self.refund, event=(*self.refund.event, *action.event))
        elif is_refund:
            self.refund, self.seen["refund"] = replace(action, name="refund"), seen
        else:
            self.actions.append(action)
            self.seen[action.name] = seen

    def put_conversion_first(self) -> None:
        """The conversion first; say so where its name does not tell."""
        names = {one.name: (one.label or one.time or " ".join(one.event)).lower() for one in self.actions}
        named = [one for word in LABEL for one in self.actions if word in names[one.name]]
        if named:
            self.actions.remove(named[0])
            self.actions.insert(0, named[0])
        if self.actions and len({one.name for one in named}) != 1:
            others = ", ".join(one.name for one in self.actions[1:])
            why = f"candidates were {others}, too" if others else "no name says that it is one"
            self.doubts.append(f"the conversion is taken to be {self.actions[0].name!r}; {why}")

    def find_amounts(self, bought: Mapping[str, Profile], back: Mapping[str, Profile]) -> None:
        """Find the columns that say how much was bought and how much was taken back, in money or in pieces."""
        assert self.refund is not None
        for words in AMOUNT:
            pairs = [
                (one, other)
                for one in bought.values()
                for other in back.values()
                if _is_amount(one, words) and _is_amount(other, words)
            ]
            if pairs:
                one, other = max(pairs, key=lambda pair: pair[0].name == pair[1].name)
                self.actions[0] = replace(self.actions[0], amount=one.name, decimal=one.decimal)
                self.refund = replace(self.refund, amount=other.name, decimal=other.decimal)
                return

    def add_features(self, columns: Iterable[Profile], used: set[str], said: Said) -> None:
        """Add the columns that a model may learn from, and say of others why not."""
        for one in columns:
            if one.name in used:
                continue
            asked = said.features is None or one.name in said.features
            why = "not asked for" if not asked else None if said.features else refuse_feature(one, asked=False)
            if why is None:
                self.features.append(one)
            else:
                self.left_out[one.name] = why
                if one.comma and asked:
                    self.doubts.append(f"{one.name!r} is left out: it {why}")


def read_roles(tables: Sequence[Sampled], said: Said = NOTHING_SAID) -> tuple[Reading, dict[str, Profile]]:
    """The likeliest reading that is not against what is said, and the columns it was made from."""
    named = [place for place, one in enumerate(tables) if has_word(one.topic, CLICK) or len(tables) == 1]
    if not named:
        raise UserError("files with different columns: name the one of clicks after them (clicks.csv), or look at one")
    tables = [said.apply_to(table, place == named[0]) for place, table in enumerate(tables)]
    clicks = tables[named[0]]
    types = None if said.follows or len(tables) > 1 else _find_types(clicks.columns, with_clicks=True)
    if len(tables) > 1 or types is not None:
        reading = _read_events(tables, clicks, types, said)
    else:
        reading = _read_clicks(clicks.columns, said)
    reading.left_out |= clicks.partial
    keys = [table.columns[reading.ids.get(table.name, reading.id[0])] for table in tables if len(reading.id) == 1]
    reading.whole_ids = bool(keys) and all(one.whole for one in keys)
    times = [one for table in tables for one in table.columns.values() if one.unit is not None]
    if any(one.naive for one in times):
        reading.doubts.append("some times have no offset: they are read in `zone`; name the one that they are of")
    if any(one.either for one in times):
        reading.doubts.append(
            "day and month could be the other way round (dd/mm/yyyy or mm/dd/yyyy): this way, the log is the shorter"
        )
    taken = {one.name for one in reading.features}
    for number, action in enumerate(reading.actions):
        if action.name in taken:
            reading.actions[number] = replace(action, name=f"{action.name}_action")
            reading.seen[f"{action.name}_action"] = reading.seen.pop(action.name)
    return reading, {one.name: one for table in reversed(tables) for one in table.columns.values()}


# One row per click.


def _read_clicks(columns: Mapping[str, Profile], said: Said) -> Reading:
    times = [one for one in _times_in(columns) if one.name not in said.of_clicks]
    if said.click_time:
        click = columns[said.click_time]
    elif times:
        named = _first_named(times, CLICK)
        click = named or min(times, key=lambda one: (has_word(one.name, _FOLLOW_UP), -one.happened.sum()))
    else:
        raise UserError("click_time: no column of times is left for the click: say which it is")
    reading = Reading("clicks", click, _find_id(columns.values(), click.rows, said))
    if not said.click_time and not has_word(click.name, CLICK):
        reading.doubts.append(f"the time of the click is taken from {click.name!r}: no column is named after a click")
    if not reading.id:
        reading.id = _find_unnamed_id(columns.values())
        reading.doubts.append(
            f"{reading.id[0]!r} has another value in every row: it is taken to be the id of the click"
            if reading.id
            else "no column tells clicks apart: copies of a row cannot be recognised, and a live model cannot know "
            "these clicks by an id"
        )
    if "refund" in said.actions:  # before any that is guessed
        _add_time(reading, columns[said.actions["refund"]], "refund", is_refund=True)
    every_row = _place_times(reading, [one for one in times if one is not click])
    for name, column in said.actions.items():
        if name != "refund":
            _add_time(reading, columns[column], name, is_refund=False)
    if said.conversion_time or said.delay:
        reading.actions.insert(0, _read_said_conversion(reading, columns, said))
    else:
        if not reading.actions:
            _read_label(reading, columns, every_row)
        reading.put_conversion_first()
    _believe_label(reading, columns)
    if reading.refund is not None and reading.actions[0].time:
        back = {name: one for name, one in columns.items() if has_word(name, REFUND)}
        paid = {name: one for name, one in columns.items() if name not in back}
        bought, refunded = (columns[action.time].happened for action in (reading.actions[0], reading.refund))
        reading.find_amounts(_restrict(paid, bought), _restrict(back, refunded))
    used = {click.name, *reading.id, *(one.name for one in times)}
    used |= {name for action in reading.actions for name in (action.time, action.delay, action.label)}
    used |= set() if reading.refund is None else {reading.refund.time, reading.refund.amount}
    reading.add_features(columns.values(), used, said)
    return reading


def _place_times(reading: Reading, times: Sequence[Profile]) -> list[Profile]:
    """Columns of times beside the click's are actions or a refund. Those that every row has are neither: returned."""
    every_row = []
    for one in times:
        if one.nulls == 0 and not one.absent and not has_word(one.name, _FOLLOW_UP):
            reading.left_out[one.name] = "a time that every row has: not something that may or may not follow"
            every_row.append(one)
        else:
            _add_time(reading, one, _short_name(one.name), has_word(one.name, REFUND))
    return every_row


def _add_time(reading: Reading, one: Profile, name: str, is_refund: bool) -> None:
    unit = None if one.unit == reading.time.unit else one.unit
    seen = f"in {one.happened.sum() / one.rows:.1%} of the rows"
    reading.add(ActionColumns(name, time=one.name, unit=unit), seen, is_refund)


def _read_said_conversion(reading: Reading, columns: Mapping[str, Profile], said: Said) -> ActionColumns:
    name = _short_name(said.conversion_time or said.converted or "conversion")
    column = columns[said.delay or said.conversion_time or ""]
    reading.seen[name] = f"{column.name}: {column.examples()}"
    action = ActionColumns(name, label=said.converted or "")
    if said.delay:
        return replace(action, delay=column.name, unit="s")
    return replace(action, time=column.name, unit=None if column.unit == reading.time.unit else column.unit)


def _read_label(reading: Reading, columns: Mapping[str, Profile], every_row: Sequence[Profile]) -> None:
    """A conversion that a column of labels tells, with its delay or with a time that every row has; or its delay."""
    label = _find_label(columns)
    delay = next((one for one in columns.values() if one.is_delay), None)
    at = every_row[-1] if label is not None and every_row else None
    name = _short_name((label or delay or reading.time).name)
    action = ActionColumns(name, label="" if label is None else label.name)
    if delay is not None:
        reading.seen[name] = f"{delay.name}: {delay.examples()}"
        action = replace(action, delay=delay.name, unit=delay.delay_unit or "s", decimal=delay.decimal)
        if delay.delay_unit is None:
            reading.doubts.append(f"{delay.name!r} is taken to be a delay in seconds: its name does not say the unit")
        always = not delay.nulls and not delay.absent
        if label is None and always and delay.values.cast(pl.Float64).min() >= 0:  # type: ignore[operator]
            reading.doubts.append(f"every row has a delay {delay.name!r}: is every click converted?")
        reading.actions.append(action)
    elif at is not None:
        del reading.left_out[at.name]
        _add_time(reading, at, name, is_refund=False)
        _believe_label(reading, columns)
    else:
        raise UserError(
            f"{reading.time.name!r} looks like the time of a click, but no column looks like the time of a conversion"
            + ("" if label is None else f" ({label.name!r} says whether there was one, but not when)")
            + ": a log needs it, or the delay from the click. Is it a log of events without a column of types? "
            + _BY_HAND.capitalize()
        )


def _find_label(columns: Mapping[str, Profile]) -> Profile | None:
    return _first_named([one for one in columns.values() if one.is_label], LABEL)


def _believe_label(reading: Reading, columns: Mapping[str, Profile]) -> None:
    """Where every row has a time of conversion, a column of labels tells which of them are true."""
    action, label = reading.actions[0], _find_label(columns)
    time = columns.get(action.time)
    if time is None or label is None or action.label or time.nulls or time.absent:
        return
    reading.actions[0] = replace(action, label=label.name)
    reading.doubts.append(
        f"every row has a time {time.name!r}: it is taken to be the conversion's only where {label.name!r} says yes"
    )


# One row per event.


def _read_events(tables: Sequence[Sampled], clicks: Sampled, types: Profile | None, said: Said) -> Reading:
    """A table whose column of types tells clicks from what followed, or tables with an id in common."""
    of_clicks: Mapping[str, Profile] = clicks.columns
    click_word = "click"
    if types is not None:
        words = _words_by_frequency(types)
        click_word = next((word for sign in CLICK for word in words if sign in word.lower()), words[0])
        mine = types.values == click_word
        of_clicks = {
            name: replace(one, values=one.values.filter(mine))
            for name, one in clicks.columns.items()
            if one is not types
        }
    time = _time_of(clicks, said, is_clicks=True)
    reading = Reading("events", time, type="" if types is None else types.name, event=click_word)
    reading.id = _find_common_id(reading, tables, of_clicks, said)
    rows: dict[str, Mapping[str, Profile]] = {}  # columns of the rows of each action, by its word
    for table in tables:
        at = time if table is clicks else _time_of(table, said)
        if (at.unit, at.relative) != (time.unit, time.relative):
            reading.doubts.append(f"{table.name}: times are written in another unit than those of clicks")
        kinds = types if table is clicks or said.tables else _find_types(table.columns, with_clicks=False)
        if kinds is not None:
            words = [word for word in _words_by_frequency(kinds) if kinds is not types or word != click_word]
            rows |= _add_words(reading, table, kinds, words)
        elif table is not clicks:
            word = table.topic if said.tables else _short_name(table.topic)
            is_refund = word == "refund" if said.tables else has_word(word, REFUND)
            reading.add(ActionColumns(word, event=(word,)), f"every row of {table.name}", is_refund)
            rows[word] = table.columns
            _doubt_every_row(reading, table)
        file = File(table.given, time=at.name, unit=None if at.unit == time.unit else at.unit)
        file = replace(file, id=(reading.ids[table.name],)) if table.name in reading.ids else file
        every = "" if kinds is not None else "click" if table is clicks else word
        reading.files.append((replace(file, event=every, type="" if kinds is None else kinds.name), table))
    if types is not None:
        reading.files = []
    if not said.tables:
        reading.put_conversion_first()
    if not reading.actions:
        raise UserError(f"there are clicks ({click_word}), but nothing that could be a conversion")
    if reading.refund is not None:
        reading.find_amounts(rows[reading.actions[0].event[0]], rows[reading.refund.event[0]])
    # Parts of an id, a user or an item, say something of other clicks, too; a whole one does not.
    used = {time.name, *(reading.id if said.id or len(reading.id) == 1 else ())}
    reading.add_features(of_clicks.values(), used, said)
    return reading


def _doubt_every_row(reading: Reading, table: Sampled) -> None:
    """Say it if a column may tell that some rows of what followed do not count, or are of another kind."""
    for one in table.columns.values():
        if has_word(one.name, TYPE) and one.unit is None and not one.number and 2 <= one.distinct <= _MOST_TYPES:
            words = ", ".join(_words_by_frequency(one)[:4])
            reading.doubts.append(
                f"every row of {table.name} counts, whatever {one.name!r} says ({words}): remove rows that should not"
            )


def _add_words(
    reading: Reading, table: Sampled, kinds: Profile, words: Sequence[str]
) -> dict[str, Mapping[str, Profile]]:
    """Add the actions that words of a column of types stand for; returns the columns of the rows of each."""
    known = [word for word in words if has_word(word, (*CONVERSION, *REFUND, *ACTION))]
    if all(has_word(word, REFUND) for word in known):
        known = list(words)
    rows: dict[str, Mapping[str, Profile]] = {}
    for word in words:
        mine = kinds.values == word
        if word in known:
            rows[word] = _restrict(table.columns, mine)
            seen = f"{mine.sum():,} of {kinds.rows:,} rows looked at"
            reading.add(ActionColumns(_short_name(word), event=(word,)), seen, has_word(word, REFUND))
        else:
            reading.doubts.append(
                f"events {word!r} ({mine.sum():,} rows) are left out; if they follow clicks, add an [[action]]"
            )
    return rows


def _find_types(columns: Mapping[str, Profile], with_clicks: bool) -> Profile | None:
    """The column that tells clicks from conversions, or conversions from refunds and other actions, if there is one."""
    for one in columns.values():
        if one.unit is not None or one.number or not 2 <= one.distinct <= _MOST_TYPES:
            continue
        words = _words_by_frequency(one)
        clicks, refunds, others = (any(has_word(word, signs) for word in words) for signs in (CLICK, REFUND, ACTION))
        bought = any(has_word(word, CONVERSION) and not has_word(word, REFUND) for word in words)
        named = has_word(one.name, TYPE)
        if with_clicks and clicks and (bought or named):
            return one
        if not with_clicks and ((refunds and (bought or named)) or (bought and others and named)):
            return one
    return None


def _find_common_id(
    reading: Reading, tables: Sequence[Sampled], of_clicks: Mapping[str, Profile], said: Said
) -> tuple[str, ...]:
    """The columns by which clicks and what followed them are brought together."""
    common = [one for name, one in of_clicks.items() if all(name in table.columns for table in tables)]
    if key := _find_id(common, max((one.rows for one in common), default=0), said):
        return key
    plain = [one for one in common if one.unit is None]
    several: tuple[str, ...] = ()
    if len(tables) > 1:
        different = [one.name for one in plain if one.distinct >= 0.9 * one.filled > 0]
        if len(different) == 1:
            return (different[0],)
        clicks = next((place for place, table in enumerate(tables) if table.columns is of_clicks), 0)
        if fitting := _find_fitting_ids(tables, clicks):
            reading.ids = {tables[place].name: one.name for place, one in fitting.items()}
            shown = " and ".join(f"{one.name!r} of {tables[place].name}" for place, one in fitting.items())
            reading.doubts.append(f"ids of clicks are taken to be {shown}: the values fit, the names do not")
            return (fitting[clicks].name,)
        several = _find_id_of_several(plain)
    named = tuple(one.name for one in plain if one.named_id)
    key = several or named or tuple(one.name for one in plain if one.whole)
    if not key:
        every = "; ".join(f"{table.name} has {', '.join(table.columns)}" for table in tables)
        raise UserError(
            f"no id that clicks and what followed them have in common ({every}): give the column with the click's id "
            "one name in all files"
        )
    reading.doubts.append(
        f"no single column tells clicks apart: a click is taken to be one value of {', '.join(key)}, and later clicks "
        "with the same value to be duplicates of it"
    )
    return key


def _time_of(table: Sampled, said: Said, is_clicks: bool = False) -> Profile:
    """The column of times that nearly all rows have; of clicks, sooner one that is named after them, of what followed,
    one that is not: rows of conversions often repeat when the click was."""
    name = said.click_time if is_clicks else said.time_of(table.columns)
    if name is not None:
        return table.columns[name]

    def is_likely(one: Profile) -> tuple[bool, bool, bool, int]:
        filled, of_click = one.filled >= 0.9 * one.rows, has_word(one.name, (*CLICK, "touch"))
        return filled, of_click == is_clicks, not is_clicks and has_word(one.name, CONVERSION), one.filled

    return max(_times_in(table.columns), key=is_likely)


def _find_fitting_ids(tables: Sequence[Sampled], clicks: int) -> dict[int, Profile]:
    """Of each table, by its place, the column of which half of the values, at least, are ids of clicks in the log."""
    for one in tables[clicks].columns.values():
        if one.unit is not None or one.distinct < max(0.9 * one.filled, 0.5 * one.rows, _FEW_ROWS):
            continue
        ids, fitting = one.values.cast(pl.String).unique().drop_nulls(), {clicks: one}
        for place, table in enumerate(tables):
            shares = {other.name: _share_inside(other, ids) for other in table.columns.values()}
            best = max(shares, key=lambda name: shares[name])
            if place != clicks and shares[best] >= 0.5:
                fitting[place] = table.columns[best]
        if len(fitting) == len(tables):
            return fitting
    return {}


def _share_inside(one: Profile, ids: pl.Series) -> float:
    """The share of the different values of a column that are among these; 0 of one that has few."""
    if one.unit is not None or one.distinct < _FEW_VALUES:
        return 0.0
    return float(one.values.cast(pl.String).unique().drop_nulls().is_in(ids.implode()).mean())  # type: ignore[arg-type]


# What all shapes share.


def _times_in(columns: Mapping[str, Profile]) -> list[Profile]:
    times = [one for one in columns.values() if one.unit is not None]
    if not times:
        raise UserError(
            "no column looks like times (numbers since 1970, ISO-8601 text or date-times); columns are: "
            f"{', '.join(columns)}. A log needs the time of each click; {_BY_HAND}"
        )
    return times


def _find_id(columns: Iterable[Profile], rows: int, said: Said) -> tuple[str, ...]:
    """What was said to tell clicks apart, if it does; else the column that does, sooner one whose name says click."""
    if said.id:
        together = pl.DataFrame([one.values for one in columns if one.name in said.id]).drop_nulls()
        distinct = together.n_unique() if len(together) else 0
        if 2 * distinct < len(together):
            raise UserError(
                f"id: {', '.join(map(repr, together.columns))} does not tell clicks apart: there are {distinct:,} "
                f"different ones in {len(together):,} clicks that were looked at"
            )
        return said.id
    candidates = [one for one in columns if one.unit is None and one.named_id]
    able = [one for one in candidates if one.distinct >= 0.9 * one.filled and one.filled >= 0.5 * rows]
    best = max(able, key=lambda one: (has_word(one.name, CLICK), one.distinct), default=None)
    return () if best is None else (best.name,)


def _find_unnamed_id(columns: Iterable[Profile]) -> tuple[str, ...]:
    """The first column with another text, or another whole number, in every row of a log that is not tiny."""
    able = [one for one in columns if one.unit is None and (one.whole or not one.number) and not one.comma]
    return tuple(one.name for one in able if one.distinct == one.rows > _FEW_ROWS)[:1]


def _find_id_of_several(columns: Sequence[Profile]) -> tuple[str, ...]:
    """The fewest columns that tell clicks apart together; names of ids are believed sooner."""
    candidates = sorted(columns, key=lambda one: not one.named_id)
    for size in range(2, len(candidates) + 1):
        for together in combinations(candidates, size):
            rows = pl.DataFrame([one.values for one in together]).drop_nulls()
            if len(rows) and rows.n_unique() >= 0.99 * len(rows):
                return tuple(one.name for one in together)
    return ()


def _is_amount(one: Profile, words: Sequence[str]) -> bool:
    """Whether a column says of nearly every row how much it was."""
    if one.unit is not None or not one.number or one.named_id or not has_word(one.name, words):
        return False
    return bool(((one.values.cast(pl.Float64, strict=False) != 0).sum()) >= 0.9 * max(one.rows, 1))


def _first_named(columns: Sequence[Profile], words: Sequence[str]) -> Profile | None:
    """The column named by the earliest of the words."""
    return next((one for word in words for one in columns if word in one.name.lower()), None)


def _short_name(name: str) -> str:
    """A name for an action from that of its column."""
    text = name.lower()
    for end in ("_time", "_timestamp", "_ts", "_at", "_date", "_datetime", "time"):
        text = text.removesuffix(end) or text
    return "".join(c if c.isalnum() else "_" for c in text).strip("_") or "action"


def _words_by_frequency(kinds: Profile) -> list[str]:
    """The words of a column, the most frequent first."""
    counts = kinds.values.drop_nulls().cast(pl.String).value_counts(sort=True)
    return [str(word) for word in counts[kinds.name].to_list()]


def _restrict(columns: Mapping[str, Profile], rows: pl.Series) -> dict[str, Profile]:
    return {name: replace(one, values=one.values.filter(rows)) for name, one in columns.items() if one.unit is None}
