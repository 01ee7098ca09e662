"""Whole files of another copy of a store, or of another time of it: each is as it was written, and they do not belong
together. Found by an attack on copies that had gone on with different events."""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from livestore import Made, learnt, send, the_events
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json
from tracecvr.online.challengers.learners import Learners
from tracecvr.online.learner.archive import erase
from tracecvr.online.learner.learner import open_learner
from tracecvr.online.log.event_log import EventLog
from tracecvr.online.log.times import Grid
from tracecvr.online.service.auth import Tokens
from tracecvr.online.service.options import Limits
from tracecvr.online.service.processes import LearnerState
from tracecvr.online.service.scorer import RoutedScorer
from tracecvr.online.service.scoring import Service
from tracecvr.online.store import challenge
from tracecvr.online.store.store import Settings, Store
from tracecvr.online.upkeep.store_check import verify

_PAGE = 4096


def learn_all(store: Store) -> None:
    with Learners(store) as learners:
        assert all(tick is not None for tick in learners.all())


@pytest.fixture
def twins(made: Made, tmp_path: Path) -> tuple[Store, Store]:
    """Two copies of a store with a challenger, of which one has got a conversion less. They have as many events."""
    store = made("trace")
    send(store, the_events()[:500])
    challenge.create(store, "other", challenge.choose_parts(store, None, (), {}), seed=5)
    learn_all(store)
    copy = Store.open(shutil.copytree(store.folder, tmp_path / "copy"))
    send(store, the_events()[500:800])
    send(copy, [*the_events()[500:600], *the_events()[601:801]])
    for one in (store, copy):
        learn_all(one)
    return Store.open(store.folder), Store.open(copy.folder)


def whole(store: Store) -> bool:
    return all(finding.fine for finding in verify(store))


def test_a_version_of_a_copy_is_not_learnt_from(twins: tuple[Store, Store]) -> None:
    ours, theirs = (store.versions.published()[-1] for store in twins)
    assert ours == theirs
    store, copy = twins
    assert whole(store)
    for suffix in (".json", ".safetensors"):
        shutil.copy(copy.folder / "models" / f"{ours:09d}{suffix}", store.folder / "models")
    with pytest.raises(UserError, match=rf"knows other weights of version {ours} .* from {ours} on"):
        Store.open(store.folder)
    assert not whole(store)
    for suffix in (".json", ".safetensors"):
        (store.folder / "models" / f"{ours:09d}{suffix}").unlink()
    learn_all(Store.open(store.folder))
    assert whole(store)


def test_the_log_of_a_copy_is_not_learnt_from(twins: tuple[Store, Store]) -> None:
    store, copy = twins
    for path in store.folder.glob("events.*"):
        path.unlink()
    for path in copy.folder.glob("events.*"):
        shutil.copy(path, store.folder)
    with pytest.raises(UserError, match="knows other weights of version"):
        learnt(Store.open(store.folder))


def test_a_challengers_version_of_a_copy_is_not_served(
    twins: tuple[Store, Store], caplog: pytest.LogCaptureFixture
) -> None:
    homes = [challenge.find_challenger(store, "other").home / "models" for store in twins]
    shutil.copytree(homes[1], homes[0], dirs_exist_ok=True)
    challenge.promote_challenger(twins[0], "other")
    service = Service(twins[0], Tokens(), Limits(), LearnerState)
    service.look()
    assert service.scorer.ready().name is None
    assert "challenger other cannot answer, and the store's own model does" in caplog.text


def test_an_erasure_that_an_older_log_does_not_have_is_missed(made: Made, tmp_path: Path) -> None:
    """As many events were acknowledged when the copy was made."""
    store = made("vanilla")
    send(store, [event | {"user": f"u{int(event['click_id']) % 5}"} for event in the_events()[:300]])
    learnt(store)
    shutil.copy(store.folder / "events.db", tmp_path / "events.db")
    erase(store, "u2")
    learnt(Store.open(store.folder))
    shutil.copy(tmp_path / "events.db", store.folder / "events.db")
    with pytest.raises(UserError, match="has lost events"):
        Store.open(store.folder)


