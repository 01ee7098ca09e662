"""The gauntlet: a suite that is run on many logs, each with one hardship, and what it shows of every method.

```
DIR/gauntlet.json     which logs, in order, and which are absent
DIR/NAME/             an ordinary bench of each log
DIR/gauntlet.parquet  one row per method and log: see `regret`
DIR/table.md, report.html
```
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

import polars as pl

from tracecvr.base import config
from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json, write_json, write_parquet
from tracecvr.bench import gauntlet_report, regret
from tracecvr.bench.outcome import Outcome
from tracecvr.bench.runner import Request
from tracecvr.bench.suite import Log, Suite


def choose_logs(suite: Suite, names: Sequence[str]) -> tuple[Log, ...]:
    known = {log.name: log for log in suite.logs}
    for name in names:
        if name not in known:
            raise UserError(f"--logs {name}: no such log{config.nearest(name, known)}; there are: {', '.join(known)}")
    return tuple(known[name] for name in names or known)


def begin(request: Request, logs: Sequence[Log], out: Path) -> tuple[dict[str, Request], tuple[str, ...]]:
    """Write down which logs there are. Returns the bench of each that is at hand, and the names of the others."""
    if request.tuned.methods:
        raise UserError("--tuned: its settings were chosen on one log; the gauntlet has many")
    sources = {log.name: source_of(log) for log in logs}
    present = [log for log in logs if not log.file or sources[log.name] is not None]
    absent = tuple(log.name for log in logs if log not in present)
    out.mkdir(parents=True, exist_ok=True)
    facts = {
        "suite": request.suite.name,
        "about": request.suite.about,
        "seeds": list(request.seeds),
        "methods": list(request.methods),
        "settings": dict(request.settings),
        "logs": [asdict(log) for log in present],
        "absent": list(absent),
        "tracecvr": version("tracecvr"),
    }
    write_json(out / "gauntlet.json", facts)
    return {log.name: _request(request, log, sources[log.name]) for log in present}, absent


def source_of(log: Log) -> Path | None:
    """The raw log, in the folder that TRACECVR_DATA names or in ../shared/data; None if it has none or is not there."""
    path = Path(os.environ.get("TRACECVR_DATA", Path("..", "shared", "data"))) / log.file
    return path if log.file and path.is_file() else None


def _request(request: Request, log: Log, source: Path | None) -> Request:
    return replace(
        request,
        data=log.data,
        source=source,
        data_settings=tuple(f"{key}={value}" for key, value in log.options.items()),
        settings=log.settings | dict(request.settings),
    )


def write(out: Path, kinds: Sequence[str] = ()) -> list[Path]:
    """`gauntlet.parquet`, table and report of the logs that are finished by now. Returns what was written."""
    facts = read_json(out / "gauntlet.json")
    parts = [_measure(out / log["name"], log) for log in facts["logs"]]
    frame = pl.concat([part for part in parts if part is not None] or [pl.DataFrame(schema=regret.SCHEMA)])
    write_parquet(out / "gauntlet.parquet", frame)
    return [out / "gauntlet.parquet", *gauntlet_report.write(out, frame, facts, kinds)]


def _measure(folder: Path, log: dict[str, str]) -> pl.DataFrame | None:
    if not (folder / "results.parquet").is_file():
        return None
    about = log["about"] or next(iter(read_json(folder / "bench.json")["log"]["notes"]), "")
    outcome = Outcome(folder)
    return regret.measure(outcome, log["name"], about) if outcome.lines else None
