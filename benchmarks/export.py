"""One click through an exported model: TRACE at the paper's sizes, by onnxruntime and by torch, one thread each.

    python benchmarks/export.py

Exit code 1 if the target is missed. See docs/live_performance.md.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from measure import paper
from measure.report import FIGURES, Figure, figure_rows
from tracecvr.api.models import Model
from tracecvr.data.encoder import Binned, Encoder
from tracecvr.data.scorer import Scorer
from tracecvr.datasets.criteo import Criteo
from tracecvr.learn.fast_scores import probes

TARGET_US = 200.0


def main() -> int:
    """Measure, print, and say whether the target is met."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as room:
        figures = measured(Path(room) / "export")
    table = Table(*FIGURES, title="Export")
    for row in figure_rows(figure.to_json() for figure in figures):
        table.add_row(*row)
    Console().print(table)
    return 0 if all(figure.passed for figure in figures) else 1


def measured(out: Path, calls: int = 2000) -> list[Figure]:
    """Of one click at a time: its score, from ids and from raw features."""
    engine = paper.Stream("trace", paper.dense(1, 2000)).engine
    Model(engine, _encoder(), {"kind": "benchmark"}).export(out)
    scorer = Scorer(out)
    ids = probes(engine, 1)
    click = {column.raw: 17 if isinstance(column, Binned) else "a4f5c0e2" for column in _encoder().columns}
    asked: list[tuple[str, Callable[[], Any], float | None]] = [
        ("score by onnxruntime", lambda: scorer.score(ids=ids), TARGET_US),
        ("score by onnxruntime from raw features", lambda: scorer.log_odds([click]), TARGET_US),
        ("score by torch", lambda: engine.score(torch.from_numpy(ids)), None),
    ]
    return [_timed(name, call, calls, target) for name, call, target in asked]


def _timed(name: str, call: Callable[[], Any], calls: int, target: float | None) -> Figure:
    for _ in range(calls // 10):
        call()
    took = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        took.append(1e6 * (time.perf_counter() - start))
    how = f"median of {calls:,}; 99 % below {sorted(took)[calls * 99 // 100]:,.0f} us"
    return Figure(f"one click: {name}", median(took), "us", target, how)


def _encoder() -> Encoder:
    """Criteo's, with ranges as if learnt."""
    columns = Criteo().columns()
    return Encoder(tuple(replace(c, low=-1.0, high=99.0) if isinstance(c, Binned) else c for c in columns))


if __name__ == "__main__":
    sys.exit(main())
