"""One method on one log: predict each interval, then learn from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from tracecvr.api import shown
from tracecvr.api.authors import name_of
from tracecvr.api.logs import Log
from tracecvr.api.own_tables import Moment, moment
from tracecvr.api.shown import Picture
from tracecvr.authoring.method import Method, Plugin
from tracecvr.base import config
from tracecvr.base.files import TemporaryFolder
from tracecvr.base.metrics import TITLES
from tracecvr.base.progress import no_progress
from tracecvr.bench.report import render_table
from tracecvr.bench.report.figures import runs_over_time
from tracecvr.bench.text_tables import Table, Text, figure_cell
from tracecvr.forecast.of_run import Forecasts, of_run, open_run
from tracecvr.runs.intervals import OnInterval
from tracecvr.runs.run import read_result, run
from tracecvr.runs.spec import spec_of

if TYPE_CHECKING:
    from tracecvr.api.models import Model

METRICS = {name: TITLES[name] for name in ("auc", "pr_auc", "nll", "ne", "ece", "pcoc")}
"""What is shown of a result, in this order."""

REFERENCES = {"constant": "constant rate", "logistic": "logistic regression"}

WARM_LABELS = {
    "censored": "labels of the warm-up part are those known at the split: no conversion from after it",
    "mature": "labels of the warm-up part are final, also where the conversion came after the split",
}
"""What a result says of `warm_labels`."""

_ALARMS = (
    dict.fromkeys(("kind", "segment"), pl.String)
    | dict.fromkeys(("since", "raised", "ended"), pl.Int64)
    | dict.fromkeys(("arrived", "expected"), pl.Float64)
    | {"text": pl.String}
)
_SHOWN = 10
"""Alarms that are printed."""


@dataclass(frozen=True, eq=False)
class Result:
    """What came out of a replay. It shows itself in a notebook.

    Parameters
    ----------
    folder
        Where the run is: `result.json`, `intervals.parquet`, `scores.parquet` and a checkpoint.
    content
        All of `result.json`: metrics, references, cost, configuration, versions.
    """

    folder: Path
    content: dict[str, Any]
    _holds: Any = field(default=None, repr=False)
    _log: Log | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The method with its plugins."""
        return "+".join([self.content["method"], *self.content["plugins"]])

    @property
    def metrics(self) -> dict[str, float | None]:
        """Of all clicks that were judged: `auc`, `pr_auc`, `nll`, `ne`, `ece`, `pcoc` and others."""
        pooled: dict[str, float | None] = self.content["metrics"]["pooled"]
        return dict(pooled)

    @property
    def references(self) -> dict[str, dict[str, float | None]]:
        """The same of a constant rate and of a logistic regression."""
        return dict(self.content["references"])

    @property
    def alarms(self) -> pl.DataFrame:
        """What was not as expected: `kind`, `segment`, `since`, `raised`, `ended`, how much `arrived` and was
        `expected`, and all of it as `text`. A live model would have warned at `raised`."""
        return pl.DataFrame(self.content["alarms"], _ALARMS)

    @cached_property
    def scores(self) -> pl.DataFrame:
        """Every click that was judged: `click_id` as the log has it, `time`, the `probability` that was served for it,
        the same as `log_odds`, and its final `label`."""
        return self._with_time(pl.read_parquet(self.folder / "scores.parquet"), "click_ts")

    @cached_property
    def intervals(self) -> pl.DataFrame:
        """Metrics of each interval: `time`, `clicks`, `conversions`, then metrics by name."""
        return self._with_time(pl.read_parquet(self.folder / "intervals.parquet"), "start")

    @cached_property
    def model(self) -> Model:
        """The model as the end of the stream left it."""
        from tracecvr.api.models import load

        return load(self.folder)

    def forecast(
        self,
        by: str | None = None,
        at: Moment | None = None,
        *,
        level: float = 0.9,
        days: int | None = None,
    ) -> pl.DataFrame:
        """How many conversions the clicks of each day will have in the end, as forecast at a past moment. Nothing that
        became known later is used.

        Parameters
        ----------
        by
            A feature, such as a campaign: a row for each of its values and each day. All clicks together without it.
        at
            The moment: a date-time, or a duration since the log's start. The last midnight (UTC) by default. Days are
            the 24 hours up to it, and those before.
        level
            The share of intervals, from `low` to `high`, that are to hold the final number.
        days
            How many of the last days; all that are open by default.

        Examples
        --------
        >>> from tracecvr.api.logs import dataset
        >>> result = replay(dataset("synthetic", clicks=2000), "vanilla", progress=False, hidden=[8], warm_epochs=1)
        >>> result.forecast(days=1).columns[:6]
        ['segment', 'day', 'age_days', 'clicks', 'conversions', 'expected']
        """
        of = self._forecasts
        return of.forecast(by, None if at is None else moment(at, of.origin, "at"), level, days)

    def expected_figures(self, by: str | None = None, *, age: int = 0, level: float = 0.9) -> pl.DataFrame:
        """NLL, PCOC and AUC of each day before its labels were final, beside what they came to.

        Parameters
        ----------
        by
            A feature: a row for each day and each of its largest values, too. All clicks are the segment `all`.
        age
            When figures are expected: so many days after the end of the click's day, from what was known then alone.
        level
            The share of intervals, such as `nll_low` to `nll_high`, that are to hold the final figure (`nll_final`).

        Examples
        --------
        >>> from tracecvr.api.logs import dataset
        >>> result = replay(dataset("synthetic", clicks=2000), "vanilla", progress=False, hidden=[8], warm_epochs=1)
        >>> result.expected_figures().columns[:7]
        ['segment', 'day', 'clicks', 'nll', 'nll_low', 'nll_high', 'nll_final']
        """
        return self._forecasts.figures(by, age, level)

    @cached_property
    def _forecasts(self) -> Forecasts:
        return open_run(self.folder) if self._log is None else of_run(self.folder, self._log.open(no_progress))

    def plot(self) -> Picture:
        """AUC, NLL and PCOC over time."""
        intervals = pl.read_parquet(self.folder / "intervals.parquet")
        return Picture(runs_over_time({self.name: intervals}, self.content["data"].get("origin")))

    def table(self) -> Table:
        """The figures, with those of the references below."""
        cost = self.content["cost"]
        spent = f"{cost['prepare_s'] + cost['warm_up_s'] + cost['stream_s']:.0f} s"
        events = f"{cost['reveals'] / max(cost['clicks'], 1):.2f}"
        data = self.content["data"]
        title = f"{data['name']}: {data['counts']['scored']:,} clicks scored, then learned from"
        table = Table(title, ["method", *METRICS.values(), "events/click", "time"])
        table.rows.append([Text(self.name), *_cells(self.metrics), Text(events), Text(spent)])
        for name, figures in self.references.items():
            table.rows.append([Text(f"({REFERENCES[name]})"), *_cells(figures), Text(""), Text("")])
        table.notes += self.notes()
        return table

    def notes(self) -> list[str]:
        """What a reader of the figures has to know."""
        data = self.content["data"]
        lines = [f"warning: {self.content['advice']}"] if self.content["advice"] else []
        lines += [f"alarm: {alarm['text']}" for alarm in self.content["alarms"][:_SHOWN]]
        if (more := len(self.content["alarms"]) - _SHOWN) > 0:
            lines.append(f"{more} more alarms are in result.json")
        lines += [
            f"{name}: {count:,}"
            for name, count in data["counts"].items()
            if count and name.startswith(("dropped_", "not_scored", "not_judged"))
        ]
        lines += [f"note: {note}" for note in data["notes"]]
        warm_labels = self.content["plan"]["warm_labels"]
        return [*lines, f"warm_labels={warm_labels}: {WARM_LABELS[warm_labels]}"]

    def __repr__(self) -> str:
        figures = ", ".join(f"{title} {figure_cell(self.metrics.get(name)).text}" for name, title in METRICS.items())
        return f"{self.name}: {figures}"

    def _repr_html_(self) -> str:
        return shown.page(render_table(self.table()), self.plot().markup())

    def _with_time(self, frame: pl.DataFrame, column: str) -> pl.DataFrame:
        origin = self.content["data"].get("origin")
        time = pl.col(column)
        if origin is not None:
            time = pl.from_epoch(time + origin).dt.replace_time_zone("UTC")
        named = frame.with_columns(time.alias(column)).rename({column: "time"})
        first = [name for name in ("click_id", "time") if name in named.columns]
        return named.select(*first, pl.exclude(first))


