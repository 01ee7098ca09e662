"""A whole bench: run its cells, gather, compute, write tables and report."""

from __future__ import annotations

from pathlib import Path

from tracecvr.bench import forecasts, log_summary, report, segments, tables, tune
from tracecvr.bench.runner import BenchEngine, Request, State, Watch, carry_out, hold_bench


def bench(
    request: Request,
    out: Path,
    engine: BenchEngine,
    by: str | None = None,
    watch: Watch = lambda _: None,
) -> State:
    """Carry a bench out, or the rest of it, and write its tables and its report."""
    with hold_bench(request, out) as held:
        log_summary.write(out, held.log)
        state = carry_out(held, engine, watch)
        if by is not None:
            segments.write(out, held.log, by)
        if request.suite.layout == "forecast":
            forecasts.write(out, held.log, by)
        if request.suite.layout == "tune":
            tune.write(out)
        tables.write(out)
        report.write(out)
    return state
