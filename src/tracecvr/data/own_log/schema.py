"""The schema of a log of your own: a TOML file that says what the columns mean and what to do with each defect.

docs/own_log.md has an example with every key.
"""

from __future__ import annotations

import json
import re
import zoneinfo
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tracecvr.base.config import Option, Seconds, fill, option, options, refuse_unknown
from tracecvr.base.durations import exact_duration
from tracecvr.base.errors import UserError
from tracecvr.base.files import check_exists, read_toml
from tracecvr.data.encoder import Binned, Column, Hashed, Vocabulary
from tracecvr.data.table import TURNS

SHAPES = ("clicks", "events")
NUMBERS = ("s", "ms", "us", "ns")
DATES = ("dd/mm/yyyy", "mm/dd/yyyy", "yyyymmdd")
UNITS = (*NUMBERS, "text", "datetime", *DATES)
DELAY_UNITS = (*NUMBERS, "min", "h", "d")
RESERVED = ("click_ts", "click_id", "digest", *TURNS)
"""Columns of the table that is made: no action or feature may be named like them."""


@dataclass(frozen=True)
class Times:
    """How times are written."""

    unit: str = option("s", f"how they are written: {', '.join(UNITS)}, or a format of strptime")
    zone: str = option("UTC", "time zone of times without an offset")
    origin: str = option("1970-01-01", "second 0 of the table: a date, or a number if times are not since 1970")
    absent: tuple[str, ...] = option((), "values that mean that there is no time")
    earliest: str = option("", "a time before this one is a mistake; written as the origin")
    latest: str = option("", "a time after this one is a mistake; written as the origin")


@dataclass(frozen=True)
class ClickColumns:
    """What tells a click from others and when it came."""

    id: tuple[str, ...] = option((), "column or columns that tell clicks apart")
    whole_ids: bool = option(False, "ids are whole numbers, and events name them as numbers; else as text")
    time: str = option("", "column of the click's time")
    unit: str | None = option(None, "unit of this column; that of [time] by default")
    type: str = option("", "events: column that says what happened")
    event: str = option("", "events: what it says of a click")


@dataclass(frozen=True)
class ActionColumns:
    """Something that may follow a click."""

    name: str = option("", "what it is called")
    time: str = option("", "clicks: column of its time")
    delay: str = option("", "clicks: column of the time that it took, in place of its time")
    label: str = option("", "clicks: column that says whether it happened: 1, true or yes")
    event: tuple[str, ...] = option((), "events: the word or words of it in the column of types")
    unit: str | None = option(None, "unit of this column; that of [time] by default, of a delay s")
    amount: str = option("", "conversion and refund: column of money or pieces, for refunds of a part")
    decimal: str = option(".", "what stands before the decimals of an amount or a delay", choices=(".", ","))


@dataclass(frozen=True)
class Labels:
    """What counts as a conversion and how the log is replayed."""

    d_max: Seconds = option(0, "attribution limit", above=0)
    horizons: tuple[Seconds, ...] = option((), "ends of the observation windows")
    split: Seconds = option(0, "end of the warm-up part", above=0)
    interval: Seconds = option(3600, "length of an interval", above=0)
    observed_until: Seconds = option(0, "where labels end", above=0)
    window: Seconds | None = option(None, "observation window of methods that have one; theirs by default", low=0)
    outages: tuple[Seconds, ...] = option(
        (), "start and end of each time in which conversions were not recorded: clicks open then are not used", low=0
    )
    negatives_kept: float = option(1.0, "share of clicks without a conversion that is in the log", above=0, high=1)


@dataclass(frozen=True)
class Defects:
    """How much may be wrong. All of it is counted."""

    skew: Seconds = option(0, "an action so much before its click is blamed on clocks: moved to the click", low=0)
    max_bad: float = option(0.01, "share of rows that may be dropped", low=0, high=1)


@dataclass(frozen=True)
class File:
    """Files of one kind; where they differ from others, what is said here wins."""

    path: tuple[str, ...] = option((), "files, folders or patterns, beside the schema")
    event: str = option("", "events: what every row of it is")
    type: str = option("", "events: column that says what a row of it is")
    time: str = option("", "column of times")
    id: tuple[str, ...] = option((), "column or columns of the click's id")
    unit: str | None = option(None, "unit of times")


@dataclass(frozen=True)
class _Rule:
    """How a column becomes a feature; which keys a kind has: `KINDS`."""

    kind: str = option("", "vocabulary, hashed or binned")
    size: int = option(2**20, "number of ids", low=1, high=2**31 - 1)
    scale: str = option("linear", "width of bins", choices=("linear", "log"))
    decimal: str = option(".", "what stands before decimals", choices=(".", ","))


