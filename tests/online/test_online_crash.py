"""The live learner under kills, full and read-only disks, damaged snapshots and wrong clocks: nothing accepted is lost,
nothing counts twice, and the weights come out the same to the byte."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import Call

from crashing import LATENESS, each_event_once, learn_all, same_in_the_end, send, small_events, small_store, survived
from tracecvr.base.errors import UserError
from tracecvr.data.table import NEVER
from tracecvr.methods.vanilla import Vanilla
from tracecvr.online.learner.archive import compact
from tracecvr.online.learner.learner import open_learner
from tracecvr.online.log.event_log import EventLog
from tracecvr.online.log.events import Event
from tracecvr.online.log.times import Grid
from tracecvr.online.store.store import Store
from tracecvr.online.store.versions import Versions
from tracecvr.online.upkeep.verify_log import verify_log

# Kills.


def test_ten_kills_change_nothing(tmp_path: Path) -> None:
    toll = survived(tmp_path, kills=10, intervals=24, seed=1)
    assert sum(toll.kills.values()) == 10


@pytest.mark.slow
@pytest.mark.parametrize("lateness", [LATENESS, 2 * LATENESS], ids=["in time", "some late"])
def test_200_kills_change_nothing(tmp_path: Path, lateness: int) -> None:
    toll = survived(tmp_path, kills=200, intervals=400, seed=2, lateness=lateness)
    assert min(toll.kills.values()) > 50
    assert toll.half_snapshots, "no kill hit a snapshot"
    assert toll.unheard, "no kill hit between a commit and its acknowledgement"


def test_a_tick_is_recorded_though_the_learner_was_killed_right_after_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path)

    def save_and_end(*given: Any) -> None:
        save(*given)
        raise KeyboardInterrupt

    save = Versions.save
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt), open_learner(store) as learner:
        patch.setattr(Versions, "save", save_and_end)
        learner.tick()
    assert [number for number, _ in store.log().ticks()] == [0]
    learn_all(store)
    assert [number for number, _ in store.log().ticks()] == list(range(store.log().closed()))


# Damaged snapshots.

INTERVALS = 6


def filled(room: Path) -> Store:
    """A store of a few intervals whose events are all there, and nothing learnt."""
    store = small_store(room / "store", INTERVALS)
    log = store.log()
    send(log, store, small_events(INTERVALS))
    log.close()
    return store


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store that has learnt all it has; to be copied."""
    store = filled(tmp_path_factory.mktemp("learnt"))
    learn_all(store)
    return store


@pytest.mark.parametrize("suffix", ["safetensors", "json"])
@pytest.mark.parametrize("damage", [truncated, emptied, flipped, Path.unlink])
def test_a_damaged_snapshot_is_left_out_and_made_again(
    suffix: str, damage: Callable[[Path], None], learnt: Store, tmp_path: Path
) -> None:
    store = Store.open(shutil.copytree(learnt.folder, tmp_path / "store"))
    newest = Versions(store.folder, 48).latest()
    assert newest is not None
    damage(store.folder / "models" / f"{newest['intervals']:09d}.{suffix}")
    before = Versions(store.folder, 48).latest()
    assert before is not None
    assert before["intervals"] == newest["intervals"] - 1
    assert learn_all(store) == newest["weights"]
    same_in_the_end(store, learnt)


