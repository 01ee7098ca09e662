"""Births of CryptoKitties: a file of the tests' own in its format, and the real one where it is at hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from tracecvr.base.config import DAY
from tracecvr.base.errors import UserError
from tracecvr.data.table import NEVER
from tracecvr.datasets.cryptokitties import NUMBERS, START, TRAITS, CryptoKitties


def births(folder: Path) -> Path:
    """Four, on days 1, 2, 31 and 40; the second and the last have offspring."""
    times = {
        "kitty_id": [7, 8, 9, 12],
        "born_ts": [START + day * DAY for day in (1, 2, 31, 40)],
        "second_litter_ts": [None, START + 5 * DAY, None, START + 50 * DAY],
        "first_litter_ts": [None, START + 3 * DAY, None, START + 41 * DAY],
        "first_sired_ts": [None, None, None, START + 42 * DAY],
    }
    features = {name: [0, 1, -1, 3] for name in NUMBERS} | {name: ["a", "b", "a", "9"] for name in TRAITS}
    pl.DataFrame(times | features).write_parquet(folder / "births.parquet")
    return folder / "births.parquet"


def test_births_are_clicks_and_children_are_actions(tmp_path: Path) -> None:
    table, _ = CryptoKitties().prepare(births(tmp_path))
    assert table.click_id.tolist() == [7, 8, 9, 12]
    assert (table.click_ts // DAY).tolist() == [1, 2, 31, 40]
    assert table.label.tolist() == [False, True, False, False]  # the last litter comes after a week
    assert table.action_ts[1].tolist() == [5 * DAY, 3 * DAY, NEVER]
    assert "not an ad log" in table.schema.notes[0]
    assert len(table.schema.features) == 19
    assert len(CryptoKitties(every=3).prepare(births(tmp_path))[0]) == 2


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "births.parquet").write_text("kitty_id,born_ts\n")
    with pytest.raises(UserError, match="not a Parquet file"):
        CryptoKitties().prepare(tmp_path / "births.parquet")
    (tmp_path / "births.csv").write_text("kitty_id,born_ts\n1,2\n")
    with pytest.raises(UserError, match="expected a Parquet file with kitty_id, born_ts, second_litter_ts"):
        CryptoKitties().prepare(tmp_path / "births.csv")
    pl.DataFrame({"kitty_id": [1]}).write_parquet(tmp_path / "other.parquet")
    with pytest.raises(UserError, match="column 'born_ts' is missing"):
        CryptoKitties().prepare(tmp_path / "other.parquet")


@pytest.mark.slow
def test_the_real_file(real_log: Callable[[str], Path]) -> None:
    table, _ = CryptoKitties().prepare(real_log("cryptokitties.parquet"))
    assert len(table) == 623_269
    assert table.label.mean() == pytest.approx(0.203, abs=0.001)
