"""From a bench to its figures. A figure whose data are missing is left out: a posterior, or runs that were not kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl

from tracecvr.base.durations import duration
from tracecvr.bench import tune
from tracecvr.bench.outcome import NAMES, Line, Outcome
from tracecvr.bench.report.comparisons import against_best, differences, distances, pcoc_bars
from tracecvr.bench.report.figure import Axis, Bar, Bars, Chart, Figure, Series
from tracecvr.bench.report.forecast_figures import forecasts
from tracecvr.bench.report.log_figures import log_figures
from tracecvr.bench.report.over_time import calibration_over_time, over_time
from tracecvr.bench.report.scene import Scene


def figures(outcome: Outcome) -> list[Figure]:
    """All figures of a bench, in the order of the page: the first is the one that decides."""
    scene = Scene(outcome)
    if not outcome.lines:
        return log_figures(scene)
    if outcome.suite["layout"] == "tune":  # hundreds of trials: nobody looks at each
        return [_gain_of_tuning(scene), *log_figures(scene)]
    makers: tuple[Callable[[Scene], Figure | None], ...] = (
        distances,
        differences,
        lambda s: over_time(s, "auc"),
        lambda s: over_time(s, "nll"),
        calibration_over_time,
        _calibration,
        _reliability,
        forecasts,
        _cost,
    )
    made = [figure for maker in makers if (figure := maker(scene)) is not None]
    if outcome.suite["layout"] == "forecast":
        made.sort(key=lambda figure: figure.key != "forecast")
    return made + log_figures(scene)


# Calibration.


def _calibration(scene: Scene) -> Figure | None:
    """ECE of every line, best first, and mean prediction over mean label."""
    known = [(spread.mean, line) for line in scene.outcome.lines if (spread := line.spread("ece")) is not None]
    lines = [line for _, line in sorted(known, key=lambda one: one[0])]
    panels = [_spread_bars(scene, lines, "ece", "ECE", Axis("ECE; lower is better"))]
    caption = "ECE: how far predictions are off, over 15 bins of the whole stream, the best first."
    if not against_best(scene.outcome):  # else the first figure has it
        panels += pcoc_bars(scene)
        caption += " PCOC: predicted over observed conversions; bars begin at 1, where the total is right."
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
        "Up to eight methods: the bounds and the best. Clicks in 15 equal bins of the served rate: mean "
        "prediction and the share that converted. On the diagonal rates are right; below it they are too high. A "
        "larger point has more clicks. Bins with less than 0.05 % of all clicks are not drawn."
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


# Cost.


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


def _gain_of_tuning(scene: Scene) -> Figure:
    """What the best trial of each method gained on its defaults."""
    metric, lines, bars = scene.outcome.suite["score"], tune.best(scene.outcome), []
    for method, choice in tune.choices(scene.outcome).items():
        if choice.defaults is not None and choice.best is not None:
            gain = choice.best - choice.defaults
            bars.append(Bar(lines[method].facts["label"], gain, 0, text=f"{gain:+.4f}"))
    caption = f"The best trial of each method minus its defaults, on {tune.where(scene.outcome)}."
    axis = Axis(f"difference in {NAMES[metric]}")
    return Figure("tuned", "What tuning gained", caption, (Bars(NAMES[metric], axis, tuple(bars)),))
