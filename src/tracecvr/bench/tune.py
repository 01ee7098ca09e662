"""The outcome of tuning: the best trial of each method, as a table and as `tuned.toml` for other suites."""

from __future__ import annotations

import json
from pathlib import Path

from tracecvr.bench.document import Table, Text
from tracecvr.bench.draws import drawn
from tracecvr.bench.stats import better
from tracecvr.bench.tables import NAMES, Line, Outcome, column_of, shown
from tracecvr.files import write_atomically


def best(outcome: Outcome) -> dict[str, Line]:
    """The best trial of each method by the suite's score, its mean over seeds; the first of equals."""
    metric, found = outcome.suite["score"], dict[str, Line]()
    column = column_of(metric, pooled=False)
    for line in outcome.lines:
        method, mean = line.facts["method"], line.mean(column)
        if mean is not None and len(line.cells) == len(outcome.bench["seeds"]):  # a trial that failed does not count
            known = found[method].mean(column) if method in found else None
            if known is None or better(metric, mean, known):
                found[method] = line
    return found


def chosen(outcome: Outcome, line: Line) -> dict[str, str]:
    """The settings that a trial drew."""
    return drawn(outcome.suite["ranges"], line.facts["method"], int(line.facts["variant"].removeprefix("trial ")))


def table(outcome: Outcome) -> Table:
    """One row per method."""
    metric = outcome.suite["score"]
    column = column_of(metric, pooled=False)
    title = f"Best of {outcome.suite['trials']} trials each, by {NAMES[metric]} on the end of the warm-up part"
    made = Table(title, ["method", f"{NAMES[metric]}, defaults", f"{NAMES[metric]}, tuned", "settings"])
    for method, line in best(outcome).items():
        first = next(one for one in outcome.lines if one.facts["method"] == method)
        settings = ", ".join(f"{k}={v}" for k, v in chosen(outcome, line).items()) or "defaults"
        figures = [Text(shown(one.spread(column))) for one in (first, line)]
        made.rows.append([Text(line.facts["label"]), *figures, Text(settings)])
    made.notes.append("No click of the stream was looked at. Use them with --tuned, on the same log and split.")
    return made


def write(out: Path) -> None:
    """`tuned.toml`: a table of settings for each method, as text."""
    outcome = Outcome(out)
    lines = [f"# Chosen on the warm-up part of {outcome.bench['data']}, {outcome.bench['fingerprint']}."]
    for method, line in best(outcome).items():
        lines += ["", f"[{method if method.isidentifier() else json.dumps(method)}]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in chosen(outcome, line).items()]
    text = "\n".join(lines) + "\n"
    write_atomically(out / "tuned.toml", lambda draft: _write(draft, text))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
