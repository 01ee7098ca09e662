"""The tables of a bench: `table.md`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracecvr.authoring.method import Method
from tracecvr.base import config
from tracecvr.base.files import write_text
from tracecvr.bench import forecasts, stats, tuned
from tracecvr.bench.outcome import ARROWS, BY_INTERVAL, NAMES, Outcome, column_of, losers
from tracecvr.bench.suite import LEARNING
from tracecvr.bench.text_tables import Table, Text, difference_cell, figure_cell, mean_text
from tracecvr.learn.stream_learning import StreamLearning


def write(out: Path) -> None:
    outcome = Outcome(out)
    made, head = make_tables(outcome), _head(outcome)
    title = f"# {outcome.suite['name']}: {outcome.suite['about']}"
    write_text(out / "table.md", "\n\n".join([title, head, *(table.markdown() for table in made)]) + "\n")


def make_tables(outcome: Outcome) -> list[Table]:
    """The tables of a bench by its layout, references beside its methods, and what these were given by tuning."""
    layout = outcome.suite["layout"]
    if layout == "tune":
        made = [tuned.table(outcome)]
    elif layout == "forecast":
        made = [*forecasts.tables(outcome), _figures(outcome, pooled=True)]
    else:
        made = [_figures(outcome, pooled=False), _figures(outcome, pooled=True)]
        made += [_improvements(outcome)] if layout == "comparison" else []
        made += [_differences(outcome, pooled=False)]
    made += [*references(outcome), *tuned.tabulate_given(outcome)]
    return [table for table in made if table.rows]


def summary(outcome: Outcome) -> list[Table]:
    """The shortest answer: figures, and differences against the best other method."""
    several = len(outcome.bench["seeds"]) > 1
    tables = [_figures(outcome, pooled=True), _differences(outcome, pooled=several), *references(outcome)]
    return [table for table in tables if table.rows]


def _head(outcome: Outcome) -> str:
    seeds = outcome.bench["seeds"]
    clicks = max(outcome.results["clicks"], default=0)
    period = "" if outcome.period is None else f", {outcome.period} of the log"
    text = f"{outcome.bench['data']}: {clicks:,} clicks judged{period}; seeds {', '.join(map(str, seeds))}."
    if len(seeds) == 1:
        text += " One seed: there is no standard deviation, and variation between seeds is not known."
    if missing := len(outcome.bench["rows"]) * len(seeds) - len(outcome.results):
        text += f" {missing} cells are not finished."
    if (learning := describe_learning(outcome.bench)) is not None:
        text += f" Learning settings: {learning}."
    return text


def describe_learning(bench: dict[str, Any]) -> str | None:
    """How the stream of a bench is learnt, in words; None for benches of old, which do not say it."""
    name = bench["suite"].get("learning")
    if name is None:
        return None
    options = {option.name for option in config.options(StreamLearning)}
    if name == "ours":  # where warm-up has an option of the same name, a setting without a prefix is warm-up's alone
        options -= {option.name for option in config.options(Method)}
    given = bench["suite"]["settings"] | bench["settings"]
    changed = [f"{key}={value}" for key, value in given.items() if key.startswith("stream.") or key in options]
    owner = "the paper's" if name == "paper" else name
    text = f"{owner} ({LEARNING[name].words})"
    text += f", but {', '.join(changed)}" if changed else ""
    return text + (", and what was tuned for each method" if bench["tuned"] else "")


def references(outcome: Outcome) -> list[Table]:
    """What a constant and a logistic regression score on the same clicks."""
    if not outcome.lines:
        return []
    names = list(dict.fromkeys([*outcome.metrics, "nll", "ne", "pcoc"]))
    table = Table("References, pooled over the stream", ["reference", *(NAMES[m] + ARROWS.get(m, "") for m in names)])
    for title, prefix in (("constant rate", "constant"), ("logistic regression", "logistic")):
        if outcome.lines[0].mean(f"{prefix}_nll") is None:
            continue
        values = [outcome.lines[0].mean(f"{prefix}_{name}") for name in names]  # they are the same for all rows
        table.rows.append([Text(title), *map(figure_cell, values)])
    table.notes.append(
        "The warm-up part's rate; and a weight for each id, learnt from warm-up and then from final labels, d_max late."
    )
    if lost := losers(outcome):
        names_of = ", ".join(line.name for line in lost)
        table.notes.append(f"Worse than the constant in NLL: {names_of}. Look at PCOC, warm-up and learning_rate.")
    return [table, beside_logistic(outcome)]


def beside_logistic(outcome: Outcome) -> Table:
    """Whether each method is better than the logistic regression; without rows where cells were cleared away."""
    table = Table("NLL minus that of the logistic regression", ["method", "difference", "verdict"])
    for line in outcome.lines:
        if (difference := outcome.beyond_logistic(line)) is not None:
            verdict = ("better" if difference.mean < 0 else "worse") if difference.clear else "within noise"
            table.rows.append([Text(line.name), difference_cell(difference), Text(verdict)])
    table.notes.append(
        "Mean over intervals, weighted by clicks, and over seeds, with a 95 % interval by a bootstrap over judged days."
    )
    return table


# Their parts.


def _figures(outcome: Outcome, pooled: bool) -> Table:
    headings = ["method", *(NAMES[m] + ARROWS.get(m, "") for m in outcome.metrics), "events/click", "steps/1000 clicks"]
    means = "pooled over the stream" if pooled else "means over intervals, weighted by clicks; calibration pooled"
    table = Table(f"Metrics, {means}", headings)
    best = {m: outcome.rank(m, pooled)[:2] if m in ARROWS else [] for m in outcome.metrics}
    for number, line in enumerate(outcome.lines):
        row = [Text(line.name)]
        for metric in outcome.metrics:
            spread = line.spread(column_of(metric, pooled))
            first, second = (line is one for one in (*best[metric], None, None)[:2])
            row.append(Text(mean_text(spread), bold=first, underline=second))
        row += [Text(f"{line.mean('events_per_click') or 0:.2f}")]
        row += [Text(f"{1000 * (line.mean('steps_per_click') or 0):.3g}")]
        if line.facts["role"] == "upper" and (number == 0 or outcome.lines[number - 1].facts["role"] != "upper"):
            table.apart.add(number)
        table.rows.append(row)
    if any(line.facts["role"] == "upper" for line in outcome.lines):
        table.notes.append("Best in bold, second best underlined; upper bounds are not ranked.")
    return table


def _improvements(outcome: Outcome) -> Table:
    upper, zeros = outcome.of_role("upper"), {r: outcome.of_role(r) for r in ("lower", "zero")}
    scales = {"lower": "RI of {}, Pretrain = 0", "zero": "{} gap closed, Vanilla = 0"}
    table = Table("Relative improvement: Oracle = 1", ["method"])
    if upper is None or not any(zeros.values()):
        return table
    columns = [(m, zero, scales[r]) for r, zero in zeros.items() if zero for m in outcome.metrics if m in BY_INTERVAL]
    table.headings += [title.format(NAMES[m]) for m, _, title in columns]
    for line in outcome.lines:
        row = [Text(line.name)]
        for metric, zero, _ in columns:
            value, low, high = (one.mean(column_of(metric, False)) for one in (line, zero, upper))
            share = None if value is None or low is None or high is None else stats.improvement(value, low, high)
            row.append(Text("n/a" if share is None else f"{round(share, 3) + 0.0:.3f}"))
        table.rows.append(row)
    table.notes.append(
        "RI = (m - Pretrain) / (Oracle - Pretrain); with Vanilla as zero it is the share of the Vanilla-to-Oracle gap "
        "that is closed. Of means over seeds; where the two ends are close, or Oracle is the worse, RI says little."
    )
    return table


def _differences(outcome: Outcome, pooled: bool) -> Table:
    """Each row against the row that it is a variant of; in a comparison, against the best other row."""
    metrics = [m for m in outcome.metrics if m in ARROWS]
    table = Table("Paired differences", ["method", "against", *(f"{NAMES[m]}{ARROWS[m]}" for m in metrics)])
    against_best = outcome.suite["layout"] == "comparison"
    over = set()
    for line in outcome.lines:
        base, row = None if against_best else outcome.base_of(line), list[Text]()
        for metric in metrics:
            other = outcome.best_other(line, metric, pooled) if against_best else base
            difference = None if other is None else outcome.difference(line, other, metric, pooled)
            over |= {difference.over} if difference and difference.low is not None else set()
            row.append(difference_cell(difference))
        if base is not None or (against_best and line.facts["role"] != "upper"):
            table.rows.append([Text(line.name), Text("best other" if base is None else base.name), *row])
    firsts = {m: outcome.rank(m, pooled)[:2] for m in metrics} if against_best else {}
    if named := [f"{' before '.join(line.name for line in two)} in {NAMES[m]}" for m, two in firsts.items() if two]:
        table.notes.append(f"Best: {', '.join(named)}.")
    if "seeds" in over:
        table.notes += ["Mean difference over seeds [95 % confidence interval by Student's t] and p, paired by seed."]
    if "days" in over:
        table.notes += [
            "One seed: the interval is a bootstrap over days that were judged. It accounts for variation between days, "
            "not between seeds."
        ]
    if over:
        table.notes += [
            "Bold: the interval excludes zero. Other differences are not statistically significant. p-values are not "
            "corrected for the number of comparisons."
        ]
    return table
