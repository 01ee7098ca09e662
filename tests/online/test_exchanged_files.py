"""Files that are whole, but not in their place or not of their time: exchanged, put back from an older copy, lost.

Checksums of pages and hashes of files say nothing of that. Found by an attack on a store with a challenger.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Call

from livestore import Made, learnt, send, the_events
from tracecvr.base.config import HOUR
from tracecvr.base.errors import UserError
from tracecvr.base.files import sha256
from tracecvr.learn import checkpoint
from tracecvr.online.challengers.learners import Learners
from tracecvr.online.learner.archive import compact, erase
from tracecvr.online.log.event_database import EventDatabase
from tracecvr.online.service.auth import Tokens
from tracecvr.online.service.options import Limits
from tracecvr.online.service.processes import LearnerState
from tracecvr.online.service.scorer import RoutedScorer
from tracecvr.online.service.scoring import Service
from tracecvr.online.store import challenge, choices
from tracecvr.online.store.store import Settings, Store
from tracecvr.online.upkeep.status import status_of

Captured = pytest.CaptureFixture[str]
_PAGE = 4096


@pytest.fixture
def store(made: Made) -> Store:
    """A store and a challenger with nets of the same shapes."""
    store = made("trace")
    send(store, the_events()[:600])
    learn_all(store)
    challenge.create(store, "other", challenge.choose_parts(store, None, (), {}), seed=5)
    send(store, the_events()[600:800])
    learn_all(store)
    return store


def learn_all(store: Store) -> None:
    with Learners(store) as learners:
        assert all(tick is not None for tick in learners.all())


def weights(store: Store) -> str:
    newest = store.versions.latest()
    assert newest is not None
    return str(newest["weights"])


def wrong(store: Store, call: Call, capsys: Captured) -> str:
    """What `verify` says is wrong."""
    capsys.readouterr()
    assert call("verify", store.folder) == 1
    return "\n".join(line for line in capsys.readouterr().out.splitlines() if "WRONG" in line)


# Versions.


def test_a_version_of_another_model_is_passed_over(store: Store, call: Call, capsys: Captured) -> None:
    """It is whole, and its nets have the right shapes."""
    other = challenge.find_challenger(store, "other")
    expected, number = weights(store), store.versions.published()[-1]
    for suffix in (".json", ".safetensors"):
        shutil.copy(other.home / "models" / f"{number:09d}{suffix}", store.folder / "models" / f"{number:09d}{suffix}")
    assert f"version {number} has no whole manifest or no state, or is of another model" in wrong(store, call, capsys)
    learn_all(Store.open(store.folder))
    assert weights(Store.open(store.folder)) == expected
    assert call("verify", store.folder) == 0


def test_a_version_under_another_number_is_passed_over(store: Store, call: Call, capsys: Captured) -> None:
    numbers, models = store.versions.published(), store.folder / "models"
    for suffix in (".json", ".safetensors"):
        shutil.copy(models / f"{numbers[0]:09d}{suffix}", models / f"{numbers[-1] + 3:09d}{suffix}")
    assert f"version {numbers[-1] + 3} has no whole manifest" in wrong(store, call, capsys)
    assert Store.open(store.folder).versions.published() == numbers


def test_lost_versions_are_learnt_again_and_said(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    expected, numbers = weights(store), store.versions.published()
    for path in (store.folder / "models").glob("*.*"):
        if path.stem.isdecimal() and int(path.stem) > numbers[2]:
            path.unlink()
    with caplog.at_level(logging.WARNING):
        learnt(store)
    assert f"versions {numbers[2] + 1} to {numbers[-1]} are lost or damaged" in caplog.text
    assert weights(store) == expected


def test_a_lost_folder_of_versions_is_noticed_and_made_again(store: Store, call: Call, capsys: Captured) -> None:
    expected = weights(store)
    for home in (store.folder, challenge.find_challenger(store, "other").home):
        shutil.rmtree(home / "models")
    said = wrong(store, call, capsys)
    assert "versions: WRONG: versions 0 to " in said
    assert "challenger other: WRONG: versions 0 to " in said
    RoutedScorer(store).refresh()
    assert call("tick", store.folder) == 0
    assert weights(store) == expected
    assert call("verify", store.folder) == 0


def test_an_older_version_does_not_serve_in_silence(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    *_, before, newest = store.versions.published()
    for number, name in ((None, "json"), (newest, "safetensors")):  # nobody has chosen one; it was chosen
        store.versions.promote(number)
        path = store.folder / "models" / f"{newest:09d}.{name}"
        content = path.read_bytes()
        path.write_bytes(content[:-100])
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            scorer = RoutedScorer(store)
            scorer.refresh()
        assert scorer.main.ready().version == before
        assert f"version {newest} is lost or damaged: version {before} serves" in caplog.text
        path.write_bytes(content)
    caplog.clear()
    RoutedScorer(store).refresh()
    assert not caplog.text


# The choice of models.


def damage_value(path: Path, _: bytes) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"version": 0}))


def put_back(path: Path, older: bytes) -> None:
    path.write_bytes(older)


def remove(path: Path, _: bytes) -> None:
    path.unlink()


def exchange(path: Path, _: bytes) -> None:
    shutil.copy(path.parent / "challengers" / "other" / "challenger.json", path)


@pytest.mark.parametrize("how", [damage_value, put_back, remove, exchange])
def test_another_choice_is_noticed_and_mended(
    how: Callable[[Path, bytes], None], store: Store, call: Call, capsys: Captured
) -> None:
    path, numbers = store.folder / choices.NAME, store.versions.published()
    store.versions.promote(numbers[0])
    challenge.promote_challenger(store, "other")
    older = path.read_bytes()
    challenge.promote_own(store, numbers[-1])
    chosen = path.read_bytes()
    service = Service(store, Tokens(), Limits(), LearnerState)
    for act in (lambda: Store.open(store.folder), lambda: learn_all(store), service.look):
        how(path, older)
        assert f"choice of models: WRONG: {path} is not what the log knows" in wrong(store, call, capsys)
        act()
        assert path.read_bytes() == chosen
    assert service.models.own.ready().version == numbers[-1]
    assert call("verify", store.folder) == 0


def test_the_newer_choice_counts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that was killed between the file and the log; a log that has lost its end."""
    challenge.promote_challenger(store, "other")
    with monkeypatch.context() as patch:
        patch.setattr(EventDatabase, "keep_choice", lambda *_: None)
        challenge.promote_own(store, None)
    newer = choices.Choice(number=2)
    assert choices.read(store.folder) == newer
    Store.open(store.folder)
    (store.folder / choices.NAME).unlink()
    Store.open(store.folder)
    assert choices.read(store.folder) == newer


