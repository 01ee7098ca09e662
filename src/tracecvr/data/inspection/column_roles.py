"""Which column is what: the click's id and time, actions, refunds, the type of an event, features.

Nothing that changes labels is guessed silently: where another reading is possible, `doubts` says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from tracecvr.base.errors import UserError
from tracecvr.data.inspection.columns import Profile, Sampled
from tracecvr.data.inspection.guess import (
    MOST_TYPES,
    Guess,
    GuessedAction,
    GuessedFile,
    add_features,
    find_amounts,
    find_id,
    find_id_of_several,
    first_named,
    has_word,
    put_conversion_first,
    rows_of_column,
    rows_of_columns,
    say_several,
    share_of_rows,
    short_name,
    time_columns,
    words_by_frequency,
)
from tracecvr.data.inspection.said import NOTHING_SAID, Said
from tracecvr.data.inspection.words import ACTION, CLICK, CONVERSION, LABEL, REFUND, TYPE

_ABOUT_LABEL = "every row has a time {time!r}: it is taken to be the conversion's only where {label!r} says yes"


def guess_roles(logs: Sequence[Sampled], said: Said = NOTHING_SAID) -> tuple[Guess, dict[str, Profile]]:
    """The likeliest reading that is not against what is said, and the columns it was made from."""
    if len(logs) > 1:
        guess, columns = _of_files(logs, said)
    else:
        log = said.apply_to(logs[0], True)
        columns = log.columns
        kinds = None if said.follows else _types(columns)
        guess = _of_events(columns, kinds, said) if kinds else _of_clicks(columns, said)
        guess.left_out |= log.partial
    features = {one.name for one in guess.features}
    for action in guess.actions:
        action.name = f"{action.name}_action" if action.name in features else action.name
    return guess, columns


def _types(columns: Mapping[str, Profile]) -> Profile | None:
    """The column that says what happened in a row, if there is one."""
    for one in columns.values():
        if one.unit is None and not one.number and 2 <= one.distinct <= MOST_TYPES:
            words = [str(word).lower() for word in one.values.drop_nulls().unique()]
            clicks = any(has_word(word, CLICK) for word in words)
            follows = any(has_word(word, CONVERSION) for word in words)
            if clicks and (follows or has_word(one.name, TYPE)):
                return one
    return None


def _of_clicks(columns: Mapping[str, Profile], said: Said) -> Guess:
    times = time_columns(columns)
    click = columns[said.click_time] if said.click_time else _click_time(times, said)
    others = [one for one in times if one is not click]
    guess = Guess("clicks", click, *find_id(list(columns.values()), click.rows, said))
    if not said.click_time and not has_word(click.name, CLICK):
        guess.doubts.append(f"the time of the click is taken from {click.name!r}: no column is named after a click")
    if not guess.id:
        guess.doubts.append("no column tells clicks apart: rows that are there twice cannot be found")
    known = _said_actions(columns, said)
    for one in others:
        if one.name not in said.of_clicks:
            _place(guess, one)
    for name, column in said.actions.items():
        action = GuessedAction(name, time=column, why=share_of_rows(columns[column]))
        if name == "refund":
            guess.refund = action
        else:
            guess.actions.append(action)
    if known is None and not guess.actions:
        _by_label(guess, list(columns.values()), [one for one in others if one.name in guess.left_out])
    if known is None:
        put_conversion_first(guess)
    else:
        guess.actions.insert(0, known)
    _believe_label(guess, columns)
    used = {click.name, *guess.id, *(one.name for one in others)}
    if guess.refund is not None and guess.actions[0].time:
        back = {name: one for name, one in columns.items() if has_word(name, REFUND)}
        paid = {name: one for name, one in columns.items() if name not in back}
        happened = (~_missing(columns[action.time]) for action in (guess.actions[0], guess.refund))
        find_amounts(guess, *(rows_of_columns(side, rows) for side, rows in zip((paid, back), happened, strict=True)))
    used |= {name for action in guess.actions for name in (action.delay, action.label)}
    used |= {guess.refund.amount} if guess.refund is not None else set()
    add_features(guess, [one for one in columns.values() if one.name not in used], said)
    return guess


def _click_time(times: Sequence[Profile], said: Said) -> Profile:
    able = [one for one in times if one.name not in said.of_clicks]
    if not able:
        raise UserError("click_time: no column of times is left for the click: say which it is")
    return first_named(able, CLICK) or min(able, key=lambda one: (_is_follow_up(one), one.rows - one.happened))


def _said_actions(columns: Mapping[str, Profile], said: Said) -> GuessedAction | None:
    """The conversion as it was said."""
    if not (said.conversion_time or said.delay):
        return None
    name = short_name(said.conversion_time or said.converted or "conversion")
    action = GuessedAction(name, label=said.converted or "")
    if said.delay:
        action.delay, action.unit, action.why = said.delay, "s", columns[said.delay].examples(3)
    elif said.conversion_time:
        action.time, action.why = said.conversion_time, share_of_rows(columns[said.conversion_time])
    return action


def _label_column(columns: Iterable[Profile]) -> Profile | None:
    """The column that says of every click whether it was converted, if there is one."""
    return first_named([one for one in columns if one.is_label], LABEL)


def _believe_label(guess: Guess, columns: Mapping[str, Profile]) -> None:
    """Where every row has a time of conversion, a column of labels tells which of them are true."""
    action, label = guess.actions[0], _label_column(columns.values())
    time = columns.get(action.time)
    if time is None or label is None or action.label or time.nulls or time.absent:
        return
    action.label = label.name
    guess.doubts.append(_ABOUT_LABEL.format(time=time.name, label=label.name))


def _by_label(guess: Guess, columns: Sequence[Profile], every_row: Sequence[Profile]) -> None:
    """A conversion that a column of labels tells, with its delay or with a time that every row has; or its delay."""
    label = _label_column(columns)
    delay = next((one for one in columns if one.is_delay), None)
    at = every_row[-1] if label is not None and len(every_row) else None
    if delay is None and at is None:
        raise UserError(
            f"{guess.click.name!r} looks like the time of a click, but no column looks like the time of a conversion"
            + ("" if label is None else f" ({label.name!r} says whether there was one, but not when)")
            + ": a log needs it, or the delay from the click. Is it a log of events without a column of types? "
            "Describe it by hand as docs/own_log.md says"
        )
    if label is None and delay is not None and not delay.nulls and delay.values.cast(pl.Float64).min() >= 0:  # type: ignore[operator]
        guess.doubts.append(f"every row has a delay {delay.name!r}: is every click converted?")
    named = label or delay or at
    assert named is not None
    action = GuessedAction(short_name(named.name), label="" if label is None else label.name)
    if delay is not None:
        action.delay, action.unit, action.decimal = delay.name, delay.delay_unit or "s", delay.decimal
        action.why = f"{delay.name}: {delay.examples(3)}"
        if delay.delay_unit is None:
            guess.doubts.append(f"{delay.name!r} is taken to be a delay in seconds: its name does not say the unit")
    elif at is not None:
        action.time = at.name
        del guess.left_out[at.name]
        guess.doubts.append(_ABOUT_LABEL.format(time=at.name, label=action.label))
    guess.actions.append(action)


def _is_follow_up(one: Profile) -> bool:
    return has_word(one.name, CONVERSION) or has_word(one.name, REFUND)


def _place(guess: Guess, one: Profile) -> None:
    """A column of times beside the click's: an action, a refund, or neither."""
    share = share_of_rows(one)
    if has_word(one.name, REFUND):
        guess.refund = GuessedAction("refund", time=one.name, why=share)
    elif one.nulls == 0 and not one.absent and not _is_follow_up(one):
        guess.left_out[one.name] = "a time that every row has: not something that may or may not follow"
    else:
        guess.actions.append(GuessedAction(short_name(one.name), time=one.name, why=share))


