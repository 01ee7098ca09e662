"""`tc.read` and `tc.dataset`: the same log, whatever it is given as, and every planted defect counted."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import tracecvr as tc
from shop import COPIES, ORPHANS, START, shop
from tracecvr.base.config import DAY, HOUR

ROLES: dict[str, Any] = {"id": "click", "click_time": "ts", "d_max": "2d", "progress": False}


class Arrow:
    """A table that speaks the protocol of Arrow and nothing else, as pyarrow's do."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self.frame = frame

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.frame.__arrow_c_stream__(requested_schema)


def pandas_of(frame: pl.DataFrame) -> Any:
    """By columns: polars' own way needs pyarrow."""
    made = pd.DataFrame({name: frame[name].to_list() for name in frame.columns})
    if "campaign" in made:
        made["campaign"] = made["campaign"].astype("category")
    return made


def files_of(frame: pl.DataFrame, folder: Path, name: str, kind: str) -> Path:
    path = folder / f"{name}.{kind}"
    frame.write_parquet(path) if kind == "parquet" else frame.write_csv(path)
    return path


@pytest.fixture(scope="module")
def log() -> tc.Log:
    return tc.read(shop().clicks, shop().sales, **ROLES)


def test_defects_are_counted_and_proposals_fit_the_log(log: tc.Log) -> None:
    assert len(log) == 1500
    assert log.defects["dropped_duplicate_click"] == COPIES
    assert log.defects["dropped_conversion_without_click"] == ORPHANS
    assert log.conversions == len(shop().sales) - ORPHANS
    assert log.schema.d_max == 2 * DAY
    assert log.schema.horizons[-1] == 2 * DAY
    assert {feature.name for feature in log.schema.features} == {"campaign", "price"}
    assert log.table.click_ts[0] < log.schema.split < log.table.click_ts[-1] - 2 * DAY
    assert list(log.prepared.ids_of(0, 2)) == ["c-00000", "c-00001"]
    assert "1,500" in repr(log)
    assert "dropped_duplicate_click 7" in log._repr_html_()


@pytest.mark.parametrize("kind", ["pandas", "arrow", "dictionary", "lazy", "parquet", "csv"])
def test_the_same_log_from_whatever_it_is_given_as(kind: str, log: tc.Log, tmp_path: Path) -> None:
    given: list[Any] = []
    for name, frame in (("a", shop().clicks), ("b", shop().sales)):
        makers: dict[str, Any] = {
            "pandas": lambda frame=frame: pandas_of(frame),
            "arrow": lambda frame=frame: Arrow(frame),
            "dictionary": lambda frame=frame: frame.to_dict(as_series=False),
            "lazy": lambda frame=frame: frame.lazy(),
            "parquet": lambda frame=frame, name=name: files_of(frame, tmp_path, name, "parquet"),
            "csv": lambda frame=frame, name=name: str(files_of(frame, tmp_path, name, "csv")),
        }
        given.append(makers[kind]())
    again = tc.read(*given, **ROLES)
    assert (again.table.x == log.table.x).all()
    assert (again.table.click_ts == log.table.click_ts).all()
    assert (again.table.action_ts == log.table.action_ts).all()
    assert again.defects == log.defects


def test_one_wide_frame_with_refunds(log: tc.Log) -> None:
    refunds = shop().refunds.rename({"ts": "back_at"})
    wide = shop().wide.join(refunds, on="click", how="left", maintain_order="left")
    again = tc.read(wide, conversion_time="sold_at", refunds="back_at", **ROLES)
    assert again.defects["refund"] == 5
    assert again.conversions == log.conversions - 5
    guessed = wide.with_columns(cancelled_at=pl.when(pl.col("price") > 9).then("sold_at"))
    said = tc.read(guessed, conversion_time="sold_at", refunds="back_at", **ROLES)
    assert (said.table.label == again.table.label).all()
    apart = tc.read(shop().clicks, shop().sales, refunds=shop().refunds, **ROLES)
    assert (apart.table.label == again.table.label).all()


