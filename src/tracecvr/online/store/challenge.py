"""Challengers: other models that learn from the same event log beside a store's own, each with versions of its own.

Each has a home, `STORE/challengers/NAME`: what it learns with (`challenger.json`), its versions, and why it
cannot learn at present (`problem.json`). To whoever learns, replays or scores, a challenger is a store with another
configuration and another home: everything else, log, intervals and encoder, is the store's.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from tracecvr.base.errors import UserError
from tracecvr.base.files import locked, refuse_other_format
from tracecvr.data.table import atomic_directory
from tracecvr.learn.engine import Engine
from tracecvr.online.store import choices
from tracecvr.online.store.file_hashes import read_hashed, write_hashed
from tracecvr.online.store.store import Parts, Store, give_options, read_parts
from tracecvr.runs.run import parts, parts_record

FOLDER = "challengers"
TICK_LOCK = ".tick.lock"
"""Held while it learns an interval. A removal waits for it."""
_FORMAT = 1
_NAME = re.compile("[a-z][a-z0-9_-]{0,39}")
_RESERVED = ("newest", "champion")
_PATIENCE_S = 60.0


@dataclass(frozen=True, eq=False)
class Challenger(Store):
    """A challenger, as a store: its folder and its content are the store's, but for what it learns with."""

    name: str = ""

    @property
    def model(self) -> str | None:
        return self.name

    @property
    def home(self) -> Path:
        return self.folder / FOLDER / self.name

    @property
    def since(self) -> int:
        """The first interval whose clicks are compared: no click of it had come when the challenger was made."""
        return int(self.content["since"])

    @property
    def problem(self) -> str | None:
        path = self.home / "problem.json"
        return read_hashed(path, "remove it")["problem"] if path.exists() else None

    def note_problem(self, problem: str | None) -> None:
        path = self.home / "problem.json"
        if problem is None:
            path.unlink(missing_ok=True)
        elif problem != self.problem:
            write_hashed(path, {"problem": problem})


def choose_parts(store: Store, method: str | None, plugins: Sequence[str], options: Mapping[str, str]) -> Parts:
    """What a challenger learns with; without a method, that of the store with some options changed."""
    if method is not None:
        return read_parts(method, plugins, options)
    if plugins:
        raise UserError("--plugin needs --method: without it, the challenger has the store's own plugins")
    own, own_plugins, stream = parts(store.content)
    owners = {"method": own, "stream": stream} | {plugin.name: plugin for plugin in own_plugins}
    return give_options(owners, options)


def list_names(store: Store) -> list[str]:
    return sorted(path.name for path in (store.folder / FOLDER).glob("[!.]*/"))


def challengers(store: Store) -> list[Challenger]:
    """The challengers of a store; an error if the files of one are not what they were."""
    return [find_challenger(store, name) for name in list_names(store)]


def find_challenger(store: Store, name: str) -> Challenger:
    home = store.folder / FOLDER / name
    if not _NAME.fullmatch(name) or not home.is_dir():
        raise UserError(f"there is no challenger {name!r}; there are: {', '.join(list_names(store)) or 'none'}")
    advice = f"copy it from where the store is whole, or remove {home} and run `tracecvr models drop`"
    recorded = read_hashed(home / "challenger.json", advice)
    refuse_other_format(recorded, _FORMAT, home / "challenger.json")
    if recorded["name"] != name:
        raise UserError(f"{home / 'challenger.json'} is of challenger {recorded['name']!r}: {advice}")
    settings = store.content["settings"] | recorded["settings"]
    return Challenger(store.folder, store.content | {"code": {}} | recorded | {"settings": settings}, name)


def create(store: Store, name: str, chosen: Parts, seed: int | None = None) -> Challenger:
    """A new challenger. It starts from the store's warm-up and then learns the whole log."""
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise UserError(f"name {name!r}: give lower-case letters, digits, - and _, at most 40, a letter first")
    home = store.folder / FOLDER / name
    if home.exists():
        raise UserError(f"there is a challenger {name!r} already: choose another name, or `tracecvr models drop`")
    seed = store.settings.seed if seed is None else seed
    method, plugins, stream = chosen
    Engine(method, store.schema, seed, plugins, stream=stream)  # refuses what does not fit together
    content = {
        "format": _FORMAT,
        "name": name,
        **parts_record(*chosen),
        "settings": {"seed": seed},
        "since": _next_interval(store),
        "tracecvr": version("tracecvr"),
    }
    with atomic_directory(home) as made:
        made.chmod(0o700)
        (made / "models").mkdir()
        write_hashed(made / "challenger.json", content)
    return find_challenger(store, name)


def _next_interval(store: Store) -> int:
    """The first interval of which nothing has come yet."""
    with closing(store.log()) as log:
        newest = log.facts().get("newest")
        return log.closed() if newest is None else max(log.closed(), store.grid.number(newest) + 1)


def drop(store: Store, name: str) -> None:
    """Remove a challenger and its versions; also one whose folder is lost. The log still has its answers."""
    home, lost = store.folder / FOLDER / name, name in list_lost(store)
    if not lost:
        find_challenger(store, name)
    if choices.read(store.folder).model == name:
        raise UserError(f"{name!r} serves: promote another first, or `newest`, the store's own model")
    gone = home.with_name(f".{name}.{os.getpid()}.dropped")
    if not lost:
        with locked(home, "it is learning an interval: try again", TICK_LOCK, _PATIENCE_S):
            home.rename(gone)  # at once, for everybody: a learner that comes later finds nothing to write to
    with closing(store.log()) as log:
        log.forget_model(name)
    remove_dropped(store)


def list_lost(store: Store) -> list[str]:
    """Challengers that have learnt, or that serve, and whose folder is not there."""
    serving = choices.read(store.folder).model
    with closing(store.log()) as log:
        known = {*log.models(), *([serving] if serving else [])}
    return sorted(known - set(list_names(store)))


def remove_dropped(store: Store) -> None:
    """Remove what is left of challengers that were dropped; also of those whose removal was killed."""
    for gone in (store.folder / FOLDER).glob(".*.dropped"):
        shutil.rmtree(gone, ignore_errors=True)


# Who serves.


def promote_own(store: Store, version: int | None) -> None:
    """Let a version of the store's own model serve; None for always the newest."""
    store.versions.promote(version)
    choices.change(store.folder, lambda now: replace(now, model=None))


def promote_challenger(store: Store, name: str) -> None:
    """Let the newest version of a challenger serve."""
    try:
        challenger = find_challenger(store, name)
    except UserError as error:
        if name not in list_names(store):
            raise
        # Over HTTP, an answer has no path.
        raise UserError(f"challenger {name!r} is damaged: `tracecvr verify` says what is wrong") from error
    if challenger.versions.serving() is None:
        raise UserError(f"challenger {name!r} has no version yet: `tracecvr tick` or `tracecvr learn` makes one")
    choices.change(store.folder, lambda now: replace(now, model=name))
