"""Raw logs in the published formats, made by `rawlogs.py` and complete or not there at all."""

from __future__ import annotations

import os
from pathlib import Path

import rawlogs


def write(dataset: str, rows: int, path: str) -> None:
    """Write so many rows in a dataset's format."""
    draft = Path(f"{path}.{os.getpid()}.tmp")
    try:
        {"criteo": rawlogs.write_criteo, "taobao": rawlogs.write_taobao}[dataset](draft, rows, 0)
        draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)
