"""Suites: which methods are run, with which plugins and settings. TOML in, rows out; a row with a seed is a cell.

docs/bench.md has every key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

from tracecvr.authoring.method import Method
from tracecvr.base import config, registry
from tracecvr.base.config import Seconds, option
from tracecvr.base.errors import UserError
from tracecvr.base.files import read_toml
from tracecvr.runs.spec import owners_of

LAYOUTS = ("comparison", "changes", "forecast", "tune")
ROLES = ("method", "lower", "zero", "upper", "ours")
_TABLES = ("set", "data", "row", "log", "trial")
_ROW_KEYS = {"method", "except", "label", "plugins", "set", "role", "base"}


@dataclass(frozen=True)
class Learning:
    """How all rows of a suite learn the stream, unless they say otherwise."""

    settings: dict[str, str]
    words: str


LEARNING = {
    "ours": Learning({}, "a step size that fits the interval, larger steps for the level, a 12-hour average"),
    "paper": Learning(
        # Section 4.2.3: Adam at 1e-3 in batches of 4,096, L2 1e-6, hidden sizes 256, 256, 128. These are the methods'
        # defaults for warm-up, so the stream goes on as warm-up does. It knows no average of weights.
        {
            "backbone": "mlp",
            "stream.learning_rate": "none",
            "stream.batch_size": "none",
            "stream.precision": "float32",
            "stream.level_steps": "1",
            "stream.optimiser": "adam",
            "stream.average": "none",
        },
        "a plain perceptron, step size and batch size as in warm-up (1e-3 and 4,096 by default), newest weights served",
    ),
}
"""The learning settings that a suite may ask for by name."""


@dataclass(frozen=True)
class Row:
    """One line of a table: a method with plugins and settings."""

    label: str
    method: str
    plugins: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    role: str = "method"
    variant: str = ""
    base: str = ""
    name: str = ""
    """Readable and unique in its suite: what the row's directories start with."""


@dataclass(frozen=True)
class Cell:
    """One run of a bench."""

    row: Row
    seed: int

    @property
    def name(self) -> str:
        return f"{self.row.name}~seed{self.seed}"


@dataclass(frozen=True)
class Log:
    """A log that a suite is run on. `file` is its raw log, in the folder of real logs; a generator has none."""

    name: str
    data: str
    about: str
    file: str
    options: dict[str, str]
    settings: dict[str, str]


@dataclass(frozen=True)
class Suite:
    """A suite file, checked. What has a help text is a key of the file."""

    name: str = ""
    about: str = option("", "one sentence")
    layout: str = option("comparison", "what the tables compare", choices=LAYOUTS)
    metrics: tuple[str, ...] = option(("auc", "nll", "pr_auc", "ece"), "columns of the tables")
    settings: dict[str, str] = field(default_factory=dict)
    data: dict[str, dict[str, str]] = field(default_factory=dict)
    rows: tuple[dict[str, Any], ...] = ()
    trials: tuple[dict[str, str], ...] = ()
    """Settings of each trial; the first is the methods' defaults."""
    first: Seconds | None = option(None, "how much of the stream is tuned on")
    learning: str = option("ours", "how the stream is learnt", choices=tuple(LEARNING))
    logs: tuple[Log, ...] = ()
    """The logs that it is run on, each a bench of its own; if empty, the one that --data names."""


def built_in() -> dict[str, Path]:
    folder = Path(str(resources.files("tracecvr.bench") / "suites"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load(name: str) -> Suite:
    """A built-in suite by name, or a TOML file of the user's."""
    known = built_in()
    path = known.get(name, Path(name))
    if name not in known and (path.suffix != ".toml" or not path.is_file()):
        hint = config.nearest(name, known)
        raise UserError(f"unknown suite {name!r}{hint}; there are: {', '.join(known)}; or give a TOML file")
    return _check(path, read_toml(path, "SUITE"))


def seeds_of(given: str) -> tuple[int, ...]:
    """`0-4`, `0,3` or both, as numbers.

    >>> seeds_of("0-2,7")
    (0, 1, 2, 7)
    """
    seeds: list[int] = []
    for part in given.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise UserError(f"--seeds {given!r}: expected numbers and ranges, as in 0-4 or 0,3")
        seeds += range(int(first), int(last if dash else first) + 1)
    if len(set(seeds)) < len(seeds) or not seeds:
        raise UserError(f"--seeds {given!r}: give each seed once, ranges in rising order")
    return tuple(seeds)


def _check(path: Path, content: dict[str, Any]) -> Suite:
    plain = [one.name for one in config.options(Suite)]
    config.refuse_unknown(content, sorted((*plain, *_TABLES)), str(path))
    suite = config.fill(Suite, {key: content[key] for key in plain if key in content}, str(path))
    rows = content.get("row", [])
    if not rows:
        raise UserError(f"{path}: no [[row]]: a suite needs at least one")
    for number, row in enumerate(rows, start=1):
        where = f"{path}: row {number}"
        config.refuse_unknown(row, sorted(_ROW_KEYS), where)
        if "method" not in row:
            raise UserError(f"{where}: no method")
        if row.get("role", "method") not in ROLES:
            raise UserError(f"{where}: role is {row['role']!r}: choose one of {', '.join(ROLES)}")
    _check_trials(path, suite.layout, content)
    return replace(
        suite,
        name=path.stem,
        settings=config.settings_of(content.get("set", {})),
        data={name: config.settings_of(given) for name, given in content.get("data", {}).items()},
        rows=tuple(rows),
        trials=tuple(map(config.settings_of, content.get("trial", []))),
        logs=tuple(_log(f"{path}: log {number}", log) for number, log in enumerate(content.get("log", []), start=1)),
    )


def _log(where: str, raw: Mapping[str, Any]) -> Log:
    config.refuse_unknown(raw, ("name", "about", "data", "file", "options", "set"), where)
    name, data, about, file = (str(raw.get(key, "")) for key in ("name", "data", "about", "file"))
    if not data or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise UserError(f"{where}: give data, and a name of letters, digits, _ and -, which a directory will have")
    return Log(name, data, about, file, *(config.settings_of(raw.get(key, {})) for key in ("options", "set")))


def _check_trials(path: Path, layout: str, content: Mapping[str, Any]) -> None:
    trials = content.get("trial", [])
    if not isinstance(trials, list) or not all(isinstance(one, dict) for one in trials):
        raise UserError(f"{path}: trials are listed as [[trial]], a table of settings each")
    if trials and trials[0]:
        raise UserError(f"{path}: the first [[trial]] is the methods' defaults: leave it empty")
    if layout == "tune" and not trials:
        raise UserError(f"{path}: layout 'tune' needs [[trial]] tables")
    if "first" in content and layout != "tune":
        raise UserError(f"{path}: first goes with layout 'tune' alone")


# From a suite to its rows: methods by settings, and which settings win.


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
    seen: dict[str, Row] = {}
    for row in full:
        if (other := seen.setdefault(row.name, row)) is not row:
            raise UserError(f"suite {suite.name!r}: {other.label!r} and {row.label!r} are the same run: drop one")
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
    return config.find_owner(key, owners_of(row.method, row.plugins)) is not None
