"""Logs bigger than memory: the same table as in memory, byte by byte, and nothing left behind."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saving import save_prepared
from tracecvr.base.config import DAY
from tracecvr.base.errors import UserError
from tracecvr.data import external_sort as scratch
from tracecvr.data import prepared, raw_csv
from tracecvr.data.dataset import Dataset, RawLog
from tracecvr.data.external_sort import ClickSorter, Scratch, partition
from tracecvr.data.table import LEARNER_COLUMNS, ClickTable
from tracecvr.datasets.criteo import Criteo
from tracecvr.datasets.synthetic import Synthetic
from tracecvr.datasets.taobao import START, Taobao

FEW = 1
"""A budget that nothing fits."""


def make_pieces_small(patch: pytest.MonkeyPatch) -> None:
    """Blocks and batches of a few rows, so that small logs have many."""
    patch.setattr(raw_csv, "_BATCH", 7)
    patch.setattr(scratch, "_SLICE", 7)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's directory of temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(folder))
    return folder


@given(
    st.lists(st.lists(st.integers(0, 20), max_size=30), max_size=6),
    st.integers(1, 9),
    st.sampled_from([FEW, 200, 10**6]),
)
def test_any_clicks_are_sorted_and_no_second_is_cut(times: list[list[int]], batch: int, budget: int) -> None:
    parts = [[(ts, 100 * i - j) for j, ts in enumerate(part)] for i, part in enumerate(times)]
    with pytest.MonkeyPatch.context() as patch, Scratch(budget=budget) as room:
        patch.setattr(scratch, "_SLICE", batch)
        patch.setattr(scratch, "_MOST_PARTS", 20)
        sorter = ClickSorter(room)
        for part in parts:
            sorter.add(pl.DataFrame(part, {"click_ts": pl.Int64, "click_id": pl.Int64}, orient="row"))
        slices = list(sorter.slices())
    assert [row for rows in slices for row in rows.rows()] == sorted(row for part in parts for row in part)
    seconds = [set(rows["click_ts"]) for rows in slices]
    assert sum(map(len, seconds)) == len(set().union(*seconds))


@given(
    st.lists(st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=9), min_size=1, max_size=5),
    st.integers(1, 6),
)
def test_rows_of_a_key_come_together_in_their_order(keys: list[list[str]], parts: int) -> None:
    flat = [key for part in keys for key in part]
    expected: dict[str, list[int]] = defaultdict(list)
    for i, key in enumerate(flat):
        expected[key].append(i)
    frame = pl.DataFrame({"key": flat, "row": range(len(flat))})
    frames = [frame[first:last] for first, last in pairwise(np.cumsum([0, *map(len, keys)]).tolist())]
    with Scratch(budget=10) as room:
        pieces = list(partition(frames, "key", 10 * parts, room))
    assert len(pieces) <= parts
    together: dict[str, list[int]] = defaultdict(list)
    for part in pieces:
        for key in part["key"].unique():
            assert key not in together
            together[key] = part.filter(pl.col("key") == key)["row"].to_list()
    assert together == expected


def same(one: ClickTable, other: ClickTable) -> bool:
    columns = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in LEARNER_COLUMNS)
    return columns and (one.fingerprint, one.counts, one.schema) == (other.fingerprint, other.counts, other.schema)


def taobao_log(folder: Path, seed: int) -> Path:
    """Users with few and many rows, repeats, actions before and after the click, times outside the nine days."""
    rng, path = np.random.default_rng(seed), folder / "UserBehavior.csv"
    n = 600
    kinds = np.array(["pv", "pv", "pv", "cart", "fav", "buy"])[rng.integers(0, 6, n)]
    rows = zip(
        (rng.random(n) ** 2 * 30).astype(int),
        rng.integers(1, 9, n),
        rng.integers(1, 3, n),
        kinds,
        START + rng.integers(-DAY, 9 * DAY, n) // 3_600 * 3_600,
        strict=True,
    )
    path.write_text("".join(f"{u},{i},{c},{b},{t}\n" for u, i, c, b, t in rows))
    return path


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(1, 20))
def test_taobao_is_the_same_in_any_number_of_parts(
    tmp_path_factory: pytest.TempPathFactory, seed: int, parts: int
) -> None:
    path = taobao_log(tmp_path_factory.mktemp("any"), seed)
    expected, _ = Taobao().prepare(path)
    assert expected.counts["repeated_rows"] > 0 < expected.counts["rows_of_users_below_10"]
    stages = set()
    with pytest.MonkeyPatch.context() as patch:
        make_pieces_small(patch)
        budget = path.stat().st_size // parts
        table, _ = Taobao().prepare(path, Scratch(budget=budget, progress=lambda stage, *_: stages.add(stage)))
    assert same(table, expected)
    assert ("group" in stages) == (parts > 1)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(-1, 3), st.sampled_from("ab")), max_size=40))
def test_criteo_is_the_same_in_any_pieces(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, str]]
) -> None:
    """Lines that are equal, also to one whose conversion is early, are counted alike wherever the blocks end."""
    path = tmp_path_factory.mktemp("any") / "data.txt"
    lines = [(0, 1, "a"), (4, -1, "b"), (4, -1, "b"), *rows, (4, -1, "b"), (30, 0, "a"), (0, 1, "a")]
    path.write_text("".join(f"{d * DAY}\t{d * DAY + c}" + f"\t{d}" * 8 + f"\t{w}" * 9 + "\n" for d, c, w in lines))
    expected, encoder = Criteo(max_bad=1).prepare(path)
    with pytest.MonkeyPatch.context() as patch:
        make_pieces_small(patch)
        table, again = Criteo(max_bad=1).prepare(path, Scratch(budget=FEW))
    assert same(table, expected)
    assert again == encoder
    unique = set(lines)
    assert table.counts["dropped_duplicates"] == len(lines) - len(unique)
    assert table.counts["dropped_conversion_before_click"] == sum(c < 0 and d > 0 for d, c, _ in unique)


def test_truth_and_columns_are_the_same_in_files(tmp_path: Path) -> None:
    dataset = Synthetic(clicks=3_000)
    expected = prepared.open_log(dataset, None)
    save_prepared(expected, dataset, tmp_path / "saved")
    made = prepared.prepare_to(tmp_path / "written", dataset, None)
    nameless, _ = dataset.prepare(None, Scratch(budget=FEW))
    for table in (made.table, nameless, prepared.load(tmp_path / "written").table):
        assert isinstance(table.x.base, np.memmap)
        assert same(table, expected.table)
        assert np.array_equal(table.truth["p"], expected.table.truth["p"])
    assert sorted(p.name for p in (tmp_path / "saved").iterdir()) == sorted(
        p.name for p in (tmp_path / "written").iterdir()
    )
    for path in (tmp_path / "saved").iterdir():
        assert (tmp_path / "written" / path.name).read_bytes() == path.read_bytes(), path.name


def test_columns_are_written_as_numpy_writes_them(tmp_path: Path) -> None:
    table = prepared.prepare_to(tmp_path / "table", Synthetic(clicks=3_000), None).table
    for name in LEARNER_COLUMNS:
        np.save(tmp_path / "whole.npy", getattr(table, name))
        assert (tmp_path / "table" / f"{name}.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes(), name


class Interrupted(Synthetic):
    """A log whose reader is stopped half-way."""

    error: BaseException = KeyboardInterrupt()

    def parts(self, source: Path | None, scratch: Scratch) -> Iterator[RawLog]:
        yield self.read(source)
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UserError("broken")])
@pytest.mark.filterwarnings("error")
def test_nothing_is_left_of_work_that_was_given_up(tmp_path: Path, temporary: Path, error: BaseException) -> None:
    Interrupted.error = error
    with pytest.raises(type(error)):
        prepared.prepare_to(tmp_path / "tables" / "table", Interrupted(clicks=500), None)
    assert list((tmp_path / "tables").iterdir()) == []
    room = Scratch(budget=FEW)
    with pytest.raises(type(error)):
        Interrupted(clicks=500).prepare(None, room)
    assert list(temporary.iterdir()) == []


def test_temporary_files_have_no_name_and_are_closed(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_pieces_small(monkeypatch)
    files = []

    class Watched(Scratch):
        def file(self, path: Path | None = None) -> BinaryIO:
            files.append(super().file(path))
            assert list(temporary.iterdir()) == []
            return files[-1]

    Taobao().prepare(taobao_log(tmp_path, 0), Watched(budget=2_000))
    assert len(files) > 10
    assert all(file.closed for file in files)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="missing: could not be written"):
        Synthetic(clicks=500).prepare(None, Scratch(tmp_path / "missing", budget=FEW))


def test_progress_is_of_rows_and_ends_at_the_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_pieces_small(monkeypatch)
    seen: dict[str, list[tuple[int, int]]] = defaultdict(list)
    path = taobao_log(tmp_path, 0)
    table, _ = Taobao().prepare(
        path, Scratch(budget=4_000, progress=lambda stage, done, total: seen[stage].append((done, total)))
    )
    assert list(seen) == ["read", "group", "sort", "write"]
    for stage, total in (("read", 600), ("group", 600), ("write", table.counts["clicks"])):
        done = [d for d, _ in seen[stage]]
        assert done == sorted(done)
        assert seen[stage][-1] == (total, total)
    assert all(0.8 * 600 < total < 1.2 * 600 for _, total in seen["read"])  # estimated from bytes


def test_parts_need_no_click_id_and_their_counts_add_up() -> None:
    class Halves(Synthetic):
        def parts(self, source: Path | None, scratch: Scratch) -> Iterator[RawLog]:
            whole = self.read(source)
            for half in whole.frame.iter_slices(1_000):
                yield RawLog(half, len(half), {"odd": 1}, {"seen": 2}, whole.notes, whole.truth)

    expected, table = (kind(clicks=2_000).prepare(None)[0] for kind in (Synthetic, Halves))
    assert table.fingerprint == expected.fingerprint
    assert table.counts == expected.counts | {"seen": 4, "dropped_odd": 2}


def test_a_reader_that_defines_nothing_says_so() -> None:
    class Empty(Dataset):
        name = "empty"
        needs_source = False

    with pytest.raises(UserError, match="does not define columns"):
        Empty().prepare(None)
