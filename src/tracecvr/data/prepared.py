"""A log ready to be replayed: its table and its encoder, made from a raw file or opened from a directory.

The directories of tables and runs also keep where they came from, so that later commands need not be told: the dataset
with its options, the raw log, and small files that are needed to read that again (the schema of a log of your own).
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tracecvr.base import registry
from tracecvr.base.config import values
from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json, write_json, write_text
from tracecvr.base.progress import Progress, no_progress
from tracecvr.data.dataset import Dataset
from tracecvr.data.encoder import Encoder
from tracecvr.data.external_sort import Scratch
from tracecvr.data.table import ClickTable, atomic_directory, read_manifest

_GIVEN_IDS = "click_ids.parquet"
RAW_LOG = "raw_log.json"


@dataclass(frozen=True, eq=False)
class Prepared:
    """What `tracecvr prepare` writes and `tracecvr run` reads."""

    table: ClickTable
    encoder: Encoder
    origin: int | None = None  # The Unix time of the log's second 0, if it has a calendar
    given_ids: pl.LazyFrame | None = None
    """Where the table has keys of text ids (`click_id`): the ids that the log has (`given_id`)."""

    def ids_of(self, first: int, last: int) -> pl.Series:
        """Ids of the clicks of some rows of the table, as the log has them."""
        return ids_in_log(pl.Series("click_id", np.asarray(self.table.click_id[first:last])), self.given_ids)


def ids_in_log(keys: pl.Series, given_ids: pl.LazyFrame | None) -> pl.Series:
    """Clicks' ids as the log has them, by what `Dataset.given_ids` says."""
    if given_ids is None:
        return keys
    asked = keys.to_frame().lazy()
    known = given_ids.join(asked, on="click_id", how="semi").unique("click_id")
    joined = asked.join(known, on="click_id", how="left", maintain_order="left")
    return joined.select(pl.col("given_id").alias("click_id")).collect().to_series()


def open_log(dataset: Dataset, source: Path | None, progress: Progress = no_progress) -> Prepared:
    """A log that is prepared, or that is made ready now: in memory, or in temporary files if it is large."""
    if source is not None and ClickTable.exists(source):
        return load(source)
    table, encoder = dataset.prepare(source, Scratch(progress=progress))
    return Prepared(table, encoder, dataset.origin(), dataset.given_ids(source))


def prepare_to(path: Path, dataset: Dataset, source: Path | None, progress: Progress = no_progress) -> Prepared:
    """Make a raw log ready in a new directory, complete or not at all; it never has to fit in memory."""
    with atomic_directory(path) as folder:
        table, encoder = dataset.prepare(source, Scratch(folder, progress), folder)
        encoder.save(folder / "encoder.json")
        if (ids := dataset.given_ids(source)) is not None:
            ids.sink_parquet(folder / _GIVEN_IDS)
        origin = dataset.origin()
        table.describe(folder, {"options": values(dataset)} | ({} if origin is None else {"origin": origin}))
        record(dataset, source, folder)
    return Prepared(table, encoder, origin, _read_ids(path))


def load(path: Path) -> Prepared:
    table, encoder = ClickTable.load(path), Encoder.load(path / "encoder.json")
    return Prepared(table, encoder, read_manifest(path).get("origin"), _read_ids(path))


def _read_ids(path: Path) -> pl.LazyFrame | None:
    ids = path / _GIVEN_IDS
    return pl.scan_parquet(ids, glob=False) if ids.is_file() else None


def dataset_name(path: Path | None) -> str | None:
    """The dataset that a directory was prepared from; None if it is not a prepared log."""
    if path is None or not ClickTable.exists(path):
        return None
    name: str = read_manifest(path)["schema"]["dataset"]
    return name


def options_of(path: Path, dataset: Dataset, changed: bool) -> dict[str, Any]:
    """The options a saved log was prepared with; it must be of this dataset, and they cannot be changed any more."""
    manifest = read_manifest(path)
    name = manifest["schema"]["dataset"]
    if name != dataset.name:
        raise UserError(f"{path} was prepared from {name!r}: use --data {name}")
    if changed:
        raise UserError(
            f"{path} is prepared already: --data-set has no effect on it; prepare the raw log again with it"
        )
    return dict(manifest["options"])


def record(dataset: Dataset, source: Path | None, folder: Path) -> None:
    """Write to a directory what its log was made of."""
    small = dataset.read_carried()
    for name, text in small.items():
        write_text(folder / name, text)
    facts = {"dataset": dataset.name, "options": values(dataset), "files": list(small)}
    write_json(folder / RAW_LOG, facts | {"source": None if source is None else str(source.absolute())})


def copy_record(table: Path, folder: Path) -> None:
    """Write to a directory what a table was made of, if the table says so."""
    if (table / RAW_LOG).is_file():
        for name in [RAW_LOG, *read_json(table / RAW_LOG)["files"]]:
            shutil.copyfile(table / name, folder / name)


def reopen(folder: Path) -> tuple[Dataset, Path | None]:
    """The dataset of a directory, and the raw log that it reads, if it reads one."""
    if not (folder / RAW_LOG).is_file():
        raise UserError(f"{folder} does not say which raw log it was made of: make it again from the raw log")
    facts = read_json(folder / RAW_LOG)
    kind: Any = registry.get("dataset", facts["dataset"])
    source = None if facts["source"] is None else Path(facts["source"])
    if source is not None and not source.exists():
        raise UserError(
            f"{source}, the raw log of {folder}, is gone: put it back, or prepare it again from where it is"
        )
    return kind.reopen(facts["options"], folder), source