def _of_events(columns: Mapping[str, Profile], kinds: Profile, said: Said) -> Guess:
    click_word, words = _words(kinds)
    mine = kinds.values == click_word
    times = time_columns(columns)
    time = max(times, key=lambda one: (one.name == said.click_time, one.filled, -list(columns).index(one.name)))
    candidates = [one for one in columns.values() if one.unit is None and one is not kinds]
    of_clicks = {one.name: rows_of_column(one, mine) for one in candidates}
    key = find_id(list(of_clicks.values()), int(mine.sum()), said)
    several: tuple[str, ...] = ()
    if not key[0]:
        named = tuple(one.name for one in candidates if one.named_id)
        several = named or tuple(one.name for one in candidates if one.whole)
        if not several:
            raise UserError("this looks like a log of events, but no column brings clicks and actions together: no id")
        key = several, False
    guess = Guess("events", time, *key, type=kinds.name, event=click_word)
    if several:
        say_several(guess)
    known = [word for word in words if has_word(word, (*CONVERSION, *REFUND, *ACTION))]
    if any(not has_word(word, REFUND) for word in known):
        for word in words:
            if word not in known:
                rows = int((kinds.values == word).sum())
                guess.doubts.append(
                    f"events {word!r} ({rows:,} rows) are left out; if they follow clicks, add an [[action]]"
                )
        words = known
    for word in words:
        rows = int((kinds.values == word).sum())
        _add_event(guess, short_name(word), word, f"{rows:,} of {kinds.rows:,} rows looked at")
    put_conversion_first(guess)
    if not guess.actions:
        raise UserError(f"column {kinds.name!r} has clicks ({click_word}), but nothing that could follow them")
    if guess.refund is not None:
        both = (kinds.values == action.event for action in (guess.actions[0], guess.refund))
        find_amounts(guess, *(rows_of_columns(columns, mine) for mine in both))
    # Parts of an id, a user or an item, say something of other clicks, too; a whole one does not.
    used = {time.name, kinds.name, *(guess.id if len(guess.id) == 1 else ())}
    add_features(guess, [one for one in of_clicks.values() if one.name not in used], said)
    return guess


