"""A log ready to be replayed: its table and its encoder, made from a raw file or opened from a directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracecvr.base.config import values
from tracecvr.base.errors import UserError
from tracecvr.base.progress import Progress, no_progress
from tracecvr.data import raw_log
from tracecvr.data.dataset import Dataset
from tracecvr.data.encoder import Encoder
from tracecvr.data.external_sort import Scratch
from tracecvr.data.table import ClickTable, atomic_directory, read_manifest


@dataclass(frozen=True, eq=False)
class Prepared:
    """What `tracecvr prepare` writes and `tracecvr run` reads."""

    table: ClickTable
    encoder: Encoder


def prepare(dataset: Dataset, source: Path | None, progress: Progress = no_progress) -> Prepared:
    """Make a raw log ready: in memory, or in temporary files if it is large."""
    return Prepared(*dataset.prepare(source, Scratch(progress=progress)))


def prepare_to(path: Path, dataset: Dataset, source: Path | None, progress: Progress = no_progress) -> Prepared:
    """Make a raw log ready in a new directory, complete or not at all; it never has to fit in memory."""
    with atomic_directory(path) as folder:
        prepared = Prepared(*dataset.prepare(source, Scratch(folder, progress), folder))
        _describe(prepared, dataset, folder)
        raw_log.record(dataset, source, folder)
    return prepared


def _describe(prepared: Prepared, dataset: Dataset, folder: Path) -> None:
    prepared.encoder.save(folder / "encoder.json")
    origin = dataset.origin()
    prepared.table.describe(folder, {"options": values(dataset)} | ({} if origin is None else {"origin": origin}))


def load(path: Path) -> Prepared:
    """Memory-map a prepared log."""
    return Prepared(ClickTable.load(path), Encoder.load(path / "encoder.json"))


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
    options: dict[str, Any] = manifest["options"]
    return options
