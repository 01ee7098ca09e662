"""Logs as other systems write them: what was seen to break when strangers brought their own."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import polars as pl
import pytest

from alone import encode_alone
from tracecvr.base.errors import UserError
from tracecvr.data.encoder import Binned, Encoder, RowEncoder
from tracecvr.data.inspection.inspect_log import Inspection, inspect_files
from tracecvr.data.own_log.schema import load
from tracecvr.data.table import NEVER
from tracecvr.datasets.logs import Logs

CLICKS, EACH = 1_200, 5
START = datetime(2026, 3, 1, tzinfo=UTC)


def clicks() -> pl.DataFrame:
    """A click every ten minutes."""
    rows = range(CLICKS)
    return pl.DataFrame(
        {
            "click_id": [f"k{row:05}" for row in rows],
            "click_time": [iso(10 * row) for row in rows],
            "campaign": [f"c{row % 7}" for row in rows],
        }
    )


def purchases(**others: Any) -> pl.DataFrame:
    """One for every fifth click, some hours later."""
    return (
        clicks()
        .gather_every(EACH)
        .select(
            "click_id",
            **others,
            purchase_time=pl.Series([iso(10 * row + 60 + row % 700) for row in range(0, CLICKS, EACH)]),
        )
    )


def iso(minutes: int) -> str:
    return (START + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")


def look(folder: Path, *names: str) -> Inspection:
    return inspect_files([str(folder / name) for name in names], folder)


def count(inspection: Inspection, folder: Path) -> tuple[int, int]:
    """Clicks and conversions of the table that the proposed schema gives."""
    (folder / "schema.toml").write_text(inspection.toml)
    table, _ = Logs(schema=str(folder / "schema.toml")).prepare(None)
    return len(table), int((table.action_ts[:, 0] != NEVER).sum())


def test_rows_of_conversions_may_repeat_when_the_click_was(tmp_path: Path) -> None:
    clicks().write_csv(tmp_path / "clicks.csv")
    purchases(click_time=pl.col("click_time")).write_csv(tmp_path / "conversions.csv")
    seen = look(tmp_path, "clicks.csv", "conversions.csv")
    assert seen.measured.delays["conversions"].min() >= 3600
    assert count(seen, tmp_path) == (CLICKS, CLICKS // EACH)


def test_conversions_in_the_second_of_their_click_are_put_in_doubt(tmp_path: Path) -> None:
    clicks().write_csv(tmp_path / "clicks.csv")
    clicks().gather_every(EACH).select("click_id", event_time="click_time").write_csv(tmp_path / "purchases.csv")
    assert any(
        "the same time as their click" in doubt for doubt in look(tmp_path, "clicks.csv", "purchases.csv").doubts
    )


def test_ids_of_bytes_are_read_as_uuids(tmp_path: Path) -> None:
    ids = {f"k{row:05}": UUID(int=row << 90 | 0xFF).bytes for row in range(CLICKS)}
    for frame, name in ((clicks(), "clicks"), (purchases(), "purchases")):
        coded = pl.Series("click_id", [ids[text] for text in frame["click_id"]], pl.Binary)
        frame.with_columns(coded).write_parquet(tmp_path / f"{name}.parquet")
    seen = look(tmp_path, "clicks.parquet", "purchases.parquet")
    assert count(seen, tmp_path) == (CLICKS, CLICKS // EACH)
    profile = next(one for one in seen.columns if one.name == "click_id")
    assert str(UUID(bytes=ids["k00007"])) in profile.values.to_list()


def test_folders_of_json_that_is_packed_and_files_without_a_byte(tmp_path: Path) -> None:
    for frame, name in ((clicks(), "clicks"), (purchases(), "purchases")):
        (tmp_path / name).mkdir()
        half = len(frame) // 2
        for number, part in enumerate((frame[:half], frame[:0], frame[half:])):
            lines = "".join(json.dumps(row) + "\n" for row in part.iter_rows(named=True))
            (tmp_path / name / f"part-{number}.json.gz").write_bytes(gzip.compress(lines.encode()))
        (tmp_path / name / "part-9.json").touch()
    assert count(look(tmp_path, "clicks", "purchases"), tmp_path) == (CLICKS, CLICKS // EACH)


def test_a_folder_without_a_log_says_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "clicks.avro").touch()
    with pytest.raises(UserError, match=r"it has clicks\.avro"):
        look(tmp_path, "")


@pytest.mark.parametrize(
    "marker", ["NULL", "\\N", "-", "n/a", "1970-01-01 00:00:00", "9999-12-31", "0000-00-00 00:00:00"]
)
def test_markers_of_times_that_there_are_not(marker: str, tmp_path: Path) -> None:
    wide = clicks().join(purchases(), on="click_id", how="left").with_columns(pl.col("purchase_time").fill_null(marker))
    wide.write_csv(tmp_path / "log.csv")
    assert count(look(tmp_path, "log.csv"), tmp_path) == (CLICKS, CLICKS // EACH)


def test_markers_of_delays_and_numbers_that_there_are_not(tmp_path: Path) -> None:
    converted = pl.int_range(pl.len()) % EACH == 0
    days = pl.when(converted).then(pl.lit("1.5")).otherwise(pl.lit("NULL"))
    number = pl.when(converted).then(pl.lit("n/a")).otherwise((pl.int_range(pl.len()) * 0.5).cast(pl.String))
    clicks().with_columns(days_to_convert=days, bid=number).write_csv(tmp_path / "log.csv")
    seen = look(tmp_path, "log.csv")
    assert count(seen, tmp_path) == (CLICKS, CLICKS // EACH)
    assert "bid" in seen.measured.leaks or isinstance(next(c for c in seen.schema.features if c.raw == "bid"), Binned)


def test_a_column_with_another_value_in_every_row_is_the_id(tmp_path: Path) -> None:
    wide = clicks().join(purchases(), on="click_id", how="left").rename({"click_id": "Klick-Nr."})
    wide.write_csv(tmp_path / "log.csv")
    seen = look(tmp_path, "log.csv")
    assert seen.schema.click.id == ("Klick-Nr.",)
    assert any("'Klick-Nr.' has another value in every row" in doubt for doubt in seen.doubts)


def test_ids_that_do_not_fit_are_shown(tmp_path: Path) -> None:
    clicks().write_csv(tmp_path / "clicks.csv")
    purchases().with_columns(pl.col("click_id").str.to_uppercase()).write_csv(tmp_path / "purchases.csv")
    with pytest.raises(UserError, match=r"240 conversions has the id of a click .*clicks\.csv has k00000.*has K00000"):
        look(tmp_path, "clicks.csv", "purchases.csv")
    others = purchases().with_columns(pl.col("click_id").str.to_uppercase()).rename({"click_id": "ref"})
    others.write_csv(tmp_path / "purchases.csv")
    with pytest.raises(UserError, match=r"purchases\.csv has ref, purchase_time.*one name in all files"):
        look(tmp_path, "clicks.csv", "purchases.csv")


def test_ids_that_have_another_name_in_each_file(tmp_path: Path) -> None:
    clicks().with_columns(user=pl.int_range(pl.len()) // 3).write_csv(tmp_path / "clicks.csv")
    user = pl.int_range(0, 3 * len(purchases()), 3)
    purchases(user=user).rename({"click_id": "gclid"}).write_csv(tmp_path / "purchases.csv")
    seen = look(tmp_path, "clicks.csv", "purchases.csv")
    assert seen.schema.click.id == ("click_id",)
    assert any("'gclid' of purchases.csv" in doubt for doubt in seen.doubts)
    assert count(seen, tmp_path) == (CLICKS, CLICKS // EACH)


def test_a_log_that_would_lose_many_clicks_is_not_allowed_to(tmp_path: Path) -> None:
    """Joined by the user, later clicks of a user are taken for copies of the first."""
    user = (pl.int_range(pl.len()) // 3).cast(pl.String)
    clicks().with_columns(user_id=user).drop("click_id").write_csv(tmp_path / "clicks.csv")
    bought = clicks().with_columns(user_id=user).join(purchases(), on="click_id").select("user_id", "purchase_time")
    bought.write_csv(tmp_path / "purchases.csv")
    seen = look(tmp_path, "clicks.csv", "purchases.csv")
    assert any("67% of the clicks, so `prepare` refuses the log" in doubt for doubt in seen.doubts)
    with pytest.raises(UserError, match="more than max_bad"):
        count(seen, tmp_path)


def test_two_words_take_a_conversion_back(tmp_path: Path) -> None:
    """Purchases are cancelled or returned: neither stands."""
    bought = purchases().rename({"purchase_time": "ts"}).with_columns(event=pl.lit("purchase"))
    number = pl.int_range(pl.len())
    word = pl.when(number % 10 == 0).then(pl.lit("cancelled")).otherwise(pl.lit("refunded"))
    later = pl.col("ts").str.to_datetime("%Y-%m-%dT%H:%M:%SZ").dt.offset_by("1h").dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    back = bought.filter(number % 5 == 0).with_columns(ts=later, event=word)
    shown = clicks().rename({"click_time": "ts"}).with_columns(event=pl.lit("click"))
    pl.concat([shown, bought, back], how="diagonal").write_csv(tmp_path / "events.csv")
    seen = look(tmp_path, "events.csv")
    assert seen.schema.refund is not None
    assert set(seen.schema.refund.event) == {"cancelled", "refunded"}
    assert seen.counts["refund"] == len(back)
    (tmp_path / "schema.toml").write_text(seen.toml)
    again = load(tmp_path / "schema.toml")
    assert again.refund == seen.schema.refund


def test_a_status_of_conversions_is_put_in_doubt(tmp_path: Path) -> None:
    clicks().write_csv(tmp_path / "clicks.csv")
    status = pl.when(pl.int_range(pl.len()) % 4 == 0).then(pl.lit("declined")).otherwise(pl.lit("approved"))
    purchases().with_columns(status=status).write_csv(tmp_path / "purchases.csv")
    seen = look(tmp_path, "clicks.csv", "purchases.csv")
    assert any("every row of purchases.csv counts, whatever 'status' says" in doubt for doubt in seen.doubts)


def test_offsets_of_two_digits_are_read(tmp_path: Path) -> None:
    wide = clicks().join(purchases(), on="click_id", how="left")
    shifted = wide.with_columns(
        pl.col("click_time", "purchase_time").str.replace("Z", ".123456+00").str.replace("T", " ")
    )
    shifted.write_csv(tmp_path / "log.csv")
    assert count(look(tmp_path, "log.csv"), tmp_path) == (CLICKS, CLICKS // EACH)


@pytest.mark.parametrize("value", ["12.5", "1.234", "1.234,5", "12,5", 12.5, 7, None, ""])
def test_numbers_with_a_decimal_comma_are_read_alike_from_tables_and_from_single_clicks(value: Any) -> None:
    column = Binned("bid", 32, low=0.0, high=1300.0, decimal=",")
    expected = encode_alone(Encoder((column,)), {"bid": [value]})
    alone, unread = RowEncoder(Encoder((column,)), ("bid",)).encode([[value]])
    assert (alone.tolist(), unread) == expected
