"""The generators of benchmark logs: the same bytes for a seed, in the published formats and shapes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest

from tracecvr.base.config import DAY, HOUR
from tracecvr.data.table import NEVER
from tracecvr.datasets.criteo import Criteo
from tracecvr.datasets.taobao import Taobao

ROWS = 30_000


@pytest.fixture(scope="module")
def rawlogs() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "rawlogs.py"
    spec = importlib.util.spec_from_file_location("rawlogs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["rawlogs"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("write", ["write_criteo", "write_taobao"])
def test_a_seed_is_a_file(tmp_path: Path, rawlogs: ModuleType, monkeypatch: pytest.MonkeyPatch, write: str) -> None:
    monkeypatch.setattr(rawlogs, "BLOCK", 1_000)
    for name, seed in (("one", 3), ("same", 3), ("other", 4)):
        getattr(rawlogs, write)(tmp_path / name, 2_500, seed)
    one, same, other = ((tmp_path / name).read_bytes() for name in ("one", "same", "other"))
    assert one == same != other
    assert one.count(b"\n") == 2_500


def test_criteo_has_its_shape(tmp_path: Path, rawlogs: ModuleType) -> None:
    rawlogs.write_criteo(tmp_path / "data.txt", ROWS)
    table, _ = Criteo().prepare(tmp_path / "data.txt")
    assert 0 < table.counts["dropped_duplicates"] < 0.01 * ROWS
    assert table.click_ts.max() < 60 * DAY
    assert table.label.mean() == pytest.approx(0.227, abs=0.01)
    delay = (table.action_ts[:, 0] - table.click_ts)[table.action_ts[:, 0] != NEVER]
    assert 0.3 < (delay <= HOUR).mean() < 0.5
    assert 0.5 < (delay <= DAY).mean() < 0.75
    assert 20 * DAY < delay.max() <= 30 * DAY


def test_taobao_has_its_shape(tmp_path: Path, rawlogs: ModuleType) -> None:
    path = tmp_path / "UserBehavior.csv"
    rawlogs.write_taobao(path, ROWS)
    rows = pl.read_csv(path, has_header=False, new_columns=["user", "item", "category", "behaviour", "ts"])
    assert rows["user"].is_sorted()
    assert 60 < ROWS / rows["user"].n_unique() < 140
    shares = dict(rows["behaviour"].value_counts(normalize=True).iter_rows())
    for behaviour, share in {"pv": 0.897, "cart": 0.055, "fav": 0.029, "buy": 0.020}.items():
        assert shares[behaviour] == pytest.approx(share, abs=0.01)
    table, _ = Taobao().prepare(path)
    assert 0.005 < table.label.mean() < 0.05
