"""What the gauntlet has shown of each method, packaged: see docs/gauntlet.md. `benchmarks/gauntlet.py` writes it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from tracecvr.base.files import read_json

FINDINGS = Path(__file__).with_name("gauntlet_results.json")


@cache
def load_findings() -> dict[str, Any]:
    """`seeds`, and under `methods` a line for each method."""
    content: dict[str, Any] = read_json(FINDINGS)
    return content
