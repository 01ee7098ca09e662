"""A whole bench: run its cells, gather, compute, write tables and report."""

from __future__ import annotations

from pathlib import Path

from tracecvr.base.errors import UserError
from tracecvr.bench import forecasts, report, tables, tune
from tracecvr.bench.runner import BenchEngine, Request, State, Watch, carry_out, hold_bench


def bench(
    request: Request,
    out: Path,
    engine: BenchEngine,
    by: str | None = None,
    watch: Watch = lambda _: None,
) -> State:
    """Carry a bench out, or the rest of it, and write its tables and its report. `by`: the feature that a suite of
    forecasts forecasts by."""
    if (request.suite.layout == "forecast") != (by is not None):
        raise UserError("--by FEATURE goes with the suite forecast, such as --by campaign, and with no other")
    with hold_bench(request, out) as held:
        state = carry_out(held, engine, watch)
        if by is not None:
            forecasts.write(out, held.log, by)
        if request.suite.layout == "tune":
            tune.write(out)
        tables.write(out)
        report.write(out)
    return state
