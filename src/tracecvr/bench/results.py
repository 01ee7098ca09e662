"""From finished cells to `results.parquet`: one row per cell, in the suite's order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tracecvr.base.files import read_json, write_parquet
from tracecvr.base.metrics import INTERVAL_METRICS, Metrics, probability, reliability
from tracecvr.bench.suite import Cell

POOLED = tuple(Metrics.__dataclass_fields__)
BESIDE = tuple(f"{reference}_{name}" for reference in ("constant", "logistic") for name in POOLED)
"""Pooled metrics of the references."""
_TIMES = ("prepare", "warm_up", "shared_warm_up", "stream")
_TEXT = ("cell", "label", "variant", "role", "base", "method", "plugins", "settings")
_COUNTS = ("seed", "clicks", "conversions", "events", "steps", "skipped_events", "clipped_weights")
SCHEMA = (
    dict.fromkeys(_TEXT, pl.String)
    | dict.fromkeys(("seed",), pl.Int64)
    | dict.fromkeys((*POOLED, *(f"interval_{name}" for name in INTERVAL_METRICS), *BESIDE), pl.Float64)
    | dict.fromkeys(_COUNTS[1:], pl.Int64)
    | dict.fromkeys(("events_per_click", "steps_per_click", "shown_per_click"), pl.Float64)
    | dict.fromkeys((*(f"time_{name}_s" for name in _TIMES), "memory_peak_mb"), pl.Float64)
)
"""Columns of `results.parquet` and their types; the package's docstring tells what they mean."""


BINS = 15
_NO_BINS = pl.DataFrame(
    schema={"cell": pl.String}
    | dict.fromkeys(("low", "high"), pl.Float64)
    | dict.fromkeys(("clicks", "conversions"), pl.Int64)
    | {"mean_prediction": pl.Float64}
)


def is_finished(folder: Path) -> bool:
    return (folder / "result.json").is_file()


def write(out: Path, cells: Sequence[Cell]) -> None:
    """`results.parquet` and `reliability.parquet` of all finished cells."""
    folders = [(cell, out / "cells" / cell.name) for cell in cells]
    finished = [(cell, folder) for cell, folder in folders if is_finished(folder)]
    rows = [_make_row(cell, read_json(folder / "result.json")) for cell, folder in finished]
    write_parquet(out / "results.parquet", pl.DataFrame(rows, SCHEMA))
    bins = [_count_bins(cell, folder) for cell, folder in finished]
    write_parquet(out / "reliability.parquet", pl.concat(bins or [_NO_BINS]))


def _count_bins(cell: Cell, folder: Path) -> pl.DataFrame:
    """A reliability diagram's bins of predictions, those without clicks left out."""
    scores = pl.read_parquet(folder / "scores.parquet")
    p, label = probability(scores["log_odds"].to_numpy()), scores["label"].to_numpy()
    weight = scores["weight"].to_numpy() if "weight" in scores.columns else None
    clicks, predicted, converted = reliability(p, label, BINS, weight)
    used = np.flatnonzero(clicks > 0)
    return pl.DataFrame(
        {
            "cell": [cell.name] * len(used),
            "low": used / BINS,
            "high": (used + 1) / BINS,
            "clicks": np.round(clicks)[used].astype(np.int64),
            "conversions": np.round(converted)[used].astype(np.int64),
            "mean_prediction": predicted[used] / clicks[used],
        },
        _NO_BINS.schema,
    )


def _make_row(cell: Cell, result: dict[str, Any]) -> dict[str, Any]:
    row, cost, clicks = cell.row, result["cost"], result["cost"]["clicks"]
    passes = result["config"]["method"]["passes"]
    content: dict[str, Any] = (
        {
            "cell": cell.name,
            "plugins": "+".join(row.plugins),
            "settings": json.dumps(row.settings, sort_keys=True),
            "seed": cell.seed,
            "events": cost["reveals"],
            "events_per_click": cost["reveals"] / clicks,
            "steps_per_click": cost["steps"] / clicks,
            "shown_per_click": cost["reveals"] * passes / clicks,
            "memory_peak_mb": cost["peak_rss_mb"],
        }
        | {name: getattr(row, name) for name in ("label", "variant", "role", "base", "method")}
        | {name: result["judged"][name] for name in ("clicks", "conversions")}
        | {name: cost[name] for name in ("steps", "skipped_events", "clipped_weights")}
        | dict.fromkeys((*POOLED, *BESIDE))
        | result["metrics"]["pooled"]
        | {f"{r}_{name}": v for r, content in result["references"].items() for name, v in content.items()}
        | {f"interval_{name}": result["metrics"]["interval"][name] for name in INTERVAL_METRICS}
        | {f"time_{name}_s": cost[f"{name}_s"] for name in _TIMES}
    )
    return content
