"""The Criteo search log: imputed times, sales without a delay, and files that are not what they should be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saving import save_table
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.errors import UserError
from tracecvr.data.encoder import Encoder
from tracecvr.data.table import NEVER, ClickTable
from tracecvr.datasets.criteo_search import FIELDS, CriteoSearch, impute

NAMES = [f.name for f in FIELDS]


def log(rows: list[tuple[int, int, int, int]], **features: list[int | None]) -> pl.DataFrame:
    """Rows of (day, part, sale, delay_s); every feature is 5 unless given."""
    frame = pl.DataFrame(rows, schema=NAMES[:4], orient="row")
    return frame.with_columns(pl.Series(n, features.get(n, [5] * len(rows)), dtype=pl.Int64) for n in NAMES[4:])


ROWS = [(0, 0, 0, -1), (0, 0, 1, 30), (0, 1, 0, -1), (30, 1, 1, 5 * DAY), (31, 0, 0, -1), (31, 0, 1, 7), (40, 1, 0, -1)]


def parquet(folder: Path, frame: pl.DataFrame) -> Path:
    frame.write_parquet(folder / "log.parquet")
    return folder / "log.parquet"


def csv(folder: Path, frame: pl.DataFrame) -> Path:
    frame.write_csv(folder / "log.csv")
    return folder / "log.csv"


def test_times_are_spread_over_the_part_of_the_day(tmp_path: Path) -> None:
    table, _ = CriteoSearch(cut=0.25).prepare(parquet(tmp_path, log(ROWS)))
    # Part 0 is the first six hours: its two clicks come at 0 h and 3 h; a single click comes at the start of its part.
    hours = [0, 3, 6, 30 * 24 + 6, 31 * 24, 31 * 24 + 3, 40 * 24 + 6]
    assert table.click_ts.tolist() == [h * HOUR for h in hours]
    delays = [None, 30, None, 5 * DAY, None, 7, None]
    expected = [NEVER if d is None else h * HOUR + d for h, d in zip(hours, delays, strict=True)]
    assert table.action_ts[:, 0].tolist() == expected
    assert table.schema.notes[0].startswith("the time of day of a click is imputed")
    assert "25%" in table.schema.notes[0]


@given(
    st.lists(st.tuples(st.integers(0, 91), st.integers(0, 1)), min_size=1, max_size=300),
    st.floats(0.01, 0.99),
    st.booleans(),
)
def test_imputed_times_stay_in_their_part_and_in_order(days: list[tuple[int, int]], cut: float, in_order: bool) -> None:
    frame = pl.DataFrame(sorted(days) if in_order else days, schema=["day", "part"], orient="row")
    ts = frame.with_columns(ts=impute(cut))
    end = round(cut * DAY)
    second = ts["ts"] - ts["day"] * DAY
    low, high = ts["part"] * end, pl.select(pl.when(ts["part"] == 0).then(end).otherwise(DAY)).to_series()
    assert ((second >= low) & (second < high)).all()
    assert not in_order or ts["ts"].is_sorted()
    for _, one in ts.group_by("day", "part"):
        gaps = one["ts"].diff().drop_nulls()
        assert gaps.is_empty() or (gaps.max() - gaps.min() <= 1 and gaps.min() >= 0)  # type: ignore[operator]


def test_small_columns_do_not_overflow(tmp_path: Path) -> None:
    """Published as 8- and 16-bit columns, in which seconds do not fit."""
    small = log(ROWS).with_columns(pl.col("day").cast(pl.Int16), pl.col("part", "sale").cast(pl.Int8))
    table, _ = CriteoSearch().prepare(parquet(tmp_path, small))
    assert table.fingerprint == CriteoSearch().prepare(csv(tmp_path, log(ROWS)))[0].fingerprint


def test_sales_without_a_delay_are_dropped_and_move_nothing(tmp_path: Path) -> None:
    rows = [*ROWS[:1], (0, 0, 1, -1), *ROWS[1:]]
    with pytest.raises(UserError, match="1 of 8 rows are bad"):
        CriteoSearch().prepare(parquet(tmp_path, log(rows)))
    table, _ = CriteoSearch(max_bad=0.5, cut=0.25).prepare(parquet(tmp_path, log(rows)))
    assert table.counts == {"rows": 8, "clicks": 7, "dropped_conversion_before_click": 0, "dropped_missing_delay": 1}
    assert table.click_ts[:2].tolist() == [0, 4 * HOUR]  # of three clicks in six hours, the second is gone
    assert table.click_id.tolist() == [0, 2, 3, 4, 5, 6, 7]


def test_features(tmp_path: Path) -> None:
    clicks: list[int | None] = [-1, 0, 6, 30, 65_000, None, 2]
    table, _ = CriteoSearch().prepare(parquet(tmp_path, log(ROWS, nb_clicks_1week=clicks)))
    assert table.x.shape == (7, 15)
    assert sum(table.schema.tables.values()) < 120_000
    # Warm-up: log2(v + 2) is 0, 1, 3 and 5, so that a bin is 5/32 wide. Later counts are clipped, none is -1.
    assert table.x[:, 1].tolist() == [0, 6, 19, 31, 31, 0, 12]


def test_parquet_and_csv_are_the_same_log(tmp_path: Path) -> None:
    frame = log(ROWS, nb_clicks_1week=[None, 1, 2, 3, 4, 5, 6], product_id=[0, 1, 2, 3, None, 5, 6])
    expected = CriteoSearch().prepare(parquet(tmp_path, frame))[0].fingerprint
    mixed = frame.select(reversed(frame.columns)).with_columns(SalesAmountInEuro=pl.lit("1,5".replace(",", ".")))
    for same in (frame, mixed):
        for path in (parquet(tmp_path, same), csv(tmp_path, same)):
            assert CriteoSearch().prepare(path)[0].fingerprint == expected


def test_a_table_comes_back_as_it_was(tmp_path: Path) -> None:
    table, encoder = CriteoSearch().prepare(csv(tmp_path, log(ROWS)))
    save_table(table, tmp_path / "table")
    encoder.save(tmp_path / "encoder.json")
    loaded = ClickTable.load(tmp_path / "table")
    assert (loaded.fingerprint, loaded.counts, loaded.schema) == (table.fingerprint, table.counts, table.schema)
    assert Encoder.load(tmp_path / "encoder.json") == encoder


WRONG: dict[str, tuple[tuple[int, int, int, int], str]] = {
    "day": ((-1, 0, 0, -1), "column 'day': expected a whole number from 0 to 9999, found -1"),
    "part": ((0, 2, 0, -1), "column 'part': expected a whole number from 0 to 1, found 2"),
    "sale": ((0, 0, 3, -1), "column 'sale': expected a whole number from 0 to 1, found 3"),
    "delay": ((0, 0, 1, -2), "column 'delay_s': expected a whole number from -1 to 2147483647, found -2"),
    "no sale": ((0, 0, 0, 9), "column 'delay_s': expected -1 because sale is 0, found 9"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_value_is_named(tmp_path: Path, case: str) -> None:
    row, message = WRONG[case]
    frame = log([*ROWS[:2], row, *ROWS[2:]])
    for path, place in ((parquet(tmp_path, frame), "row 3"), (csv(tmp_path, frame), "line 4")):
        with pytest.raises(UserError) as error:
            CriteoSearch().prepare(path)
        assert str(error.value).startswith(f"{path}: {place}, {message}; correct or remove the {place.split()[0]}")
        assert "\n" not in str(error.value)


def test_a_missing_value_is_named(tmp_path: Path) -> None:
    frame = log(ROWS).with_columns(pl.when(pl.col("day") != 31).then("part").alias("part"))
    for path, place in ((parquet(tmp_path, frame), "row 5"), (csv(tmp_path, frame), "line 6")):
        with pytest.raises(UserError, match=f"{place}, column 'part': .*found nothing"):
            CriteoSearch().prepare(path)


def test_a_missing_or_mistyped_column_is_named(tmp_path: Path) -> None:
    frame = log(ROWS).drop("device_type")
    for path in (parquet(tmp_path, frame), csv(tmp_path, frame)):
        with pytest.raises(UserError, match="column 'device_type' is missing"):
            CriteoSearch().prepare(path)
    text = log(ROWS).with_columns(pl.lit("red").alias("product_brand"))
    with pytest.raises(UserError, match="column 'product_brand': expected whole numbers, found String"):
        CriteoSearch().prepare(parquet(tmp_path, text))
    with pytest.raises(
        UserError, match="line 2, column 'product_brand': expected a whole number or nothing, found 'red'"
    ):
        CriteoSearch().prepare(csv(tmp_path, text))


def test_a_log_without_rows_is_refused(tmp_path: Path) -> None:
    path = csv(tmp_path, log(ROWS[:0]))
    with pytest.raises(UserError, match="the log has no clicks"):
        CriteoSearch().prepare(path)


def test_a_file_that_is_not_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    with pytest.raises(UserError, match="no such file"):
        CriteoSearch().prepare(path)
    for content, message in (
        (b"", "the file is empty"),
        (b"day,part\n0,1\n", "not a Parquet file"),
        (b"PAR1", "not readable as Parquet"),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match=message):
            CriteoSearch().prepare(path)
    whole = parquet(tmp_path, log(ROWS)).read_bytes()
    for size in (len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"not readable as Parquet .* correct the file") as error:
            CriteoSearch().prepare(path)
        assert "\n" not in str(error.value)


def test_real_rows_as_csv(real_log: Callable[[str], Path]) -> None:
    table, _ = CriteoSearch().prepare(real_log("criteo_search_5k.csv"))
    assert table.counts == {
        "rows": 5000,
        "clicks": 4999,
        "dropped_conversion_before_click": 0,
        "dropped_missing_delay": 1,
    }


@pytest.mark.slow
def test_the_real_log(real_log: Callable[[str], Path]) -> None:
    path = real_log("criteo_search.parquet")
    table, _ = CriteoSearch().prepare(path)
    assert (table.counts["rows"], table.counts["dropped_missing_delay"]) == (4_403_305, 1_679)
    assert int(table.label.sum()) == 434_437 - 1_679
    raw = pl.read_parquet(path, columns=["day", "delay_s"])
    delay = (table.action_ts[:, 0] - table.click_ts)[table.label]
    assert np.array_equal(delay, raw["delay_s"].to_numpy()[table.click_id[table.label]])
    assert np.array_equal(table.click_ts // DAY, raw["day"].to_numpy()[table.click_id])
    assert (np.diff(table.click_ts) >= 0).all()


def test_a_sample_keeps_its_times(tmp_path: Path) -> None:
    path = parquet(tmp_path, log(ROWS))
    whole, some = (CriteoSearch(every=every).prepare(path)[0] for every in (1, 2))
    assert some.click_id.tolist() == [0, 2, 4, 6]
    assert some.click_ts.tolist() == whole.click_ts[np.isin(whole.click_id, some.click_id)].tolist()