def test_a_choice_that_nobody_made_is_refused(store: Store) -> None:
    (store.folder / choices.NAME).write_text("{}")
    Store.open(store.folder)
    with pytest.raises(UserError, match="is damaged: remove it"):
        choices.read(store.folder)


def test_a_chosen_version_that_is_lost_is_noticed(store: Store, call: Call, capsys: Captured) -> None:
    number = store.versions.published()[-2]
    store.versions.promote(number)
    assert call("verify", store.folder) == 0
    (store.folder / "models" / f"{number:09d}.json").unlink()
    assert f"version {number} was chosen to serve, and is lost or damaged" in wrong(store, call, capsys)


# Challengers that are gone.


def test_the_definition_of_another_challenger_is_damage(store: Store, call: Call, capsys: Captured) -> None:
    challenge.create(store, "third", challenge.choose_parts(store, None, (), {}), seed=6)
    shutil.copy(*(store.folder / "challengers" / name / "challenger.json" for name in ("third", "other")))
    assert "challenger.json is of challenger 'third'" in wrong(store, call, capsys)
    with pytest.raises(UserError, match="is of challenger 'third'"):
        challenge.find_challenger(store, "other")


def lose_folder(home: Path) -> None:
    shutil.rmtree(home)


def lose_description(home: Path) -> None:
    (home / "challenger.json").unlink()


@pytest.mark.parametrize("lose", [lose_folder, lose_description])
def test_a_lost_challenger_is_noticed_and_can_be_dropped(
    lose: Callable[[Path], None], store: Store, call: Call, capsys: Captured, caplog: pytest.LogCaptureFixture
) -> None:
    home = challenge.find_challenger(store, "other").home
    challenge.promote_challenger(store, "other")
    lose(home)
    assert f"challenger other: WRONG: {home}" in wrong(store, call, capsys)
    with caplog.at_level(logging.ERROR):
        RoutedScorer(store).refresh()
        learn_all(store)
    assert ("challenger other is missing and learns nothing" in caplog.text) == (lose is lose_folder)
    assert ("challenger other cannot learn" in caplog.text) == (lose is lose_description)
    assert "challenger other cannot answer, and the store's own model does" in caplog.text
    shutil.rmtree(home, ignore_errors=True)
    assert call("models", "promote", store.folder, "newest") == 0
    assert call("models", "drop", store.folder, "other") == 0
    assert call("verify", store.folder) == 0


