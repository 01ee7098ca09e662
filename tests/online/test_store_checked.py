"""A store is checked as a whole: what is missing, changed or flipped is noticed, and said in one line."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Call
from hypothesis import given, settings
from hypothesis import strategies as st

from livestore import Made, finish, learnt, predicted, send, the_events
from tracecvr.base.config import HOUR
from tracecvr.base.errors import UserError
from tracecvr.data.table import NEVER
from tracecvr.online.learner.archive import compact
from tracecvr.online.log import page_checksums
from tracecvr.online.log.event_log import EventLog
from tracecvr.online.log.events import Event
from tracecvr.online.log.times import Grid
from tracecvr.online.store.store import Settings, Store

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def store(made: Made) -> Store:
    found = made("vanilla")
    send(found, the_events()[:700])
    learnt(found)
    return found


def flipped(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)


def refused(call: Call, capsys: Captured, *words: object) -> str:
    """What a command says that does not go on, in one line."""
    capsys.readouterr()
    assert call(*words) == 2, words
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ")
    return line


# Files.


def test_a_store_that_is_whole_is_said_to_be(store: Store, call: Call, capsys: Captured) -> None:
    assert call("verify", store.folder, "--replay") == 0
    told = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert list(told) == ["files", "log", "versions", "archive", "replay"]
    assert "700 events" in told["log"]
    assert "no checksums" not in told["log"]
    assert "are identical" in told["replay"]


@pytest.mark.parametrize("name", ["base/encoder.json", "base/table.json", "store.json"])
def test_an_edited_file_is_refused(name: str, store: Store, call: Call, capsys: Captured) -> None:
    path = store.folder / name
    text = path.read_text()
    old, new = {"store.json": ("3600", "3700"), "base/encoder.json": ("8", "4")}.get(name, ("1", "2"))
    path.write_text(text.replace(old, new))
    assert path.read_text() != text
    for words in (("tick",), ("serve",), ("status",), ("export", "--out", store.folder / "out")):
        assert f"{path} is not as it was" in refused(call, capsys, words[0], store.folder, *words[1:])
    assert call("verify", store.folder) == 1
    assert f"files: WRONG: {path} is not as it was" in capsys.readouterr().out
    path.write_text(text)
    assert call("verify", store.folder) == 0


def test_a_column_is_checked_by_size_at_once_and_by_hash_when_asked(store: Store, call: Call, capsys: Captured) -> None:
    column = max((store.folder / "base").rglob("*.npy"), key=lambda path: path.stat().st_size)
    content = column.read_bytes()
    column.unlink()  # it is a link to the log that the store was made of
    column.write_bytes(content[:-8])
    assert "bytes, and had" in refused(call, capsys, "tick", store.folder)
    column.write_bytes(content)
    flipped(column, 8 * len(content) - 30)
    assert call("status", store.folder) == 0
    assert call("verify", store.folder) == 1
    column.unlink()
    assert f"{column} is missing" in refused(call, capsys, "tick", store.folder)


def test_the_manifest_itself_is_missed(store: Store, call: Call, capsys: Captured) -> None:
    path = store.folder / "files.json"
    content = path.read_text()
    path.write_text(content.replace('"size": ', '"size": 1', 1))
    assert f"{path} is damaged" in refused(call, capsys, "tick", store.folder)
    path.unlink()
    assert f"{path} is missing" in refused(call, capsys, "tick", store.folder)
    path.write_text(content)
    assert call("tick", store.folder) == 0


# The log.


def test_a_lost_log_is_noticed(store: Store, call: Call, capsys: Captured) -> None:
    (store.folder / "events.db").unlink()
    for name in ("tick", "serve", "status", "compact"):
        assert "events.db is missing" in refused(call, capsys, name, store.folder)
    assert not (store.folder / "events.db").exists()
    assert call("verify", store.folder) == 1
    assert "log: WRONG" in capsys.readouterr().out


def test_a_log_that_was_lost_before_anything_was_learnt_is_noticed(made: Made, call: Call, capsys: Captured) -> None:
    store = made("vanilla")
    send(store, the_events()[:50])
    (store.folder / "events.db").unlink()
    assert "events.db is missing" in refused(call, capsys, "ingest", store.folder, "/dev/null")


def copied_without_wal(store: Store, log: EventLog, target: Path) -> Path:
    shutil.copytree(store.folder, target, ignore=shutil.ignore_patterns("events.db-*"))
    log.close()
    return target


def test_a_lost_write_ahead_log_is_noticed(store: Store, tmp_path: Path, call: Call, capsys: Captured) -> None:
    log = store.log()  # as long as it is open, nothing is moved from the write-ahead log to the database
    log._db.execute("PRAGMA wal_autocheckpoint = 0")
    send(store, the_events()[700:1400])
    learnt(store)
    copy = copied_without_wal(store, log, tmp_path / "copy")
    line = refused(call, capsys, "tick", copy)
    assert "has lost events" in line
    assert "delete events.position and the versions after" in line
    kept = int(line.rpartition("versions after ")[2].split()[0])
    (copy / "events.position").unlink()
    for path in (copy / "models").glob("*.*"):
        if path.stem.isdecimal() and int(path.stem) > kept:
            path.unlink()
    assert call("tick", copy) == 0


def test_events_that_were_acknowledged_and_not_yet_learnt_are_missed(
    store: Store, tmp_path: Path, call: Call, capsys: Captured
) -> None:
    log = store.log()
    log._db.execute("PRAGMA wal_autocheckpoint = 0")
    send(store, the_events()[700:720])
    copy = copied_without_wal(store, log, tmp_path / "copy")
    assert "720 were acknowledged" in refused(call, capsys, "tick", copy)
    (copy / "events.position").unlink()
    assert call("tick", copy) == 0


def test_a_store_that_is_killed_at_any_time_opens(store: Store, tmp_path: Path) -> None:
    """The number that was acknowledged is never ahead of the log, whenever a copy of all files is taken."""
    log = store.log()
    for n in range(700, 760, 10):
        send(store, the_events()[n : n + 10])
        copy = tmp_path / str(n)
        shutil.copytree(store.folder, copy)
        Store.open(copy)
    (store.folder / "events.position").write_bytes(b"")  # as a loss of power may leave it
    Store.open(store.folder)
    log.close()


# Flipped bits.

GRID = Grid(1_000, 100, 50, 500)


def append(log: EventLog, first: int) -> None:
    chance = random.Random(first)
    log.append(
        [
            Event(f"c{n}", 0, n, 1_000 + 3 * n, f"u{n % 7}", json.dumps([chance.random()]), chance.random(), n)
            for n in range(first, first + 30)
        ]
    )


def content(log: EventLog) -> list[object]:
    """All that anybody reads from a log."""
    rows: list[object] = [log.between(*GRID.bounds(n)) for n in range(log.closed() + 3)]
    return [
        *rows,
        log.before(NEVER),
        log.before(2_000),
        log.facts(),
        log.closed(),
        log.position(),
        log.events_of_click(3),
    ]


Intact = dict[str, tuple[dict[str, bytes], list[object]]]


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Intact:
    """The files of a log, and what is read from it: all in the database, and half of it in the write-ahead log."""
    folder = tmp_path_factory.mktemp("intact")
    log = EventLog(folder / "events.db", GRID, lambda: 1e9)
    for first in range(0, 600, 30):
        append(log, first)
    log._truncate()
    found: Intact = {"events.db": (files_of(folder), content(log))}
    log._db.execute("PRAGMA wal_autocheckpoint = 0")
    for first in range(600, 1200, 30):
        append(log, first)
    found["events.db-wal"] = files_of(folder), content(log)
    log.close()
    return found


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-shm")}


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flipped")


@settings(max_examples=300)
@given(
    name=st.sampled_from(["events.db", "events.db-wal"]), where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7)
)
def test_a_flipped_bit_is_noticed_or_changes_nothing(
    name: str, where: float, bit: int, intact: Intact, room: Path
) -> None:
    whole, found = intact[name]
    for left in room.iterdir():
        left.unlink()
    for file, stored in whole.items():
        (room / file).write_bytes(stored)
    flipped(room / name, 8 * int(where * len(whole[name])) + bit)
    try:
        log = EventLog(room / "events.db", GRID, lambda: 1e9)
        shorter = log.position() < page_checksums.read_position(log.path)  # a store is refused then
        assert shorter or content(log) == found
        log.close()
    except UserError as error:
        if "restore the store from a copy" not in str(error):
            raise


def test_a_flipped_bit_stops_the_learner_and_is_found(made: Made, call: Call, capsys: Captured) -> None:
    store = made("vanilla")
    send(store, the_events()[:1200])
    path = store.folder / "events.db"
    at = path.read_bytes().index(store.reader.read(the_events()[600])[5].encode())  # type: ignore[union-attr]
    flipped(path, 8 * at + 9)
    line = refused(call, capsys, "tick", store.folder)
    assert "a page is not as it was written" in line
    assert call("verify", store.folder) == 1
    told = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("log: WRONG"))
    readable = int(told.split("events up to ")[1].split()[0])
    assert 0 < readable < 1200


def test_there_is_no_log_without_checksums(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        page_checksums._load_vfs.cache_clear()
        patch.setattr("apsw.sqlite_extra.load", lambda *_: 1 / 0)
        with pytest.raises(UserError, match=r"install apsw 3\.51 or later"):
            store.log()
    path = store.folder / "events.db"
    content = bytearray(path.read_bytes())
    content[20] = 0
    path.write_bytes(content)
    with pytest.raises(UserError, match="its pages have no checksums"):
        store.log()


def test_a_store_of_another_version_is_refused_in_one_line(store: Store, call: Call, capsys: Captured) -> None:
    """Its versions lack what this one reads of them: nothing is opened, served or learnt."""
    path = store.folder / "store.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 1}))
    for words in (("tick", store.folder), ("serve", store.folder, "--port", 0), ("status", store.folder)):
        assert "format 1, expected 4: another version of tracecvr wrote it" in refused(call, capsys, *words)


# Versions and archive.


def test_damaged_versions_are_found(store: Store, call: Call, capsys: Captured) -> None:
    states = sorted((store.folder / "models").glob("*.safetensors"))
    flipped(states[1], 8 * states[1].stat().st_size - 20)
    flipped(states[2].with_suffix(".json"), 2000)
    assert call("verify", store.folder) == 1
    told = capsys.readouterr().out
    assert f"version {int(states[1].stem)} is damaged" in told
    assert f"version {int(states[2].stem)} has no whole manifest" in told


@pytest.mark.parametrize("alter", [lambda path: flipped(path, 4_000), Path.unlink], ids=["flipped", "removed"])
def test_a_damaged_archive_is_found(
    alter: Callable[[Path], None], hourly: Path, made: Made, call: Call, capsys: Captured
) -> None:
    store = made("vanilla", Settings(lateness=HOUR, keep=2), hourly)
    send(store, the_events())
    finish(store)
    learnt(store)
    assert compact(store) > 0
    (archived,) = (store.folder / "archive").glob("*.parquet")
    assert call("verify", store.folder) == 0
    alter(archived)
    capsys.readouterr()
    assert call("verify", store.folder) == 1
    what = "missing" if alter is Path.unlink else "damaged"
    assert f"archive: WRONG: {archived} is {what}" in capsys.readouterr().out
    assert f"is {what}" in refused(call, capsys, "table", store.folder, store.folder.parent / "table")


def test_damaged_predictions_are_found(store: Store) -> None:
    log = store.log()
    assert predicted(store)
    log._db.execute("UPDATE series SET data = zeroblob(length(data)) WHERE name = ''")
    log.close()
    with pytest.raises(UserError, match="a series is not as it was written"):
        predicted(store)
