"""Cells that another bench has carried out already: the same run, hence the same bytes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json, sync
from tracecvr.bench import results
from tracecvr.bench.runner import Bench, spec_of_cell
from tracecvr.data.table import read_manifest


def take_over(bench: Bench, others: Sequence[Path]) -> int:
    """Copy what other benches have finished of this one's cells; returns how many."""
    finished = {_key(read_json(run / "run.json")): run for other in others for run in _runs(other)}
    fingerprint = {"fingerprint": read_manifest(bench.log)["fingerprint"]}
    taken = 0
    for cell in bench.cells:
        target = bench.out / "cells" / cell.name
        run = finished.get(_key(spec_of_cell(cell, bench.data, bench.log).identity() | fingerprint))
        if run is not None and not target.exists():
            _copy(run, target)
            taken += 1
    return taken


def _runs(bench: Path) -> Iterator[Path]:
    if not (bench / "bench.json").is_file():
        raise UserError(f"{bench}: holds no bench; give --reuse the directory of one")
    return (run for run in sorted((bench / "cells").iterdir()) if results.finished(run))


def _key(run: dict[str, Any]) -> str:
    """What makes two runs the same, and the log that they replay; where that was read from does not matter."""
    return json.dumps({name: value for name, value in run.items() if name != "source"}, sort_keys=True)


def _copy(run: Path, target: Path) -> None:
    """All of it or nothing: a half-copied run would be taken for a finished one."""
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        shutil.copytree(run, draft, ignore=shutil.ignore_patterns(".lock", "checkpoint"))
        sync(draft)
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
