"""Speed and memory: every figure with its target, in a table and as JSON. Exit code 1 if one fails.

    python benchmarks/speed.py                      # about 10 minutes, 2 million clicks
    python benchmarks/speed.py --quick              # under a minute, limits four times as wide: what CI runs
    python benchmarks/speed.py --full               # adds 16 million Criteo clicks and 100 million Taobao rows
    python benchmarks/speed.py --only update,run    # some of the figures
    python benchmarks/speed.py --profile            # only where the time of a tick goes
    python benchmarks/speed.py --markdown runs/speed.json

See docs/performance.md. Other work on the machine makes figures worse and is not told apart: leave it alone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from measure import figures, report
from measure.child import ChildError, call


def main() -> None:
    given = _arguments()
    if given.markdown is not None:
        sys.stdout.write(report.markdown(json.loads(given.markdown.read_text())) + "\n")
        return
    console = Console(width=None if sys.stdout.isatty() else 160)
    content = _measured(given, console)
    console.print(*report.tables(content), report.machine_line(content["machine"]), sep="\n")
    console.print(f"written: {given.out}")
    sys.exit(0 if content["passed"] else 1)


def _measured(given: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Every part in turn. What is there is written after each figure: an hour's must not be lost with the last."""
    done: list[report.Figure] = []
    with tempfile.TemporaryDirectory(prefix="tracecvr_speed_") as scratch, console.status("the machine") as status:
        bench = figures.Bench(given.size, given.threads, given.logs or Path(scratch), Path(scratch))
        bench.logs.mkdir(parents=True, exist_ok=True)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        machine = call("machine", "facts", threads=given.threads)
        for part in given.only:
            status.update(part)
            for figure in _figures(part, bench):
                done.append(figure)
                _write(given.out, bench, machine, done)
    return _write(given.out, bench, machine, done)


def _figures(part: str, bench: figures.Bench) -> Iterator[report.Figure]:
    """Those of one part; if it breaks, the rest of them is one that failed."""
    try:
        yield from figures.PARTS[part](bench)
    except ChildError as failure:
        yield bench.figure(part, None, "", how=str(failure))


def _write(out: Path, bench: figures.Bench, machine: dict[str, Any], done: list[report.Figure]) -> dict[str, Any]:
    content = {
        "size": bench.size.name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "passed": all(figure.passed for figure in done),
        "figures": [figure.to_json() for figure in done],
        "methods": bench.methods,
        "profile": bench.profile,
    }
    out.write_text(json.dumps(content, indent=2) + "\n")
    return content


def _arguments() -> argparse.Namespace:
    text, _, more = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=text, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = parser.add_mutually_exclusive_group()
    for size, what in ((figures.QUICK, "a smoke, under a minute"), (figures.FULL, "the largest logs too")):
        sizes.add_argument(f"--{size.name}", dest="size", action="store_const", const=size, help=what)
    parser.add_argument("--only", type=_parts, help=f"some of {', '.join(figures.PARTS)}")
    parser.add_argument("--profile", dest="only", action="store_const", const=["profile"], help="the same as --only")
    parser.add_argument("--threads", type=int, help="all cores by default, for a smoke one")
    parser.add_argument("--logs", type=Path, help="where raw logs are kept for another time; not kept by default")
    parser.add_argument("--out", type=Path, default=Path("runs/speed.json"), help="the JSON that is written")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="print such JSON as tables, measure nothing")
    parser.set_defaults(size=figures.DEFAULT, only=list(figures.PARTS))
    given = parser.parse_args()
    # Threads that wait for each other on busy cores take many times as long, and a smoke runs beside other tests.
    given.threads = given.threads or (1 if given.size is figures.QUICK else os.cpu_count() or 1)
    return given


def _parts(text: str) -> list[str]:
    unknown = set(text.split(",")) - set(figures.PARTS)
    if unknown:
        raise argparse.ArgumentTypeError(f"no figure {', '.join(unknown)}; there are: {', '.join(figures.PARTS)}")
    return text.split(",")


if __name__ == "__main__":
    main()