def replay(
    log: Log,
    method: str | Path | type[Method] = "telescoped",
    *,
    plugins: Sequence[str | Path | type[Plugin]] = (),
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    on_interval: OnInterval | None = None,
    threads: int | None = None,
    checkpoint_every: float = 30.0,
    options: Mapping[str, Any] | None = None,
    **more_options: Any,
) -> Result:
    """Replay a log with one method: predict each interval of the stream, then learn from what it revealed.

    Parameters
    ----------
    log
        Made by `read` or `dataset`.
    method
        A name (`tracecvr methods` lists them), the Python file of a method of yours, or its class.
    plugins
        Names, files or classes of plugins, such as `completer`.
    seed
        Seed of everything random.
    out
        Directory of the result. Without it, files are temporary and go with the result.
    resume
        Continue a run in `out` that was stopped.
    progress
        Show progress.
    on_interval
        Called after each interval with an `Interval`: its number, time, clicks and metrics.
    threads
        Threads. By default one if optimiser steps are small, else all cores; a resumed run keeps its number.
    checkpoint_every
        Seconds between checkpoints.
    options, more_options
        Options of the method, of the replay (`split`, `interval`, `warm_labels`, ...), of the stream
        (`stream={"learning_rate": 1e-4}`) and of plugins (`completer={"weight": 0.2}`), as keywords or as a dictionary.

    Examples
    --------
    >>> from tracecvr.api.logs import dataset
    >>> result = replay(dataset("synthetic", clicks=2000), "vanilla", progress=False, hidden=[8], warm_epochs=1)
    >>> sorted(result.metrics)[:2]
    ['ap', 'auc']
    """
    settings = config.settings_of({**(options or {}), **more_options})
    names = [name_of(plugin) for plugin in plugins]
    spec = spec_of(name_of(method), names, log.data, log.source, settings, log.settings, seed, threads, log.flag)
    spec = replace(spec, open_log=log.open)
    holds = TemporaryFolder() if out is None else None
    folder = holds.path / "run" if holds is not None else Path(out or "")
    with shown.progress(progress, f"{spec.method.name} · ") as watch:
        content = run(spec, folder, resume, watch, checkpoint_every, on_interval=on_interval)
    return Result(folder, content, holds, log)


def load_result(path: str | Path) -> Result:
    """The result of a finished run in a directory."""
    return Result(Path(path), read_result(Path(path)))


def _cells(pooled: Mapping[str, float | None]) -> list[Text]:
    return [figure_cell(pooled.get(name), 3 if name == "pcoc" else 4) for name in METRICS]
