"""Tables on disk: whole or not at all, memory-mapped, fingerprinted."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from saving import save_prepared
from tracecvr.base.errors import UserError
from tracecvr.checks.subject import small_log
from tracecvr.data import prepared
from tracecvr.data.column_files import map_column
from tracecvr.data.table import ClickTable, Feature
from tracecvr.datasets.synthetic import Synthetic


def saved(tmp_path: Path) -> Path:
    dataset = Synthetic(clicks=500)
    save_prepared(prepared.open_log(dataset, None), dataset, tmp_path / "table")
    return tmp_path / "table"


def test_saved_and_loaded(tmp_path: Path) -> None:
    path = saved(tmp_path)
    table, encoder = Synthetic(clicks=500).prepare(None)
    loaded = prepared.load(path)
    assert loaded.encoder == encoder
    assert loaded.table.schema == table.schema
    assert loaded.table.fingerprint == table.fingerprint
    assert isinstance(loaded.table.x.base, np.memmap)  # not read into memory
    for name in ("x", "click_ts", "click_id", "action_ts"):
        assert np.array_equal(getattr(loaded.table, name), getattr(table, name)), name
    assert np.array_equal(loaded.table.truth["p"], table.truth["p"])


def test_an_existing_directory_is_not_overwritten(tmp_path: Path) -> None:
    path = saved(tmp_path)
    before = sorted((p.name, p.stat().st_mtime_ns) for p in path.iterdir())
    with pytest.raises(UserError, match="exists already"):
        saved(tmp_path)
    assert sorted((p.name, p.stat().st_mtime_ns) for p in path.iterdir()) == before


@contextmanager
def small_disk() -> Iterator[None]:
    """Files end at 5 kB, as on a disk that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_nothing_is_left_of_a_table_that_could_not_be_written(tmp_path: Path) -> None:
    dataset = Synthetic(clicks=2_000)
    made = prepared.open_log(dataset, None)
    with small_disk(), pytest.raises(UserError, match=r"x\.npy: could not be written \(File too large"):
        save_prepared(made, dataset, tmp_path / "table")
    with small_disk(), pytest.raises(UserError, match=r"x\.npy: could not be written \(File too large"):
        prepared.prepare_to(tmp_path / "table", dataset, None)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    column = path / "x.npy"
    column.write_bytes(column.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"x\.npy.*prepare"):
        ClickTable.load(path)
    column.write_bytes(b"")
    with pytest.raises(UserError, match=r"x\.npy"):
        ClickTable.load(path)
    column.unlink()
    with pytest.raises(UserError, match=r"x\.npy"):
        ClickTable.load(path)


def test_a_flipped_bit_in_the_header_of_a_column_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    """It may ask for other rows, another byte order or times, or be no header at all."""
    path = tmp_path / "column.npy"
    np.save(path, np.arange(40).reshape(10, 4))
    whole, refused = path.read_bytes(), 0
    for bit in range(8 * (len(whole) - 320)):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        try:
            column = map_column(path)
            assert column.dtype == np.int64
            assert column.tolist() == np.arange(40).reshape(10, 4).tolist()
        except UserError:
            refused += 1
    assert refused > 900


def test_a_table_that_was_altered_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    column = np.array(np.load(path / "x.npy"))
    column[0, 0] += 1
    np.save(path / "x.npy", column)
    with pytest.raises(UserError, match="not those that were written"):
        ClickTable.load(path)
    for text in ("{}", "[]", "no json"):
        (path / "table.json").write_text(text)
        with pytest.raises(UserError, match=r"table\.json"):
            ClickTable.load(path)


def test_features_of_one_table_share_its_largest_size() -> None:
    schema = replace(small_log().schema, features=(Feature("a", 9, "t"), Feature("b", 4, "t")))
    assert schema.tables == {"t": 9}


def test_the_fingerprint_sees_every_column_and_the_schema() -> None:
    table = small_log()
    changed = {table.fingerprint}
    for name in ("x", "click_ts", "click_id", "action_ts"):
        column = np.array(getattr(table, name))
        column.flat[-1] = 123
        other: Any = {name: column}
        changed.add(replace(table, **other).fingerprint)
    changed.add(replace(table, schema=replace(table.schema, d_max=table.schema.d_max + 1)).fingerprint)
    assert len(changed) == 6


@pytest.mark.parametrize("horizons", [(), (60, 30), (60, 60), (-1, 60), (10**9,)])
def test_impossible_horizons_are_refused(horizons: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="horizons"):
        replace(small_log().schema, horizons=horizons)
