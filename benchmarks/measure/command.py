"""What benchmarks of one process group have in common: options, a room for their files, and how they end."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from measure import machine, report
from measure.report import Figure


def parser(about: str | None, name: str, quick: object, full: object) -> argparse.ArgumentParser:
    """For a size and for where the figures go."""
    text, _, more = (about or "").partition("\n\n")
    made = argparse.ArgumentParser(description=text, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", dest="size", action="store_const", const=quick, default=full, help="a smoke")
    made.add_argument("--out", type=Path, default=Path(f"runs/{name}.json"), help="the JSON that is written")
    return made


def carry_out(name: str, size: str, out: Path, measured: Callable[[Path], list[Figure]]) -> None:
    """Measure in a room that is gone afterwards, write and print the figures, and end: with 1 if one failed."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    with tempfile.TemporaryDirectory(prefix=f"tracecvr_{name}_") as room:
        facts = machine.facts(1)
        figures = measured(Path(room))
    content = {
        "size": size,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": facts,
        "passed": all(figure.passed for figure in figures),
        "figures": [figure.to_json() for figure in figures],
        "methods": [],
        "profile": {},
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(content, indent=2) + "\n")
    console.print(
        *report.tables(content), report.machine_line(facts), f"load at start: {facts['load_at_start']:.1f}", sep="\n"
    )
    console.print(f"written: {out}")
    sys.exit(0 if content["passed"] else 1)
