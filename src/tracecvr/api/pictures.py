"""Figures for notebooks and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
from markupsafe import Markup

from tracecvr.base.config import DAY
from tracecvr.base.files import write_text
from tracecvr.bench.report import svg
from tracecvr.bench.report.figure import Axis, Chart, Figure, Series

_WIDTH = 420.0
_METRICS = {"auc": "AUC", "nll": "NLL", "pcoc": "PCOC"}
_STYLE = Markup(
    "<style>.plot text{font:12px sans-serif;fill:#444}.plot .h{font-weight:600}"
    ".grid{stroke:#ddd}.axis{stroke:#888}.rule{stroke:#888;stroke-dasharray:2 3;fill:none}"
    ".s{--c:#b4b7bc}.s0{--c:#bf4a00}.s1{--c:#1d1f21}.s2{--c:#2078b4}.s3{--c:#8a7400}"
    ".s4{--c:#a83f82}.s5{--c:#007f61}.s6{--c:#6a51c8}.s7{--c:#8c564b}"
    ".l{fill:none;stroke:var(--c);stroke-width:1.8}.m{fill:var(--c)}.lead{fill:none;stroke:var(--c)}</style>"
)


@dataclass(frozen=True)
class Picture:
    """A figure that shows itself in a notebook."""

    figure: Figure

    def markup(self) -> Markup:
        """Its panels side by side."""
        keys = {name: number for number, name in enumerate(self.figure.names())}
        drawn = [svg.drawn(panel, _WIDTH, keys) for panel in self.figure.panels]
        row = Markup('<div style="display:flex;flex-wrap:wrap;gap:16px">{}</div>').format(Markup("").join(drawn))
        return _STYLE + row + Markup("<p>{}</p>").format(self.figure.caption)

    def save(self, path: str | Path) -> Path:
        """Write it as a page of its own (`.html`)."""
        write_text(Path(path), f"<!doctype html><meta charset=utf-8>{self.markup()}\n")
        return Path(path)

    def _repr_html_(self) -> str:
        return str(self.markup())


def over_time(intervals: Mapping[str, pl.DataFrame], origin: int | None = None) -> Picture:
    """Metrics of runs by day; `intervals` has the content of `intervals.parquet` by name of the run."""
    first = None if origin is None else datetime.fromtimestamp(origin, UTC)
    days = "day of the log" if first is None else f"days since {first:%Y-%m-%d}"
    charts = []
    for metric, title in _METRICS.items():
        series = [_series(name, number, frame, metric) for number, (name, frame) in enumerate(intervals.items())]
        level = 1.0 if metric == "pcoc" else None
        charts.append(Chart(title, Axis(days), Axis(title), tuple(series), level=level))
    caption = "Each point is one day of the stream. PCOC: predicted over observed conversions; 1 is right."
    return Picture(Figure("over-time", "Metrics over time", caption, tuple(charts), columns=3))


def _series(name: str, number: int, frame: pl.DataFrame, metric: str) -> Series:
    days = (
        frame.drop_nulls(metric)
        .with_columns((pl.col("start") // DAY).alias("day"))
        .group_by("day", maintain_order=True)
        .agg(((pl.col(metric) * pl.col("clicks")).sum() / pl.col("clicks").sum()).alias("value"))
    )
    return Series(name, number % 8, tuple(map(float, days["day"])), tuple(days["value"]))
