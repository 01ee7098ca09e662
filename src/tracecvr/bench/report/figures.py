"""From a bench to its figures. A figure whose data are not there (no posterior asked for, an old run) is left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np
import polars as pl

from tracecvr.base.config import DAY, HOUR
from tracecvr.base.durations import duration
from tracecvr.base.files import read_json
from tracecvr.bench import stats, tune
from tracecvr.bench.posteriors import WORDS, Judge, Judged
from tracecvr.bench.report.figure import STYLES, Axis, Bar, Bars, Chart, Figure, Series
from tracecvr.bench.tables import ARROWS, NAMES, Line, Outcome, column_of

_MOST_POINTS = 45
_BUCKETS = (HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 30 * DAY)


@dataclass(frozen=True)
class Scene:
    """A bench with what stands out in it: the same method looks the same in every figure."""

    outcome: Outcome

    @cached_property
    def standing_out(self) -> list[tuple[int, Line]]:
        """The lines that stand out with their styles: ours, the bounds, then the best of the rest."""
        by_role = {role: style for style, role in enumerate(("ours", "upper", "zero", "lower"))}
        by_style = {by_role[role]: line for role in by_role if (line := self.outcome.of_role(role)) is not None}
        taken = {line.facts["name"] for line in by_style.values()}
        others = self._ranked([line for line in self.outcome.lines if line.facts["name"] not in taken])
        free = [style for style in range(1, STYLES) if style not in by_style]  # 0 is ours or nobody's
        by_style |= dict(zip(free, others, strict=False))
        return sorted(by_style.items(), key=lambda one: one[0])

    def _ranked(self, lines: Sequence[Line]) -> list[Line]:
        metric = next((m for m in self.outcome.metrics if m in ARROWS), "auc")
        known = [(mean, line) for line in lines if (mean := line.mean(column_of(metric, pooled=False))) is not None]
        ranked = sorted(known, key=lambda one: one[0], reverse=metric in stats.HIGHER_IS_BETTER)
        return [line for _, line in ranked]

    def style(self, line: Line) -> int | None:
        """One of those in the background has none."""
        return next((style for style, one in self.standing_out if one is line), None)

    @cached_property
    def reference(self) -> Line | None:
        """What others are held against over time: Vanilla, else ours, else the row that most are variants of."""
        bases = [base for line in self.outcome.lines if (base := self.outcome.base_of(line)) is not None]
        common = next((base for base in bases if sum(base is other for other in bases) > len(bases) / 2), None)
        return self.outcome.of_role("zero") or self.outcome.of_role("ours") or common


def figures(outcome: Outcome) -> list[Figure]:
    """All figures of a bench, in the order of the page."""
    if not outcome.lines:
        return _log_figures(outcome)
    scene = Scene(outcome)
    if outcome.suite["layout"] == "tune":  # hundreds of trials: nobody looks at each
        return [_tuned(scene), *_log_figures(outcome)]
    makers: tuple[Callable[[Scene], Figure | None], ...] = (
        _distances,
        _differences,
        lambda s: _over_time(s, "auc"),
        lambda s: _over_time(s, "nll"),
        _calibration,
        _reliability,
        _posterior,
        _inside,
        _price,
        _cost,
    )
    made = [figure for maker in makers if (figure := maker(scene)) is not None]
    return made + _log_figures(outcome)


# Over time.

_FEWEST = 0.05
"""Share of a usual day's clicks that a point has at least."""


