"""`tuned.toml`: settings that were chosen for each method, on which clicks they were chosen, and what that cost.

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
from tracecvr.bench.outcome import NAMES, Outcome
from tracecvr.bench.stats import HIGHER_IS_BETTER
from tracecvr.bench.suite import title_of
from tracecvr.bench.text_tables import Table, Text, figure_cell
from tracecvr.data.table import ClickTable
from tracecvr.runs.replay import Plan

FORMAT = 3


@dataclass(frozen=True)
class Period:
    """What settings were chosen on. Times in seconds since the log's origin, `until` exclusive."""

    data: str
    fingerprint: str
    start: int
    until: int
    seeds: tuple[int, ...]
    score: str
    learning: str = "ours"
    """The learning settings that trials started from."""


@dataclass(frozen=True)
class Choice:
    """What tuning found for one method, and its cost; figures are None if its first trial failed."""

    settings: dict[str, str]
    trials: int | None = None
    defaults: float | None = None
    best: float | None = None
    steps: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Tuned:
    """A `tuned.toml`; empty if none was given."""

    methods: dict[str, Choice] = field(default_factory=dict)
    period: Period | None = None

    @property
    def settings(self) -> dict[str, dict[str, str]]:
        return {method: dict(choice.settings) for method, choice in self.methods.items()}

    @property
    def learning(self) -> str | None:
        """The learning settings that the choices belong to: with others they would mean something else."""
        return None if self.period is None else self.period.learning

    def to_json(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Tuned:
        period = content["period"]
        return cls(
            {method: Choice(**choice) for method, choice in content["methods"].items()},
            None if period is None else Period(**period | {"seeds": tuple(period["seeds"])}),
        )


def load(path: Path | None) -> Tuned:
    if path is None:
        return Tuned()
    if not path.is_file():
        raise UserError(f"{path}: no such file; give the tuned.toml of a bench of the suite `tune`")
    content = read_toml(path, "--tuned")
    refuse_other_format(content, FORMAT, path)
    try:
        return Tuned.from_json(content)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not a tuned.toml ({type(error).__name__}: {error})") from None


def write(path: Path, tuned: Tuned) -> None:
    """The file that `load` reads. Numbers, text and lists of numbers look the same in JSON and TOML."""
    content = tuned.to_json()
    lines = [
        f"format = {FORMAT}",
        "",
        "[period]",
        *(f"{key} = {json.dumps(v)}" for key, v in content["period"].items()),
    ]
    for method, facts in content["methods"].items():
        settings, name = facts.pop("settings"), json.dumps(method)
        lines += ["", f"[methods.{name}]", *(f"{key} = {json.dumps(v)}" for key, v in facts.items() if v is not None)]
        lines += [f"[methods.{name}.settings]", *(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in settings.items())]
    write_text(path, "\n".join(lines) + "\n")


# What follows for a bench: which clicks it tunes on, and which it may judge.


def choose_times(table: ClickTable, settings: Mapping[str, str], first: int | None, tuned: Tuned) -> dict[str, str]:
    """The settings that a suite and a tuned.toml imply, unless `settings` say otherwise: `until` of a search on the
    first part of the stream, at most half of it so that something is left to judge; `judge_from` of settings that
    were chosen so."""
    plan = _plan_of(settings)
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


def _plan_of(settings: Mapping[str, str]) -> Plan:
    """The plan of rows that have no settings of their own."""
    known = {option.name for option in config.options(Plan)}
    mine = {key: text for key, text in settings.items() if key.removeprefix("plan.") in known}
    return config.distribute({"plan": Plan()}, mine, "--set")["plan"]


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


def choose(outcome: Outcome) -> dict[str, Choice]:
    """The best trial of each method by the suite's score, pooled, its mean over seeds, the first of equals; and what
    all its trials cost. A trial of which a seed failed does not count."""
    metric, made = outcome.suite["score"], {}
    for method in dict.fromkeys(line.facts["method"] for line in outcome.lines):
        trials = [line for line in outcome.lines if line.facts["method"] == method]
        whole = [line for line in trials if len(line.cells) == len(outcome.bench["seeds"])]
        scores = [(mean, line) for line in whole if (mean := line.mean(metric)) is not None]
        if not scores:
            continue
        pick = max if metric in HIGHER_IS_BETTER else min
        score, best = pick(scores, key=lambda one: one[0])
        first = next((one for one in trials if one.facts["variant"] == "trial 0"), None)
        cells = pl.concat([one.cells for one in trials])
        made[method] = Choice(
            settings=dict(outcome.suite["trials"][int(best.facts["variant"].removeprefix("trial "))]),
            trials=len(trials),
            defaults=None if first is None else first.mean(metric),
            best=score,
            steps=int(cells["steps"].sum()),
            seconds=round(sum(float(cells[name].sum()) for name in ("time_warm_up_s", "time_stream_s")), 1),
        )
    return made


def table(outcome: Outcome) -> Table:
    metric = outcome.suite["score"]
    clicks = outcome.period or "the clicks that were replayed"
    title = f"Best of {len(outcome.suite['trials'])} trials each, by pooled {NAMES[metric]} on {clicks}"
    made = Table(title, _headings(metric))
    for method, choice in choose(outcome).items():
        made.rows.append(_row(title_of(method), _list_settings(choice.settings), choice))
    made.notes = [
        "Every method has the same trials. Labels are final: some become known after the period. Steps and time are "
        "those of all trials; a warm-up that cells share is charged to the one that did it.",
        "The best of several trials is flattered by its choice. Use the settings with --tuned: on the same log, with "
        "fresh seeds, judged on clicks after the period.",
    ]
    return made


def tabulate_given(outcome: Outcome) -> list[Table]:
    """Of a bench that was given a tuned.toml: what each method got by it, and what that had cost."""
    if "tuning" not in outcome.bench:
        return []
    source = Tuned.from_json(outcome.bench["tuning"])
    assert source.period is not None
    made = Table("What each method was given", _headings(source.period.score))
    rows = {row["method"]: row for row in reversed(outcome.bench["rows"])}
    for method in reversed(rows):
        choice = source.methods.get(method)
        settings = "defaults: not tuned" if choice is None else _say_given(choice, rows[method])
        made.rows.append(_row(title_of(method), settings, choice or Choice({})))
    made.notes = [_say_period(outcome, source.period)]
    return [made]


def _headings(metric: str) -> list[str]:
    name = NAMES[metric]
    return ["method", "settings", "trials", f"{name}, defaults", f"{name}, tuned", "steps", "time"]


def _row(method: str, settings: str, choice: Choice) -> list[Text]:
    steps, seconds = choice.steps, choice.seconds
    return [
        Text(method),
        Text(settings),
        figure_cell(choice.trials, 0),
        *map(figure_cell, (choice.defaults, choice.best)),
        Text("n/a" if steps is None else f"{steps:,}"),
        Text("n/a" if seconds is None else duration(seconds)),
    ]


def _list_settings(settings: dict[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items()) or "defaults"


def _say_given(choice: Choice, row: dict[str, Any]) -> str:
    """The settings chosen, and where a row's own or the user's won over them."""
    other = {key: row["settings"].get(key, "unknown") for key in choice.settings}
    changed = {key: value for key, value in other.items() if value != choice.settings[key]}
    return _list_settings(choice.settings) + (f" (but here {_list_settings(changed)})" if changed else "")


def _say_period(outcome: Outcome, period: Period) -> str:
    ours, seeds = (", ".join(map(str, numbers)) for numbers in (outcome.bench["seeds"], period.seeds))
    later = "" if outcome.period is None else f"; judged here: {outcome.period}, seeds {ours}"
    return (
        f"Chosen by pooled {NAMES[period.score]} on {log_day(period.start)} to {log_day(period.until)}, seeds "
        f"{seeds}{later}. Every method had the same trials; steps and time are what all trials of a method cost."
    )


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
        seeds=tuple(bench["seeds"]),
        score=outcome.suite["score"],
        learning=outcome.suite["learning"],
    )
    write(out / "tuned.toml", Tuned(choose(outcome), period))
