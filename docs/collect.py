"""Takes the outcome of benches into docs/results/: tables, results and the figures that its README shows.

    python docs/collect.py table1 table2 ablation gauntlet

Cells, which hold scores of clicks, stay where they are, and so does where the log lay. What a gauntlet shows of each
method also goes into the package, for `tracecvr methods` and docs/generate.py.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import polars as pl

from tracecvr.base.files import read_json, write_json
from tracecvr.bench import gauntlet, report
from tracecvr.bench.suite import title_of

FOLDER = Path(__file__).parent / "results"
TAKEN = ("table.md", "results.parquet", "forecast.parquet", "forecast_day.parquet")


def collect(bench: Path, folder: Path = FOLDER) -> Path:
    """Copy what a bench found to the folder of its suite; returns it."""
    if (bench / "gauntlet.json").is_file():
        return collect_gauntlet(bench, folder)
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


def collect_gauntlet(bench: Path, folder: Path = FOLDER, packaged: Path = gauntlet.FINDINGS) -> Path:
    """The same of a gauntlet, and the summary that is part of the package."""
    out = folder / "gauntlet"
    out.mkdir(parents=True, exist_ok=True)
    for path in (bench / "gauntlet.json", *gauntlet.write(bench, ["png"])):
        shutil.copyfile(path, out / path.name)
    write_findings(out, packaged)
    return out


def write_findings(folder: Path, path: Path) -> None:
    """What is packaged of a gauntlet: a line of each method as it is by default."""
    frame, methods = pl.read_parquet(folder / "gauntlet.parquet"), {}
    for one in gauntlet.standings(frame):
        if one["role"] != "upper" and one["label"] == title_of(one["method"]):
            worst = one["worst"]
            words = "failed on a log" if worst is None else f"worst regret {worst:.4f} ({one['worst_log']})"
            words += f"; near the best on {one['near_best']} of {frame['log'].n_unique()} logs"
            methods[one["method"]] = words
    write_json(path, {"seeds": read_json(folder / "gauntlet.json")["seeds"], "methods": methods})


def shown(page: Path, suite: str) -> list[str]:
    """The figures of a suite that a page shows."""
    return re.findall(rf"\({suite}/([\w-]+\.png)\)", page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for given in sys.argv[1:]:
        print(collect(Path(given)))  # noqa: T201
