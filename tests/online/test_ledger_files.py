"""The ledger on disk: killed anywhere, damaged, copied, gone, or with users to be forgotten, it is the
ledger that the log would give."""

from __future__ import annotations

import mmap
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Call
from hypothesis import example, given, settings
from hypothesis import strategies as st

from livestore import Made, finish, learnt, send, the_events
from tracecvr.base.config import HOUR
from tracecvr.online.learner import archive
from tracecvr.online.learner.learner import ledger_of, opened
from tracecvr.online.ledger import files as ledger_files
from tracecvr.online.ledger import segments, sorted_runs
from tracecvr.online.ledger.files import LedgerFiles
from tracecvr.online.ledger.ledger import Ledger
from tracecvr.online.ledger.segments import Segment, SegmentedTable
from tracecvr.online.ledger.sorted_runs import Run, SortedRuns
from tracecvr.online.store.store import Settings, Store
from tracecvr.online.store.versions import Versions
from tracecvr.online.upkeep.verify_log import verify_log

# The parts.


LAYOUT = {"time": ("i8", 0), "pair": ("i8", 2), "ids": ("i4", 3), "flag": ("?", 0)}


def rows_of(first: int, count: int) -> dict[str, Any]:
    number = np.arange(first, first + count)
    ids = np.stack([number] * 3, 1).astype(np.int32)
    return {"time": number // 3 + 1, "pair": np.stack([number, -number], 1), "ids": ids, "flag": number % 2 == 0}


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Segments of a few rows, and runs that are merged by pairs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SMALLEST", 4)
        patch.setattr(segments, "LARGEST", 256)
        for name, value in {"_TOGETHER": 2, "_CHUNK": 16, "_SAMPLED": 4}.items():
            patch.setattr(sorted_runs, name, value)
        yield


STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "write", "truncate", "drop", "open"]), st.integers(0, 40)), max_size=25
)


