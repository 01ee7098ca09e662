"""Several methods on one log, over several seeds, with statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
from markupsafe import Markup

from tracecvr.api import shown
from tracecvr.api.authors import name_of
from tracecvr.api.logs import Log
from tracecvr.api.replays import Result, load_result
from tracecvr.api.shown import Picture
from tracecvr.authoring.method import Method
from tracecvr.base import config, registry
from tracecvr.base.errors import UserError
from tracecvr.base.files import TemporaryFolder
from tracecvr.bench import engines, forecasts, gauntlet, report, tables, tuned
from tracecvr.bench.engines.local import Serial
from tracecvr.bench.outcome import ARROWS, NAMES, Line, Outcome
from tracecvr.bench.report.figures import runs_over_time
from tracecvr.bench.runner import BenchEngine, Request, State, hold_bench, run_cells
from tracecvr.bench.suite import Suite, role_of, rows_of

METRICS = ("auc", "pr_auc", "nll", "ece", "pcoc")
"""What a comparison shows, unless other metrics are asked for."""


@dataclass(frozen=True, eq=False)
class Board:
    """What came out of a comparison, or of any bench in a directory. It shows itself in a notebook.

    Parameters
    ----------
    folder
        Where the bench is: `results.parquet`, tables, `report.html`, and each run in `cells/`.
    failed
        Runs that failed, and why.
    """

    folder: Path
    failed: dict[str, str] = field(default_factory=dict)
    _holds: Any = field(default=None, repr=False)

    @cached_property
    def outcome(self) -> Outcome:
        """All figures, as tables and the report have them."""
        return report.open_bench(self.folder)

    @cached_property
    def frame(self) -> pl.DataFrame:
        """One row per method. Of each metric: the mean over seeds, and the ends of its 95 % confidence interval
        (`_low`, `_high`; null for one seed)."""
        return pl.DataFrame([self._row(line) for line in self.outcome.lines], infer_schema_length=None)

    @cached_property
    def differences(self) -> pl.DataFrame:
        """Paired differences of every two methods: `method` minus `against`, with a 95 % confidence interval and p.
        `over` says what was paired: seeds, or days if there is one seed."""
        lines, metrics = self.outcome.lines, [metric for metric in self.outcome.metrics if metric in ARROWS]
        pairs = [(a, b, metric) for a in lines for b in lines if a is not b for metric in metrics]
        rows = [{"method": a.name, "against": b.name, "metric": m, **self._difference(a, b, m)} for a, b, m in pairs]
        return pl.DataFrame(rows, infer_schema_length=None)

    def result(self, method: str, seed: int | None = None) -> Result:
        """One run of the comparison: of a method, as `frame` names it, with a seed (the first by default)."""
        line = next((line for line in self.outcome.lines if method in (line.name, line.facts["method"])), None)
        if line is None:
            names = [line.name for line in self.outcome.lines]
            hint = config.nearest(method, names)
            raise UserError(f"no finished run of {method!r}{hint}; there are: {', '.join(names)}")
        seeds = list(line.cells["seed"])
        if seed is not None and seed not in seeds:
            raise UserError(f"{line.name} was not run with seed {seed}; seeds are {', '.join(map(str, seeds))}")
        cell = line.cells["cell"][0 if seed is None else seeds.index(seed)]
        result = load_result(self.folder / "cells" / cell)
        return Result(result.folder, result.content, self._holds)

    @property
    def report(self) -> Path:
        """The report, one HTML file with all figures and tables."""
        return self.folder / "report.html"

    def plot(self) -> Picture:
        """AUC, NLL and PCOC of each method over time, with the first seed."""
        cells = {line.name: self.folder / "cells" / line.cells["cell"][0] for line in self.outcome.lines}
        origin = next((self.result(name).content["data"].get("origin") for name in cells), None)
        intervals = {name: pl.read_parquet(cell / "intervals.parquet") for name, cell in cells.items()}
        return Picture(runs_over_time(intervals, origin))

    def __repr__(self) -> str:
        """Means of all metrics; `frame` has their intervals, too."""
        means = self.frame.select("method", "seeds", *self.outcome.metrics)
        with pl.Config(
            tbl_cols=-1, tbl_rows=-1, tbl_width_chars=200, float_precision=4, tbl_hide_column_data_types=True
        ):
            return repr(means)

    def _repr_html_(self) -> str:
        made = map(report.render_table, tables.summary(self.outcome))
        lost = [Markup("<p>failed: {}: {}</p>").format(*pair) for pair in self.failed.items()]
        return shown.page(*made, *lost, self.plot().markup())

    def _row(self, line: Line) -> dict[str, Any]:
        row: dict[str, Any] = {"method": line.name, "seeds": len(line.cells)}
        for metric in self.outcome.metrics:
            spread = line.spread(metric)
            low, high = (None, None) if spread is None else spread.interval()
            row |= {metric: None if spread is None else spread.mean, f"{metric}_low": low, f"{metric}_high": high}
        return row

    def _difference(self, ours: Line, theirs: Line, metric: str) -> dict[str, Any]:
        between = self.outcome.difference(ours, theirs, metric, pooled=len(self.outcome.bench["seeds"]) > 1)
        fields = {"difference": "mean", "low": "low", "high": "high", "p": "p", "over": "over"}
        return {name: getattr(between, field, None) for name, field in fields.items()}  # without a common seed, None


def compare(
    log: Log,
    methods: Sequence[str | Path | type[Method]] | Mapping[str, Mapping[str, Any]],
    *,
    seeds: int | Sequence[int] = 1,
    metrics: Sequence[str] = METRICS,
    out: str | Path | None = None,
    progress: bool = True,
    workers: int | None = None,
    options: Mapping[str, Any] | None = None,
    **more_options: Any,
) -> Board:
    """Run several methods on one log, each with several seeds, and say how they differ.

    Parameters
    ----------
    log
        Made by `read` or `dataset`.
    methods
        Names, files or classes of methods. Or a dictionary: by label, a dictionary with `method`, `plugins` and options
        of that row alone, such as `{"short window": {"method": "vanilla", "window": "15min"}}`.
    seeds
        How many seeds (3 stands for 0, 1, 2), or which ones. With one seed there is no interval over seeds.
    metrics
        Columns of the tables.
    out
        Directory of the bench; the same call goes on in it. Without it, files are temporary and go with the board.
    progress
        Show progress.
    workers
        Processes of this machine; all cores by default. `tracecvr bench --engine ray` uses a cluster.
    options, more_options
        Options of every method that knows them, as for `replay`.

    Examples
    --------
    >>> from tracecvr.api.logs import dataset
    >>> log = dataset("synthetic", clicks=2000)
    >>> board = compare(log, ["vanilla", "oracle"], workers=1, progress=False, hidden=[8], warm_epochs=1)
    >>> list(board.frame["method"])
    ['Vanilla', 'Oracle']
    """
    settings = config.settings_of({**(options or {}), **more_options})
    config.refuse_unknown(metrics, NAMES, "metrics", "metric")
    suite = Suite("comparison", "Methods on one log.", metrics=tuple(metrics), rows=_rows(methods))
    rows_of(suite, settings=settings, flag="option")  # so that mistakes are named before anything is prepared
    given = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not given:
        raise UserError("seeds: give at least one")
    request = Request(suite, log.data, log.source, log.settings, settings, seeds=given)
    holds = TemporaryFolder() if out is None else None
    folder = holds.path / "bench" if holds is not None else Path(out or "")
    state = carry_out(request, folder, _engine(suite.rows, workers), progress=progress)
    if not state.done:
        raise UserError("every run failed: " + "; ".join(f"{name}: {why}" for name, why in state.failed.items()))
    return Board(folder, state.failed, holds)


def carry_out(request: Request, out: Path, engine: BenchEngine, by: str | None = None, progress: bool = True) -> State:
    """Carry out what is left of a bench, and write its tables and report; a suite of forecasts needs a feature `by`."""
    if (request.suite.layout == "forecast") != (by is not None):
        raise UserError("--by FEATURE goes with the suite forecast, such as --by campaign, and with no other")
    with hold_bench(request, out) as held, shown.progress(progress) as tell:
        state = run_cells(held, engine, lambda s: tell("cells", len(s.done) + len(s.failed), len(s.cells)))
        if by is not None:
            forecasts.write(out, held.log, by)
        if request.suite.layout == "tune":
            tuned.write_best(out)
        tables.write(out)
        report.write(out)
    return state


def run_gauntlet(request: Request, out: Path, engine: BenchEngine, logs: Sequence[str] = ()) -> dict[str, str]:
    """Carry out a suite on its own logs, or those named. Returns failed cells with their reason."""
    return gauntlet.run(request, logs, out, lambda one, folder: carry_out(one, folder, engine))


def _rows(
    methods: Sequence[str | Path | type[Method]] | Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, Any], ...]:
    if isinstance(methods, str | Path | type):
        methods = [methods]
    labelled = methods.items() if isinstance(methods, Mapping) else [("", {"method": one}) for one in methods]
    if not labelled:
        raise UserError("methods: give at least one")
    return tuple(_row(label, row) for label, row in labelled)


def _row(label: str, given: Mapping[str, Any]) -> dict[str, Any]:
    own = dict(given)
    if "method" not in own:
        raise UserError(f"methods: {label!r}: name its method: {{'method': 'trace', ...}}")
    method = name_of(own.pop("method"))
    plugins = [name_of(plugin) for plugin in own.pop("plugins", ())]
    privileged = registry.get("method", method).privileged  # type: ignore[attr-defined]
    role = "upper" if privileged else role_of(method)
    row = {"method": method, "plugins": plugins, "set": own, "role": role}
    return row | ({"label": label} if label else {})


def _engine(rows: Sequence[Mapping[str, Any]], workers: int | None) -> BenchEngine:
    """Where runs are carried out: here, if only this process knows a class."""
    names = [("method", row["method"]) for row in rows]
    names += [("plugin", plugin) for row in rows for plugin in row["plugins"]]
    names += [("backbone", row["set"].get("backbone")) for row in rows]
    here = any(name in registry.registered_names(kind) for kind, name in names)
    return Serial() if workers == 1 or here else engines.choose("local", workers)