def _over_time(scene: Scene, metric: str) -> Figure | None:
    outcome, reference = scene.outcome, scene.reference
    frames = [(line, frame) for line in outcome.lines if (frame := _intervals(outcome, line)) is not None]
    if not frames:
        return None
    width = _bucket([frame for _, frame in frames])
    means = [(line, _bucketed(frame, metric, width)) for line, frame in frames]
    axis = Axis("day of the log", "number" if width < DAY else "count")
    name = NAMES[metric]
    panels = [_lines(scene, name, axis, Axis(name), means)]
    base = next((own for line, own in means if line is reference), None)
    if reference is not None and base is not None and len(means) > 1:
        others = [(line, own) for line, own in means if line is not reference]
        gaps = [(line, {x: y - base[x] for x, y in own.items() if x in base}) for line, own in others]
        chart = _lines(scene, f"{name} minus {reference.name}'s", axis, Axis(f"difference in {name}"), gaps)
        panels.append(replace(chart, level=0.0))
    better = "higher" if metric in stats.HIGHER_IS_BETTER else "lower"
    how = "day" if width == DAY else duration(width)
    seeds = ", then over seeds" if len(outcome.bench["seeds"]) > 1 else ""
    caption = (
        f"{name} by {how} of the stream ({better} is better): the mean over its intervals, weighted by clicks{seeds}."
    )
    if len(panels) > 1:
        caption += " Days differ more than methods do, so the second panel takes the reference away."
    return Figure(f"{metric}-over-time", f"{name} over time", caption, tuple(panels))


def _lines(scene: Scene, title: str, x: Axis, y: Axis, curves: Sequence[tuple[Line, dict[float, float]]]) -> Chart:
    series = [Series(line.name, scene.style(line), tuple(own), tuple(own.values())) for line, own in curves]
    return Chart(title, x, y, tuple(series))


def _intervals(outcome: Outcome, line: Line) -> pl.DataFrame | None:
    """Intervals of all seeds of a line; None where cells were not kept."""
    paths = [outcome.out / "cells" / cell / "intervals.parquet" for cell in line.cells["cell"]]
    frames = [pl.read_parquet(path) for path in paths if path.is_file()]
    return pl.concat([frame.with_columns(seed=pl.lit(n)) for n, frame in enumerate(frames)]) if frames else None


def _bucket(frames: Sequence[pl.DataFrame]) -> int:
    """How much of the stream makes a point, so that there are not too many."""
    starts = pl.concat([frame["start"] for frame in frames])
    first, last = min(starts), max(starts)
    return next((width for width in _BUCKETS if (last - first) / width <= _MOST_POINTS), _BUCKETS[-1])