def test_if_every_snapshot_is_lost_all_is_learnt_again_from_log_and_archive(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", intervals=70, hourly=3, method=Vanilla, keep=2)
    send(store.log(), store, small_events(70, hourly=3))
    weights = learn_all(store)
    assert compact(store) > 0, "or there is nothing to be shown"
    shutil.rmtree(store.folder / "models")
    (store.folder / "models").mkdir()
    assert learn_all(store) == weights


# Full disks.


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """What a full disk is to whoever writes: the kernel refuses to let a file grow."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_refuses_a_batch_as_a_whole_and_accepts_it_later(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", INTERVALS)
    events = [event | {"user": 500 * "u"} for event in small_events(INTERVALS)]
    log = store.log()
    send(log, store, events[:20])
    before = log.before(NEVER)
    log._db.pragma("max_page_count", log._db.pragma("page_count"))
    with pytest.raises(UserError, match=r"events\.db: could not be written .*full.*free some space.*is safe"):
        send(log, store, events)
    assert log.before(NEVER) == before
    log._db.pragma("max_page_count", 1 << 20)
    send(log, store, events)
    each_event_once(store, events)


def test_a_log_that_cannot_grow_refuses_a_batch_and_accepts_it_later(tmp_path: Path) -> None:
    store, events = small_store(tmp_path / "store", INTERVALS), small_events(INTERVALS)
    log = store.log()
    send(log, store, events[:20])
    size = (tmp_path / "store" / "events.db-wal").stat().st_size
    with no_file_larger_than(size), pytest.raises(UserError, match="could not be written"):
        send(log, store, events)
    assert len(log.before(NEVER)) == 20
    send(log, store, events)
    each_event_once(store, events)


def test_a_learner_on_a_full_disk_says_so_and_goes_on_where_it_was(
    tmp_path: Path, learnt: Store, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    store = filled(tmp_path)
    with open_learner(store) as learner:
        learner.tick()
    sizes = {path.suffix: path.stat().st_size for path in (store.folder / "models").glob("0*1.*")}
    for size, culprit in ((0, ""), (sizes[".safetensors"] - 1, "models/000000002.safetensors")):
        with no_file_larger_than(size):
            assert call("tick", store.folder) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"error: {store.folder / culprit}: could not be")
        assert "free some space" in said
        assert verify_log(store).same
    learn_all(store)
    same_in_the_end(store, learnt)


# Read-only disks.


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nobody may write there. Permissions do not stop root, so while this lasts root is somebody else."""
    paths = [folder, *folder.rglob("*")]
    modes = [path.stat().st_mode for path in paths]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        for path, mode in zip(paths, modes, strict=True):
            path.chmod(mode)


@pytest.fixture
def open_room() -> Iterator[Path]:
    """A directory that other users may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="tracecvr_") as room:
        Path(room).chmod(0o755)
        yield Path(room)


def test_a_read_only_disk_is_named_and_nothing_is_lost(
    open_room: Path, learnt: Store, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    store, events = small_store(open_room / "store", INTERVALS), small_events(INTERVALS)
    half = len(events) // 2
    log = store.log()
    send(log, store, events[:half])
    log.close()
    learn_all(store)
    with read_only(store.folder):
        with pytest.raises(UserError, match=r"events\.db: could not .*make it writable.*is safe"):
            send(store.log(), store, events[half:])
        assert call("learn", store.folder) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {store.folder}")
    send(store.log(), store, events[half:])
    each_event_once(store, events)
    learn_all(store)
    same_in_the_end(store, learnt)


def test_a_disk_that_becomes_read_only_under_a_writer_refuses_the_batch(open_room: Path) -> None:
    store, events = small_store(open_room / "store", INTERVALS), small_events(INTERVALS)
    log = store.log()
    send(log, store, events[:10])
    log._db.pragma("query_only", True)
    with pytest.raises(UserError, match=r"could not be written .*make it writable"):
        send(log, store, events)
    log._db.pragma("query_only", False)
    send(log, store, events)
    each_event_once(store, events)


# Two learners.


def test_a_second_learner_is_refused_and_the_first_goes_on(
    tmp_path: Path, learnt: Store, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    store = filled(tmp_path)
    with open_learner(store) as learner:
        learner.tick()
        for command in ("learn", "tick"):
            assert call(command, store.folder) == 2
            said = capsys.readouterr().err
            assert f"{store.folder / 'models'} is in use by another process" in said
            assert "--out" not in said, "there is no such option here"
        assert learner.tick() is not None
    learn_all(store)
    same_in_the_end(store, learnt)


# Clocks.

GRID = Grid(split=0, interval=100, lateness=50, d_max=1000, skew=60, origin=0)


def logged(path: Path, clock: Callable[[], float], times: list[int]) -> tuple[dict[str, int], int, list[int]]:
    """Counts, closed intervals and when each event became known, of events sent one by one."""
    log = EventLog(path, GRID, clock)
    for number, ts in enumerate(times):
        log.append([Event(f"c{number}", 0, number, ts, None, "[]")])
    return log.facts(), log.closed(), [row[5] for row in log.before(NEVER)]


def test_a_clock_that_jumps_back_delays_events_and_loses_none(tmp_path: Path) -> None:
    times = [10, 120, 260, 300, 250, 410]
    clocks = iter([1000, 1001, 3, 0, 500, 7, 1002])
    facts, closed, seen = logged(tmp_path / "a.db", lambda: next(clocks), [*times, 90])
    assert facts["future"] == 3
    _, closed_in_order, _ = logged(tmp_path / "b.db", lambda: 1001, [*times, 90])
    assert (facts["clicks"], facts["watermark"]) == (len(times) + 1, 360)
    assert closed == closed_in_order
    assert len(seen) == len(times) + 1


def test_a_clock_that_jumps_ahead_lets_the_future_in_only_as_long_as_it_does(tmp_path: Path) -> None:
    clocks = iter([100, 10**6, 101, 102])
    facts, closed, _ = logged(tmp_path / "a.db", lambda: next(clocks), [90, 95, 10**5, 162])
    assert facts["future"] == 1, "162 is within the skew of the clock, 10**5 is not: it was right only for a moment"
    assert (facts["watermark"], closed) == (112, 1)


def test_an_event_of_the_future_is_set_aside_and_never_moves_the_watermark(tmp_path: Path) -> None:
    facts, closed, seen = logged(tmp_path / "a.db", lambda: 200, [190, 10**9, 261, 200])
    assert facts["future"] == 2
    assert facts["clicks"] == 2
    assert (facts["watermark"], closed) == (150, 1)
    assert seen == [190, 200]
