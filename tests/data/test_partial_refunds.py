"""Refunds of a part, several refunds, and purchases after a refund: by the amounts that the log has."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import tracecvr as tc
from log_kinds import Planted
from shop import ORPHANS, shop
from test_log_kinds import inspected
from tracecvr.datasets.logs import Logs


def bought_and_taken_back() -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Clicks, sales and refunds: of the first 40 clicks that bought, ten each had a part taken back, everything in two
    parts, everything and bought again, or two sales taken back at once."""
    clicks, sales = shop().clicks.unique("click", maintain_order=True), shop().sales.head(-ORPHANS)
    late = pl.col("ts") - pl.col("ts_right") > timedelta(days=1)
    sales = sales.join(clicks, on="click").filter(~late).select("click", "ts", amount=pl.lit(20.0))
    part, parts, again, at_once = (sales.slice(start, 10) for start in (0, 10, 20, 30))

    def later(rows: pl.DataFrame, hours: int, amount: float) -> pl.DataFrame:
        return rows.with_columns(pl.col("ts") + timedelta(hours=hours), amount=pl.lit(float(amount)))

    refunds = [later(part, 1, 5), later(parts, 1, 5), later(parts, 2, 15), later(again, 1, 20), later(at_once, 2, 50)]
    more = [later(again, 3, 30), later(at_once, 1, 30)]
    return clicks, pl.concat([sales, *more]), pl.concat(refunds)


BACK = {"refund": 20, "refund_partial": 20, "conversion_after_refund": 10, "refund_repeated": 0}


@pytest.mark.parametrize("form", ["files", "events", "pieces", "read"])
def test_a_conversion_stands_until_as_much_is_taken_back_as_was_bought(tmp_path: Path, form: str) -> None:
    clicks, sales, refunds = bought_and_taken_back()
    if form == "pieces":
        sales, refunds = (rows.rename({"amount": "qty"}) for rows in (sales, refunds))
    if form == "read":
        roles: Any = {"id": "click", "click_time": "ts", "progress": False}
        log = tc.read(clicks, sales, refunds=refunds, **roles)
        counts, label = log.table.counts, log.conversions
    else:
        if form == "events":
            rows = [clicks, sales, refunds]
            words = ("click", "purchase", "refund")
            rows = [one.with_columns(event=pl.lit(word)) for one, word in zip(rows, words, strict=True)]
            together = pl.concat(rows, how="diagonal").sort("ts").rename({"click": "click_id"})
            together.write_parquet(tmp_path / "log.parquet")
            files = [tmp_path / "log.parquet"]
        else:
            files = [tmp_path / f"{name}.csv" for name in ("clicks", "sales", "refunds")]
            for rows_of, file in zip((clicks, sales, refunds), files, strict=True):
                rows_of.write_csv(file, separator=";")
        inspection = inspected(Planted(tuple(files), Counter()), tmp_path)
        assert any("20 refunds are of a part" in doubt for doubt in inspection.doubts)
        counts = inspection.counts
        table, _ = Logs(schema=str(tmp_path / "schema.toml"), max_bad=0.1).prepare(None)
        label = int(table.label.sum())
        assert {name: table.counts.get(name, 0) for name in BACK} == BACK
    assert {name: counts.get(name, 0) for name in BACK} == BACK
    assert label == sales["click"].n_unique() - 20
