"""Checks a store: its files, log, versions and archive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

from tracecvr.base.errors import UserError
from tracecvr.base.progress import Progress, no_progress
from tracecvr.online.learner.archive import WholeLog
from tracecvr.online.store import choices, file_hashes
from tracecvr.online.store.challenge import FOLDER, challengers, find_challenger, list_lost, list_names
from tracecvr.online.store.store import Store
from tracecvr.online.upkeep.verify_log import verify_log

_SHOWN = 3


@dataclass(frozen=True)
class Finding:
    part: str
    fine: bool
    text: str


def verify(store: Store) -> list[Finding]:
    """Check everything that can be checked without learning it again. Reads all of the store once."""
    files = _check("files", _check_files, store)
    if not files.fine:
        return [files]
    others = [_check(f"challenger {name}", _check_challenger, store, name) for name in list_names(store)]
    return [
        files,
        _check("log", _check_log, store),
        _check("versions", _check_versions, store),
        _check("archive", _check_archive, store),
        *others,
        *_find_lost(store),
    ]


def replay(store: Store, progress: Progress = no_progress) -> list[Finding]:
    """Learn everything again from the log, and compare with the versions; of challengers, too."""
    findings = []
    for model in (store, *challengers(store)):
        verification = verify_log(model, progress)
        part = "replay" if model.model is None else f"challenger {model.model}, replay"
        findings.append(Finding(part, verification.same, verification.summary()))
    return findings


def _check(part: str, look: Callable[..., tuple[list[str], str]], *given: object) -> Finding:
    """A part of a store: what is wrong with it, or what to say if nothing is."""
    try:
        wrong, text = look(*given)
    except UserError as error:
        wrong, text = [str(error)], ""
    if not wrong:
        return Finding(part, True, text)
    more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    return Finding(part, False, "; ".join(wrong[:_SHOWN]) + more)


def _check_files(store: Store) -> tuple[list[str], str]:
    files = file_hashes.read(store.folder)
    wrong = [text for name, facts in files.items() if (text := file_hashes.problem(store.folder, name, facts))]
    return wrong, f"{len(files)} as they were when the store was created"


def _check_log(store: Store) -> tuple[list[str], str]:
    store.refuse_lost_log()
    with closing(store.log()) as log:
        return log.damage(), f"{log.position():,} events, {log.closed()} intervals closed"


def _check_challenger(store: Store, name: str) -> tuple[list[str], str]:
    challenger = find_challenger(store, name)
    challenger.refuse_lost_log()
    return _check_versions(challenger)


def _check_versions(store: Store) -> tuple[list[str], str]:
    versions, listed = store.versions, store.versions.manifests()
    names = {f"{m['intervals']:09d}" for m in listed}
    unreadable = sorted(path.stem for path in (store.home / "models").glob("*.json") if path.stem not in names)
    wrong = [
        f"version {int(name)} has no whole manifest or no state, or is of another model"
        for name in unreadable
        if name.isdecimal()
    ]
    wrong += [f"version {m['intervals']} is damaged" for m in listed if not versions.whole(m)]
    newest = listed[-1]["intervals"] if listed else -1
    with closing(store.log()) as log:
        if (known := log.recorded(store.model)) > newest + 1:  # one may have been cut short, by a kill
            wrong.append(f"versions {newest + 1} to {known} are lost: they are learnt again from the log")
    try:
        serving, chosen = versions.serving(), versions.chosen()
    except UserError as error:
        return [*wrong, str(error)], ""
    if chosen is not None and serving != chosen:
        wrong.append(f"version {chosen} was chosen to serve, and is lost or damaged: choose another")
    wrong += ["none of them can serve"] if listed and serving is None else []
    return wrong, f"{len(listed)} whole, version {serving} serves"


def _check_archive(store: Store) -> tuple[list[str], str]:
    wrong = []
    with closing(WholeLog(store)) as log:
        files = log.files()
        for file in files:
            try:
                log.check(file)
            except UserError as error:
                wrong.append(str(error))
            except FileNotFoundError as error:
                wrong.append(f"{error.filename} is missing")
    return wrong, f"{len(files)} files"


def _find_lost(store: Store) -> Iterator[Finding]:
    """Of the choice of models, and of challengers that are not there though somebody counts on them."""
    try:
        with closing(store.log()) as log:
            if choices.differs(log, store.folder):
                path = store.folder / choices.NAME
                text = f"{path} is not what the log knows: the next command on the store mends it"
                yield Finding("choice of models", False, text)
        for name in list_lost(store):
            advice = f"copy it from where the store is whole, or `tracecvr models drop {store.folder} {name}`"
            yield Finding(f"challenger {name}", False, f"{store.folder / FOLDER / name} is missing: {advice}")
    except UserError as error:
        yield Finding("choice of models", False, str(error))
