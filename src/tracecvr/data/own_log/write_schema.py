"""A schema as TOML. Every line says what its key means, and what was seen of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tracecvr.base.config import Option, options
from tracecvr.base.durations import exact_duration
from tracecvr.data.encoder import Column
from tracecvr.data.own_log.schema import KINDS, LISTS, TABLES, LogSchema


def write_toml(schema: LogSchema, notes: Mapping[str, str], left_out: Mapping[str, str]) -> str:
    """The text of a schema. `notes` are remarks by key, such as `click.id` or `action.0.time`; a key with a remark is
    written even if it has its default. `left_out` are columns that are no features, and why."""
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
    for option in options(type(owner)):
        value, key = getattr(owner, option.name), prefix + option.name
        if value != option.default or key in notes:
            choices = f"one of {', '.join(option.choices)}" if option.choices else ""
            remarks = option.help, choices, notes.get(key, "")
            line = f"{option.name} = {json.dumps(_plain(value, option), ensure_ascii=False)}"
            lines.append(_add_remark(line, "; ".join(filter(None, remarks))))
    return lines


def _plain(value: Any, option: Option) -> Any:
    """A value as people write it: durations as text, a list of one as that one."""
    if isinstance(value, tuple):
        return _plain(value[0], option) if len(value) == 1 else [_plain(one, option) for one in value]
    return exact_duration(value) if "duration" in option.type else value


def _write_feature(column: Column) -> str:
    _, needed, more = KINDS[column.kind]
    defaults = {field: getattr(type(column), field, None) for field in more}
    rule: dict[str, Any] = {"kind": column.kind} | {key: getattr(column, key) for key in needed}
    rule |= {key: getattr(column, key) for key in more if getattr(column, key) != defaults[key]}
    return f"{_key(column.raw)} = {{{', '.join(f'{key} = {json.dumps(value)}' for key, value in rule.items())}}}"


def _add_remark(line: str, remark: str) -> str:
    return f"{line:<35} # {_one_line(remark)}" if remark else line


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def comment(lines: Sequence[str]) -> str:
    """Lines that are no part of a schema, for people."""
    return "".join(f"# {_one_line(line)}\n" for line in lines)