def test_a_page_of_ticks_that_was_not_written_is_noticed(tmp_path: Path) -> None:
    """Whatever is in it: not the newest ticks alone are shown."""
    dice, path, pages = random.Random(0), tmp_path / "events.db", list[list[bytes]]()
    for number in range(40):
        with closing(EventLog(path, Grid(0, HOUR, HOUR, DAY))) as log:
            log.record(number, {"weights": "w" * dice.choice([60, 200, 900])})
            leaves = {n - 1 for (n,) in log._rows("SELECT pageno FROM dbstat WHERE name = 'ticks'")}
        pages.append(pages_of(path))
    *before, newest = pages
    lost = {(number, old[number]) for old in before for number in leaves & set(range(len(old)))}
    lost -= set(enumerate(newest))
    assert len(lost) > 10
    for number, page in lost:
        path.write_bytes(b"".join([*newest[:number], page, *newest[number + 1 :]]))
        with closing(EventLog(path, Grid(0, HOUR, HOUR, DAY))) as log:
            assert log.damage()


def pages_of(path: Path) -> list[bytes]:
    content = path.read_bytes()
    return [content[at : at + _PAGE] for at in range(0, len(content), _PAGE)]


def test_the_end_of_a_long_row_that_is_another_is_noticed(made: Made) -> None:
    """Neither the features nor the user are long; together they are."""
    store = made("vanilla")
    clicks = [event for event in the_events() if event["type"] == "click"][:40]
    long = [{"user": "u" * 2000, "features": e["features"] | {"item": f"{n:04}" * 600}} for n, e in enumerate(clicks)]
    send(store, [event | texts for event, texts in zip(clicks, long, strict=True)])
    path = store.folder / "events.db"
    pages = pages_of(path)
    ends = [number for number, page in enumerate(pages) if page[:4] == bytes(4) and page[4:5] == b"u"]
    assert len(ends) > 10
    pages[ends[3]], pages[ends[7]] = pages[ends[7]], pages[ends[3]]
    path.write_bytes(b"".join(pages))
    assert not whole(store)


def test_a_version_that_is_damaged_while_somebody_works_with_it_changes_nothing(made: Made) -> None:
    """Neither what is learnt from it nor what is served: whoever has read it has it in memory."""
    store = made("trace")
    send(store, the_events()[:600])
    expected = learnt(store)[0]
    models = RoutedScorer(store)
    models.refresh()
    state = store.versions.state({"intervals": store.versions.published()[-1]})
    with open_learner(store) as learner:
        with state.open("r+b") as file:  # where it is, as a disk does
            file.seek(state.stat().st_size // 20)
            file.write(bytes(state.stat().st_size * 9 // 10))
        assert learner.engine.fingerprint() == models.own.ready().engine.fingerprint() == expected


def test_files_among_the_versions_that_are_none_stay_and_displace_none(made: Made) -> None:
    store = made("vanilla", Settings(lateness=HOUR, keep=3))
    send(store, the_events()[:600])
    learnt(store)
    strays = [store.folder / "models" / name for name in ("notes.json", "x.json", "y.json", "z.safetensors")]
    for path in strays:
        path.write_text("{}")
    send(store, the_events()[600:900])
    learnt(store)
    assert all(path.exists() for path in strays)
    assert len(store.versions.manifests()) == 3


def test_an_event_that_is_known_and_cannot_be_found_is_damage(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after the loss of a page of the index: it is refused as known, and nothing is there."""
    store = made("vanilla")
    send(store, the_events()[:10])
    monkeypatch.setattr(EventLog, "_select", lambda *_: [])
    with pytest.raises(UserError, match="table events is not as it was written"):
        send(store, the_events()[:10])


@pytest.mark.parametrize("text", ["9" * 5000, "[" * 100_000], ids=["a long number", "deep"])
def test_json_that_python_does_not_read_is_damage(text: str, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(UserError, match="not readable as JSON"):
        read_json(tmp_path / "file.json")
