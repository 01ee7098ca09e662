"""The Criteo Sponsored Search Conversion Log without its leaking columns: Parquet, or CSV with a header."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tracecvr.base.config import DAY, Seconds, option
from tracecvr.base.errors import UserError
from tracecvr.data.dataset import Dataset, RawLog, usual
from tracecvr.data.encoder import Binned, Column, Hashed
from tracecvr.data.own_log.files import open_file
from tracecvr.data.raw_csv import Field, check_rows
from tracecvr.datasets.criteo import HORIZONS

CATEGORIES = {
    "partner_id": 512,
    "product_age_group": 32,
    "device_type": 32,
    "audience_id": 16_384,
    "product_gender": 32,
    "product_brand": 32_768,
    "prod_category1": 64,
    "prod_category2": 512,
    "prod_category3": 2_048,
    "prod_category4": 4_096,
    "prod_category5": 2_048,
    "prod_category6": 512,
    "product_country": 64,
    "product_id": 32_768,
}
"""Table sizes: a few times the number of values, except for brands and products, of which there are too many."""

FIELDS = (
    Field("day", low=0, high=9_999),
    Field("part", low=0, high=1),
    Field("sale", low=0, high=1),
    Field("delay_s", low=-1, high=2**31 - 1),
    Field("nb_clicks_1week", low=-1, optional=True),
    *(Field(name, optional=True) for name in CATEGORIES),
)


@dataclass
class CriteoSearch(Dataset):
    """Clicks on shopping ads with real sale delays, but only the day and its part of each click: the time of day is
    imputed. The log has neither click ids nor times, so that repeated rows cannot be told from equal clicks: all stay.

    >>> sum(CriteoSearch().columns()[i].size for i in range(15))
    91904

    M. Tallis and P. Yadav, "Reacting to variations in product demand: an application for conversion rate prediction in
    sponsored search", 2018.
    """

    name = "criteo_search"
    conversions_at_click = True

    horizons: tuple[Seconds, ...] = usual("horizons", HORIZONS)
    d_max: Seconds = usual("d_max", 30 * DAY)
    split: Seconds = usual("split", 31 * DAY)
    observed_until: Seconds = usual("observed_until", 104 * DAY)
    every: int = option(1, "only every so many-th click is read", low=1)
    cut: float = option(0.42, "where part 0 of a day ends, as a share of the day", low=0.01, high=0.99)

    def columns(self) -> tuple[Column, ...]:
        categories = [Hashed(name, size) for name, size in CATEGORIES.items()]
        return categories[0], Binned("nb_clicks_1week", 32, scale="log"), *categories[1:]

    def read(self, source: Path | None) -> RawLog:
        assert source is not None
        raw = _read(source)
        # Times first: a row that is dropped below must not move the others.
        timed = raw.with_row_index("click_id").with_columns(impute(self.cut).alias("click_ts"))
        timed = timed.gather_every(self.every)
        frame = timed.filter((pl.col("sale") == 0) | (pl.col("delay_s") >= 0)).with_columns(
            pl.when(pl.col("sale") == 1).then(pl.col("click_ts") + pl.col("delay_s")).alias("conversion")
        )
        note = (
            "the time of day of a click is imputed: clicks of one part of a day are spread evenly over it, in file "
            f"order (part 0 is the first {100 * self.cut:g}% of the day); delays are real, hours of the day are not"
        )
        return RawLog(frame, len(timed), dropped={"missing_delay": len(timed) - len(frame)}, notes=(note,))


def impute(cut: float) -> pl.Expr:
    """Click times in whole seconds from `day`, `part` and the order of rows: evenly spread over the part of the day."""
    end = round(cut * DAY)
    start = pl.when(pl.col("part") == 0).then(0).otherwise(end)
    length = pl.when(pl.col("part") == 0).then(end).otherwise(DAY - end)
    order = pl.int_range(pl.len(), dtype=pl.Int64).over("day", "part")
    of = pl.len().cast(pl.Int64).over("day", "part")
    return pl.col("day").cast(pl.Int64) * DAY + start + order * length // of


def _read(path: Path) -> pl.DataFrame:
    """The columns that are used, checked value by value."""
    file = open_file(path)
    kinds, (unit, first) = file.columns(), ("row", 1) if file.parquet else ("line", 2)
    for name in (field.name for field in FIELDS if field.name in kinds):
        if file.parquet and not kinds[name].is_integer():
            raise UserError(f"{path}: column {name!r}: expected whole numbers, found {kinds[name]}; convert it")
    given = pl.concat(file.batches([field.name for field in FIELDS]))
    raw = given if file.parquet else given.select(pl.all().cast(pl.Int64, strict=False))
    check_rows(path, raw, FIELDS, unit, first, given)
    wrong = raw.select(pl.arg_where((pl.col("sale") == 0) & (pl.col("delay_s") >= 0)).first()).item()
    if wrong is not None:
        raise UserError(
            f"{path}: {unit} {wrong + first}, column 'delay_s': expected -1 because sale is 0, "
            f"found {raw['delay_s'][wrong]}; correct or remove the {unit}"
        )
    return raw
