"""Bench directories whose figures are made up, with everything in them that a report can show; nothing is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tracecvr.base.config import DAY, HOUR
from tracecvr.base.files import write_json
from tracecvr.base.metrics import INTERVAL_METRICS
from tracecvr.base.seeds import generator
from tracecvr.bench.outcome import SCHEMA

Figures = Mapping[str, Sequence[float | None]]
"""Row to AUC by seed; None for a cell that is not finished. Other metrics follow from it."""

AUC: dict[str, Sequence[float | None]] = {
    "Pretrain": (0.70, 0.72, 0.71),
    "Vanilla": (0.74, 0.76, 0.75),
    "DEFER": (0.76, 0.80, 0.78),
    "TRACE": (0.78, 0.81, 0.80),
    "Oracle": (0.80, 0.82, 0.82),
}
ROLES = {"Pretrain": "lower", "Vanilla": "zero", "TRACE": "ours", "Oracle": "upper"}


def bench(out: Path, figures: Figures = AUC, bases: Mapping[str, str] | None = None, **suite: Any) -> Path:
    """Write the directory. `bases` say which row is compared with which; `suite` overrides what the suite says."""
    out.mkdir(parents=True, exist_ok=True)
    seeds = list(range(len(next(iter(figures.values())))))
    rows = [_row(label, (bases or {}).get(label, "")) for label in figures]
    asked = {
        "name": "mine",
        "about": "made up",
        "layout": "comparison",
        "metrics": ["auc", "nll", "ece"],
        "settings": {},
    }
    facts: dict[str, Any] = {
        "data": "synthetic",
        "data_options": {"clicks": 9},
        "data_settings": [],
        "fingerprint": "f",
        "source": None,
    }
    facts |= {"settings": {}, "methods": [], "tuned": {}, "tracecvr": "0.0.0"}
    write_json(out / "bench.json", {"suite": asked | suite, "rows": rows, "seeds": seeds} | facts)
    cells = [
        _cell(row, seed, value) for row in rows for seed, value in enumerate(figures[row["label"]]) if value is not None
    ]
    pl.DataFrame([{name: cell[name] for name in SCHEMA} for cell in cells], SCHEMA).write_parquet(
        out / "results.parquet"
    )
    for cell in cells:
        _folder(out / "cells" / cell["cell"], cell)
    return out


def _row(label: str, base: str) -> dict[str, Any]:
    plain = {"label": label, "method": label.lower(), "plugins": [], "settings": {}, "variant": "", "base": base}
    return plain | {"name": label, "role": ROLES.get(label, "method")}


def _cell(row: dict[str, Any], seed: int, auc: float) -> dict[str, Any]:
    made = {
        "auc": auc,
        "pr_auc": auc / 2,
        "ap": auc / 2,
        "nll": 1.2 - auc,
        "ece": 0.9 - auc,
        "ece_gdfm": 0.1,
        "mce": 0.2,
    }
    made |= {"pcoc": 2 * auc}
    return (
        dict.fromkeys(SCHEMA)
        | {key: row[key] for key in ("label", "variant", "role", "base", "method")}
        | {"cell": f"{row['name']}~seed{seed}", "seed": seed, "clicks": 1000, "conversions": 200}
        | made
        | {f"interval_{name}": made[name] for name in INTERVAL_METRICS}
        | {"events_per_click": 2.0, "shown_per_click": 2.0 + 4 * (auc - 0.7), "steps_per_click": 0.01}
        | {"time_warm_up_s": 3.0, "time_shared_warm_up_s": 0.0, "time_stream_s": 100 * auc, "memory_peak_mb": 400.0}
    )


def _folder(folder: Path, cell: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    write_json(folder / "result.json", {"versions": {"python": "3.11", "torch": "2.13"}})
    rng = generator(cell["seed"], cell["label"])
    start = np.arange(10 * DAY, 20 * DAY, HOUR)
    auc = cell["auc"] + rng.normal(0, 0.02, len(start))
    frame = pl.DataFrame({"start": start, "clicks": 10, "conversions": 2, "auc": auc, "nll": 1.2 - auc})
    frame = frame.with_columns(ece=0.05, pcoc=pl.col("auc") + 0.3, logistic_nll=0.5)
    frame = frame.with_columns(auc=pl.when(pl.col("start") % (7 * HOUR) == 0).then(None).otherwise(pl.col("auc")))
    frame.write_parquet(folder / "intervals.parquet")
