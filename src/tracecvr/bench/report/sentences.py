"""The outcome of a bench in sentences, from its statistics: a verdict to act on first."""

from __future__ import annotations

from dataclasses import dataclass

from tracecvr.base.durations import duration, log_day
from tracecvr.bench import stats
from tracecvr.bench.outcome import ARROWS, NAMES, Line, Outcome, column_of, losers
from tracecvr.bench.text_tables import say_p

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
    """What a reader should know who reads nothing else; of a comparison, the first says what came out."""
    if not outcome.lines:
        return [Sentence("fact", "No run is finished yet.")]
    verdict = _comparison(outcome) if outcome.suite["layout"] == "comparison" else []
    return verdict + _caveats(outcome)


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
    if period := outcome.bench.get("tuned_on"):
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
    gap = None if second is None else outcome.cautious_difference(best, second, metric)
    used = best
    if second is not None and gap is not None and not gap.clear and second.seconds < _LESS * best.seconds:
        used = second  # as good, and cheaper
    made = [_choice(best, second, used, gap, metric), _calibration(used), _cost(outcome, used)]
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
    over = {"days": f"{gap.n} days of one seed", "seeds": f"{gap.n} seeds"}.get(gap.over, f"{gap.n} days and the seeds")
    interval = f"95 % interval {gap.low:+.4f} to {gap.high:+.4f}" + ("" if gap.p is None else f", {say_p(gap.p)}")
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