@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"problem": 3}'])
def test_a_damaged_problem_of_a_challenger_is_said_and_goes(text: str, store: Store, call: Call) -> None:
    path = challenge.find_challenger(store, "other").home / "problem.json"
    path.write_text(text)
    assert str(path) in status_of(store)["challengers"]["other"]["problem"]
    assert call("status", store.folder) == 0
    learn_all(store)
    assert status_of(store)["challengers"]["other"]["problem"] is None


def test_a_log_that_is_older_than_what_a_challenger_has_learnt_is_noticed(
    store: Store, call: Call, capsys: Captured
) -> None:
    """The end of the write-ahead log is lost: it has what the store's own model has learnt, and nothing later."""
    log = store.log()
    log._db.execute("DELETE FROM ticks WHERE model = 'other' AND number >= (SELECT max(number) FROM ticks)")
    log._db.execute("DELETE FROM series WHERE name = 'other' AND first = (SELECT max(first) FROM series)")
    log.close()
    assert "challenger other: WRONG: " in wrong(store, call, capsys)
    learn_all(store)
    problem = status_of(store)["challengers"]["other"]["problem"]
    assert "events.db is older than version" in problem
    assert str(challenge.find_challenger(store, "other").home / "models") in problem


# The log.


def test_exchanged_pages_of_the_log_are_noticed_before_anything_is_learnt(
    made: Made, call: Call, capsys: Captured
) -> None:
    """Leaves of its indexes, each with the right checksum: reads would miss events."""
    store = made("vanilla")
    send(store, the_events())
    path = store.folder / "events.db"
    whole, leaves = path.read_bytes(), list[int]()
    for at in range(_PAGE, len(whole), _PAGE):
        if whole[at] == 10:  # a leaf of an index
            leaves.append(at)
    assert len(leaves) > 10
    for one, other in zip(leaves[-8::2], leaves[-7::2], strict=True):
        content = bytearray(whole)
        content[one : one + _PAGE], content[other : other + _PAGE] = (
            whole[other : other + _PAGE],
            whole[one : one + _PAGE],
        )
        path.write_bytes(content)
        capsys.readouterr()
        assert call("tick", store.folder) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {path} is damaged (")
    assert not list((store.folder / "models").glob("*.json"))


def test_a_page_of_a_small_table_of_another_time_is_noticed(made: Made, hourly: Path) -> None:
    """No index tells that a page lacks its last content: counts, intervals closed, files of the archive, places of
    erased clicks."""
    store = made("vanilla", Settings(lateness=HOUR, keep=2), hourly)
    path, events = store.folder / "events.db", [e | {"user": f"u{int(e['click_id']) % 5}"} for e in the_events()]
    send(store, events[:1400])
    learnt(store)
    compact(store)
    erase(store, "u2")
    old = path.read_bytes()
    send(store, events[1400:1500])
    learnt(store)
    compact(store)
    erase(store, "u3")
    new = path.read_bytes()
    log = store.log()
    query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
    roots = {name: log._one(query, (name,)) for name in ("facts", "closings", "archives", "erased", "sums")}
    log.close()
    for name, number in roots.items():
        at = (number - 1) * _PAGE
        assert old[at : at + _PAGE] != new[at : at + _PAGE], name
        path.write_bytes(new[:at] + old[at : at + _PAGE] + new[at + _PAGE :])
        with pytest.raises(UserError, match=r"events\.db (is damaged|has lost events|is older)"):
            learnt(Store.open(store.folder))
    path.write_bytes(new)
    learnt(Store.open(store.folder))


def test_a_small_table_of_another_time_is_not_written_over(store: Store) -> None:
    """Events that come before the learner starts would give it a new hash."""
    log = store.log()
    log._db.execute("UPDATE facts SET value = value - 1 WHERE name = 'clicks'")
    with pytest.raises(UserError, match="table facts is not as it was written"):
        send(store, the_events()[800:900])
    log.close()


@pytest.mark.parametrize("column", ["name", "ts", "content"])
def test_what_is_set_aside_is_not_another(column: str, store: Store, call: Call, capsys: Captured) -> None:
    """Long messages have pages of their own."""
    event = the_events()[0]
    send(store, [event | {"ts": event["ts"] + 1}])
    log = store.log()
    log._db.execute(f"UPDATE aside SET {column} = (SELECT {column} || '0' FROM aside)")
    with pytest.raises(UserError, match="what is set aside is not as it was written"):
        log.aside()
    log.close()
    assert "what is set aside is not as it was written" in wrong(store, call, capsys)
    assert call("tick", store.folder) == 2


def test_positions_of_another_time_are_noticed(store: Store) -> None:
    log = store.log()
    log.begin({"nats:a": "one"}, {"nats:a/0": 0}, {})
    for change in ("sources SET identity = 'two'", "positions SET position = 7"):
        log._db.execute(f"UPDATE {change}")
    assert log.damage()[:2] == ["table sources is of another time", "table positions is of another time"]
    with pytest.raises(UserError, match=r"table (sources|positions) is not as it was written"):
        log.begin({"nats:a": "one"}, {"nats:a/0": 0}, {})
    log.close()


# Folders in place of files.


@pytest.mark.parametrize("name", ["events.position", "models/{}.json", "models/{}.safetensors"])
def test_a_folder_in_place_of_a_file_is_refused_in_words(name: str, store: Store, call: Call, capsys: Captured) -> None:
    send(store, the_events()[800:900])
    path = store.folder / name.format(f"{store.versions.published()[-1]:09d}")
    path.unlink()
    path.mkdir()
    assert call("tick", store.folder) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"error: {path}: a folder is in place of a file: move it away")


