"""What a disk may do to a store, and what an attack with such damages has found: each was silent, or a traceback."""

from __future__ import annotations

import pytest
from conftest import Call

from livestore import Made, learnt, send, the_events
from tracecvr.base.errors import UserError
from tracecvr.online.challengers.learners import Learners
from tracecvr.online.log.page_checksums import read_position
from tracecvr.online.service.replica import open_published
from tracecvr.online.store import challenge
from tracecvr.online.store.file_hashes import read_hashed, write_hashed
from tracecvr.online.store.store import Store
from tracecvr.online.upkeep.status import status_of

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