@dataclass(frozen=True)
class LogSchema:
    """A schema file, checked. Its fields are the keys and tables of the file."""

    shape: str = option("", "what a row is: a click with what followed, or an event", choices=SHAPES)
    files: tuple[str, ...] = option((), "files, folders or patterns, beside the schema")
    folder: str = option("", "where files are if not beside the schema: copies of a schema say it")
    separator: str = option(",", "text files: what stands between columns")
    header: bool = option(True, "text files: whether line 1 names the columns, else column_1, column_2, ...")
    path: Path = Path()
    time: Times = Times()
    click: ClickColumns = ClickColumns()
    action: tuple[ActionColumns, ...] = ()
    refund: ActionColumns | None = None
    file: tuple[File, ...] = ()
    labels: Labels = Labels()
    defects: Defects = Defects()
    features: tuple[Column, ...] = ()

    @property
    def sources(self) -> tuple[File, ...]:
        """All files, with what is said of them."""
        return tuple(File((name,)) for name in self.files) + self.file

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the actions, the conversion first."""
        return tuple(action.name for action in self.action)

    @property
    def kinds(self) -> tuple[ActionColumns, ...]:
        """Actions, then refunds if there are any: what may follow a click."""
        return self.action + (() if self.refund is None else (self.refund,))


TABLES: dict[str, type] = {
    "time": Times,
    "click": ClickColumns,
    "action": ActionColumns,
    "refund": ActionColumns,
    "file": File,
    "labels": Labels,
    "defects": Defects,
}
"""Tables of the file by name, but [features]: its keys are columns of the log."""

LISTS = ("action", "file")
"""Tables of which there may be several."""


def load(path: Path) -> LogSchema:
    """The schema in a file; every mistake in it is named."""
    if check_exists(path, "--schema").is_dir():
        raise UserError(f"{path}: is a directory; give the schema's TOML file")
    return parse(path, read_toml(path, "--schema"))


def parse(path: Path, content: dict[str, Any]) -> LogSchema:
    """The schema in what a TOML file says that is, or will be, at `path`."""
    refuse_unknown(content, [*(o.name for o in options(LogSchema)), *TABLES, "features"], str(path))
    tables: dict[str, Any] = {"path": path}
    for name, kind in TABLES.items():
        given = _table(path, content, name)
        if name in LISTS:
            tables[name] = tuple(fill(kind, one, f"{path}: [[{name}]]") for one in given)
        elif given is not None:
            named = {"name": name} if name == "refund" else {}
            tables[name] = fill(kind, named | given, f"{path}: [{name}]")
    rules = _table(path, content, "features")
    tables["features"] = tuple(_column(name, rule, f"{path}: [features] {name}") for name, rule in rules.items())
    return check(replace(fill(LogSchema, content, str(path)), **tables))


def _table(path: Path, content: dict[str, Any], name: str) -> Any:
    """A table of the file, or its list of tables; only a refund may be missing."""
    kind, heading = (list, f"[[{name}]]") if name in LISTS else (dict, f"[{name}]")
    table = content.pop(name, None if name == "refund" else kind())
    if table is not None and not isinstance(table, kind):
        raise UserError(f"{path}: {name!r} is {table!r}: expected a table, written {heading}")
    return table


KINDS: dict[str, tuple[type[Column], tuple[str, ...]]] = {
    "vocabulary": (Vocabulary, ()),
    "hashed": (Hashed, ("size",)),
    "binned": (Binned, ("size", "scale", "decimal")),
}
"""Of each kind of feature: the column that it is, and its keys, of which `size` is needed."""


def _column(name: str, rule: Any, where: str) -> Column:
    kind = rule.get("kind") if isinstance(rule, dict) else None
    make, keys = KINDS.get(kind or "", (Column, ()))
    if kind not in KINDS or set(rule) - {"kind", *keys} or ("size" in keys) != ("size" in rule):
        raise UserError(
            f'{where}: expected {{kind = "vocabulary"}}, {{kind = "hashed", size = 64}} or '
            f'{{kind = "binned", size = 32, scale = "linear" or "log", decimal = "." or ","}}, found {rule!r}'
        )
    checked = fill(_Rule, rule, where)
    return make(name, **{key: getattr(checked, key) for key in keys})


def _check_action(where: str, action: ActionColumns, events: bool) -> None:
    needed = action.event if events else (action.time, action.delay)
    if not action.name or not any(needed):
        raise UserError(f"{where}: give its name and its {'event' if events else 'time or delay'}")
    if action.time and action.delay:
        raise UserError(f"{where}: both a time and a delay; keep one")
    if events and (action.delay or action.label):
        raise UserError(f'{where}: delay and label belong to shape = "clicks"; leave them out')
    _check_unit(where, action.unit, DELAY_UNITS if action.delay else UNITS)


def _check_amounts(schema: LogSchema) -> None:
    paid, back = schema.action[0].amount, schema.refund.amount if schema.refund is not None else ""
    if bool(paid) != bool(back) or any(action.amount for action in schema.action[1:]):
        raise UserError(
            f"{schema.path}: amount: give it of the conversion and of [refund], or of neither; other actions have none"
        )


def _check_unit(where: str, unit: str | None, known: tuple[str, ...]) -> None:
    if unit is not None and unit not in known and ("%" not in unit or known is DELAY_UNITS):
        raise UserError(f"{where}: unit is {unit!r}: choose one of {', '.join(known)}")


def check(schema: LogSchema) -> LogSchema:
    """The schema itself, if its parts go together."""
    where, events = schema.path, schema.shape == "events"
    without_time = not schema.click.time and not all(file.time for file in schema.sources)
    without_id = events and not schema.click.id and not all(file.id for file in schema.sources)
    for wrong, message in (
        (not schema.action, "no action: describe the conversion in [[action]]"),
        (not schema.features, "no features: name at least one column in [features]"),
        (without_time, "[click] time: name the column"),
        (without_id, "[click] id: name the column that brings clicks and actions together"),
        (events and not schema.click.event, "[click] event: say what is written of a click in the column of types"),
        (len(schema.separator) != 1, f"separator = {schema.separator!r}: give one character"),
    ):
        if wrong:
            raise UserError(f"{where}: {message}")
    for action in schema.kinds:
        _check_action(f"{where}: action {action.name!r}", action, events)
    _check_amounts(schema)
    for unit in (schema.time.unit, schema.click.unit, *(file.unit for file in schema.sources)):
        _check_unit(str(where), unit, UNITS)
    taken = [*RESERVED, *schema.names, *(column.raw for column in schema.features)]
    twice = next((name for name in taken if taken.count(name) > 1), None)
    if twice is not None:
        raise UserError(
            f"{where}: {twice!r} names two columns of the table (those of its own are {', '.join(RESERVED)})"
        )
    refuse_unknown_zone(schema.time.zone, f"{where}: [time] zone")
    return schema


def refuse_unknown_zone(zone: str, where: str) -> None:
    """Refuse a time zone that there is not."""
    try:
        zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise UserError(f"{where} = {zone!r}: no such time zone; write it like UTC or Europe/Berlin") from None


# A schema as TOML. Every line says what its key means, and what was seen of it.


def write_toml(schema: LogSchema, notes: Mapping[str, str], left_out: Mapping[str, str]) -> str:
    """The text of a schema, with remarks by key, such as `action.0.time`, and with columns that are no features."""
    lines = _write_keys(schema, "", notes)
    for name in TABLES:
        content = getattr(schema, name)
        tables = content if name in LISTS else () if content is None else (content,)
        for place, one in enumerate(tables):
            prefix, heading = (f"{name}.{place}.", f"[[{name}]]") if name in LISTS else (f"{name}.", f"[{name}]")
            lines += ["", heading, *_write_keys(one, prefix, notes)]
    lines += ["", "[features]"]
    lines += [_add_remark(_write_feature(one), notes.get(f"features.{one.raw}", "")) for one in schema.features]
    lines += [f"# left out: {_key(name)}: {_one_line(why)}" for name, why in left_out.items()]
    return "\n".join(lines) + "\n"


def _write_keys(owner: Any, prefix: str, notes: Mapping[str, str]) -> list[str]:
    lines = []
    for one in options(type(owner)):
        value, key = getattr(owner, one.name), prefix + one.name
        if value != one.default or key in notes:
            choices = f"one of {', '.join(one.choices)}" if one.choices else ""
            remarks = one.help, choices, notes.get(key, "")
            line = f"{one.name} = {json.dumps(_plain(value, one), ensure_ascii=False)}"
            lines.append(_add_remark(line, "; ".join(filter(None, remarks))))
    return lines


def _plain(value: Any, option: Option) -> Any:
    """A value as people write it: durations as text, a list of one as that one."""
    if isinstance(value, tuple):
        return _plain(value[0], option) if len(value) == 1 else [_plain(one, option) for one in value]
    return exact_duration(value) if "duration" in option.type else value


def _write_feature(column: Column) -> str:
    rule: dict[str, Any] = {"kind": column.kind} | {key: getattr(column, key) for key in KINDS[column.kind][1]}
    written = [f"{k} = {json.dumps(v)}" for k, v in rule.items() if v != getattr(type(column), k, None) or k == "kind"]
    return f"{_key(column.raw)} = {{{', '.join(written)}}}"


def _add_remark(line: str, remark: str) -> str:
    return f"{line:<35} # {_one_line(remark)}" if remark else line


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def comment(lines: Sequence[str]) -> str:
    """Lines that are no part of a schema, for people."""
    return "".join(f"# {_one_line(line)}\n" for line in lines)
