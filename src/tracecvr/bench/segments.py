"""By segment of the log, an advertiser for example: ranking inside segments, calibration of each, the worst ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tracecvr.base.config import nearest
from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json, write_parquet
from tracecvr.base.metrics import nll, probability
from tracecvr.bench.outcome import Outcome
from tracecvr.bench.text_tables import Table, Text, figure_cell
from tracecvr.data.encoder import Encoder, value_names
from tracecvr.data.table import ClickTable
from tracecvr.runs.replay import FullPlan


def by_segment(segment: Any, log_odds: Any, label: Any, weight: Any = 1.0) -> pl.DataFrame:
    """Clicks, conversions, AUC, NLL, mean prediction and PCOC of each segment; AUC is null where there is one class. A
    click counts as often as its weight says."""
    s = np.asarray(log_odds, dtype=np.float64)
    frame = pl.DataFrame(
        {"segment": segment, "s": s, "y": np.asarray(label, bool), "p": probability(s), "loss": nll(s, label)}
    ).with_columns(pl.lit(weight).alias("w"))
    ranked = frame.with_columns(pl.col("s").rank("average").over("segment").alias("rank"))
    positive, negative = pl.col("conversions"), pl.col("rows") - pl.col("conversions")
    grouped = ranked.group_by("segment").agg(
        pl.len().cast(pl.Int64).alias("rows"),
        pl.col("w").sum().round().cast(pl.Int64).alias("clicks"),
        pl.col("y").sum().cast(pl.Int64).alias("conversions"),
        pl.col("rank").filter("y").sum().alias("ranks"),
        ((pl.col("loss") * pl.col("w")).sum() / pl.col("w").sum()).alias("nll"),
        ((pl.col("p") * pl.col("w")).sum() / pl.col("w").sum()).alias("mean_prediction"),
    )
    auc = (pl.col("ranks") - positive * (positive + 1) / 2) / (positive * negative)
    return (
        grouped.with_columns(
            pl.when((positive > 0) & (negative > 0)).then(auc).alias("auc"),
            pl.when(positive > 0).then(pl.col("mean_prediction") * pl.col("clicks") / positive).alias("pcoc"),
        )
        .select("segment", "clicks", "conversions", "auc", "nll", "mean_prediction", "pcoc")
        .sort("segment")
    )


def gauc(by_segment: pl.DataFrame) -> float | None:
    """AUC inside segments, weighted by clicks; segments of one class are left out."""
    two = by_segment.drop_nulls("auc")
    return float(np.average(two["auc"].to_numpy(), weights=two["clicks"].to_numpy())) if len(two) else None


def miscalibration(by_segment: pl.DataFrame) -> float:
    """How many conversions are predicted too many or too few, summed over segments, per conversion that happened."""
    predicted, happened = (
        (by_segment["mean_prediction"] * by_segment["clicks"]).to_numpy(),
        by_segment["conversions"].to_numpy(),
    )
    return float(np.abs(predicted - happened).sum() / max(happened.sum(), 1))


def write(out: Path, log: Path, feature: str) -> None:
    """`segments.parquet`: every finished cell by segment, each with its raw `value` if the encoder can tell it."""
    table = ClickTable.load(log)
    names = [f.name for f in table.schema.features]
    if feature not in names:
        raise UserError(f"--by {feature}: no such feature{nearest(feature, names)}; there are: {', '.join(names)}")
    raw = value_names(Encoder.load(log / "encoder.json").columns[names.index(feature)])
    column, parts = np.asarray(table.x[:, names.index(feature)]), []
    for cell in pl.read_parquet(out / "results.parquet")["cell"]:
        folder = out / "cells" / cell
        first, last = FullPlan(**read_json(folder / "result.json")["plan"]).judged_rows(table)
        scores = pl.read_parquet(folder / "scores.parquet")
        weight = scores["weight"] if "weight" in scores.columns else 1.0
        measured = by_segment(column[first:last], scores["log_odds"].to_numpy(), scores["label"].to_numpy(), weight)
        value = pl.col("segment").replace_strict(raw, default=pl.col("segment").cast(pl.String), return_dtype=pl.String)
        facts = pl.lit(cell).alias("cell"), pl.lit(feature).alias("by"), value.alias("value")
        parts.append(measured.select(*facts, pl.all()))
    if parts:
        write_parquet(out / "segments.parquet", pl.concat(parts))


def tables(outcome: Outcome, worst: int = 10) -> list[Table]:
    """GAUC and calibration of each cell, and the segments in which the conversions predicted are furthest off; none if
    segments were not asked for."""
    path, results = outcome.out / "segments.parquet", outcome.results
    if not path.is_file() or not outcome.lines:
        return []
    segments = pl.read_parquet(path)
    feature = segments["by"][0]
    overall = Table(f"By {feature}", ["method", "seed", "segments", "GAUC ↑", "AUC ↑", "conversions off ↓"])
    lost = Table(f"The {worst} segments of {feature} that are furthest off", ["method", "segment", "clicks"])
    lost.headings += ["conversions", "predicted", "PCOC"]
    ours = results.filter(pl.col("role") == "ours")
    shown = (ours if len(ours) else results)["cell"][0]
    for row in results.iter_rows(named=True):
        mine = segments.filter(pl.col("cell") == row["cell"])
        label = f"{row['label']} ({row['variant']})" if row["variant"] else row["label"]
        figures = [gauc(mine), row["auc"], miscalibration(mine)]
        overall.rows.append([Text(label), Text(str(row["seed"])), Text(f"{len(mine):,}"), *map(figure_cell, figures)])
        if row["cell"] == shown:
            lost.rows += [_worst(label, one) for one in _furthest(mine, worst).iter_rows(named=True)]
    overall.notes.append(
        "GAUC: AUC inside segments, weighted by clicks, where both classes are. Conversions off: how many are "
        "predicted too many or too few, summed over segments, per conversion."
    )
    lost.notes.append(
        "Segments are raw values. Of hashed features only encoded ids are known. One cell; all are in segments.parquet."
    )
    return [overall, lost]


def _furthest(mine: pl.DataFrame, count: int) -> pl.DataFrame:
    off = (pl.col("mean_prediction") * pl.col("clicks") - pl.col("conversions")).abs()
    return mine.with_columns(off.alias("off")).sort(["off", "segment"], descending=[True, False]).head(count)


def _worst(label: str, one: dict[str, Any]) -> list[Text]:
    predicted = one["mean_prediction"] * one["clicks"]
    figures = [one["value"], f"{one['clicks']:,}", f"{one['conversions']:,}", f"{predicted:,.1f}"]
    return [Text(label), *map(Text, figures), figure_cell(one["pcoc"], 3)]
