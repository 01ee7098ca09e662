"""Draws `report.html` of each bench in docs/results/, from the files that are kept there.

Single runs are not kept, so figures over time and intervals over days are missing; `table.md` has the latter.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from tracecvr.bench import report

RESULTS = Path(__file__).resolve().parent / "results"
NAME = "report.html"


def draw(target: Path) -> None:
    """Write the reports below a folder, each where its bench is below `RESULTS`."""
    for bench in sorted(path.parent for path in RESULTS.rglob("bench.json")):
        with TemporaryDirectory() as room:
            drawn = Path(shutil.copytree(bench, Path(room) / "bench"))
            report.write(drawn)
            place = target / bench.relative_to(RESULTS) / NAME
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(drawn / NAME, place)
