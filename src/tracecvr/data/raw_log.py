"""Where a table or a run came from, kept in its directory: the dataset with its options, the raw log, and small files
that are needed to read that again (the schema of a log of your own). Later commands need not be told any of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tracecvr.base import registry
from tracecvr.base.config import values
from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json, write_json, write_text
from tracecvr.data.dataset import Dataset

NAME = "raw_log.json"


def record(dataset: Dataset, source: Path | None, folder: Path) -> None:
    """Write to a directory what its log was made of."""
    small = dataset.read_carried()
    for name, text in small.items():
        write_text(folder / name, text)
    facts = {"dataset": dataset.name, "options": values(dataset), "files": list(small)}
    write_json(folder / NAME, facts | {"source": None if source is None else str(source.absolute())})


def copy_record(table: Path, folder: Path) -> None:
    """Write to a directory what a table was made of, if the table says so."""
    if (table / NAME).is_file():
        for name in [NAME, *read_json(table / NAME)["files"]]:
            shutil.copyfile(table / name, folder / name)


def reopen(folder: Path) -> tuple[Dataset, Path | None]:
    """The dataset of a directory, and the raw log that it reads, if it reads one."""
    if not (folder / NAME).is_file():
        raise UserError(f"{folder} does not say which raw log it was made of: make it again from the raw log")
    facts = read_json(folder / NAME)
    kind: Any = registry.get("dataset", facts["dataset"])
    source = None if facts["source"] is None else Path(facts["source"])
    if source is not None and not source.exists():
        raise UserError(
            f"{source}, the raw log of {folder}, is gone: put it back, or prepare it again from where it is"
        )
    return kind.reopen(facts["options"], folder), source
