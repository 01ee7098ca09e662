"""Who may work in a directory: one process, on the run or the bench that the directory holds, or on a new one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tracecvr.base.errors import UserError
from tracecvr.base.files import locked, read_json, refuse_other_format

FORMAT = 1
"""Of `run.json` and `result.json`."""


@contextmanager
def claim(out: Path, identity: dict[str, Any], resume: bool) -> Iterator[None]:
    """Lock a run directory for one process, if it is empty or holds this run."""
    created, locked_before = not out.exists(), (out / ".lock").exists()
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        try:
            for left in out.rglob(".*.tmp"):  # of a process that was killed while it wrote
                left.unlink()
            begun = (out / "run.json").exists()
            if not begun and any(path.name not in (".lock", "scores.f32") for path in out.iterdir()):
                raise UserError(f"{out} is not empty and holds no run: choose another --out")
            if begun and not resume:
                raise UserError(f"{out} already holds a run: continue it with --resume, or choose another --out")
            if begun:
                refuse_other_run(identity, out)
            yield
        finally:
            if not (out / "run.json").exists():  # nothing was begun: leave no trace
                if created:
                    shutil.rmtree(out)
                elif not locked_before:
                    (out / ".lock").unlink()


def read_result(folder: Path) -> dict[str, Any]:
    """What a finished run has in `result.json`."""
    if not (folder / "result.json").is_file():
        raise UserError(f"{folder} holds no finished run: give the directory that `replay` or `tracecvr run` wrote")
    content: dict[str, Any] = read_json(folder / "result.json")
    refuse_other_format(content, FORMAT, folder / "result.json")
    return content


def refuse_other_run(identity: dict[str, Any], out: Path) -> None:
    recorded = read_json(out / "run.json")
    refuse_other_format(recorded, FORMAT, out / "run.json")
    refuse_other(identity, recorded, str(out))


def refuse_other(ours: dict[str, Any], theirs: dict[str, Any], where: str, what: str = "run", prefix: str = "") -> None:
    """Refuse to go on in a directory whose recorded facts are not ours."""
    for key, value in ours.items():
        other = theirs.get(key)
        if isinstance(value, dict) and isinstance(other, dict):
            refuse_other(value, other, where, what, f"{prefix}{key}.")
        elif value != other:
            raise UserError(
                f"{where} holds another {what}: {prefix}{key} is {other!r} there, {value!r} here; choose another --out"
            )
