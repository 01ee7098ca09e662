"""Compaction, erasure and whoever reads the log meanwhile: one after the other, or in an order that loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from livestore import Made, learnt, send, the_events
from tracecvr.base.config import HOUR
from tracecvr.base.errors import UserError
from tracecvr.data.table import NEVER
from tracecvr.online.learner import archive
from tracecvr.online.learner.archive import ArchiveFile, WholeLog, compact, erase
from tracecvr.online.store.store import Settings, Store
from tracecvr.online.upkeep.verify_log import verify_log


def ready(made: Made, hourly: Path) -> Store:
    """A store with something to compact."""
    store = made("vanilla", Settings(lateness=HOUR, keep=2), hourly)
    send(store, [event | {"user": f"u{event['click_id'] % 5}"} for event in the_events()[:1500]])
    learnt(store)
    return store


def meanwhile(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> Callable[[], Any]:
    """Let something else begin between the moment when events are read and the moment when they are written elsewhere.
    It gets two seconds, more than it needs. Returns how to wait for its result."""
    plain, pool = WholeLog._write, ThreadPoolExecutor(1)
    begun: list[Future[Any]] = []

    def write(*given: Any) -> Any:
        if not begun:
            begun.append(pool.submit(work))
            wait(begun, 2)
        return plain(*given)

    monkeypatch.setattr(WholeLog, "_write", write)
    return lambda: begun[0].result(60)


def archived(store: Store) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(path) for path in (store.folder / "archive").glob("*")])


def test_an_erasure_next_to_a_compaction_leaves_nothing(
    made: Made, hourly: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ready(made, hourly)
    result = meanwhile(monkeypatch, lambda: erase(store, "u3"))
    assert compact(store) > 100
    result()
    assert len(archived(store)) > 100
    assert not len(archived(store).filter(pl.col("user") == "u3"))
    assert not [row for row in store.log().before(NEVER) if row.user == "u3"]


def test_two_compactions_move_each_event_once(made: Made, hourly: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ready(made, hourly)
    monkeypatch.setattr(archive, "_BLOCK", 200)
    before = len(store.log().before(NEVER))
    result = meanwhile(monkeypatch, lambda: compact(store))
    count = compact(store) + result()
    moved = archived(store)["event"].to_list()
    left = [row.event for row in store.log().before(NEVER)]
    assert len(moved) == count > 200
    assert len({*moved, *left}) == len(moved) + len(left) == before
    assert verify_log(store).same


def test_an_erasure_that_was_killed_is_repeated(made: Made, hourly: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ready(made, hourly)
    compact(store)
    for moment in ("_write", "remove_unlisted"):
        with monkeypatch.context() as patch:
            patch.setattr(WholeLog, moment, lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                erase(store, "u3")
        assert verify_log(store).intervals
    erase(store, "u3")
    assert not len(archived(store).filter(pl.col("user") == "u3"))
    assert len(list((store.folder / "archive").glob("*"))) == len(WholeLog(store).files())


def test_who_reads_while_events_move_misses_none(made: Made, hourly: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive is looked at after the database: what has left it by then is there."""
    store = ready(made, hourly)
    log, plain = WholeLog(store), WholeLog.files
    bounds = store.grid.bounds(1)
    expected, known = log.between(*bounds), log.next_known(bounds[0])

    def list_later(ours: WholeLog) -> Any:
        if ours is log:
            compact(store)
        return plain(ours)

    monkeypatch.setattr(WholeLog, "files", list_later)
    assert log.between(*bounds) == expected
    assert log.next_known(bounds[0]) == known
    assert plain(log)


def test_who_reads_a_file_that_an_erasure_has_written_anew_gets_the_new_one(made: Made, hourly: Path) -> None:
    store = ready(made, hourly)
    compact(store)
    log = WholeLog(store)
    (file, *_) = log.files()
    erase(store, "u3")
    assert "u3" not in log.read(file)["user"].to_list()


def test_a_start_reads_each_file_of_the_archive_once(made: Made, hourly: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ready(made, hourly)
    compact(store)
    log, checked = WholeLog(store), list[str]()
    check = log.check

    def count(file: ArchiveFile) -> bytes:
        checked.append(file.name)
        return check(file)

    monkeypatch.setattr(log, "check", count)
    (file, *_) = log.files()
    for number in range(file.first, file.last):
        log.between(*store.grid.bounds(number))
    assert file.last - file.first > 1
    assert checked == [file.name]


@pytest.mark.parametrize("how", ["flipped", "cut", "another"])
def test_an_archive_that_is_damaged_while_somebody_reads_it_is_refused(how: str, made: Made, hourly: Path) -> None:
    """By who reads it from then on. Who has read it before has the right events."""
    store = ready(made, hourly)
    compact(store)
    log = WholeLog(store)
    (file, *_) = log.files()
    whole = log.read(file)
    path = store.folder / "archive" / file.name
    content = bytearray(path.read_bytes())
    if how == "flipped":
        content[len(content) // 3] ^= 1
    path.write_bytes(content[: len(content) // 2] if how == "cut" else content)
    if how == "another":
        whole[1:].write_parquet(path)
    assert log.read(file).equals(whole)
    with pytest.raises(UserError, match="is damaged: copy it from where the store is whole"):
        WholeLog(store).read(file)


def test_damage_of_the_archive_is_not_hashed_anew(made: Made, hourly: Path) -> None:
    store = ready(made, hourly)
    compact(store)
    path = next((store.folder / "archive").glob("*"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(UserError, match="is damaged: copy it from where the store is whole"):
            erase(store, "u3")
