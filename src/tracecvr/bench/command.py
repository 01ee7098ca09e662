"""`tracecvr bench`, whole: run, gather, compute, write, say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tracecvr.bench import log_summary, progress_board, report, reuse, segments, tables, tune
from tracecvr.bench.runner import BenchEngine, Request, carry_out, opened


def bench(request: Request, out: Path, engine: BenchEngine, by: str | None = None, others: Sequence[Path] = ()) -> bool:
    """Carry a bench out, or the rest of it, and write its tables and its report; False if a cell failed.

    Cells that one of the benches `others` has finished are taken from there.
    """
    with opened(request, out) as held, progress_board.Board(Console(stderr=True)) as board:
        log_summary.write(out, held.log)
        reuse.take_over(held, others)
        state = carry_out(held, engine, board)
        by_segment = None if by is None else segments.write(out, held.log, by)
        if request.suite.layout == "tune":
            tune.write(out)
        tables.write(out, by_segment)
        report.write(out)
    console = Console(highlight=False, soft_wrap=True)
    console.print((out / "table.md").read_text(encoding="utf-8"), markup=False)
    for name, message in state.failed.items():
        console.print(f"failed: {name}: {message}", markup=False)
    if state.failed:
        console.print("the same command again tries the failed cells once more", markup=False)
    console.print(f"results: {out / 'results.parquet'}  tables: {out / 'table.md'}, {out / 'table.tex'}", markup=False)
    console.print(f"report: {out / 'report.html'}", markup=False)
    return not state.failed
