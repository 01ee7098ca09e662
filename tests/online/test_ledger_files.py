"""The ledger is built from the log when a learner starts: killed anywhere, damaged, or with users to be forgotten, it
is the same ledger."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from livestore import SMALL, Made, finish, learnt, send, the_events
from tracecvr.base import registry
from tracecvr.base.config import HOUR
from tracecvr.online.learner import archive
from tracecvr.online.learner.learner import ledger_of, open_learner
from tracecvr.online.ledger import open_clicks
from tracecvr.online.ledger.open_clicks import DamagedLedgerError, OpenClicks
from tracecvr.online.store.store import Settings, Store
from tracecvr.online.store.versions import Versions
from tracecvr.online.upkeep.verify_log import verify_log


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Blocks of a few clicks, and a cache of few of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_clicks, "ROWS", 16)
        patch.setattr(open_clicks, "_CACHED", 1000)
        yield


# Killed.


def never(*_: object, **__: object) -> None:
    raise AssertionError("the log was read anew")


def killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def after(plain: Callable[..., Any]) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> None:
        plain(*given, **named)
        raise KeyboardInterrupt

    return call


MOMENTS = {
    "before actions are noted": (OpenClicks, "note", killed),
    "after actions are noted": (OpenClicks, "note", after(OpenClicks.note)),
    "before the version is written": (Versions, "save", killed),
    "after the version is written": (Versions, "save", after(Versions.save)),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment_it_goes_on(moment: str, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made("trace")
    send(store, the_events()[:900])
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt), open_learner(store) as learner:
        for _ in range(5):
            learner.tick()
        patch.setattr(*MOMENTS[moment])
        learner.tick()
        pytest.fail("it was not killed")
    learnt(store)
    assert verify_log(store).same
    same_as_from_the_log(store)


def same_as_from_the_log(store: Store) -> None:
    """It has what the log has, of learners that have learnt since they started, too."""
    with open_learner(store) as learner:
        while learner.tick() is not None:
            pass
        ours, log = learner.ledger, ledger_of(store, learner.engine)
        log.rebuild(ours.done, ours.rows, dict(ours.counts))
        end = store.grid.bounds(ours.done)[0]
        since = end - ours.memory
        places = [ledger.known_between(since, end) for ledger in (ours, log)]
        assert len(places[0]) == len(places[1]) > 0
        for name in ("click_id", "click_ts", "arrival_ts", "action_ts", "known_ts", "refund_ts", "x"):
            one, other = (getattr(ledger.table, name)[at] for ledger, at in zip((ours, log), places, strict=True))
            assert np.array_equal(one, other), name


def test_a_replay_has_what_it_needs_in_files_without_names(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made("trace")
    send(store, the_events()[:900])
    learnt(store)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    flush, replayed = OpenClicks.flush, []

    def watched(database: OpenClicks) -> None:
        flush(database)
        replayed.append(database.folder)
        assert not list((tmp_path / "temporary").iterdir())

    monkeypatch.setattr(OpenClicks, "flush", watched)
    monkeypatch.setattr(os, "fsync", never)  # nobody opens it again: it waits for no disk
    assert verify_log(store).same
    assert len(replayed) > 10
    assert set(replayed) == {None}


# Damage.


def test_its_file_has_no_name(made: Made) -> None:
    """So nobody else can read it, and it is gone however its learner ends."""
    store = made("vanilla")
    send(store, the_events()[:600])
    with open_learner(store) as learner:
        learner.tick()
        assert os.fstat(ledger_file()).st_size > 0
        assert not list(store.folder.glob("*ledger*")) + list(store.folder.glob(".ledger*"))


def ledger_file() -> int:
    """The descriptor of the file that a learner in this process has open."""
    (number,) = [int(link.name) for link in Path("/proc/self/fd").iterdir() if "/.ledger." in _target(link)]
    return number


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:  # of the listing itself
        return ""


def flip(content: bytearray, dice: random.Random) -> None:
    for _ in range(20):
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)


def zero(content: bytearray, dice: random.Random) -> None:
    """All pages but the first: SQLite's checksum of a page of zeros is zero."""
    content[4096:] = bytes(len(content) - 4096)


