"""Options: a dataclass's fields are its configuration, its `--set` keys and its docs table.

An option is declared once, with `option(default, help, ...)`; everything else (parsing, range checks, listings, the
config recorded in `result.json`) is derived from the field.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import operator
import re
import types
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from tracecvr.base.errors import UserError

MINUTE = 60
HOUR = 60 * MINUTE
DAY = 24 * HOUR

T = TypeVar("T")

_UNITS = {"": 1, "s": 1, "m": MINUTE, "min": MINUTE, "h": HOUR, "d": DAY}

Seconds = Annotated[int, "seconds"]
"""A duration; `--set` accepts 900, 15min, 1h or 30d."""


@dataclasses.dataclass(frozen=True)
class Option:
    """One configurable field, as listings and docs show it."""

    name: str
    type: str
    default: Any
    help: str
    choices: tuple[str, ...] | None = None


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """A dataclass field that knows its help text and its legal range (`low`/`high` inclusive, `above` exclusive)."""
    rules = {"help": help, "low": low, "high": high, "above": above, "choices": choices}
    return dataclasses.field(default=default, metadata=rules)


def options(cls: type) -> list[Option]:
    """The options of a dataclass in declaration order."""
    hints = get_type_hints(cls, include_extras=True)
    return [
        Option(f.name, _type_name(hints[f.name]), f.default, f.metadata["help"], f.metadata["choices"])
        for f in dataclasses.fields(cls)
        if "help" in f.metadata
    ]


def values(owner: Any) -> dict[str, Any]:
    """The options of an instance as JSON-ready values."""
    names = [o.name for o in options(type(owner))]
    return {n: list(v) if isinstance(v := getattr(owner, n), tuple) else v for n in names}


def restore(cls: type[T], recorded: Mapping[str, Any]) -> T:
    """The instance whose `values` were recorded."""
    return cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in recorded.items()})


def pairs(items: Iterable[str], flag: str) -> dict[str, str]:
    """`["a=1", "b=2"]` as a dictionary; `flag` is named in errors."""
    settings: dict[str, str] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals or not key.strip():
            raise UserError(f"{flag} {item!r}: expected key=value")
        if key.strip() in settings:
            raise UserError(f"{flag} {key.strip()!r} is given twice: keep one")
        settings[key.strip()] = text.strip()
    return settings


def text_of(value: Any) -> str:
    """A value of TOML or Python as `--set` would be given it.

    >>> text_of(True), text_of([1, 2]), text_of(None), text_of(timedelta(hours=2))
    ('true', '1,2', 'none', '7200s')
    """
    if isinstance(value, timedelta):
        return f"{round(value.total_seconds())}s"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return ",".join(text_of(v) for v in value) if isinstance(value, list | tuple) else str(value)


def settings_of(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings as text, those of tables in the table with a dot: TOML reads `stream.average = "1d"` so.

    >>> settings_of({"window": "1h", "stream": {"average": None}})
    {'window': '1h', 'stream.average': 'none'}
    """
    flat: dict[str, str] = {}
    for key, value in table.items():
        whole = f"{prefix}{key}"
        flat |= settings_of(value, f"{whole}.") if isinstance(value, Mapping) else {whole: text_of(value)}
    return flat


def configure(owner: T, settings: Mapping[str, str], flag: str) -> T:
    """A copy of `owner` with options parsed from text; an unknown key is an error."""
    return distribute({"": owner}, settings, flag)[""]


def distribute(owners: Mapping[str, T], settings: Mapping[str, str], flag: str) -> dict[str, T]:
    """Give each setting to the first owner that has the option; `name.key` goes to the owner of that name alone."""
    changes: dict[str, dict[str, Any]] = {name: {} for name in owners}
    for key, text in settings.items():
        name, field = find_owner(key, owners), key.rpartition(".")[2]
        if name is None:
            known = sorted({one.name for owner in owners.values() for one in options(type(owner))})
            raise UserError(f"{flag}: unknown key {key!r}{nearest(field, known)}; known keys: {', '.join(known)}")
        hint = get_type_hints(type(owners[name]), include_extras=True)[field]
        changes[name][field] = _parse(text, hint, f"{flag} {key}={text}")
    return {n: validate(dataclasses.replace(o, **changes[n])) for n, o in owners.items()}  # type: ignore[type-var]


def validate(owner: T) -> T:
    """`owner` itself, once every option is of its type and inside its declared range; lists become tuples."""
    hints = get_type_hints(type(owner), include_extras=True)
    for field in dataclasses.fields(owner):  # type: ignore[arg-type]
        if "help" in field.metadata:
            value = getattr(owner, field.name)
            if isinstance(value, list):
                value = tuple(value)
                object.__setattr__(owner, field.name, value)
            _check(field.name, value, hints[field.name], field.metadata)
    return owner


def parse_duration(text: str, flag: str) -> int:
    """Seconds, from 900, 15min, 1h or 30d."""
    seconds: int = _parse(text, Seconds, f"{flag} {text}")
    return seconds