def test_a_state_that_nobody_may_read_is_learnt_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, state = weights(store), store.versions.state({"intervals": store.versions.published()[-1]})

    def read(path: Path) -> str:
        if path == state:
            raise PermissionError(13, "Permission denied", str(path))
        return sha256(path)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "sha256", read)
        assert store.versions.serving() != store.versions.published()[-1]
    learn_all(store)
    assert weights(store) == expected


@pytest.mark.parametrize("how", ["lost", "exchanged", "of another table"])
def test_a_page_of_long_features_that_is_another_is_noticed_before_it_is_learnt_from(
    how: str, made: Made, call: Call, capsys: Captured
) -> None:
    """The checksum of a page of zeros is zero, and those of exchanged pages are right."""
    store = made("vanilla")
    events = [
        e | {"features": e["features"] | {"item": f"{n:04}" * 1500}} if "features" in e else e
        for n, e in enumerate(the_events()[:200])
    ]
    send(store, events)
    path = store.folder / "events.db"
    content = path.read_bytes()
    pages = [content[at : at + _PAGE] for at in range(0, len(content), _PAGE)]
    ours = [number for number, page in enumerate(pages) if page[:4] == bytes(4) and page[4:8].isdigit()]
    assert len(ours) > 10
    others = {"lost": bytes(_PAGE), "exchanged": pages[ours[7]], "of another table": pages[1]}
    pages[ours[3]] = others[how]
    path.write_bytes(b"".join(pages))
    assert "log: WRONG" in wrong(store, call, capsys)
    assert call("tick", store.folder) == 2
    assert f"error: {path} is damaged" in capsys.readouterr().err
    assert not list((store.folder / "models").glob("*.json"))


@pytest.mark.parametrize("change", ["'c17'", "replace(content, 'clicks', 'klicks')", "CAST(x'ff' AS TEXT)"])
def test_a_tick_that_is_something_else_is_refused_in_one_line(change: str, store: Store) -> None:
    """As rows of an exchanged page are."""
    log = store.log()
    log._db.execute(f"UPDATE ticks SET content = {change} WHERE model = ''")
    with pytest.raises(UserError, match="is not as it was written"):
        log.ticks(1)
    log.close()


def test_a_log_that_is_older_than_what_was_learnt_is_refused(
    store: Store, tmp_path: Path, call: Call, capsys: Captured
) -> None:
    """As many events, but from before they were learnt: a copy, or a write-ahead log, of that time was put back."""
    send(store, the_events()[800:900])
    shutil.copy(store.folder / "events.db", tmp_path / "events.db")
    learn_all(store)
    shutil.copy(tmp_path / "events.db", store.folder / "events.db")
    assert call("tick", store.folder) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "events.db is older than version" in line
    kept = int(line.rpartition("versions after ")[2].split()[0])
    for path in (store.folder / "models").glob("*.*"):
        if path.stem.isdecimal() and int(path.stem) > kept:
            path.unlink()
    assert call("tick", store.folder) == 0
