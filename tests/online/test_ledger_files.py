"""The ledger on disk: killed anywhere, damaged, copied, gone, or with users to be forgotten, it is the
ledger that the log would give."""

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
from conftest import Call

from livestore import SMALL, Made, finish, learnt, send, the_events
from tracecvr.base import registry
from tracecvr.base.config import HOUR
from tracecvr.online.learner import archive
from tracecvr.online.learner.learner import ledger_of, open_learner
from tracecvr.online.ledger import open_clicks
from tracecvr.online.ledger.database import DATABASE, DamagedLedgerError, LedgerDatabase
from tracecvr.online.ledger.ledger import Ledger
from tracecvr.online.ledger.open_clicks import OpenClicks
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
    "before the ledger is committed": (LedgerDatabase, "commit", killed),
    "after the ledger is committed": (LedgerDatabase, "commit", after(LedgerDatabase.commit)),
    "after the version is written": (Versions, "save", after(Versions.save)),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment_it_goes_on_from_its_files(
    moment: str, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made("trace")
    send(store, the_events()[:900])
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt), open_learner(store) as learner:
        for _ in range(5):
            learner.tick()
        patch.setattr(*MOMENTS[moment])
        learner.tick()
        pytest.fail("it was not killed")
    monkeypatch.setattr(Ledger, "rebuild", never)
    learnt(store)
    monkeypatch.undo()
    assert verify_log(store).same
    same_as_from_the_log(store)


def same_as_from_the_log(store: Store) -> None:
    """The files have what the log has."""
    with open_learner(store) as learner:
        ours, log = learner.ledger, ledger_of(store, learner.engine)
        log.rebuild(ours.done, ours.rows, dict(ours.counts))
        end = store.grid.bounds(ours.done)[0]
        since = end - ours.memory
        places = [ledger.known_between(since, end) for ledger in (ours, log)]
        assert len(places[0]) == len(places[1]) > 0
        for name in ("click_id", "click_ts", "arrival_ts", "action_ts", "known_ts", "refund_ts", "x"):
            one, other = (getattr(ledger.table, name)[at] for ledger, at in zip((ours, log), places, strict=True))
            assert np.array_equal(one, other), name
        assert not ours.database.wrong()


