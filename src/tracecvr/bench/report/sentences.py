"""The outcome of a bench in sentences, from its statistics: a verdict to act on first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from tracecvr.base.durations import duration, log_day
from tracecvr.bench import stats, tune
from tracecvr.bench.gauntlet_results import load_findings
from tracecvr.bench.outcome import ARROWS, NAMES, Line, Outcome, column_of, losers

_MOST_ROWS = 6
"""Rows of a suite that get a sentence each; of more, only sums are told."""


_LESS = 0.8
"""Share of the time that is worth a word."""

_OFF = 1.1
"""PCOC up to which, or down to its inverse, a total is called right."""


@dataclass(frozen=True)
class Sentence:
    """`verdict` is better, worse, open (not statistically significant) or fact: the mark beside the sentence."""

    verdict: str
    text: str


def summary(outcome: Outcome) -> list[Sentence]:
    """What a reader should know who reads nothing else."""
    sentences = {
        "comparison": _comparison,
        "changes": _changes,
        "pairs": _changes,
        "forecast": _forecast,
        "tune": _say_tuning,
    }[outcome.suite["layout"]](outcome)
    return sentences + _caveats(outcome)


def headline(outcome: Outcome) -> list[str]:
    """What came out, for a reader who reads one thing: it stands above the figure that decides."""
    if not outcome.lines:
        return ["No run is finished yet."]
    if outcome.suite["layout"] != "comparison":
        return [summary(outcome)[0].text]
    return [one.text for one in _verdict(outcome)]


def _deciding(outcome: Outcome) -> str | None:
    """The metric that decides which method is taken."""
    return next((metric for metric in ("nll", *_metrics_with_direction(outcome)) if metric in outcome.metrics), None)


def _leader(outcome: Outcome) -> Line | None:
    metric = _deciding(outcome)
    return None if metric is None else next(iter(outcome.rank(metric, column_of(metric, pooled=False))), None)


def _verdict(outcome: Outcome) -> list[Sentence]:
    """Which method to use, by how much it is better, how sure that is, what to look at and what it costs."""
    metric, best = _deciding(outcome), _leader(outcome)
    if metric is None or best is None:
        return [Sentence("fact", "No method that could be used is finished.")]
    second = outcome.best_other(best, metric, column_of(metric, pooled=False))
    gap = None if second is None else outcome.difference(best, second, metric, pooled=False)
    used = best if second is None or gap is None or gap.clear else _cheaper(best, second)
    made = [_choice(best, second, used, gap, metric), _calibration(used), _to_bound(outcome, used, metric)]
    return [one for one in (*made, _cost(outcome, used)) if one is not None]


def _cheaper(best: Line, second: Line) -> Line:
    """Of two that are equally good, the one that takes less time, if that is worth a word."""
    return second if _seconds(second) < _LESS * _seconds(best) else best


def _choice(best: Line, second: Line | None, used: Line, gap: stats.Difference | None, metric: str) -> Sentence:
    """Which method to use."""
    name, mine = NAMES[metric], best.mean(column_of(metric, pooled=False))
    if second is None:
        return Sentence("fact", f"{best.name} has {mine:.4f} in {name}. There is no other method to compare it with.")
    if gap is None:
        return Sentence("open", f"{best.name} has the best {name}, {mine:.4f}; it shares no seed with {second.name}.")
    size = f"its {name}, {mine:.4f}, is {abs(gap.mean):.4f} {'higher' if gap.mean > 0 else 'lower'} than that of the "
    size += f"next, {second.name}"
    if gap.clear:
        return Sentence("better", f"Use {best.name}: {size}. That is {_how_sure(gap)}.")
    sure = "with one seed and one day nobody knows how sure that is" if gap.low is None else f"that is {_how_sure(gap)}"
    use = f"Use {used.name}, which takes less time." if used is second else f"Use either; {best.name} is not slower."
    return Sentence("open", f"{best.name} is ahead: {size}, but {sure}. {use}")


def _how_sure(gap: stats.Difference) -> str:
    p = "p < 0.001" if (gap.p or 0) < 0.001 else f"p = {gap.p:.3f}"
    over = f"{gap.n} seeds" if gap.over == "seeds" else f"{gap.n} days of one seed"
    interval = f"95 % interval {gap.low:+.4f} to {gap.high:+.4f}, {p}"
    return f"{'' if gap.clear else 'not '}statistically significant over {over} ({interval})"


def _calibration(line: Line) -> Sentence | None:
    """Whether the total of what is predicted is right."""
    pcoc = line.mean("pcoc")
    if pcoc is None:
        return None
    text = f"{line.name} predicts {pcoc:.2f} conversions for each observed one (PCOC)"
    if 1 / _OFF <= pcoc <= _OFF:
        return Sentence("fact", f"{text}: the total is right within {_OFF - 1:.0%}.")
    return Sentence("worse", f"{text}: look at calibration over time before you bid by it.")


def _to_bound(outcome: Outcome, line: Line, metric: str) -> Sentence | None:
    """How much is left to a method that knows every label at once."""
    bound = outcome.of_role("upper")
    gap = None if bound is None else outcome.difference(line, bound, metric, pooled=False)
    if bound is None or gap is None:
        return None
    worse = stats.better(metric, 0.0, gap.mean)
    where = f"{abs(gap.mean):.4f} {'worse' if worse else 'better'} than {bound.name}, which knows every label at once"
    return Sentence("fact", f"In {NAMES[metric]}, {line.name} is {where}.")


def _caveats(outcome: Outcome) -> list[Sentence]:
    caveats = []
    if len(outcome.bench["seeds"]) == 1 and outcome.lines:
        caveats.append(
            "One seed: variation between seeds is not known. Intervals, where there are any, are over days that were "
            "judged. Run it with three seeds or more to know."
        )
    tuning = outcome.bench.get("tuning", {})
    if period := tuning.get("period"):
        caveats.append(
            f"Settings were chosen for each method on {log_day(period['start'])} to {log_day(period['until'])} of "
            f"the log; judged are {tune.where(outcome)}, with other seeds."
        )
    lost = ", ".join(line.name for line in losers(outcome))
    worse = f"Worse than a constant rate in NLL: {lost}. Look at PCOC, the warm-up part and learning_rate first."
    return [Sentence("worse", worse)] * bool(lost) + [Sentence("fact", text) for text in caveats]


# A comparison: which method to use, and the best of them against the others, metric by metric.


def _comparison(outcome: Outcome) -> list[Sentence]:
    best, made = _leader(outcome), _verdict(outcome)
    if best is None:
        return made
    rest = [
        _against_best(outcome, best, metric)
        for metric in _metrics_with_direction(outcome)
        if metric != _deciding(outcome)
    ]
    rest.append(_elsewhere(outcome))
    return made + [one for one in rest if one is not None]


def _metrics_with_direction(outcome: Outcome) -> list[str]:
    return [metric for metric in outcome.metrics if metric in ARROWS]


def _against_best(outcome: Outcome, ours: Line, metric: str) -> Sentence | None:
    column = column_of(metric, pooled=False)
    other, mine = outcome.best_other(ours, metric, column), ours.mean(column)
    theirs = None if other is None else other.mean(column)
    if other is None or mine is None or theirs is None:
        return None
    difference = outcome.difference(ours, other, metric, pooled=False)
    verdict, words = verdict_of(metric, difference, len(outcome.bench["seeds"]))
    figures = f"{ours.name} has {mine:.4f}; the best other, {other.name}, has {theirs:.4f}"
    return Sentence(verdict, f"{NAMES[metric]}: {figures}. {words}")


def verdict_of(metric: str, difference: stats.Difference | None, seeds: int) -> tuple[str, str]:
    """better, worse or open, and the sentence that says so."""
    if difference is None:
        return "open", "They share no seed, so they cannot be compared."
    if difference.mean == 0:
        return "open", "They are equal."
    word = "better" if stats.better(metric, difference.mean, 0.0) else "worse"
    size = f"{word.capitalize()} by {abs(difference.mean):.4f}"
    if difference.low is None or difference.high is None or difference.p is None:
        return "open", f"{size} on one seed: whether it is statistically significant is not known."
    p = "p < 0.001" if difference.p < 0.001 else f"p = {difference.p:.3f}"
    low, high = sorted((abs(difference.low), abs(difference.high)))
    over = f"{seeds} seeds" if difference.over == "seeds" else f"{difference.n} days of one seed"
    if difference.clear:
        return word, f"{size} (95 % interval {low:.4f} to {high:.4f}, {p}): statistically significant over {over}."
    interval = f"the interval includes zero ({difference.low:+.4f} to {difference.high:+.4f}, {p})"
    return "open", f"{size}, but {interval}: not statistically significant."


def _cost(outcome: Outcome, ours: Line) -> Sentence | None:
    others = [line for line in outcome.fair if line is not ours]
    mine, mine_s = ours.mean("shown_per_click"), _seconds(ours)
    if not mine:
        return None
    text = f"A run of {ours.name} takes {duration(mine_s)}, with {mine:.2f} events per click"
    if others:
        shown = sorted(line.mean("shown_per_click") or 0.0 for line in others)
        times = sorted(_seconds(line) for line in others)
        text += f" (the others: {_range(times, duration)}, {_range(shown, lambda n: f'{n:.2f}')})"
    return Sentence("fact", f"{text}.")


def _range(values: Sequence[float], written: Callable[[float], str]) -> str:
    low, high = written(values[0]), written(values[-1])
    return low if low == high else f"{low} to {high}"


def _elsewhere(outcome: Outcome) -> Sentence | None:
    """Which of the methods is safest on other logs, for a reader who has to take one."""
    findings, fair = load_findings(), outcome.fair
    scored = [(mean, line) for line in fair if (mean := line.mean("nll")) is not None]
    best = min(scored, key=lambda one: one[0])[1] if scored else None
    here = dict.fromkeys(line.facts["method"] for line in fair)
    known = [one for name in here if (one := findings.methods.get(name)) is not None and one.worst is not None]
    if best is None or len(known) < 2:
        return None
    safest = min(known, key=lambda one: one.worst or 0.0)
    words = [f"On other logs: of these methods, {safest.label} has the smallest worst regret over the gauntlet's "]
    words += [f"{len(findings.logs)} logs, {safest.worst:.4f} in NLL (on {safest.worst_log})"]
    theirs = next((one for one in known if one.method == best.facts["method"] and one is not safest), None)
    words += [f"; {theirs.label}, the best here, has {theirs.worst:.4f} (on {theirs.worst_log})"] if theirs else []
    return Sentence("fact", "".join(words) + ".")


def _seconds(line: Line) -> float:
    return sum(line.mean(f"time_{part}_s") or 0.0 for part in ("warm_up", "shared_warm_up", "stream"))


# Rows against the row that each is a variant of.


def _changes(outcome: Outcome) -> list[Sentence]:
    pairs = [(line, base) for line in outcome.lines if (base := outcome.base_of(line)) is not None]
    if not pairs:
        return [Sentence("fact", "No row is finished together with the row that it is compared with.")]
    if len(pairs) > _MOST_ROWS:
        return [_count_changes(outcome, pairs, metric) for metric in _metrics_with_direction(outcome)]
    return [_change(outcome, line, base) for line, base in pairs]


def _change(outcome: Outcome, line: Line, base: Line) -> Sentence:
    """One row in all metrics; the mark goes by the first of them that is clear."""
    parts, verdicts = [], []
    for metric in _metrics_with_direction(outcome):
        difference = outcome.difference(line, base, metric, pooled=False)
        if difference is None:
            continue
        verdicts.append(verdict_of(metric, difference, len(outcome.bench["seeds"]))[0])
        parts.append(
            f"{NAMES[metric]} {difference.mean:+.4f} ({verdicts[-1] if verdicts[-1] != 'open' else 'not significant'})"
        )
    mark = next((verdict for verdict in verdicts if verdict != "open"), "open")
    if {"better", "worse"} <= set(verdicts):
        mark = "open"
    return Sentence(mark, f"{line.name} against {base.name}: {_list(parts) or 'no seed in common'}.")


def _count_changes(outcome: Outcome, pairs: Sequence[tuple[Line, Line]], metric: str) -> Sentence:
    verdicts, up = [], 0
    for line, base in pairs:
        difference = outcome.difference(line, base, metric, pooled=False)
        verdicts.append(verdict_of(metric, difference, len(outcome.bench["seeds"]))[0])
        up += difference is not None and stats.better(metric, difference.mean, 0.0)
    good, bad = verdicts.count("better"), verdicts.count("worse")
    text = (
        f"{NAMES[metric]}: {up} of {len(pairs)} rows are better than the row that they are compared with, by the mean; "
        f"statistically significant: {good} better, {bad} worse."
    )
    return Sentence(_overall(good, bad), text)


def _overall(good: int, bad: int) -> str:
    return "better" if good and not bad else "worse" if bad and not good else "open"


# Forecasts, and tuning.


def _forecast(outcome: Outcome) -> list[Sentence]:
    from tracecvr.bench.forecasts import frame_of
    from tracecvr.forecast.backtest import SIZES
    from tracecvr.forecast.estimators import DEFAULT

    line = outcome.of_role("ours") or outcome.lines[0]
    frame = frame_of(outcome, line)
    if frame is None:
        return [Sentence("fact", "No forecast is finished.")]
    means = (
        frame.filter(age_days=0)
        .drop_nulls("error")
        .group_by("estimator", "size")
        .agg(pl.col("error", "coverage").mean())
    )
    rows = {(row["estimator"], row["size"]): row for row in means.iter_rows(named=True)}
    said = []
    for size in (size for size in SIZES if (DEFAULT, size) in rows):
        ours, so_far, old = (rows[name, size] for name in (DEFAULT, "so_far", "projected"))
        said.append(
            f"At the end of a day, final conversions of segments with {size} are forecast with an error of "
            f"{ours['error']:.1%}; conversions so far are {so_far['error']:.1%} off, projected by one curve "
            f"{old['error']:.1%}. {ours['coverage']:.0%} of the 90% intervals held."
        )
    return [Sentence("fact", one) for one in said] or [Sentence("fact", "No cell has 20 clicks or more.")]


def _say_tuning(outcome: Outcome) -> list[Sentence]:
    metric, best = outcome.suite["score"], tune.best(outcome)
    gained = [line for line in best.values() if tune.settings_of(outcome, line)]
    return [
        Sentence(
            "fact",
            f"Tuning changed {len(gained)} of {len(best)} methods; for the others no trial beat the defaults in "
            f"{NAMES[metric]} on {tune.where(outcome)}. The best of several trials is flattered by its choice: "
            "what tuning is worth is told by another suite run with --tuned.",
        )
    ]


def _list(parts: Sequence[str]) -> str:
    """With commas and an and; a name with a comma of its own in quotes.

    >>> _list(["a", "b, too", "c"])
    'a, "b, too" and c'
    """
    quoted = [f'"{part}"' if "," in part else part for part in parts]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)