def _bucketed(frame: pl.DataFrame, metric: str, width: int) -> dict[float, float]:
    """Mean over seeds of means weighted by clicks, by day of the log. Left out are intervals without the metric, and a
    day with hardly any clicks, as the last of a stream may be: its luck would set the scale for all others."""
    known = frame.drop_nulls(metric).with_columns(at=pl.col("start") // width * width / DAY)
    mean = (pl.col(metric) * pl.col("clicks")).sum() / pl.col("clicks").sum()
    by_day = known.group_by("seed", "at").agg(mean.alias("mean"), pl.col("clicks").sum())
    enough = by_day.filter(pl.col("clicks") >= _FEWEST * pl.col("clicks").median())
    days = enough.group_by("at").agg(pl.col("mean").sort().mean())
    return {float(at): float(value) for at, value in days.sort("at").iter_rows()}


# Differences: ablations, pairs, ours against the best baseline.


HEADLINE = "distance"
"""Key of the figure that decides: it stands before all tables."""


def _distances(scene: Scene) -> Figure | None:
    """How far each method of a comparison is from the upper bound, the nearest first."""
    outcome, bound = scene.outcome, scene.outcome.of_role("upper")
    if bound is None or not _against_best(outcome):
        return None
    metrics = [metric for metric in ("nll", "auc") if metric in outcome.metrics]
    panels = [panel for metric in metrics if (panel := _distance_bars(scene, bound, metric)).bars]
    if not panels:
        return None
    over = "judged days, of one seed" if len(outcome.bench["seeds"]) == 1 else "seeds"
    caption = (
        f"How far each method is from {bound.name}, which knows every label at the click: shorter is better. Whiskers: "
        f"95 % interval of the paired difference, over {over}."
    )
    return Figure(HEADLINE, f"Distance to {bound.name}", caption, tuple(panels), columns=2)


def _distance_bars(scene: Scene, bound: Line, metric: str) -> Bars:
    sign = -1 if metric in stats.HIGHER_IS_BETTER else 1
    bars = []
    for line in scene.outcome.lines:
        gap = None if line is bound else scene.outcome.difference(line, bound, metric, pooled=False)
        if gap is not None:
            ends = [None if end is None else sign * end for end in (gap.low, gap.high)]
            low, high = ends if sign > 0 else ends[::-1]
            bars.append(
                Bar(line.name, sign * gap.mean, scene.style(line), low, high, gap.clear, f"{sign * gap.mean:.4f}")
            )
    bars.sort(key=lambda bar: bar.value or 0.0)
    name = NAMES[metric]
    axis = Axis(f"{name} below {bound.name}'s" if sign < 0 else f"{name} above {bound.name}'s")
    return Bars(name, axis, tuple(bars), "95 % interval")


def _differences(scene: Scene) -> Figure | None:
    """Bars of paired differences, as in the table of that name."""
    outcome = scene.outcome
    if outcome.suite["layout"] not in ("comparison", "changes", "pairs"):
        return None
    metrics = [metric for metric in outcome.metrics if metric in ARROWS][:4]
    panels = [panel for metric in metrics if (panel := _difference_bars(scene, metric)).bars]
    if not panels:
        return None
    against = "the best baseline" if _against_best(outcome) else "the row that it is a variant of"
    over = "judged days, of one seed" if len(outcome.bench["seeds"]) == 1 else "seeds"
    caption = (
        f"Each row minus {against}, paired. Whiskers: 95 % interval over {over}. Solid: the interval excludes zero; "
        "hollow: not statistically significant, or no interval."
    )
    title = "What the addition does" if outcome.suite["layout"] == "pairs" else "What each change does"
    title = "Against the best baseline" if _against_best(outcome) else title
    return Figure("differences", title, caption, tuple(panels), columns=2)


def _against_best(outcome: Outcome) -> bool:
    """A comparison in which some rows are forms of others shows what the forms do."""
    return outcome.suite["layout"] == "comparison" and not any(map(outcome.base_of, outcome.lines))


def _difference_bars(scene: Scene, metric: str) -> Bars:
    outcome, bars = scene.outcome, []
    comparing = _against_best(outcome)
    best = outcome.best_baseline(metric, column_of(metric, pooled=False)) if comparing else None
    for line in outcome.lines:
        other = outcome.base_of(line) or best
        if other is None or other is line or (comparing and line.facts["role"] == "upper"):
            continue
        difference = outcome.difference(line, other, metric, pooled=False)
        if difference is not None:
            text = f"{difference.mean:+.4f}"
            bars.append(
                Bar(
                    line.name,
                    difference.mean,
                    scene.style(line),
                    difference.low,
                    difference.high,
                    difference.clear,
                    text,
                )
            )
    better = "right" if metric in stats.HIGHER_IS_BETTER else "left"
    title = f"{NAMES[metric]}{f' against {best.name}' if best else ''}"
    return Bars(title, Axis(f"difference in {NAMES[metric]}; {better} is better"), tuple(bars), "95 % interval")


# Calibration.


def _calibration(scene: Scene) -> Figure | None:
    """ECE of every line, best first, and mean prediction over mean label."""
    known = [(spread.mean, line) for line in scene.outcome.lines if (spread := line.spread("ece")) is not None]
    lines = [line for _, line in sorted(known, key=lambda one: one[0])]
    panels = [_spread_bars(scene, lines, "ece", "ECE", Axis("ECE; lower is better"))]
    off = _spread_bars(scene, lines, "pcoc", "PCOC", Axis("mean prediction / mean label; 1 is right"))
    panels += [replace(off, target=1.0)] if off.bars else []
    caption = "Expected calibration error over the whole stream (15 bins), best first; how far rates are off in total."
    caption += " Whiskers: one standard deviation over seeds." if len(scene.outcome.bench["seeds"]) > 1 else ""
    return Figure("ece", "Calibration", caption, tuple(panels), columns=2)


def _spread_bars(scene: Scene, lines: Sequence[Line], column: str, title: str, axis: Axis) -> Bars:
    bars = []
    for line in lines:
        if (spread := line.spread(column)) is not None:
            reach = (None, None) if spread.sd is None else (spread.mean - spread.sd, spread.mean + spread.sd)
            bars.append(Bar(line.name, spread.mean, scene.style(line), *reach))
    return Bars(title, axis, tuple(bars), "one standard deviation")


def _reliability(scene: Scene) -> Figure | None:
    """One diagram for each line that stands out, all seeds together."""
    path = scene.outcome.out / "reliability.parquet"
    if not path.is_file():
        return None
    bins = pl.read_parquet(path)
    diagrams = [(style, line.name, *_bins(bins, line)) for style, line in scene.standing_out]
    top = min(1.0, 1.08 * max((value for _, _, x, y, _ in diagrams for value in (*x, *y)), default=1.0))
    panels = []
    for style, name, x, y, clicks in diagrams:
        area = tuple(count / max(clicks, default=1) for count in clicks)
        axes = (Axis("mean prediction", "percent", 0.0, top), Axis("share converted", "percent", 0.0, top))
        panels.append(Chart(name, *axes, (Series(name, style, x, y, area),), diagonal=True, labels=False))
    caption = (
        "Clicks in 15 equal bins of the served rate: mean prediction against the share that converted. On the diagonal "
        "rates are right; below it they are too high. Areas of points go with clicks; bins with less than 0.05 % of "
        "all clicks are not drawn."
    )
    return Figure("reliability", "Reliability", caption, tuple(panels), columns=4, narrow_columns=2) if panels else None


def _bins(bins: pl.DataFrame, line: Line) -> tuple[tuple[float, ...], tuple[float, ...], tuple[int, ...]]:
    mine = bins.filter(pl.col("cell").is_in(line.cells["cell"].to_list()))
    pooled = (
        mine.with_columns(sum_p=pl.col("mean_prediction") * pl.col("clicks"))
        .group_by("low")
        .agg(pl.col("clicks", "conversions").sum(), pl.col("sum_p").sort().sum())
        .sort("low")
    )
    kept = pooled.filter(pl.col("clicks") >= 5e-4 * pl.col("clicks").sum())
    x = (kept["sum_p"] / kept["clicks"]).to_list()
    return tuple(x), tuple((kept["conversions"] / kept["clicks"]).to_list()), tuple(kept["clicks"].to_list())


# Open clicks.


def _posterior(scene: Scene) -> Figure | None:
    """Ours in its three estimates, and the best that others have, by age."""
    judged = Judged(scene.outcome)
    if not judged.ages:
        return None
    shown = scene.outcome.of_role("ours") or scene.outcome.lines[0]
    panels = [_by_age(judged, shown, metric) for metric in ("nll", "auc", "ece")]
    caption = (
        f"Clicks that have not converted by an age, judged at that moment. {shown.name} in colour: by what would be "
        "served for the click (p), by that and the time that has passed, and by the whole trajectory. In grey: other "
        "rows, by p and the time that has passed."
    )
    return Figure("posterior", "Posterior by age", caption, tuple(panels), columns=2)


def _by_age(judged: Judged, shown: Line, metric: str) -> Chart:
    x, series = Axis("age of the click", "places", places=tuple(map(duration, judged.ages))), []
    for line in judged.outcome.lines:
        for style, (estimate, words) in zip((0, 2, 5), WORDS.items(), strict=True):
            if line is not shown and estimate != "survival":
                continue
            spreads = [judged.spread(Judge(line, estimate), age, metric) for age in judged.ages]
            points = [(float(place), spread.mean) for place, spread in enumerate(spreads) if spread is not None]
            name = words if line is shown else line.name
            at, y = tuple(p[0] for p in points), tuple(p[1] for p in points)
            series.append(Series(name, style if line is shown else None, at, y))
    return Chart(f"{NAMES[metric]}{ARROWS[metric]}", x, Axis(NAMES[metric]), tuple(series))


# Inside.


def _inside(scene: Scene) -> Figure | None:
    """Weights of TRACE's windows and mean gates of completers, where runs wrote them down."""
    etas, gates = [], []
    for line in scene.outcome.lines:
        internals = _internals(scene.outcome, line)
        if eta := _mean_by(internals, "method", "eta", "end_s", "share"):
            etas.append((line, eta))
        if gate := _mean_by(internals, "completer", "gate", "age_s", "mean"):
            gates.append((line, gate))
    panels = []
    if etas:
        panels.append(_by_place(scene, "Weights of windows (eta)", "end of the window", "share of weight", etas))
    if gates:
        panels.append(_by_place(scene, "Gate of the completer", "age of the click, at least", "mean gate", gates))
    caption = (
        "Weights: how much each observation window counts in TRACE; the less its state leaves open of the label, the "
        "more. Gate: how far the completer is trusted at each age, the mean over training events; by construction it "
        "lies between 0.125 and 0.39."
    )
    return Figure("inside", "Inside TRACE and the completer", caption, tuple(panels), columns=2) if panels else None


def _internals(outcome: Outcome, line: Line) -> list[dict[str, Any]]:
    paths = [outcome.out / "cells" / cell / "internals.json" for cell in line.cells["cell"]]
    return [read_json(path) for path in paths if path.is_file()]


def _mean_by(internals: Sequence[dict[str, Any]], part: str, name: str, key: str, value: str) -> dict[int, float]:
    """Mean over seeds, by age."""
    by_age: dict[int, list[float]] = {}
    for one in internals:
        table = one.get(part, {}).get(name, {key: (), value: ()})
        for age, figure in zip(table[key], table[value], strict=True):
            by_age.setdefault(age, []).append(figure)
    return {age: fmean(by_age[age]) for age in sorted(by_age)}


def _by_place(scene: Scene, title: str, x: str, y: str, curves: Sequence[tuple[Line, dict[int, float]]]) -> Chart:
    ages = sorted({age for _, means in curves for age in means})
    axis = Axis(x, "places", places=tuple(duration(age) if age else "0 s" for age in ages))
    series = [
        Series(line.name, scene.style(line), tuple(float(ages.index(age)) for age in means), tuple(means.values()))
        for line, means in curves
    ]
    return Chart(title, axis, Axis(y, low=0.0), tuple(series))


# Cost.


def _price(scene: Scene) -> Figure | None:
    """What a score was bought with: events shown per click."""
    metrics = [metric for metric in ("auc", "nll") if metric in scene.outcome.metrics or metric == "auc"]
    panels = []
    for metric in metrics:
        series = []
        for line in scene.outcome.lines:
            x, y = line.mean("shown_per_click"), line.mean(column_of(metric, pooled=False))
            if x is not None and y is not None:
                series.append(Series(line.name, scene.style(line), (x,), (y,)))
        axes = Axis("events shown per click", "number", low=0.0), Axis(NAMES[metric])
        panels.append(Chart(f"{NAMES[metric]}{ARROWS[metric]}", *axes, tuple(series), scatter=True))
    caption = (
        "Seeing a click again later is worth nearly as much as its label, so a score is to be read beside the number "
        "of events per click that it took (passes included). A method far right is not simply better than one far left."
    )
    return Figure("price", "Scores and what they cost", caption, tuple(panels), columns=2)


def _cost(scene: Scene) -> Figure | None:
    outcome = scene.outcome
    columns = ("time_warm_up_s", "time_shared_warm_up_s", "time_stream_s")
    time, memory, events = [], [], []
    for line in outcome.lines:
        style, seconds = scene.style(line), sum(line.mean(column) or 0.0 for column in columns)
        per_click = line.mean("shown_per_click")
        time.append(Bar(line.name, seconds, style, text=duration(seconds)))
        memory.append(Bar(line.name, line.mean("memory_peak_mb"), style))
        events.append(Bar(line.name, per_click, style, text=f"{per_click or 0:.2f}"))
    panels = (
        Bars("Time of a run", Axis("seconds, one thread", "count"), tuple(time)),
        Bars("Memory", Axis("MB, peak of the worker process", "count"), tuple(memory)),
        Bars("Events", Axis("events shown per click", "number"), tuple(events)),
    )
    caption = (
        "Warm-up (also where another cell did it) and stream, mean over seeds, on the machine that ran them. Memory is "
        "the peak of a worker process, which carries out several cells one after the other."
    )
    return Figure("cost", "Cost", caption, panels, columns=3)


# Tuning.


def _tuned(scene: Scene) -> Figure:
    """What the best trial of each method gained on its defaults."""
    metric, lines, bars = scene.outcome.suite["score"], tune.best(scene.outcome), []
    for method, choice in tune.choices(scene.outcome).items():
        if choice.defaults is not None and choice.best is not None:
            gain = choice.best - choice.defaults
            bars.append(Bar(lines[method].facts["label"], gain, 0, text=f"{gain:+.4f}"))
    caption = f"The best trial of each method minus its defaults, on {tune.where(scene.outcome)}."
    axis = Axis(f"difference in {NAMES[metric]}")
    return Figure("tuned", "What tuning gained", caption, (Bars(NAMES[metric], axis, tuple(bars)),))


# The log.


def _log_figures(outcome: Outcome) -> list[Figure]:
    path = outcome.out / "log.json"
    if not path.is_file():
        return []
    log = read_json(path)
    return [_delays(log), _days(log)] if log["clicks"] else []


def _delays(log: dict[str, Any]) -> Figure:
    """Delay distributions, and what "not yet" is worth at each age."""
    ages, share = log["delays"]["age_s"], log["delays"]["share"]
    rate = log["conversions"] / log["clicks"]
    conversion = np.asarray(share[log["actions"][0]])
    open_converts = rate * (1 - conversion) / np.maximum(1 - rate * conversion, 1e-12)
    low = max(10.0, min((age for age, s in zip(ages, conversion, strict=True) if age and s > 0.005), default=60.0))
    x = Axis("age of the click", "age", low=low, high=float(log["d_max"]))
    keep = [n for n, age in enumerate(ages) if age >= low]
    at = tuple(float(ages[n]) for n in keep)
    rules = tuple((float(end), "") for end in log["horizons"] if end < log["d_max"])
    by_action = tuple(
        Series(action, 0 if n == 0 else 3 + n, at, tuple(share[action][k] for k in keep))
        for n, action in enumerate(log["actions"])
    )
    known = Chart("Share that has come by an age", x, Axis("share", "percent", 0.0, 1.0), by_action, rules)
    lost = Series("converts later", 5, at, tuple(float(open_converts[k]) for k in keep))
    meaning = Chart(
        'What "not yet" hides', x, Axis("share of open clicks", "percent", low=0.0), (lost,), rules, labels=False
    )
    first = [
        f"{_known_by(ages, conversion, age):.0%} within {duration(age)}" for age in (HOUR, DAY) if age < log["d_max"]
    ]
    caption = (
        f"Of {log['conversions']:,} conversions within {duration(log['d_max'])} of their clicks, "
        f"{' and '.join(first)}: so many positive labels are known by then, while a negative one is known only at the "
        "end. The second panel: of clicks that have not converted by an age, the share that still will. Vertical "
        "lines: horizons."
    )
    return Figure("delays", "Delays, and labels known by age", caption, (known, meaning), columns=2)


def _known_by(ages: Sequence[int], share: Sequence[float] | np.ndarray[Any, Any], age: int) -> float:
    return float(share[max(n for n, known in enumerate(ages) if known <= age)])


def _days(log: dict[str, Any]) -> Figure:
    """Clicks and conversion rate of each day."""
    days, clicks, conversions = (log["days"][name] for name in ("day", "clicks", "conversions"))
    x = Axis("day of the log", "count")
    rules = ((log["split"] / DAY, "stream begins"),)
    known = [n for n, count in enumerate(clicks) if count]
    volume = Series("clicks", 5, tuple(map(float, days)), tuple(map(float, clicks)))
    rates = Series("rate", 0, tuple(float(days[n]) for n in known), tuple(conversions[n] / clicks[n] for n in known))
    panels = (
        Chart("Clicks a day", x, Axis("clicks", "count", low=0.0), (volume,), rules, labels=False),
        Chart("Conversion rate", x, Axis("share converted", "percent", low=0.0), (rates,), rules, labels=False),
    )
    caption = (
        f"{log['clicks']:,} clicks whose labels are final; {log['conversions'] / log['clicks']:.2%} of them convert."
    )
    return Figure("days", "Days of the log", caption, panels, columns=2)
