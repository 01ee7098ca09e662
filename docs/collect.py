"""Takes the outcome of benches into docs/results/: tables, results and the figures that its README shows.

    python docs/collect.py table1 table2 ablation

Cells, which hold scores of clicks, stay where they are, and so does where the log lay.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from tracecvr.base.files import read_json, write_json
from tracecvr.bench import report

FOLDER = Path(__file__).parent / "results"
TAKEN = ("table.md", "results.parquet")


def collect(bench: Path, folder: Path = FOLDER) -> Path:
    """Copy what a bench found to the folder of its suite; returns it."""
    facts = read_json(bench / "bench.json")
    out = folder / str(facts["suite"]["name"])
    out.mkdir(parents=True, exist_ok=True)
    figures = shown(folder / "README.md", out.name)
    if figures:
        report.write(bench, ["png"])
    for name in TAKEN:
        if (bench / name).is_file():
            shutil.copyfile(bench / name, out / name)
    write_json(out / "bench.json", {key: value for key, value in facts.items() if key != "source"})
    for name in figures:
        shutil.copyfile(bench / "figures" / name, out / name)
    return out


def shown(page: Path, suite: str) -> list[str]:
    """The figures of a suite that a page shows."""
    return re.findall(rf"\({suite}/([\w-]+\.png)\)", page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for given in sys.argv[1:]:
        print(collect(Path(given)))  # noqa: T201