def test_a_frame_with_labels_and_delays(log: tc.Log) -> None:
    spent = (pl.col("sold_at") - pl.col("ts")).dt.total_seconds()
    frame = shop().wide.select(
        pl.exclude("sold_at"), converted=pl.col("sold_at").is_not_null(), delay_s=spent.fill_null(-1)
    )
    again = tc.read(frame, **ROLES)
    assert (again.table.label == log.table.label).all()
    assert (again.table.action_ts == log.table.action_ts).all()


def test_other_actions_and_chosen_features() -> None:
    carts = shop().clicks.head(300).select("click", pl.col("ts") + timedelta(minutes=5))
    log = tc.read(shop().clicks, shop().sales, actions={"cart": carts}, features=["campaign"], **ROLES)
    assert log.schema.actions == ("conversion", "cart")
    assert [feature.name for feature in log.schema.features] == ["campaign"]
    assert (log.table.action_ts[:300, 1] == log.table.click_ts[:300] + 300).all()


def test_labels_that_are_given_win() -> None:
    log = tc.read(
        shop().clicks,
        shop().sales,
        **ROLES | {"d_max": timedelta(days=1)},
        horizons=["1h", 6 * HOUR, "1d"],
        split=datetime(2026, 1, 5),
        interval="6h",
        observed_until="2026-01-14",
    )
    schema = log.schema
    assert (schema.d_max, schema.horizons) == (DAY, (HOUR, 6 * HOUR, DAY))
    assert (schema.split, schema.interval, schema.observed_until) == (4 * DAY, 6 * HOUR, 13 * DAY)
    assert log.prepared.origin == int(START.timestamp())


def test_a_saved_log_is_the_same(log: tc.Log, tmp_path: Path) -> None:
    saved = log.save(tmp_path / "table")
    again = tc.read(tmp_path / "table")
    assert again.table.fingerprint == saved.table.fingerprint == log.table.fingerprint
    assert list(again.prepared.ids_of(5, 6)) == ["c-00005"]
    with pytest.raises(tc.UserError, match="prepared already"):
        tc.read(tmp_path / "table", d_max="1d")


def test_whole_ids_that_pandas_made_floats_are_joined() -> None:
    numbers = {name: n for n, name in enumerate(shop().clicks["click"].unique(maintain_order=True))}
    clicks = shop().clicks.with_columns(pl.col("click").replace_strict(numbers, return_dtype=pl.Int64))
    sales = shop().sales.with_columns(pl.col("click").replace_strict(numbers, default=None, return_dtype=pl.Float64))
    log = tc.read(clicks, sales, **ROLES)
    assert log.conversions == len(sales) - ORPHANS
    assert np.array_equal(log.prepared.ids_of(0, 3), [0, 1, 2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"click_time": "tss"}, "column 'tss' is missing.*did you mean 'ts'"),
        ({"id": "campaign"}, "does not tell clicks apart|is missing"),
        ({"features": ["campain"]}, "did you mean 'campaign'"),
        ({"d_max": "300d"}, "the log spans"),
        ({"d_max": "two days"}, "d_max two days: expected duration"),
        ({"actions": {"a b": shop().sales}}, "give it a name"),
    ],
)
def test_mistakes_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(tc.UserError, match=message):
        tc.read(shop().clicks, shop().sales, **ROLES | change)


# What is said is taken.


@pytest.mark.parametrize(
    "start", [1_767_000_000, 1_767_000_000_000, 1_767_000_000_000_000, 1_812_345_678_901_234_567, 20_260_101_000_000]
)
@pytest.mark.parametrize("wide", [True, False])
def test_ids_that_look_like_times_are_ids_if_it_is_said(start: int, wide: bool, log: tc.Log) -> None:
    """Numbers of 10, 13, 16 and 19 digits, whatever their column is called."""
    numbers = {name: start + 7 * n for n, name in enumerate(shop().clicks["click"].unique(maintain_order=True))}
    number = pl.col("click").replace_strict(numbers, default=None, return_dtype=pl.Int64)
    frames = [frame.with_columns(number) for frame in (shop().clicks, shop().sales, shop().wide)]
    if wide:
        again = tc.read(frames[2], conversion_time="sold_at", **ROLES)
    else:
        again = tc.read(*frames[:2], **ROLES)
        assert again.defects["dropped_duplicate_click"] == COPIES
    assert (again.table.label == log.table.label).all()
    assert again.table.click_id[1] == start + 7
    renamed = {"click": "ts", "ts": "click"}  # the worst of names
    again = tc.read(frames[2].rename(renamed), conversion_time="sold_at", **ROLES | {"id": "ts", "click_time": "click"})
    assert (again.table.label == log.table.label).all()


