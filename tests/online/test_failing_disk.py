"""What a disk may do to a store, and what an attack with such damages has found: each was silent, or a traceback."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import polars as pl
import pytest
from conftest import Call

from crashing import process
from livestore import Made, learnt, send, the_events
from tracecvr.base import files
from tracecvr.base.errors import UserError
from tracecvr.online.challengers.learners import Learners
from tracecvr.online.learner.archive import WholeLog, compact, erase
from tracecvr.online.log.page_checksums import read_position
from tracecvr.online.service.replica import open_published
from tracecvr.online.service.scorer import NotReadyError, RoutedScorer
from tracecvr.online.store import challenge
from tracecvr.online.store.file_hashes import read_hashed, write_hashed
from tracecvr.online.store.store import Settings, Store
from tracecvr.online.upkeep.status import status_of

_PAGE = 4096
Captured = pytest.CaptureFixture[str]


def refused(call: Call, capsys: Captured, *words: object) -> str:
    """The one line with which a command ends."""
    capsys.readouterr()
    assert call(*words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return line


def test_a_description_that_is_a_list_is_refused_in_one_line(made: Made, call: Call, capsys: Captured) -> None:
    store = made()
    (store.folder / "store.json").write_text("[1]")
    for command in ("verify", "tick"):
        assert "store.json: format None, expected" in refused(call, capsys, command, store.folder)


def test_what_comes_after_the_acknowledged_position_is_passed_over(made: Made) -> None:
    """A longer file is not written anew: it would say nothing for ever, and a log that is lost would not be missed."""
    store = made()
    send(store, the_events()[:100])
    path = store.folder / "events.position"
    path.write_bytes(path.read_bytes() + b"\0garbage")
    assert read_position(store.folder / "events.db") == 100
    for log in store.folder.glob("events.db*"):
        log.unlink()
    with pytest.raises(UserError, match=r"events\.db is missing"):
        Store.open(store.folder)


@pytest.mark.parametrize("name", ["base/encoder.json", "base/table.json", "store.json"])
def test_a_replica_serves_by_no_other_description(name: str, made: Made) -> None:
    """Valid JSON with other values: its scores would be others."""
    store = made()
    open_published(str(store.folder), store.folder, None, lambda _: None)
    path = store.folder / name
    text = path.read_text()
    other = next(
        changed for old in ('"seed": 0', '"size": 8', "1") if (changed := text.replace(old, old[:-1] + "4")) != text
    )
    path.write_text(other)
    with pytest.raises(UserError, match=rf"{name} is not as it was when the store was created"):
        open_published(str(store.folder), store.folder, None, lambda _: None)


def test_a_challenger_does_not_learn_with_what_one_of_that_name_had(made: Made, call: Call, capsys: Captured) -> None:
    """Its description is put back from before it was dropped and made anew: whole, and of the right name."""
    store = made()
    send(store, the_events()[:400])
    path = challenge.create(store, "other", challenge.choose_parts(store, None, (), {}), seed=5).home
    with Learners(store) as learners:
        list(learners.all())
    write_hashed(path / "challenger.json", read_hashed(path / "challenger.json", "") | {"settings": {"seed": 6}})
    capsys.readouterr()
    assert call("verify", store.folder) == 1
    wanted = "challengers/other is not what .*events.db has learnt with"
    assert "challenger other: WRONG: " in capsys.readouterr().out
    with Learners(store) as learners:
        assert not list(learners.all())
    assert "is not what" in status_of(store)["challengers"]["other"]["problem"]
    with pytest.raises(UserError, match=wanted):
        challenge.find_challenger(store, "other").refuse_lost_log()
    assert learnt(store)[1] > 0


@pytest.fixture
def archived(made: Made, hourly: Path) -> Store:
    """A store with an archive, whose log has no other content than its file."""
    store = made("vanilla", Settings(lateness=3600, keep=2), hourly)
    events = [event | {"user": f"user-{int(event['click_id']) % 5}"} for event in the_events()]
    send(store, events[:1400])
    learnt(store)
    assert compact(store)
    send(store, events[1400:1500])
    learnt(store)
    return store


def exchange(path: Path, name: str) -> None:
    """The last two leaves of an index, each with the right checksum."""
    content = path.read_bytes()
    leaves = [at for at in range(0, len(content), _PAGE) if content[at] == 10]
    one, other = leaves[-2:]
    pages = {one: content[other : other + _PAGE], other: content[one : one + _PAGE]}
    path.write_bytes(b"".join(pages.get(at, content[at : at + _PAGE]) for at in range(0, len(content), _PAGE)))


@pytest.mark.parametrize("words", [("compact",), ("erase", "user-2"), ("forecast",), ("table", "out")])
def test_what_reads_or_rewrites_all_of_a_log_looks_for_exchanged_pages_first(
    words: tuple[str, ...], archived: Store, call: Call, capsys: Captured, tmp_path: Path
) -> None:
    """An erasure would miss events, a compaction leave some out, a forecast and a table would be of others."""
    command, *more = words
    exchange(archived.folder / "events.db", "events_user")
    line = refused(call, capsys, command, archived.folder, *(tmp_path / m if m == "out" else m for m in more))
    assert "events.db is damaged (" in line


@pytest.mark.parametrize("words", [("compact",), ("erase", "user-2")])
def test_a_list_of_archives_of_another_time_deletes_no_archive(
    words: tuple[str, ...], archived: Store, call: Call, capsys: Captured
) -> None:
    """Files that it does not name were removed. With the right log put back, their events were lost."""
    path, command, *user = archived.folder / "events.db", *words
    log = archived.log()
    root = log._one("SELECT rootpage FROM sqlite_master WHERE name = 'archives'")
    log.close()
    older, at = path.read_bytes(), (root - 1) * _PAGE
    assert compact(archived)
    newer = path.read_bytes()
    path.write_bytes(newer[:at] + older[at : at + _PAGE] + newer[at + _PAGE :])
    files = sorted((archived.folder / "archive").iterdir())
    refused(call, capsys, command, archived.folder, *user)
    assert sorted((archived.folder / "archive").iterdir()) == files


def compact_until_killed(folder: Path) -> None:
    def kill(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    Path.rename = kill  # type: ignore[assignment, method-assign]
    compact(Store.open(folder))


def test_an_erased_user_is_not_in_what_a_killed_compaction_has_left(archived: Store) -> None:
    with process(compact_until_killed, archived.folder) as child:
        child.join(300)
    (left,) = (archived.folder / "archive").glob(".*")
    assert "user-2" in pl.read_parquet(left)["user"]
    erase(archived, "user-2")
    WholeLog(archived).close()
    assert not left.exists()


def write_wrongly(patch: pytest.MonkeyPatch, kind: str, where: float = 0.5) -> None:
    """Of files of a kind, one bit is written wrongly."""

    def sync(path: Path) -> None:
        if kind in path.name:
            content = bytearray(path.read_bytes())
            content[int(where * len(content))] ^= 4
            path.write_bytes(content)

    patch.setattr(files, "sync", sync)


def test_events_do_not_leave_the_log_for_an_archive_that_was_written_wrongly(
    archived: Store, call: Call, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash was that of the file, whatever was in it: events were lost."""
    log = archived.log()
    before = log.before(1 << 60)
    for words in (("compact",), ("erase", "user-2")):
        with monkeypatch.context() as patch:
            write_wrongly(patch, ".parquet")
            assert ".parquet is damaged" in refused(call, capsys, words[0], archived.folder, *words[1:])
        if words[0] == "compact":
            assert log.before(1 << 60) == before
        assert call("verify", archived.folder) == 0
    log.close()


@pytest.mark.parametrize("where", [0.0, 0.5])
def test_a_version_that_was_written_wrongly_is_neither_learnt_from_nor_served(
    where: float, made: Made, call: Call, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made()
    send(store, the_events()[:400])
    with monkeypatch.context() as patch:
        write_wrongly(patch, ".safetensors", where)
        learnt(store)
    newest = store.versions.latest()
    assert newest is not None
    line = refused(call, capsys, "tick", store.folder)
    assert f"{newest['intervals']:09d}.safetensors is not what was learnt" in line
    scorer = RoutedScorer(store)
    scorer.refresh()
    with pytest.raises(NotReadyError):
        scorer.main.ready()


def test_verify_reads_what_was_predicted(made: Made, call: Call, capsys: Captured) -> None:
    """A page that was read wrongly and written again has the right checksum."""
    store = made()
    send(store, the_events()[:400])
    learnt(store)
    log = store.log()
    log._db.execute("UPDATE series SET data = zeroblob(8)")
    log.close()
    capsys.readouterr()
    assert call("verify", store.folder) == 1
    assert "log: WRONG: a series is not as it was written" in capsys.readouterr().out
