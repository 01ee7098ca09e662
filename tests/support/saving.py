"""Tables that were made in memory, written to disk: what `prepare_to` writes must be the same."""

from __future__ import annotations

from pathlib import Path

from tracecvr.base.config import values
from tracecvr.data import prepared
from tracecvr.data.dataset import Dataset
from tracecvr.data.prepared import Prepared
from tracecvr.data.table import ClickTable, atomic_directory


def save_table(table: ClickTable, path: Path) -> None:
    """A table in a new directory."""
    with atomic_directory(path) as folder:
        table.write_columns(folder)
        table.describe(folder)


def save_prepared(made: Prepared, dataset: Dataset, path: Path) -> None:
    """A prepared log in a new directory."""
    with atomic_directory(path) as folder:
        made.table.write_columns(folder)
        made.encoder.save(folder / "encoder.json")
        made.table.describe(folder, {"options": values(dataset)})
        prepared.record(dataset, None, folder)
