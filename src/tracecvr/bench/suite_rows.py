"""From a suite to its rows: methods by settings, and which settings win."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from tracecvr.authoring.method import Method
from tracecvr.base import config, registry
from tracecvr.base.errors import UserError
from tracecvr.bench.suite import LEARNING, Row, Suite
from tracecvr.runs.spec import owners_of


def _name(row: Row) -> str:
    """From what is the row's own, not from settings that all rows have."""
    parts = ["+".join([Path(row.method).stem, *row.plugins])]
    parts += [f"{key}={value}" for key, value in sorted(row.settings.items())]
    whole = re.sub(r"[^A-Za-z0-9._+=,~-]", "_", "~".join(parts))
    return whole if len(whole) <= 80 else f"{whole[:70]}~{sha256(whole.encode()).hexdigest()[:8]}"


def rows_of(
    suite: Suite,
    methods: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    tuned: Mapping[str, Mapping[str, str]] | None = None,
    flag: str = "--set",
) -> tuple[Row, ...]:
    """The rows of a suite. `methods` picks among them; `settings` go to every row that knows them. What is
    more special wins: a row's own settings, then `settings`, what was tuned, the suite's, and its learning settings.
    `flag` is what errors in settings name."""
    rows = [row for raw in suite.rows for row in _expand(raw, methods)]
    rows += _add(suite, [name for name in methods if name not in {row.method for row in rows}])
    if suite.trials:
        rows = [trial for row in rows for trial in _trials(suite, row)]
    rows = [replace(row, name=_name(row)) for row in rows]
    given = dict(settings or {})
    known = dict.fromkeys((*suite.settings, *given), False)
    full = []
    for row in rows:
        mine = LEARNING[suite.learning].settings | suite.settings | dict((tuned or {}).get(row.method, {})) | given
        taken = {k: v for k, v in mine.items() if k not in row.settings and _knows(row, k)}
        known |= dict.fromkeys(taken, True) | {k: True for k in row.settings if k in known}
        full.append(replace(row, settings=taken | row.settings))
    for key, used in known.items():
        if not used:
            raise UserError(f"{flag} {key}: no row of suite {suite.name!r} has such an option")
    _refuse_doubles(full, suite.name)
    for row in full:
        config.distribute(owners_of(row.method, row.plugins), row.settings, flag)
    return tuple(full)


def _add(suite: Suite, methods: Sequence[str]) -> list[Row]:
    """Methods that a comparison does not have but is asked for: a third party's, for example."""
    for name in methods:
        registry.get("method", name)
        if suite.layout != "comparison":
            raise UserError(f"--methods {name}: suite {suite.name!r} has no row of it")
    return [Row(title_of(name), name, role=role_of(name)) for name in methods]


def _expand(raw: Mapping[str, Any], methods: Sequence[str]) -> list[Row]:
    """The rows that an entry of a suite stands for, one for each of its methods."""
    return [
        Row(
            label=raw.get("label", "{method}").replace("{method}", title_of(method)),
            method=method,
            plugins=tuple(raw.get("plugins", ())),
            settings=config.settings_of(raw.get("set", {})),
            role=raw.get("role", role_of(method)),
            base=raw.get("base", "").replace("{method}", title_of(method)),
        )
        for method in _methods(raw, methods)
    ]


def title_of(method: str) -> str:
    """What a method is called in tables. One that is no longer there, in an old bench, is called by its file's name."""
    try:
        cls: type[Method] = registry.get("method", method)
    except UserError:
        return Path(method).stem
    return str(vars(cls).get("title", cls.name))  # its own: a title that is inherited is another method's


def role_of(method: str) -> str:
    """What a method is in a comparison, as its own class has it: a role that is inherited is another method's."""
    return str(vars(registry.get("method", method)).get("role", Method.role))


def _methods(raw: Mapping[str, Any], asked: Sequence[str]) -> list[str]:
    named = raw["method"]
    if named == "all":
        return [name for name in asked or registry.available("method") if name not in raw.get("except", ())]
    names = [named] if isinstance(named, str) else named
    if not asked:
        return list(names)
    given = {name: name for name in asked}  # the command line's own: it may name files, a suite may not
    return [given[name] for name in names if name in given]


def _trials(suite: Suite, row: Row) -> list[Row]:
    for key in {key for settings in suite.trials for key in settings}:
        if not _knows(row, key):
            raise UserError(f"suite {suite.name!r}: [[trial]] {key}: {row.method} has no such option")
    return [
        replace(row, settings=row.settings | settings, variant=f"trial {number}")
        for number, settings in enumerate(suite.trials)
    ]


def _knows(row: Row, key: str) -> bool:
    prefix, _, option = key.rpartition(".")
    owners = owners_of(row.method, row.plugins)
    return any(
        prefix in ("", name) and option in [o.name for o in config.options(type(owner))]
        for name, owner in owners.items()
    )


def _refuse_doubles(rows: Sequence[Row], suite: str) -> None:
    seen: dict[str, Row] = {}
    for row in rows:
        if row.name in seen:
            raise UserError(f"suite {suite!r}: {seen[row.name].label!r} and {row.label!r} are the same run: drop one")
        seen[row.name] = row