def test_a_replay_has_what_it_needs_in_files_and_leaves_none(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made("trace")
    send(store, the_events()[:900])
    learnt(store)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    commit, held = LedgerDatabase.commit, []

    def watched(files: LedgerDatabase, *given: Any) -> None:
        commit(files, *given)
        assert files.folder is None  # SQLite's own temporary file, which has no name
        held.append(len(list((tmp_path / "temporary").glob("*/answers/*/*"))))

    monkeypatch.setattr(LedgerDatabase, "commit", watched)
    monkeypatch.setattr(os, "fsync", never)  # nobody opens it again: it waits for no disk
    assert verify_log(store).same
    assert len(held) > 10
    assert min(held) > 0
    assert not list((tmp_path / "temporary").iterdir())


# Stores without ledger files, copies, damage.


def test_a_ledger_that_is_gone_is_built_again(made: Made, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    store = made("trace")
    send(store, the_events()[:1000])
    learnt(store)
    for name in ("ledger", "answers"):
        shutil.rmtree(store.folder / name)
    assert call("verify", store.folder) == 0
    assert "ledger: no files" in capsys.readouterr().out
    send(store, the_events()[1000:])
    finish(store)
    learnt(store)
    assert verify_log(store).same
    same_as_from_the_log(store)


def flip(path: Path, dice: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    write_in_place(path, content)


def zero(path: Path, dice: random.Random) -> None:
    """A page of it, or less: SQLite's checksum of a page of zeros is zero."""
    content = bytearray(path.read_bytes())
    start = dice.randrange(len(content)) // 4096 * 4096
    content[start : start + 4096] = bytes(len(content[start : start + 4096]))
    write_in_place(path, content)


def cut(path: Path, dice: random.Random) -> None:
    os.truncate(path, dice.randrange(path.stat().st_size))


def scramble(path: Path, dice: random.Random) -> None:
    content = bytearray(path.read_bytes())
    start, size = dice.randrange(len(content)), 200
    content[start : start + size] = dice.randbytes(len(content[start : start + size]))
    write_in_place(path, content)


def swap(path: Path, dice: random.Random) -> None:
    """Two pages of it."""
    content = bytearray(path.read_bytes())
    one, other = (4096 * number for number in dice.sample(range(len(content) // 4096), 2))
    content[one : one + 4096], content[other : other + 4096] = content[other : other + 4096], content[one : one + 4096]
    write_in_place(path, content)


def empty(path: Path, dice: random.Random) -> None:
    write_in_place(path, b"")


def remove(path: Path, dice: random.Random) -> None:
    path.unlink()


def write_in_place(path: Path, content: bytes | bytearray) -> None:
    """The same file, as a disk would damage it."""
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


DAMAGES = (flip, zero, cut, scramble, swap, empty, remove)


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


@pytest.mark.parametrize("running", [False, True], ids=["at rest", "a learner runs"])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_noticed_before_it_is_learnt_from(
    damage: Callable[..., None], running: bool, unlearnt: tuple[Store, tuple[str, int]], tmp_path: Path
) -> None:
    store, expected = unlearnt
    copy = Store.open(shutil.copytree(store.folder, tmp_path / "copy"))
    path, dice = copy.folder / "ledger" / DATABASE, random.Random(1)
    if not running:
        damage(path, dice)
        assert learnt(copy) == expected
        return
    with open_learner(copy) as learner:
        damage(path, dice)
        while learner.tick() is not None:
            pass
        assert (learner.engine.fingerprint(), learner.ledger.done) == expected


def test_an_array_of_other_content_is_noticed(made: Made) -> None:
    """If SQLite has nothing to say against it: its own checksum was made anew."""
    store = made("vanilla")
    send(store, the_events()[:1000])
    learnt(store)
    with open_learner(store) as learner:
        files = learner.ledger.database
        files._run("UPDATE arrays SET data = zeroblob(length(data)) WHERE id % 16 = 4")
        files._cache.clear()
        with pytest.raises(DamagedLedgerError, match="x of clicks"):
            files.gather("x", np.arange(files.first, files.end))
        assert "is damaged" in files.wrong()[0]


def test_verify_finds_damage_and_the_ledger_is_built_anew(
    made: Made, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    store = made("vanilla")
    send(store, the_events()[:1000])
    learnt(store)
    path = store.folder / "ledger" / DATABASE
    scramble(path, random.Random(3))
    assert call("verify", store.folder) == 1
    told = capsys.readouterr().out
    assert f"ledger: WRONG: {path} is damaged" in told
    assert f"remove {store.folder / 'ledger'}" in told
    shutil.rmtree(store.folder / "ledger")
    learnt(store)
    assert call("verify", store.folder, "--replay") == 0


def test_a_transaction_that_was_being_written_is_not_trusted(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the rest of it is lost, the database may have half of it."""
    store = made("vanilla")
    send(store, the_events()[:1000])
    expected = learnt(store)
    (store.folder / "ledger" / f"{DATABASE}-wal").write_bytes(random.Random(0).randbytes(5000))
    rebuild, calls = Ledger.rebuild, []

    def watched(*given: Any) -> None:
        calls.append(1)
        rebuild(*given)

    monkeypatch.setattr(Ledger, "rebuild", watched)
    assert learnt(store) == expected
    assert calls
    same_as_from_the_log(store)


def test_nobody_else_reads_the_ledger(made: Made) -> None:
    store = made("trace")
    send(store, the_events()[:1000])
    learnt(store)
    for name in ("ledger", "answers"):
        paths = [store.folder / name, *(store.folder / name).rglob("*")]
        assert len(paths) > 1
        assert not [path for path in paths if path.stat().st_mode & 0o077]


# Forgetting.


@pytest.mark.parametrize("running", [True, False], ids=["a learner runs", "at rest"])
def test_an_erased_user_is_in_no_file_of_the_ledger(running: bool, made: Made, hourly: Path) -> None:
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
    assert ids_in(store, theirs)
    if running:
        with open_learner(store) as learner:
            archive.erase(store, "u3")
            learner.tick()
    else:
        archive.erase(store, "u3")
        assert not (store.folder / "ledger").exists()
        learnt(store)
    assert not ids_in(store, theirs)
    assert ids_in(store, {e["click_id"] for e in events[:half]} - theirs)
    same_as_from_the_log(store)
    send(store, [e for e in events[half:] if e["user"] != "u3"])
    finish(store)
    learnt(store)
    same_as_from_the_log(store)


def ids_in(store: Store, clicks: set[int]) -> set[int]:
    """Which clicks any file of the ledger knows by their id."""
    held = b"".join(path.read_bytes() for path in (store.folder / "ledger").iterdir())
    words = set(np.frombuffer(held[: len(held) // 8 * 8], np.int64).tolist())
    return {click for click in clicks if click in words or click.to_bytes(8, "little") in held}


def test_pages_that_changed_places_are_noticed(tmp_path: Path) -> None:
    """Each is as it was written: only the order of what is in them tells."""
    clicks = OpenClicks(tmp_path / "ledger", 1, 1)
    clicks.clear()
    rows = np.arange(20_000)
    clicks.note(rows, np.ones_like(rows), rows, rows)
    clicks.commit({})
    clicks.close()
    path, size = tmp_path / "ledger" / DATABASE, 4096
    content, dice = path.read_bytes(), random.Random(1)
    leaves = [at for at in range(size, len(content), size) if content[at] == 10]  # of trees that are no lists of rows
    assert len(leaves) > 50
    for _ in range(10):
        one, other = dice.sample(leaves, 2)
        swapped = bytearray(content)
        swapped[one : one + size] = content[other : other + size]
        swapped[other : other + size] = content[one : one + size]
        path.write_bytes(swapped)
        assert OpenClicks(tmp_path / "ledger", 1, 1).read() is None
    path.write_bytes(content)
    assert OpenClicks(tmp_path / "ledger", 1, 1).read() == {}
