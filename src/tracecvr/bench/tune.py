"""The outcome of tuning: the best trial of each method, as a table and as `tuned.toml` for other suites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from tracecvr.base.durations import duration, log_day
from tracecvr.bench import tuned
from tracecvr.bench.outcome import NAMES, Outcome
from tracecvr.bench.stats import HIGHER_IS_BETTER
from tracecvr.bench.suite_rows import title_of
from tracecvr.bench.text_tables import Table, Text, figure_cell
from tracecvr.bench.tuned import Choice, Period, Tuned


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


def write(out: Path) -> None:
    """`tuned.toml`: see `tuned`. A search whose rows were judged on different clicks has no period to tell."""
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
    tuned.write(out / "tuned.toml", Tuned(choose(outcome), period))
