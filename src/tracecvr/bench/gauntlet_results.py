"""What the gauntlet found of each method, packaged: `gauntlet_results.json`, written by `docs/collect.py`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from tracecvr.base.files import read_json, write_json
from tracecvr.bench.regret import Standing, standings

PATH = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class Findings:
    """Which logs and seeds there were, and how each method stands."""

    logs: tuple[str, ...]
    seeds: tuple[int, ...]
    methods: dict[str, Standing]

    def words(self, method: str) -> str:
        """Of one method, in one line; empty if it was not there."""
        if (one := self.methods.get(method)) is None or one.role == "upper":
            return ""
        worst = "failed on a log" if one.worst is None else f"worst regret {one.worst:.4f} ({one.worst_log})"
        return f"{worst}; near the best on {one.near_best} of {len(self.logs)} logs"


@cache
def load_findings() -> Findings:
    content = read_json(PATH)
    methods = {name: Standing(**standing) for name, standing in content["methods"].items()}
    return Findings(tuple(content["logs"]), tuple(content["seeds"]), methods)


def write(frame: pl.DataFrame, facts: dict[str, Any], path: Path = PATH) -> None:
    """The file, from `gauntlet.parquet` and `gauntlet.json`."""
    logs = frame["log"].unique(maintain_order=True).to_list()
    methods = {one.method: asdict(one) for one in standings(frame)}
    write_json(path, {"logs": logs, "seeds": facts["seeds"], "methods": methods})
