"""`tuned.toml`: settings that were chosen for each method, and on which clicks they were chosen.

docs/tuning.md has an example.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from tracecvr.base import config
from tracecvr.base.config import DAY
from tracecvr.base.durations import duration, log_day
from tracecvr.base.errors import UserError
from tracecvr.base.files import read_toml, refuse_other_format, write_text
from tracecvr.bench.outcome import Line, Outcome
from tracecvr.bench.suite import title_of
from tracecvr.bench.text_tables import Table, Text, figure_cell
from tracecvr.data.table import ClickTable
from tracecvr.runs.replay import Plan

FORMAT = 4


@dataclass(frozen=True)
class Period:
    """What settings were chosen on. Times in seconds since the log's origin, `until` exclusive."""

    data: str
    fingerprint: str
    start: int
    until: int
    seeds: list[int]
    learning: str = "ours"
    """What trials started from."""


@dataclass(frozen=True)
class Tuned:
    """A `tuned.toml`; empty if none was given."""

    methods: dict[str, dict[str, str]] = field(default_factory=dict)
    period: Period | None = None

    @property
    def learning(self) -> str | None:
        """The learning settings that the choices belong to: with others they would mean something else."""
        return None if self.period is None else self.period.learning


def load(path: Path | None) -> Tuned:
    if path is None:
        return Tuned()
    content = read_toml(path, "--tuned")
    refuse_other_format(content, FORMAT, path)
    try:
        methods = {method: config.settings_of(settings) for method, settings in content["methods"].items()}
        return Tuned(methods, Period(**content["period"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not a tuned.toml ({type(error).__name__}: {error})") from None


def write(path: Path, methods: Mapping[str, Mapping[str, str]], period: Period) -> None:
    """The file that `load` reads. Numbers, text and lists of numbers look the same in JSON and TOML."""
    parts: dict[str, Mapping[str, Any]] = {"period": asdict(period)}
    parts |= {f"methods.{json.dumps(method)}": settings for method, settings in methods.items()}
    lines = [f"format = {FORMAT}"]
    for name, content in parts.items():
        lines += ["", f"[{name}]", *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in content.items())]
    write_text(path, "\n".join(lines) + "\n")


# What follows for a bench: which clicks it tunes on, and which it may judge.


def choose_times(table: ClickTable, settings: Mapping[str, str], first: int | None, tuned: Tuned) -> dict[str, str]:
    """The settings that a suite and a tuned.toml imply, unless `settings` say otherwise: `until` of a search on the
    first part of the stream, at most half of it so that something is left to judge; `judge_from` of settings that
    were chosen so."""
    known = {option.name for option in config.options(Plan)}
    mine = {key: text for key, text in settings.items() if key.removeprefix("plan.") in known}
    plan = config.distribute({"plan": Plan()}, mine, "--set")["plan"]
    if first is not None and plan.until is None:
        whole = plan.resolve(table)
        half = (whole.until - whole.split) / 2
        half = round(half / DAY) * DAY if half >= DAY else max(int(half), 1)  # in whole days if there are some
        return {"until": str(whole.split + min(first, half))}
    split = table.schema.split if plan.split is None else plan.split
    if tuned.period is not None and plan.judge_from is None and tuned.period.until > split:
        replace(plan, judge_from=tuned.period.until).resolve(table)  # says at once if nothing is left to judge
        return {"judge_from": str(tuned.period.until)}
    return {}


def refuse(tuned: Tuned, fingerprint: str, seeds: Sequence[int], plans: Sequence[Plan], split: int) -> None:
    """Refuse to judge settings by what they were chosen on, or on another log than they were chosen for."""
    period = tuned.period
    if period is None:
        return
    if period.fingerprint != fingerprint:
        raise UserError(
            f"--tuned: its settings were chosen on another log ({period.data}, fingerprint {period.fingerprint}; this "
            f"one is {fingerprint}): tune on this log"
        )
    if used := sorted(set(seeds) & set(period.seeds)):
        raise UserError(
            f"--tuned: its settings were chosen with seed {', '.join(map(str, used))}: judge them with fresh seeds, "
            f"for example --seeds {fresh_seed(tuned)}-{fresh_seed(tuned) + 2}"
        )
    for plan in plans:
        given = split if plan.split is None else plan.split
        start = given if plan.judge_from is None else plan.judge_from
        if start < period.until:
            raise UserError(
                f"--tuned: its settings were chosen on clicks from {log_day(period.start)} to {log_day(period.until)}, "
                f"and some of them would be judged: set judge_from = {period.until} or later, or leave it out"
            )


def fresh_seed(tuned: Tuned) -> int:
    """The first seed that was not tuned with from there on."""
    return 0 if tuned.period is None else max(tuned.period.seeds) + 1


def find_judged(plans: Sequence[Plan], table: ClickTable) -> dict[str, int] | None:
    """From when to when clicks are judged; None where rows differ or a plan cannot be carried out."""
    try:
        resolved = {(full.judge_from, full.until) for full in (plan.resolve(table) for plan in plans)}
    except UserError:
        return None
    return dict(zip(("from", "until"), resolved.pop(), strict=True)) if len(resolved) == 1 else None


# The outcome of a search: the best trial of each method, as a table and as `tuned.toml`.


def choose(outcome: Outcome) -> dict[str, Line]:
    """The best trial of each method by pooled NLL, its mean over seeds, the first of equals. A trial of which a seed
    failed does not count."""
    best: dict[str, tuple[float, Line]] = {}
    for line in outcome.lines:
        mean, method = line.mean("nll"), line.facts["method"]
        if mean is not None and len(line.cells) == len(outcome.bench["seeds"]):
            best[method] = min(best.get(method, (mean, line)), (mean, line), key=lambda one: one[0])
    return {method: line for method, (_, line) in best.items()}


def _settings_of(outcome: Outcome, trial: Line) -> dict[str, str]:
    return dict(outcome.suite["trials"][int(trial.facts["variant"].removeprefix("trial "))])


def table(outcome: Outcome) -> Table:
    clicks = outcome.period or "the clicks that were replayed"
    title = f"Best of {len(outcome.suite['trials'])} trials each, by pooled NLL on {clicks}"
    made = Table(title, ["method", "settings", "trials", "NLL, defaults", "NLL, tuned", "steps", "time"])
    for method, best in choose(outcome).items():
        trials = [line for line in outcome.lines if line.facts["method"] == method]
        defaults = next((line.mean("nll") for line in trials if line.facts["variant"] == "trial 0"), None)
        cells = pl.concat([line.cells for line in trials])
        texts = [title_of(method), _list_settings(_settings_of(outcome, best)), str(len(trials))]
        seconds = sum(float(cells[name].sum()) for name in ("time_warm_up_s", "time_stream_s"))
        cost = [f"{cells['steps'].sum():,}", duration(seconds)]
        figures = map(figure_cell, (defaults, best.mean("nll")))
        made.rows.append([*map(Text, texts), *figures, *map(Text, cost)])
    made.notes = [
        "Every method has the same trials. Labels are final: some become known after the period. Steps and time are "
        "those of all trials; a warm-up that cells share is charged to the one that did it.",
        "The best of several trials is flattered by its choice. Use the settings with --tuned: on the same log, with "
        "fresh seeds, judged on clicks after the period.",
    ]
    return made


def tabulate_given(outcome: Outcome) -> list[Table]:
    """Of a bench that was given a tuned.toml: what each method got by it."""
    if "tuned_on" not in outcome.bench:
        return []
    period, given = Period(**outcome.bench["tuned_on"]), outcome.bench["tuned"]
    made = Table("What each method was given", ["method", "settings"])
    for method in dict.fromkeys(row["method"] for row in outcome.bench["rows"]):
        row = next(row for row in outcome.bench["rows"] if row["method"] == method)
        settings = _say_given(given[method], row) if method in given else "defaults: not tuned"
        made.rows.append([Text(title_of(method)), Text(settings)])
    ours, seeds = (", ".join(map(str, numbers)) for numbers in (outcome.bench["seeds"], period.seeds))
    later = "" if outcome.period is None else f"; judged here: {outcome.period}, seeds {ours}"
    made.notes = [
        f"Chosen by pooled NLL on {log_day(period.start)} to {log_day(period.until)}, seeds {seeds}{later}. "
        "Every method had the same trials."
    ]
    return [made]


def _list_settings(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items()) or "defaults"


def _say_given(chosen: Mapping[str, str], row: Mapping[str, Any]) -> str:
    """The settings chosen, and where a row's own or the user's won over them."""
    other = {key: row["settings"].get(key, "unknown") for key in chosen}
    changed = {key: value for key, value in other.items() if value != chosen[key]}
    return _list_settings(chosen) + (f" (but here {_list_settings(changed)})" if changed else "")


def write_best(out: Path) -> None:
    """`tuned.toml`, what a search has found. If its rows were judged on different clicks, it has no period to tell."""
    outcome = Outcome(out)
    bench, judged = outcome.bench, outcome.bench.get("judged")
    if judged is None:
        return
    period = Period(
        data=bench["data"],
        fingerprint=bench["fingerprint"],
        start=judged["from"],
        until=judged["until"],
        seeds=bench["seeds"],
        learning=outcome.suite["learning"],
    )
    write(out / "tuned.toml", {m: _settings_of(outcome, line) for m, line in choose(outcome).items()}, period)
