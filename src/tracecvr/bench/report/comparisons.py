"""The figures that decide: how far each method is from the upper bound, and what each change does."""

from __future__ import annotations

from math import log

from tracecvr.bench import stats
from tracecvr.bench.outcome import ARROWS, NAMES, Line, Outcome, column_of
from tracecvr.bench.report.figure import Axis, Bar, Bars, Figure
from tracecvr.bench.report.scene import Scene

_INTERVAL = "95\u00a0% interval"
_TITLES = {"nll": "NLL: penalty for wrong probabilities", "auc": "AUC: are clicks in the right order?"}


def distances(scene: Scene) -> Figure | None:
    """How far each method of a comparison is from the upper bound, the nearest first."""
    outcome, bound = scene.outcome, scene.outcome.of_role("upper")
    if bound is None or not against_best(outcome):
        return None
    metrics = [metric for metric in ("nll", "auc") if metric in outcome.metrics]
    panels = [panel for metric in metrics if (panel := _distance_bars(scene, bound, metric)).bars]
    if not panels:
        return None
    panels += pcoc_bars(scene)
    caption = (
        f"How far each method is from {bound.name}, which learns every label at the click. Shorter is better. "
        f"Whiskers: {_INTERVAL} of the paired difference, over {_say_pairing(outcome)}. Hollow: not statistically "
        "significant, or no interval. PCOC: predicted over observed conversions; bars begin at 1, where the total is "
        "right."
    )
    return Figure("distance", f"Distance to {bound.name}", caption, tuple(panels), columns=3)


def pcoc_bars(scene: Scene) -> list[Bars]:
    """PCOC of every line, the one nearest to 1 first; nothing if it is not known."""
    known = [(spread, line) for line in scene.outcome.lines if (spread := line.spread("pcoc")) is not None]
    bars = []
    for spread, line in sorted(known, key=lambda one: abs(log(max(one[0].mean, 1e-9)))):
        reach = (None, None) if spread.sd is None else (spread.mean - spread.sd, spread.mean + spread.sd)
        bars.append(Bar(line.name, spread.mean, scene.style(line), *reach))
    axis = Axis("too few predicted < 1 is right < too many")
    return [Bars("PCOC: is the total right?", axis, tuple(bars), base=1.0)] if bars else []


def distances_to(outcome: Outcome, bound: Line, metric: str) -> list[tuple[Line, stats.Difference]]:
    """Each other line with its difference to the bound, the nearest first."""
    sign = -1 if metric in stats.HIGHER_IS_BETTER else 1
    pairs = [(line, outcome.difference(line, bound, metric, pooled=False)) for line in outcome.lines]
    known = [(line, gap) for line, gap in pairs if line is not bound and gap is not None]
    return sorted(known, key=lambda one: sign * one[1].mean)


def _distance_bars(scene: Scene, bound: Line, metric: str) -> Bars:
    sign = -1 if metric in stats.HIGHER_IS_BETTER else 1
    bars = []
    for line, gap in distances_to(scene.outcome, bound, metric):
        ends = [None if end is None else sign * end for end in (gap.low, gap.high)]
        low, high = ends if sign > 0 else ends[::-1]
        value = sign * gap.mean
        bars.append(Bar(line.name, value, scene.style(line), low, high, gap.clear, f"{value:.4f}"))
    name = NAMES[metric]
    axis = Axis(f"{name} {'below' if sign < 0 else 'above'} that of {bound.name}")
    return Bars(_TITLES.get(metric, name), axis, tuple(bars))


def differences(scene: Scene) -> Figure | None:
    """Bars of paired differences, as in the table of that name."""
    outcome = scene.outcome
    if outcome.suite["layout"] not in ("comparison", "changes"):
        return None
    metrics = [metric for metric in outcome.metrics if metric in ARROWS][:4]
    metrics.sort(key=lambda metric: metric != "nll")  # what decides comes first
    panels = [panel for metric in metrics if (panel := _difference_bars(scene, metric)).bars]
    if not panels:
        return None
    if against_best(outcome) and outcome.of_role("upper") is None:  # then this is the first figure
        panels[1:1] = pcoc_bars(scene)
    against = "the best other row" if against_best(outcome) else "the row that it is a variant of"
    caption = (
        f"Each row minus {against}, paired. Whiskers: {_INTERVAL} over {_say_pairing(outcome)}. Solid: the interval "
        "excludes zero. Hollow: not statistically significant, or no interval."
    )
    title = "Against the best other method" if against_best(outcome) else "What each change does"
    return Figure("differences", title, caption, tuple(panels), columns=2)


def against_best(outcome: Outcome) -> bool:
    """Whether rows are compared with each other, not with the row that each is a variant of."""
    return bool(outcome.suite["layout"] == "comparison")


def _say_pairing(outcome: Outcome) -> str:
    return "judged days, of one seed" if len(outcome.bench["seeds"]) == 1 else "seeds"


def _difference_bars(scene: Scene, metric: str) -> Bars:
    outcome, bars = scene.outcome, []
    comparing = against_best(outcome)
    column = column_of(metric, pooled=False)
    for line in outcome.lines:
        other = outcome.best_other(line, metric, column) if comparing else outcome.base_of(line)
        if other is None or (comparing and line.facts["role"] == "upper"):
            continue
        gap = outcome.difference(line, other, metric, pooled=False)
        if gap is not None:
            bars.append(Bar(line.name, gap.mean, scene.style(line), gap.low, gap.high, gap.clear, f"{gap.mean:+.4f}"))
    better = "right" if metric in stats.HIGHER_IS_BETTER else "left"
    return Bars(NAMES[metric], Axis(f"difference in {NAMES[metric]}; {better} is better"), tuple(bars))
