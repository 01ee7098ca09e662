"""Compaction, erasure and whoever reads the log meanwhile: one after the other, or in an order that loses nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from livestore import Made, learnt, send, the_events
from tracecvr.base.config import HOUR
from tracecvr.base.errors import UserError
from tracecvr.online.learner import archive
from tracecvr.online.learner.archive import WholeLog, archived, compact, erase
from tracecvr.online.store.store import Settings, Store
from tracecvr.online.upkeep.verify_log import verify_log


def ready(made: Made, hourly: Path) -> Store:
    """A store with something to compact."""
    store = made("vanilla", Settings(lateness=HOUR, keep=2), hourly)
    send(store, [event | {"user": f"u{event['click_id'] % 5}"} for event in the_events()[:1500]])
    learnt(store)
    return store


def meanwhile(monkeypatch: pytest.MonkeyPatch, name: str, work: Callable[[], Any]) -> list[threading.Thread]:
    """Let something else begin when a function of the archive is called first; it gets half a second."""
    plain = getattr(archive, name)
    threads: list[threading.Thread] = []

    def call(*given: Any) -> Any:
        if not threads:
            threads.append(threading.Thread(target=work))
            threads[0].start()
            threads[0].join(0.5)
        return plain(*given)

    monkeypatch.setattr(archive, name, call)
    return threads


def test_an_erasure_next_to_a_compaction_leaves_nothing(
    made: Made, hourly: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ready(made, hourly)
    threads = meanwhile(monkeypatch, "_write", lambda: erase(store, "u3"))
    assert compact(store, store.engine().memory) > 100
    threads[0].join()
    kept = pl.concat([pl.read_parquet(path) for path in archived(store)])
    assert len(kept) > 100
    assert not len(kept.filter(pl.col("user") == "u3"))
    assert not [row for row in store.log().since(0, 10**6) if row.user == "u3"]


def test_two_compactions_move_each_event_once(made: Made, hourly: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ready(made, hourly)
    monkeypatch.setattr(archive, "_BLOCK", 200)
    before = len(store.log().since(0, 10**6))
    threads = meanwhile(monkeypatch, "_write", lambda: compact(store, store.engine().memory))
    compact(store, store.engine().memory)
    threads[0].join()
    moved = pl.concat([pl.read_parquet(path) for path in archived(store)])["event_id"].to_list()
    left = [row.event for row in store.log().since(0, 10**6)]
    assert len(moved) > 200
    assert len({*moved, *left}) == len(moved) + len(left) == before
    assert verify_log(store).same


def test_who_reads_while_events_move_misses_none(made: Made, hourly: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive is looked at after the database: what has left it by then is there."""
    store = ready(made, hourly)
    log = WholeLog(store)
    bounds = store.grid.bounds(1)
    expected, known = log.between(*bounds), log.next_known(bounds[0])
    for ask, answer in ((lambda: log.between(*bounds), expected), (lambda: log.next_known(bounds[0]), known)):
        with monkeypatch.context() as patch:
            plain = archive.archived
            calls: list[int] = []

            def listed(of: Store, plain: Any = plain, calls: list[int] = calls) -> list[Path]:
                if not calls:
                    calls.append(1)
                    before: list[Path] = plain(of)
                    compact(store, store.engine().memory)
                    return [*before, *(path for path in plain(of) if path not in before)]
                return list(plain(of))

            patch.setattr(archive, "archived", listed)
            assert ask() == answer
    assert archived(store)


def test_damage_of_the_archive_is_not_hashed_anew(made: Made, hourly: Path) -> None:
    store = ready(made, hourly)
    compact(store, store.engine().memory)
    path = archived(store)[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="is damaged: copy it from where the store is whole"):
        erase(store, "u3")
    assert archive.problem(path)
