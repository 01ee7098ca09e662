"""Figures with their targets: as tables on a terminal, as Markdown for the documents, as JSON to keep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

Rows = list[tuple[str, ...]]


@dataclass(frozen=True)
class Figure:
    """One measured value, the target it is held against, if any, and how it was taken. `loose` widens the target."""

    name: str
    value: float | None
    unit: str
    target: float | None = None
    how: str = ""
    loose: float = 1.0

    @property
    def limit(self) -> float | None:
        return None if self.target is None else self.target * self.loose

    @property
    def passed(self) -> bool:
        """A figure that could not be measured has failed; one without a target is only reported."""
        return self.value is not None and (self.limit is None or self.value <= self.limit)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"limit": self.limit, "passed": self.passed}


def number(value: float | None, unit: str = "") -> str:
    """Three digits or more, with the unit."""
    if value is None:
        return "-"
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f} {unit}".strip()


def figure_rows(figures: Iterable[dict[str, Any]]) -> Rows:
    """A line per figure, from its JSON."""
    return [
        (
            f["name"],
            number(f["value"], f["unit"]),
            _target(f),
            ("pass" if f["passed"] else "FAIL") if f["limit"] is not None or not f["passed"] else "",
            f["how"],
        )
        for f in figures
    ]


def _target(figure: dict[str, Any]) -> str:
    if figure["target"] is None:
        return ""
    wider = f" (limit {number(figure['limit'])})" if figure["loose"] != 1 else ""
    return f"≤ {number(figure['target'], figure['unit'])}{wider}"


def method_rows(methods: Iterable[dict[str, Any]]) -> Rows:
    """A line per method, the slowest beside its arithmetic first."""
    ordered = sorted(methods, key=lambda m: -(excess(m) or 0))
    return [
        (
            m["method"],
            number(m["events_per_click"]),
            f"{m['events_per_s']:,.0f}" if "events_per_s" in m else "-",
            number(m.get("time_ratio"), "x"),
            number(m.get("flop_ratio"), "x"),
            number(excess(m), "x"),
            number(m["peak_gb"], "GB"),
        )
        for m in ordered
    ]


def excess(method: dict[str, Any]) -> float | None:
    """By how much a method's time per event, relative to TRACE's, exceeds its arithmetic; one that does less arithmetic
    than TRACE only has to be no slower."""
    return method["time_ratio"] / max(1.0, method["flop_ratio"]) if "time_ratio" in method else None


def profile_rows(profile: dict[str, float]) -> Rows:
    return [(name, f"{share:.1%}") for name, share in profile.items()]


FIGURES = ("figure", "measured", "target", "", "how")
METHODS = ("method", "events per click", "events per second", "time per event", "arithmetic", "excess", "peak memory")
PROFILE = ("part of a tick", "share")


def sections(report: dict[str, Any]) -> list[tuple[str, tuple[str, ...], Rows]]:
    """Title, heading and lines of every table in a report."""
    tables: list[tuple[str, tuple[str, ...], Rows]] = []
    if report["figures"]:
        tables.append((f"Figures, {report['size']}", FIGURES, figure_rows(report["figures"])))
    if report["methods"]:
        tables.append(("Every method beside TRACE", METHODS, method_rows(report["methods"])))
    if report["profile"]:
        tables.append(("Where a tick of TRACE spends its time", PROFILE, profile_rows(report["profile"])))
    return tables


def machine_line(machine: dict[str, Any]) -> str:
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']:.0f} GB; torch {machine['torch']}, "
        f"threads: {machine['threads']}; matrix products at {machine['peak_gflops']:.0f} GFLOP/s"
    )


def tables(report: dict[str, Any]) -> list[Table]:
    """For the terminal."""
    made = []
    for title, heading, rows in sections(report):
        table = Table(*heading, title=title)
        for row in rows:
            table.add_row(*row, style="bold red" if "FAIL" in row else None)
        made.append(table)
    return made


def markdown(report: dict[str, Any]) -> str:
    """For the documents."""
    lines = [f"{report['date']}: {machine_line(report['machine'])}."]
    for title, heading, rows in sections(report):
        lines += ["", f"**{title}**", "", _line(heading), _line(["---"] * len(heading)), *map(_line, rows)]
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