def test_an_id_that_tells_too_few_clicks_apart_is_refused_with_numbers() -> None:
    with pytest.raises(tc.UserError, match="'campaign' does not tell clicks apart: there are 4 different ones in 1,50"):
        tc.read(shop().wide, conversion_time="sold_at", **ROLES | {"id": "campaign"})


def test_features_are_those_that_are_said_whatever_their_names(log: tc.Log) -> None:
    """An integer whose name ends like a time, a price that looks like seconds since 1970, and names that end in id."""
    row = pl.int_range(pl.len())
    frame = shop().wide.with_columns(
        lead_time=row * 7 % 300, at=1_700_000_000 + row * 977 % 90_000, bid=row % 90, grid=row % 60, paid_ts=row % 2
    )
    names = ["lead_time", "at", "bid", "grid", "paid_ts", "campaign"]
    again = tc.read(frame, conversion_time="sold_at", features=names, **ROLES)
    assert [feature.name for feature in again.schema.features] == names
    assert (again.table.label == log.table.label).all()
    guessed = tc.read(frame.drop("at", "paid_ts"), conversion_time="sold_at", **ROLES)
    assert {"bid", "grid"} <= {feature.name for feature in guessed.schema.features}
    assert 'bid = {kind = "binned"' in guessed.proposal
    apart = tc.read(
        shop().clicks, shop().sales.rename({"ts": "when"}), conversion_time="when", features=["price"], **ROLES
    )
    assert (apart.table.label == log.table.label).all()
    for name, reason in (("ts2", "holds times"), ("one", "has one value in every row"), ("sold", "tells the label")):
        extra = frame.with_columns(ts2="ts", one=1, sold=pl.col("sold_at").is_not_null())
        with pytest.raises(tc.UserError, match=reason):
            tc.read(extra, conversion_time="sold_at", features=[name, "campaign"], **ROLES)


def test_the_conversion_is_called_as_its_column_without_doubt(log: tc.Log) -> None:
    frame = shop().wide.rename({"sold_at": "paid"}).with_columns(order_time=pl.col("ts") + timedelta(minutes=1))
    again = tc.read(frame, conversion_time="paid", **ROLES)
    assert again.schema.actions[0] == "paid"
    assert (again.table.label == log.table.label).all()
    assert not [doubt for doubt in again.doubts if "conversion is taken to be" in doubt]
    with pytest.raises(tc.UserError, match="conversion_time: column 'campaign' does not hold times, such as camp"):
        tc.read(frame, conversion_time="campaign", **ROLES)


def test_actions_are_those_that_are_said_whatever_they_are_called() -> None:
    """Names that hold words of each other, of clicks and of refunds."""
    later = shop().sales.with_columns(pl.col("ts") + timedelta(minutes=5))
    names = ("view", "cart", "add_to_cart", "return_visit")
    log = tc.read(shop().clicks, shop().sales, actions=dict.fromkeys(names, later), **ROLES)
    assert log.schema.actions == ("conversion", *names)
    assert log.table.refund_ts is None


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(tc.UserError, match="expected a DataFrame"):
        tc.read(3)


def test_datasets_by_name() -> None:
    log = tc.dataset("synthetic", clicks=500, horizons=["1h", "1d"], d_max=timedelta(days=1))
    assert len(log) == 500
    assert log.schema.horizons == (HOUR, DAY)
    with pytest.raises(tc.UserError, match="did you mean 'clicks'"):
        tc.dataset("synthetic", click=500)
    with pytest.raises(tc.UserError, match="unknown dataset"):
        tc.dataset("synthetik")
