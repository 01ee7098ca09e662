"""The Criteo Conversion Logs: `data.txt` as Criteo published it, tab-separated and without a header."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tracecvr.base.config import DAY, HOUR, MINUTE, Seconds, option
from tracecvr.data.dataset import Dataset, RawLog, usual
from tracecvr.data.encoder import Binned, Column, Hashed
from tracecvr.data.external_sort import Scratch
from tracecvr.data.raw_csv import Field, read_blocks

HORIZONS = (6 * MINUTE, 15 * MINUTE, HOUR, DAY, 7 * DAY, 30 * DAY)
CATEGORIES = (512, 128, 256, 256, 64, 256, 256, 16, 256)
BINS = (64, 16, 128, 64, 128, 64, 512, 512)
FIELDS = (
    Field("click_ts", low=0),
    Field("conversion", low=0, optional=True),
    # Four bytes are exact up to 2**24.
    *(Field(f"numeric_{i}", pl.Float32, optional=True) for i in range(1, len(BINS) + 1)),
    *(Field(f"categorical_{i}", pl.String, optional=True) for i in range(1, len(CATEGORIES) + 1)),
)


@dataclass
class Criteo(Dataset):
    """Sixteen million display-ad clicks of 60 days, each with its conversion up to 30 days later. Tables and bins are
    those of the field, but ranges are learnt from the warm-up part alone, where others use all 60 days.

    >>> Criteo().columns()[0]
    Hashed(raw='categorical_1', size=512, table=None, one_hot=False)

    O. Chapelle, "Modeling delayed feedback in display advertising", KDD 2014.
    """

    name = "criteo"
    conversions_at_click = True

    horizons: tuple[Seconds, ...] = usual("horizons", HORIZONS)
    d_max: Seconds = usual("d_max", 30 * DAY)
    split: Seconds = usual("split", 10 * DAY)
    observed_until: Seconds = usual("observed_until", 90 * DAY)
    duplicates: str = option(
        "drop",
        "drop or keep lines equal to an earlier one in all 19 fields; the log has no click id, so that a line written "
        "twice and a second, equal click look the same",
        choices=("drop", "keep"),
    )
    bins: str = option(
        "linear", "width of numeric bins: linear, or log for heavy-tailed counts", choices=("linear", "log")
    )

    def columns(self) -> tuple[Column, ...]:
        categories = [Hashed(f"categorical_{i}", size) for i, size in enumerate(CATEGORIES, start=1)]
        return *categories, *(Binned(f"numeric_{i}", size, scale=self.bins) for i, size in enumerate(BINS, start=1))

    def parts(self, source: Path | None, scratch: Scratch) -> Iterator[RawLog]:
        assert source is not None
        for lines in read_blocks(source, FIELDS, scratch, separator="\t"):
            digest = lines.drop("click_id").hash_rows().alias("digest")
            yield RawLog(lines if self.duplicates == "keep" else lines.with_columns(digest), len(lines))
