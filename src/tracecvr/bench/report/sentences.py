"""The outcome of a bench in sentences, from its statistics: a verdict to act on first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from tracecvr.base.durations import duration, log_day
from tracecvr.bench import forecasts, stats, tune
from tracecvr.bench.outcome import ARROWS, NAMES, Line, Outcome, column_of, losers
from tracecvr.bench.regret import load_findings
from tracecvr.bench.text_tables import say_p
from tracecvr.forecast.backtest import SIZES
from tracecvr.forecast.estimators import DEFAULT

_LESS = 0.8
"""Share of the time that is worth a word."""

_OFF = 1.1
"""PCOC up to which, or down to its inverse, a total is called right."""


@dataclass(frozen=True)
class Sentence:
    """`verdict` is better, worse, open (not statistically significant) or fact: the mark beside the sentence."""

    verdict: str
    text: str


def summarise(outcome: Outcome) -> list[Sentence]:
    """What a reader should know who reads nothing else; the first says what came out."""
    if not outcome.lines:
        return [Sentence("fact", "No run is finished yet.")]
    layouts = {"comparison": _comparison, "changes": _changes, "forecast": _forecast, "tune": _tuning}
    return layouts[outcome.suite["layout"]](outcome) + _caveats(outcome)


def _caveats(outcome: Outcome) -> list[Sentence]:
    caveats = []
    if lost := ", ".join(line.name for line in losers(outcome)):
        worse = f"Worse than a constant rate in NLL: {lost}. Look at PCOC, the warm-up part and learning_rate first."
        caveats.append(Sentence("worse", worse))
    if len(outcome.bench["seeds"]) == 1:
        one_seed = (
            "One seed: variation between seeds is not known. Intervals, where there are any, are over days that were "
            "judged. Run it with three seeds or more to know."
        )
        caveats.append(Sentence("fact", one_seed))
    if period := outcome.bench.get("tuning", {}).get("period"):
        tuned = (
            f"Settings were chosen for each method on {log_day(period['start'])} to {log_day(period['until'])} of "
            f"the log; judged are {outcome.period or 'later clicks'}, with other seeds."
        )
        caveats.append(Sentence("fact", tuned))
    return caveats


# A comparison: which method to use, by how much it is better, how sure that is, what to look at and what it costs.


def _comparison(outcome: Outcome) -> list[Sentence]:
    metric = next((m for m in ("nll", *ARROWS) if m in outcome.metrics), None)
    ranked = [] if metric is None else outcome.rank(metric)
    if metric is None or not ranked:
        return [Sentence("fact", "No method that could be used is finished.")]
    best, second = ranked[0], next(iter(ranked[1:]), None)
    gap = None if second is None else outcome.difference(best, second, metric, pooled=False)
    used = best
    if second is not None and gap is not None and not gap.clear and second.seconds < _LESS * best.seconds:
        used = second  # as good, and cheaper
    made = [_choice(best, second, used, gap, metric), _calibration(used), _cost(outcome, used), _elsewhere(outcome)]
    return [one for one in made if one is not None]


def _choice(best: Line, second: Line | None, used: Line, gap: stats.Difference | None, metric: str) -> Sentence:
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
    over = f"{gap.n} seeds" if gap.over == "seeds" else f"{gap.n} days of one seed"
    interval = f"95 % interval {gap.low:+.4f} to {gap.high:+.4f}, {say_p(gap.p or 0.0)}"
    return f"{'' if gap.clear else 'not '}statistically significant over {over} ({interval})"


def _calibration(line: Line) -> Sentence | None:
    pcoc = line.mean("pcoc")
    if pcoc is None:
        return None
    text = f"{line.name} predicts {pcoc:.2f} conversions for each observed one (PCOC)"
    if 1 / _OFF <= pcoc <= _OFF:
        return Sentence("fact", f"{text}: the total is right within {_OFF - 1:.0%}.")
    return Sentence("worse", f"{text}: look at calibration over time before you bid by it.")


def _cost(outcome: Outcome, used: Line) -> Sentence | None:
    if not (shown := used.mean("shown_per_click")):
        return None
    text = f"A run of {used.name} takes {duration(used.seconds)}, with {shown:.2f} events per click"
    if times := sorted(line.seconds for line in outcome.fair if line is not used):
        shortest_and_longest = dict.fromkeys(map(duration, (times[0], times[-1])))  # once, if they read the same
        text += f"; the others take {' to '.join(shortest_and_longest)}"
    return Sentence("fact", f"{text}.")


def _elsewhere(outcome: Outcome) -> Sentence | None:
    """Which of the methods is safest on other logs, for a reader who has to take one."""
    findings, ranked = load_findings(), outcome.rank("nll", pooled=True)
    known = {line.facts["method"]: findings.methods.get(line.facts["method"]) for line in ranked}
    judged = [one for one in known.values() if one is not None and one.worst is not None]
    if len(judged) < 2:
        return None
    safest, best = min(judged, key=lambda one: one.worst or 0.0), known[ranked[0].facts["method"]]
    text = f"On other logs: of these methods, {safest.label} has the smallest worst regret over the gauntlet's "
    text += f"{len(findings.logs)} logs, {safest.worst:.4f} in NLL (on {safest.worst_log})"
    if best in judged and best is not None and best is not safest:
        text += f"; {best.label}, the best here, has {best.worst:.4f} (on {best.worst_log})"
    return Sentence("fact", f"{text}.")


# Other layouts.


def _changes(outcome: Outcome) -> list[Sentence]:
    """How many rows are better than the row that each is a variant of, metric by metric."""
    pairs = [(line, base) for line in outcome.lines if (base := outcome.base_of(line)) is not None]
    if not pairs:
        return [Sentence("fact", "No row is finished together with the row that it is compared with.")]
    return [_count_changes(outcome, pairs, metric) for metric in outcome.metrics if metric in ARROWS]


def _count_changes(outcome: Outcome, pairs: Sequence[tuple[Line, Line]], metric: str) -> Sentence:
    gaps = [gap for line, base in pairs if (gap := outcome.difference(line, base, metric, pooled=False)) is not None]
    better = [stats.better(metric, gap.mean, 0.0) for gap in gaps]
    sure = [up for gap, up in zip(gaps, better, strict=True) if gap.clear]
    good, bad = sure.count(True), sure.count(False)
    text = (
        f"{NAMES[metric]}: {sum(better)} of {len(pairs)} rows are better than the row that they are compared with, by "
        f"the mean; statistically significant: {good} better, {bad} worse."
    )
    return Sentence("better" if good and not bad else "worse" if bad and not good else "open", text)


def _forecast(outcome: Outcome) -> list[Sentence]:
    frame = forecasts.read_row(outcome, outcome.lines[0])
    if frame is None:
        return [Sentence("fact", "No forecast is finished.")]
    known = frame.filter(age_days=0).drop_nulls("error")
    means = known.group_by("estimator", "size").agg(pl.col("error", "coverage").mean())
    rows = {(row["estimator"], row["size"]): row for row in means.iter_rows(named=True)}
    made = []
    for size in (size for size in SIZES if (DEFAULT, size) in rows):
        ours, so_far = (rows[name, size] for name in (DEFAULT, "so_far"))
        made.append(
            f"At the end of a day, final conversions of segments with {size} are forecast with an error of "
            f"{ours['error']:.1%}; conversions so far are {so_far['error']:.1%} off. {ours['coverage']:.0%} of the 90% "
            "intervals held."
        )
    return [Sentence("fact", one) for one in made or ["No cell has 20 clicks or more."]]


def _tuning(outcome: Outcome) -> list[Sentence]:
    choices = tune.choose(outcome)
    gained = sum(bool(choice.settings) for choice in choices.values())
    text = (
        f"Tuning changed {gained} of {len(choices)} methods; for the others no trial beat the defaults in "
        f"{NAMES[outcome.suite['score']]} on {outcome.period or tune.REPLAYED}. The best of several trials is "
        "flattered by its choice: what tuning is worth is told by another suite run with --tuned."
    )
    return [Sentence("fact", text)]