def _add_event(guess: Guess, name: str, word: str, why: str, takes_back: bool | None = None) -> None:
    """An action, or the refund, that a word stands for."""
    if not (has_word(word, REFUND) if takes_back is None else takes_back):
        guess.actions.append(GuessedAction(name, event=word, why=why))
        return
    if guess.refund is not None:
        guess.doubts.append(f"{word!r} and {guess.refund.event!r} both look like refunds: the former is left out")
        return
    guess.refund = GuessedAction("refund", event=word, why=why)


def _follow_up_types(columns: Mapping[str, Profile]) -> Profile | None:
    """The column that tells conversions from refunds and other actions in a file without clicks, if there is one."""
    for one in columns.values():
        if one.unit is not None or one.number or not 2 <= one.distinct <= MOST_TYPES:
            continue
        words = words_by_frequency(one)
        refunds = [word for word in words if has_word(word, REFUND)]
        bought = [word for word in words if has_word(word, CONVERSION) and word not in refunds]
        others = [word for word in words if has_word(word, ACTION)]
        if (refunds and (bought or has_word(one.name, TYPE))) or (bought and others and has_word(one.name, TYPE)):
            return one
    return None


def _words(kinds: Profile) -> tuple[str, list[str]]:
    """What is written of a click, and of everything else, the most frequent first."""
    words = words_by_frequency(kinds)
    click = next((word for sign in CLICK for word in words if sign in word.lower()), words[0])
    return click, [word for word in words if word != click]


def _of_files(logs: Sequence[Sampled], said: Said) -> tuple[Guess, dict[str, Profile]]:
    """Files with different columns: one of clicks, others of what followed, with an id in common."""
    place = next((place for place, one in enumerate(logs) if has_word(one.topic, CLICK)), None)
    if place is None:
        raise UserError("files with different columns: name the one of clicks after them (clicks.csv), or look at one")
    logs = [said.apply_to(log, number == place) for number, log in enumerate(logs)]
    clicks = logs[place]
    common = [one for name, one in clicks.columns.items() if all(name in log.columns for log in logs)]
    key, whole = find_id(common, max((one.rows for one in common), default=0), said)
    unnamed = [one for one in common if one.unit is None and one.distinct >= 0.9 * one.filled > 0]
    if not key and len(unnamed) == 1:
        key, whole = (unnamed[0].name,), unnamed[0].whole
    if not key:
        key = find_id_of_several(common)
    if not key:
        raise UserError(
            "files with different columns, but no id that all of them have: there is nothing to join them by"
        )
    whole = whole and all(log.columns[key[0]].whole for log in logs)
    times = time_columns(clicks.columns)
    time = clicks.columns[said.click_time] if said.click_time else first_named(times, CLICK) or times[0]
    guess = Guess("events", time, key, whole, event="click")
    if len(key) > 1 and not said.id:
        say_several(guess)
    for log in logs:
        at = time if log is clicks else _time_of(log, said)
        if (at.unit, at.relative) != (time.unit, time.relative):
            guess.doubts.append(f"{log.name}: times are written in another unit than those of clicks")
        kinds = None if log is clicks or said.tables else _follow_up_types(log.columns)
        if log is clicks:
            guess.by_file.append(GuessedFile(log, at.name, at.unit or "", event="click"))
        elif kinds is None:
            word = short_name(log.topic)
            guess.by_file.append(GuessedFile(log, at.name, at.unit or "", event=word))
            _add_event(guess, word, word, f"every row of {log.name}", word == "refund" if said.tables else None)
        else:
            guess.by_file.append(GuessedFile(log, at.name, at.unit or "", type=kinds.name))
            for word in words_by_frequency(kinds):
                rows = int((kinds.values == word).sum())
                _add_event(guess, short_name(word), word, f"{rows:,} of {kinds.rows:,} rows of {log.name} looked at")
    if not said.tables:
        put_conversion_first(guess)
    if not guess.actions:
        raise UserError("files of clicks and refunds, but none of conversions")
    if guess.refund is not None:
        find_amounts(guess, *(_rows_of(guess, action.event) for action in (guess.actions[0], guess.refund)))
    used = {time.name, *guess.id}
    add_features(guess, [one for one in clicks.columns.values() if one.name not in used], said)
    guess.left_out |= clicks.partial
    return guess, {one.name: one for log in reversed(logs) for one in log.columns.values()}


def _rows_of(guess: Guess, word: str) -> dict[str, Profile]:
    """Columns of the rows that a word stands for, in whichever file they are."""
    for file in guess.by_file:
        columns = file.log.columns
        if file.event == word:
            return columns
        if file.type and (rows := columns[file.type].values == word).any():
            return rows_of_columns(columns, rows)
    return {}


def _missing(time: Profile) -> pl.Series:
    return time.values.is_null() | time.values.cast(pl.String).is_in(time.absent)


def _time_of(log: Sampled, said: Said) -> Profile:
    """The column of times of a table of what followed."""
    name = said.time_of(log.columns)
    if name is not None:
        return log.columns[name]
    return max(time_columns(log.columns), key=lambda one: one.filled)