@settings(max_examples=40)
@given(steps=STEPS)
def test_a_segmented_table_reads_as_an_array(steps: list[tuple[str, int]], tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("segments")
    table, plain = SegmentedTable(folder, "t", LAYOUT), rows_of(0, 0)
    first = 0
    for step, size in steps:
        end = first + len(plain["time"])
        if step == "append":
            table.append(rows_of(end, size))
            plain = {name: np.concatenate([plain[name], values]) for name, values in rows_of(end, size).items()}
        elif step == "write" and end > first:
            at = np.unique(np.random.default_rng(size).integers(first, end, 7))
            table.write(at, {"pair": np.stack([at * 5, at], 1)}, 0)
            plain["pair"][at - first] = np.stack([at * 5, at], 1)
        elif step == "truncate":
            table.truncate(max(first, end - size))
            plain = {name: values[: max(0, len(values) - size)] for name, values in plain.items()}
        elif step == "drop":
            table.drop(first + min(size, end - first))
            plain = {name: values[table.first - first :] for name, values in plain.items()}
            first = table.first
        else:
            table.sync()
            again = SegmentedTable(folder, "t", LAYOUT)
            again.load(table.state())
            table = again
        assert not table.wrong()
    for name, values in plain.items():
        column = table.column(name)
        assert len(column) == len(values)
        assert np.array_equal(column[:], values)
        assert np.array_equal(column[3:20], values[3:20])
        if len(values):
            some = np.random.default_rng(0).integers(0, len(values), 30)
            assert np.array_equal(column[some], values[some])
            assert np.array_equal(column[len(values) - 1], values[-1])
    assert np.array_equal(table.column("pair")[:, 1], plain["pair"][:, 1])
    for value in range(0, 20):
        for side in ("left", "right"):
            assert table.column("time").searchsorted(value, side) == np.searchsorted(plain["time"], value, side)


def test_a_flipped_bit_of_a_segment_is_noticed(tmp_path: Path) -> None:
    table = SegmentedTable(tmp_path, "t", LAYOUT)
    table.append(rows_of(0, 4))
    (path,) = table.files()
    for at in (0, 8 * 3, 8 * 4 + 16 * 3 + 15):  # of the first row, and of the last
        table._segments[0]._map[at] ^= 4  # type: ignore[index]
        assert table.wrong() == [path]
        table._segments[0]._map[at] ^= 4  # type: ignore[index]
    assert not table.wrong()


class Disk:
    """What a loss of power would leave of the segments: pages that were flushed, and zeros."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.held: dict[Path, bytearray] = {}
        patch.setattr(segments, "_PAGE", 8)  # so that neighbours are not written along
        patch.setattr(Segment, "_flush", lambda segment, *given: self._flush(segment.path, *given))

    def _flush(self, path: Path, mapped: mmap.mmap, first: int, size: int) -> None:
        held = self.held.setdefault(path, bytearray(len(mapped)))
        held[first : first + size] = mapped[first : first + size]

    def lose_power(self, folder: Path) -> None:
        for path in [path for name in ("clicks", "actions", "waiting") for path in folder.glob(f"{name}.*")]:
            path.write_bytes(self.held.get(path, bytes(path.stat().st_size)))


@settings(max_examples=40)
@given(steps=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=25))
@example(steps=[(30, 0, 0)] * 10 + [(0, 40, 0)] + [(0, 0, 0)] * 10)
def test_what_is_due_is_on_disk(steps: list[tuple[int, int, int]], tmp_path_factory: Any) -> None:
    """What was appended is, at once; what was changed is before it has been waiting for too long."""
    folder, within = tmp_path_factory.mktemp("disk"), 6
    table = SegmentedTable(folder, "clicks", LAYOUT)
    changes: dict[int, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "LARGEST", 16)  # more segments than are written at a time
        disk = Disk(patch)
        for now, (added, changed, taken_back) in enumerate(steps):
            table.append(rows_of(table.end, added))
            at = np.unique(np.random.default_rng(changed).integers(0, max(1, table.end), min(changed, table.end)))
            table.write(at, {"ids": np.stack([at + now] * 3, 1)}, now)
            changes |= dict.fromkeys(at.tolist(), now)
            table.truncate(max(0, table.end - taken_back))
            table.sync_due(now + 1, within)
            assert table.changed_since(now + 1) > now - within
        synced = table.changed_since(len(steps))
    disk.lose_power(folder)
    left = SegmentedTable(folder, "clicks", LAYOUT)
    left.load(table.state())
    plain = rows_of(0, table.end)
    for name in ("time", "pair", "flag"):
        assert np.array_equal(left.column(name)[:], plain[name])
    sure = np.array([row for row in range(table.end) if changes.get(row, -1) < synced], np.int64)
    assert np.array_equal(left.column("ids")[sure], table.column("ids")[sure])


@settings(max_examples=40)
@given(
    adds=st.lists(st.lists(st.integers(-9, 9), max_size=30), max_size=12),
    cut=st.integers(0, 60),
    cheap=st.sampled_from([4, 40, 400]),
    together=st.integers(2, 3),
)
def test_sorted_runs_find_what_a_dictionary_would(
    adds: list[list[int]], cut: int, cheap: int, together: int, tmp_path_factory: Any, small: None
) -> None:
    runs, pairs, end = SortedRuns(tmp_path_factory.mktemp("runs"), "r"), [], 0
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"_TOGETHER": together, "_CHEAP": cheap, "_ADDS": 2}.items():
            patch.setattr(sorted_runs, name, value)
        for keys in adds:
            rows = np.arange(end, end + len(keys))
            runs.add(np.array(keys, np.int64), rows)
            pairs += list(zip(keys, rows.tolist(), strict=True))
            end += len(keys)
    bounds = [(run.first, run.end) for run in runs._runs]
    assert all(old[0] < old[1] <= new[0] for old, new in pairwise(bounds))
    gone = np.array([row for _, row in pairs if row % 7 == 3], np.int64)
    runs.remove(gone)
    runs.truncate(cut)
    pairs = [(key, row) for key, row in pairs if row % 7 != 3 and row < cut]
    again = SortedRuns(runs.folder, "r")
    again.load(runs.state())
    asked = np.arange(-10, 11)
    for index in (runs, again):
        which, rows = index.find(asked)
        assert sorted(zip(asked[which].tolist(), rows.tolist(), strict=True)) == sorted(pairs)
        assert sorted(index.between(-2, 5).tolist()) == sorted(row for key, row in pairs if -2 <= key < 5)
        assert not index.wrong()
    before = len(adds) and len(adds[0])
    for bound in (None, before):  # the first run is not asked about rows that others have
        newest = dict(pairs if bound is None else [(key, row) for key, row in pairs if row < _end_of(runs, bound)])
        assert runs.newest(asked, bound).tolist() == [newest.get(key, -1) for key in asked.tolist()]


def _end_of(runs: SortedRuns, before: int) -> int:
    """Where the last run ends that starts before a row."""
    return max((run.end for run in runs._runs if run.first < before), default=0)


def test_no_merge_is_larger_than_what_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much there is. There are few runs all the same, and quiet times do not leave many small ones."""
    merged, plain = [], SortedRuns._replace
    monkeypatch.setattr(sorted_runs, "_TOGETHER", 4)
    monkeypatch.setattr(sorted_runs, "_CHEAP", 64)
    monkeypatch.setattr(sorted_runs, "_ADDS", 16)

    def replace(self: SortedRuns, old: list[Run], level: int, without: Any = None) -> None:
        merged.append(sum(len(run.keys) for run in old))
        plain(self, old, level, without)

    monkeypatch.setattr(SortedRuns, "_replace", replace)
    runs, end, numbers = SortedRuns(tmp_path, "r"), 0, []
    for sizes in ([20] * 100, [1] * 100, [20] * 100, [20, 1] * 20):  # by day, by night, by day, now and then
        for size in sizes:
            merged.clear()
            runs.add(np.random.default_rng(end).integers(0, 1 << 40, size), np.arange(end, end + size))
            end += size
            assert sum(merged) <= 1.5 * max(64, 16 * size)
        numbers.append(len(runs._runs))
    assert max(numbers) < 40
    assert [run.first for run in runs._runs] == [0, *(run.end for run in runs._runs[:-1])]
    assert sum(len(run.keys) for run in runs._runs) == end


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
    "before actions are noted": (Ledger, "_note", killed),
    "before clicks are changed": (SegmentedTable, "write", killed),
    "after clicks are changed": (SegmentedTable, "write", after(SegmentedTable.write)),
    "before the ledger is committed": (LedgerFiles, "commit", killed),
    "after the ledger is committed": (LedgerFiles, "commit", after(LedgerFiles.commit)),
    "after the version is written": (Versions, "save", after(Versions.save)),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment_it_goes_on_from_its_files(
    moment: str, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made("trace")
    send(store, the_events()[:900])
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt), opened(store) as learner:
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
    with opened(store) as learner:
        ours, log = learner.ledger, ledger_of(store, learner.engine)
        log.rebuild(ours.done, ours.rows, dict(ours.counts))
        end = store.grid.bounds(ours.done)[0]
        since = end - ours.memory
        places = [ledger.known_between(since, end) for ledger in (ours, log)]
        assert len(places[0]) == len(places[1]) > 0
        for name in ("click_id", "click_ts", "arrival_ts", "action_ts", "known_ts", "refund_ts", "x"):
            one, other = (getattr(ledger.table, name)[at] for ledger, at in zip((ours, log), places, strict=True))
            assert np.array_equal(one, other), name
        assert not ours.files.wrong()


def test_after_a_loss_of_power_it_goes_on_from_what_is_on_disk(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it had been killed before, with changes that were not on disk."""
    disk, store = Disk(monkeypatch), made("trace")
    send(store, the_events()[:900])
    with opened(store) as learner:
        for _ in range(5):
            learner.tick()
    with opened(store) as learner:
        learner.tick()
        synced = learner.ledger.files.clicks.changed_since(learner.ledger.done)
        assert synced < learner.ledger.done  # something is only in the table of actions
    before = [path.read_bytes() for path in sorted((store.folder / "ledger").glob("clicks.*"))]
    disk.lose_power(store.folder / "ledger")
    assert before != [path.read_bytes() for path in sorted((store.folder / "ledger").glob("clicks.*"))]
    monkeypatch.setattr(ledger_files, "_place", lambda _: ["after the power came back"])
    monkeypatch.setattr(Ledger, "rebuild", never)
    learnt(store)
    monkeypatch.undo()
    assert verify_log(store).same
    same_as_from_the_log(store)


def test_a_replay_has_open_clicks_in_files_and_leaves_none(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made("trace")
    send(store, the_events()[:900])
    learnt(store)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    commit, held = LedgerFiles.commit, []

    def watched(files: LedgerFiles, *given: Any) -> None:
        commit(files, *given)
        assert files.folder is not None
        assert set(files.folder.iterdir()) == set(files._files())
        held.append(len(list(files.folder.iterdir())) + len(list((files.folder.parent / "answers").glob("*/*"))))

    monkeypatch.setattr(LedgerFiles, "commit", watched)
    monkeypatch.setattr(Segment, "sync", never)  # nobody opens it again: it waits for no disk
    assert verify_log(store).same
    assert len(held) > 10
    assert min(held) > 5
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


def test_a_copy_is_read_before_it_is_believed(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made("trace")
    send(store, the_events()[:1000])
    learnt(store)
    whole, damaged = (Store.open(shutil.copytree(store.folder, tmp_path / name)) for name in ("whole", "damaged"))
    segment = next((damaged.folder / "ledger").glob("clicks.*"))
    content = bytearray(segment.read_bytes())
    content[100] ^= 1
    segment.write_bytes(content)
    weights = learnt(damaged)  # built anew
    same_as_from_the_log(damaged)
    monkeypatch.setattr(Ledger, "rebuild", never)
    assert learnt(whole) == weights


@pytest.mark.parametrize("kind", ["clicks", "actions", "by_id", "ledger.json"])
def test_verify_finds_damage_and_the_ledger_is_built_anew(
    kind: str, made: Made, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    store = made("vanilla")
    send(store, the_events()[:1000])
    learnt(store)
    path = min((store.folder / "ledger").glob(f"{kind}*"))  # the last file may be empty
    content = bytearray(path.read_bytes())
    content[30] ^= 1
    path.write_bytes(content)
    assert call("verify", store.folder) == 1
    told = capsys.readouterr().out
    assert f"ledger: WRONG: {path} is damaged; remove {store.folder / 'ledger'}" in told
    shutil.rmtree(store.folder / "ledger")
    learnt(store)
    assert call("verify", store.folder, "--replay") == 0


def test_nobody_else_reads_the_ledger(made: Made) -> None:
    store = made("trace")
    send(store, the_events()[:1000])
    learnt(store)
    for name in ("ledger", "answers"):
        paths = [store.folder / name, *(store.folder / name).rglob("*")]
        assert len(paths) > 5
        assert not [path for path in paths if path.stat().st_mode & 0o077]


# Forgetting.


@pytest.mark.parametrize("running", [True, False], ids=["a learner runs", "at rest"])
def test_an_erased_user_is_in_no_file_of_the_ledger(
    running: bool, made: Made, hourly: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    archive.compact(store, store.engine().memory)
    assert ids_in(store, theirs)
    monkeypatch.setattr(Ledger, "rebuild", never)
    if running:
        with opened(store) as learner:
            archive.erase(store, "u3")
            learner.tick()
    else:
        archive.erase(store, "u3")
    assert not ids_in(store, theirs)
    assert ids_in(store, {e["click_id"] for e in events[:half]} - theirs)
    learnt(store)
    monkeypatch.undo()
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