def cut(content: bytearray, dice: random.Random) -> None:
    del content[dice.randrange(len(content)) :]


def scramble(content: bytearray, dice: random.Random) -> None:
    content[:] = dice.randbytes(len(content))


DAMAGES = (flip, zero, cut, scramble)


@pytest.fixture(scope="module")
def unlearnt(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, tuple[str, int]]:
    """A store with some intervals that it has not learnt yet, and what comes of them."""
    folder = tmp_path_factory.mktemp("whole")
    method = registry.get("method", "defer")(**SMALL)
    store = Store.create(folder / "store", base, method, (), Settings(lateness=HOUR))
    send(store, the_events()[:600])
    learnt(store)
    send(store, the_events()[600:750])
    return store, learnt(Store.open(shutil.copytree(store.folder, folder / "copy")))


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_noticed_before_it_is_learnt_from(
    damage: Callable[..., None],
    unlearnt: tuple[Store, tuple[str, int]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, expected = unlearnt
    copy = Store.open(shutil.copytree(store.folder, tmp_path / "copy"))
    with open_learner(copy) as learner:
        learner.ledger.database._run("PRAGMA shrink_memory")  # pages are read from the file again
        learner.ledger.database._cache.clear()
        file = ledger_file()
        content = bytearray(os.pread(file, os.fstat(file).st_size, 0))
        damage(content, random.Random(1))
        os.ftruncate(file, 0)
        os.pwrite(file, content, 0)
        while learner.tick() is not None:
            pass
        assert (learner.engine.fingerprint(), learner.ledger.done) == expected
    assert "it is built anew from the log" in caplog.text


def test_an_array_of_other_content_is_noticed(made: Made) -> None:
    """If SQLite has nothing to say against it: its own checksum was made anew."""
    store = made("vanilla")
    send(store, the_events()[:1000])
    learnt(store)
    with open_learner(store) as learner:
        files = learner.ledger.database
        files._run("UPDATE arrays SET data = zeroblob(length(data)) WHERE id % 16 = 3")
        files._cache.clear()
        with pytest.raises(DamagedLedgerError, match="x of clicks"):
            files.gather("x", np.arange(files.first, files.end))


# Forgetting.


@pytest.mark.parametrize("running", [True, False], ids=["a learner runs", "at rest"])
def test_an_erased_user_is_not_in_the_ledger(running: bool, made: Made, hourly: Path) -> None:
    """Clicks, actions and actions that wait for their click; clicks that are over as well."""
    dice, store = random.Random(7), made("trace", Settings(lateness=HOUR, keep=2), hourly)
    number = {e["click_id"]: dice.getrandbits(62) for e in the_events()}
    events = [e | {"click_id": number[e["click_id"]], "user": f"u{number[e['click_id']] % 5}"} for e in the_events()]
    lost = {e["click_id"] for e in events[:1200] if e["type"] == "click" and dice.random() < 0.05}
    events = [e for e in events if not (e["type"] == "click" and e["click_id"] in lost)]
    theirs = {e["click_id"] for e in events if e["user"] == "u3"}
    half = len(events) * 3 // 4
    send(store, events[:half])
    learnt(store)
    archive.compact(store)
    if running:
        with open_learner(store) as learner:
            assert ids_in(theirs)
            archive.erase(store, "u3")
            learner.tick()
            assert not ids_in(theirs)
    else:
        archive.erase(store, "u3")
    with open_learner(store):
        assert not ids_in(theirs)
        assert ids_in({e["click_id"] for e in events[:half]} - theirs)
    same_as_from_the_log(store)
    send(store, [e for e in events[half:] if e["user"] != "u3"])
    finish(store)
    learnt(store)
    same_as_from_the_log(store)


def ids_in(clicks: set[int]) -> set[int]:
    """Which clicks the file of the ledger knows by their id."""
    file = ledger_file()
    held = os.pread(file, os.fstat(file).st_size, 0)
    return {click for click in clicks if click.to_bytes(8, "little") in held or click.to_bytes(8, "big") in held}
