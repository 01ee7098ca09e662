"""From a bench to its figures. A figure whose data are missing is left out: runs that were not kept, for example."""

from __future__ import annotations

import polars as pl

from tracecvr.bench.outcome import Line, Outcome
from tracecvr.bench.report.comparisons import compare
from tracecvr.bench.report.figure import Axis, Chart, Figure, Series
from tracecvr.bench.report.forecast_figures import draw_forecasts
from tracecvr.bench.report.over_time import METRICS, over_time
from tracecvr.bench.report.scene import Scene


def make_figures(outcome: Outcome) -> list[Figure]:
    """All figures of a bench, in the order of the page: the first is the one that decides."""
    scene = Scene(outcome)
    if not outcome.lines or outcome.suite["layout"] == "tune":  # hundreds of trials: nobody looks at each
        return []
    each = [over_time(scene, metric) for metric in METRICS]
    made = [draw_forecasts(scene), compare(scene), *each, _draw_reliability(scene)]
    return [figure for figure in made if figure is not None]


def _draw_reliability(scene: Scene) -> Figure | None:
    """One diagram for each of the best methods and the bounds, all seeds together."""
    path = scene.outcome.out / "reliability.parquet"
    if not path.is_file():
        return None
    bins = pl.read_parquet(path)
    diagrams = [(scene.styles[line.name], line.name, *_pool_bins(bins, line)) for line in scene.few]
    top = min(1.0, 1.08 * max((value for _, _, x, y, _ in diagrams for value in (*x, *y)), default=1.0))
    panels = []
    for style, name, x, y, clicks in diagrams:
        area = tuple(count / max(clicks, default=1) for count in clicks)
        axes = (Axis("mean prediction", "percent", 0.0, top), Axis("share converted", "percent", 0.0, top))
        panels.append(Chart(name, *axes, (Series(name, style, x, y, area),), diagonal=True))
    caption = (
        "The best methods and the bounds. Clicks in 15 equal bins of the served rate: mean "
        "prediction and the share that converted. On the diagonal rates are right; below it they are too high. A "
        "larger point has more clicks. Bins with less than 0.05 % of all clicks are not drawn."
    )
    return Figure("reliability", "Reliability", caption, tuple(panels), columns=4) if panels else None


def _pool_bins(bins: pl.DataFrame, line: Line) -> tuple[tuple[float, ...], tuple[float, ...], tuple[int, ...]]:
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