def check_choice(text: str, choices: tuple[str, ...], flag: str) -> str:
    """`text` itself, once it is known to be a choice."""
    if text not in choices:
        raise UserError(f"{flag} {text}: choose one of {', '.join(choices)}")
    return text


def fill(cls: type[T], table: Mapping[str, Any], where: str) -> T:
    """An instance from a table of TOML: durations may be written as text, one value stands for a list of one."""
    hints = get_type_hints(cls, include_extras=True)
    refuse_unknown(table, [o.name for o in options(cls)], where)
    try:
        return validate(cls(**{key: _from_toml(value, hints[key], key) for key, value in table.items()}))
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def refuse_unknown(given: Iterable[str], known: Iterable[str], where: str, what: str = "key") -> None:
    """Refuse words that nobody knows; `where` is named in the error."""
    names = list(known)
    for word in given:
        if word not in names:
            hint = nearest(word, names)
            raise UserError(f"{where}: unknown {what} {word!r}{hint}; known {what}s: {', '.join(names)}")


def refuse_missing(columns: Iterable[str], known: Iterable[str], where: str) -> None:
    """Refuse a table that lacks one of these columns; `where` is named in the error."""
    names = list(known)
    for column in columns:
        if column not in names:
            hint = nearest(column, names)
            raise UserError(f"{where}: column {column!r} is missing{hint}; there are: {', '.join(names)}")


def nearest(word: str, known: Iterable[str]) -> str:
    """' (did you mean X?)' when something close is known, else nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def find_owner(key: str, owners: Mapping[str, Any]) -> str | None:
    """The name of the first owner that has an option; of `name.key`, only the owner of that name can."""
    prefix, _, field = key.rpartition(".")
    has = (name for name, owner in owners.items() if field in [one.name for one in options(type(owner))])
    return next((name for name in has if prefix in ("", name)), None)


def _check(name: str, value: Any, hint: Any, rules: Mapping[str, Any]) -> None:
    """Refuse a value that is not of its type, or outside its range; of a list, each one."""
    inner = _without_none(hint)
    if value is None and inner is not hint:
        return
    if get_origin(inner) is tuple and isinstance(value, tuple):
        for single in value:
            _check(name, single, get_args(inner)[0], rules)
        return
    kinds = int | float if inner is float else inner if inner in (bool, str) else int
    if get_origin(inner) is tuple or not isinstance(value, kinds) or (isinstance(value, bool) and inner is not bool):
        raise UserError(f"option {name!r} is {value!r}: expected {_type_name(hint)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"option {name!r} is {value}: give a finite number")
    if rules["choices"] is not None and value not in rules["choices"]:
        raise UserError(f"option {name!r} is {value!r}: choose one of {', '.join(rules['choices'])}")
    limits = ("low", operator.lt, "at least"), ("high", operator.gt, "at most"), ("above", operator.le, "greater than")
    for rule, breaks, words in limits:
        if rules[rule] is not None and breaks(value, rules[rule]):
            raise UserError(f"option {name!r} is {value}: must be {words} {rules[rule]}")


def _parse(text: str, hint: Any, where: str) -> Any:
    inner = _without_none(hint)
    if inner is not hint and text.lower() in ("none", ""):
        return None
    if get_origin(inner) is tuple:
        return tuple(_parse(part.strip(), get_args(inner)[0], where) for part in text.strip("()[]").split(",") if part)
    try:
        return _scalar(text, inner)
    except ValueError:
        raise UserError(f"{where}: expected {_type_name(inner)}, found {text!r}") from None


def _from_toml(value: Any, hint: Any, where: str) -> Any:
    inner = _without_none(hint)
    if get_origin(inner) is tuple:
        many = value if isinstance(value, list) else [value]
        return tuple(_from_toml(one, get_args(inner)[0], where) for one in many)
    if inner is str:
        # A number or a date that nobody put in quotes is meant as text.
        return value if isinstance(value, bool | list | dict) else str(value)
    return _parse(value, inner, where) if isinstance(value, str) else value


def _scalar(text: str, hint: Any) -> Any:
    if hint == Seconds:
        return _seconds(text)
    if hint is bool:
        word = text.lower()
        if word not in ("true", "false", "yes", "no", "1", "0", "on", "off"):
            raise ValueError(text)
        return word in ("true", "yes", "1", "on")
    return hint(text)


def _seconds(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(text)
    seconds = round(float(match[1]) * _UNITS[match[2]])
    if seconds > 100 * 365 * DAY:  # would overflow when added to a time
        raise ValueError(text)
    return seconds


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        return next(a for a in get_args(hint) if a is not type(None))
    return hint


def _type_name(hint: Any) -> str:
    inner = _without_none(hint)
    suffix = "" if inner is hint else " or none"
    if inner == Seconds:
        return "duration (seconds, 15min, 1h, 30d; at most 100 years)" + suffix
    if get_origin(inner) is tuple:
        return f"list of {_type_name(get_args(inner)[0])}" + suffix
    return {int: "whole number", float: "number", bool: "true or false", str: "text"}.get(inner, str(inner)) + suffix
