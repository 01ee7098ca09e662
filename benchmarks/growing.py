"""What growing columns gain over hashing, for old and for fresh ids apart: runs over criteo_search, compared.

    run="tracecvr run --method vanilla_dup --data criteo_search --source LOG --set until=46d"
    $run --out hashed
    $run --data-set growing=product_id,audience_id,product_brand --out growing
    python benchmarks/growing.py LOG hashed growing

The tables of both have the same number of rows. A click is fresh if its product is in no click of the warm-up part, and
new if it is in no earlier click at all.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.table import Table

from tracecvr.base.config import DAY
from tracecvr.base.metrics import evaluate


def groups(log: Path, column: str, split: int) -> pl.DataFrame:
    """Of each click, by its row in the log, whether its value is old, and how many earlier clicks had it."""
    raw = pl.read_parquet(log, columns=["day", column]).with_row_index("click_id")
    return raw.select(
        pl.col("click_id").cast(pl.Int64),
        (pl.col("day").min().over(column) * DAY < split).alias("old"),
        pl.int_range(pl.len()).over(column).alias("earlier"),
    )


GROUPS = {
    "all clicks": pl.lit(True),
    "old": pl.col("old"),
    "old, fewer than 20 clicks before": pl.col("old") & (pl.col("earlier") < 20),
    "fresh": ~pl.col("old"),
    "fresh, 5 clicks before or more": ~pl.col("old") & (pl.col("earlier") >= 5),
    "new": pl.col("earlier") == 0,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path, help="the raw log, Parquet")
    parser.add_argument("runs", type=Path, nargs="+", help="directories of runs over it")
    parser.add_argument("--column", default="product_id", help="whose values are old or fresh")
    given = parser.parse_args()
    split = json.loads((given.runs[0] / "result.json").read_text())["plan"]["split"]
    known = groups(given.log, given.column, split)
    table = Table("run", "clicks of which", "share", "AUC", "NLL")
    for run in given.runs:
        scores = pl.read_parquet(run / "scores.parquet").join(known, on="click_id")
        for name, chosen in GROUPS.items():
            mine = scores.filter(chosen)
            figures = evaluate(mine["log_odds"].to_numpy(), mine["label"].to_numpy())
            table.add_row(run.name, name, f"{len(mine) / len(scores):.1%}", f"{figures.auc:.4f}", f"{figures.nll:.5f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
