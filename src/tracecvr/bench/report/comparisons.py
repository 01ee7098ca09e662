"""The figure that decides: how far each method is from the upper bound, or what each change does."""

from __future__ import annotations

from math import log

from tracecvr.bench import stats
from tracecvr.bench.outcome import ARROWS, NAMES, Line, Outcome
from tracecvr.bench.report.figure import Axis, Bar, Bars, Figure
from tracecvr.bench.report.scene import Scene


def compare(scene: Scene) -> Figure | None:
    """Bars of paired differences: to the upper bound, else to the best other method; of a change, to its base."""
    outcome = scene.outcome
    if outcome.suite["layout"] not in ("comparison", "changes"):
        return None
    comparing = outcome.suite["layout"] == "comparison"
    bound = outcome.of_role("upper") if comparing else None
    metrics = sorted((m for m in outcome.metrics if m in ARROWS), key=lambda metric: metric != "nll")  # what decides
    panels = [panel for metric in metrics[: 2 if comparing else 3] if (panel := _compare(scene, bound, metric)).bars]
    if not panels:
        return None
    panels += _pcoc_bars(scene) if comparing else []
    other = bound.name if bound else "the best other row" if comparing else "the row that it is a variant of"
    over = "judged days, of one seed" if len(outcome.bench["seeds"]) == 1 else "seeds"
    caption = (
        f"How much worse each row is than {other}, paired: further left is better. Whiskers: 95\u00a0% interval over "
        f"{over}. Solid: the interval excludes zero. Hollow: not statistically significant, or no interval."
    )
    if comparing:
        caption += " PCOC: predicted over observed conversions; bars begin at 1, where the total is right."
    title = "Against the best other method" if comparing else "What each change does"
    key, title = ("distance", f"Distance to {bound.name}") if bound else ("differences", title)
    return Figure(key, title, caption, tuple(panels), columns=3)


def _compare(scene: Scene, bound: Line | None, metric: str) -> Bars:
    outcome, bars = scene.outcome, []
    sign = -1 if metric in stats.HIGHER_IS_BETTER else 1
    for line in outcome.lines:
        other = _other(outcome, line, bound, metric)
        gap = None if other is None else outcome.difference(line, other, metric, pooled=False)
        if gap is not None:
            low, high = sorted(sign * end for end in (gap.low, gap.high) if end is not None) or (None, None)
            value = sign * gap.mean
            bars.append(Bar(line.name, value, scene.styles[line.name], low, high, gap.clear, f"{value:+.4f}"))
    if outcome.suite["layout"] == "comparison":
        bars.sort(key=lambda bar: bar.value or 0.0)
    other_name = bound.name if bound else "the other row"
    axis = Axis(f"{NAMES[metric]} {'below' if sign < 0 else 'above'} that of {other_name}")
    return Bars(NAMES[metric], axis, tuple(bars))


def _other(outcome: Outcome, line: Line, bound: Line | None, metric: str) -> Line | None:
    if outcome.suite["layout"] != "comparison":
        return outcome.base_of(line)
    if bound is not None:
        return None if line is bound else bound
    return outcome.best_other(line, metric)


def _pcoc_bars(scene: Scene) -> list[Bars]:
    """PCOC of every line, the one nearest to 1 first; nothing if it is not known."""
    known = [(spread, line) for line in scene.outcome.lines if (spread := line.spread("pcoc")) is not None]
    bars = []
    for spread, line in sorted(known, key=lambda one: abs(log(max(one[0].mean, 1e-9)))):
        reach = (None, None) if spread.sd is None else (spread.mean - spread.sd, spread.mean + spread.sd)
        bars.append(Bar(line.name, spread.mean, scene.styles[line.name], *reach))
    axis = Axis("too few predicted < 1 is right < too many")
    return [Bars("PCOC: is the total right?", axis, tuple(bars), base=1.0)] if bars else []
