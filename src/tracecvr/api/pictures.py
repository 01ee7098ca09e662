"""Figures for notebooks and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from markupsafe import Markup

from tracecvr.base.errors import UserError
from tracecvr.bench.report import image_files, svg
from tracecvr.bench.report.figure import Figure
from tracecvr.bench.report.over_time import runs_over_time


@dataclass(frozen=True)
class Picture:
    """A figure that shows itself in a notebook."""

    figure: Figure

    def markup(self) -> Markup:
        """The figure as SVG, with its caption."""
        return Markup(svg.write_document(self.figure)) + Markup("<p>{}</p>").format(self.figure.caption)

    def save(self, path: str | Path) -> Path:
        """Write it to a file that ends with `.svg`, `.png` or `.pdf`; the last two need the extra `figures`."""
        kind = Path(path).suffix.removeprefix(".")
        if kind not in image_files.KINDS:
            raise UserError(f"{path}: a figure is saved as .svg, .png or .pdf")
        return image_files.save_one(self.figure, Path(path), kind)

    def _repr_html_(self) -> str:
        return str(self.markup())


def over_time(intervals: Mapping[str, pl.DataFrame], origin: int | None = None) -> Picture:
    """Metrics of runs by day; `intervals` has the content of `intervals.parquet` by name of the run."""
    return Picture(runs_over_time(intervals, origin))
