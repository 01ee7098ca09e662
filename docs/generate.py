"""Writes docs/methods/: one page per method and an overview, from docstrings, options, schedules and the checks.

python docs/generate.py            # runs every check, then writes all pages
python docs/generate.py --keep     # keeps the check counts that the pages have
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracecvr import checks
from tracecvr.authoring.method import Method
from tracecvr.base import config, registry
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.durations import duration
from tracecvr.base.glossary import read_glossary
from tracecvr.bench.gauntlet import load_findings
from tracecvr.data.table import Feature, Schema
from tracecvr.datasets.criteo import HORIZONS
from tracecvr.stream.reveal import On, Trigger

DOCS = Path(__file__).parent
FOLDER = DOCS / "methods"
GALLERY: dict[str, Any] = tomllib.loads((DOCS / "gallery.toml").read_text(encoding="utf-8"))
RESULTS = ("table1", "one_seed/table1", "one_seed/quick")
"""Where the row of a method is looked for, the best evidence first."""
CRITEO = Schema(
    dataset="criteo",
    features=(Feature("field", 2, "field"),),
    actions=("conversion",),
    horizons=HORIZONS,
    d_max=30 * DAY,
    split=10 * DAY,
    interval=HOUR,
    observed_until=90 * DAY,
    conversions_at_click=True,
)
"""What schedules are shown for."""


def event(trigger: Trigger) -> str:
    """A trigger in words."""
    if isinstance(trigger, On):
        late = "" if trigger.later_than < 0 else f", if later than {duration(trigger.later_than)}"
        return f"when it converts{late}"
    only = {None: "", True: ", if converted by then", False: ", if not converted by then"}[trigger.seen]
    return f"{'at the click' if trigger.seconds == 0 else 'after ' + duration(trigger.seconds)}{only}"


def mass(trigger: Trigger) -> str:
    """How many events per click a trigger gives: p is the rate, P(a, b] the mass of conversions between a and b."""
    if isinstance(trigger, On):
        return "p" if trigger.later_than < 0 else f"P(>{duration(trigger.later_than)})"
    by = "p" if trigger.seconds >= CRITEO.d_max else f"P(≤{duration(trigger.seconds)})"
    return {None: "1", True: by, False: f"1 - {by}"}[trigger.seen]


def events_per_click(method: Method) -> str:
    masses = [mass(t) for t in method.schedule()]
    always = masses.count("1")
    terms = ([str(always)] if always else []) + [m for m in masses if m != "1"]
    return " + ".join(terms) or "0"


def bound(cls: type) -> Method:
    method: Method = cls()
    method.bind(CRITEO, 0)
    return method


def page(cls: type, counts: str) -> str:
    """One method, whole."""
    method = bound(cls)
    entry = GALLERY["method"][method.name]
    file = Path(inspect.getfile(cls))
    events = [f"{i + 1}. {event(t)}" for i, t in enumerate(method.schedule())] or ["never"]
    rows = [
        f"| `{o.name}` | {o.type} | {shown(o.default)} | {o.help} |"
        for o in config.options(cls)
        if o.name not in {b.name for b in config.options(Method)}
    ]
    options = ["| option | type | default | what it is |", "|---|---|---|---|", *rows] if rows else ["None of its own."]
    helpers = ", ".join(f"`{name}`" for name in method.helpers()) or "none"
    lines = len(file.read_text(encoding="utf-8").splitlines())
    return "\n".join(
        [
            f"# {method.name}",
            "",
            inspect.getdoc(cls) or "",
            "",
            "## Loss",
            "",
            *(f"$$\n{equation}\n$$\n" for equation in entry["formula"].strip().splitlines()),
            "Symbols are explained in [the overview](README.md#symbols).",
            "",
            "## When to use it",
            "",
            entry["when"],
            "",
            *result(method),
            *gauntlet(method),
            "## Facts",
            "",
            f"- Reference: {method.reference}",
            f"- Status: {method.status}",
            f"- Serves: {method.serves}",
            f"- Helper nets: {helpers}",
            f"- Events per click: {events_per_click(method)}",
            f"- Source: [`{file.name}`](../../src/tracecvr/methods/{file.name}), {lines} lines",
            f"- Checks, alone and with each plugin: {counts}",
            "",
            "## When it learns from a click (with Criteo's windows)",
            "",
            *events,
            "",
            "## Options",
            "",
            *options,
            "",
            "The options that all methods share are listed in [the overview](README.md).",
            "",
        ]
    )


def result(method: Method) -> list[str]:
    """The row of a method in the results on a real log, and the command that gives it again; nothing if it has none."""
    for folder in RESULTS:
        lines = (DOCS / "results" / folder / "table.md").read_text(encoding="utf-8").splitlines()
        header = next(i for i, line in enumerate(lines) if line.startswith("| method |"))
        row = next((line for line in lines[header:] if line.startswith(f"| {method.title} |")), None)
        if row is not None:
            break
    else:
        return []
    bench = json.loads((DOCS / "results" / folder / "bench.json").read_text(encoding="utf-8"))
    seeds = [str(seed) for seed in bench["seeds"]]
    command = (
        f"tracecvr bench {bench['suite']['name']} --data {bench['data']} --source data --tuned tune/tuned.toml "
        f"--seeds {','.join(seeds)} --methods {method.name} --out again"
    )
    return [
        "## Result on a real log",
        "",
        lines[header],
        lines[header + 1],
        row,
        "",
        f"Criteo Sponsored Search, {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(seeds)}: "
        f"[table](../results/{folder}/table.md), [what was done](../results/README.md). "
        "The command that gives this row:",
        "",
        f"```console\n{command}\n```",
        "",
    ]


def gauntlet(method: Method) -> list[str]:
    """How it did over logs of one hardship each; nothing if it was not there."""
    findings = load_findings()
    if not (words := findings["methods"].get(method.name)):
        return []
    seeds = f"{'seed' if len(findings['seeds']) == 1 else 'seeds'} {', '.join(map(str, findings['seeds']))}"
    line = (
        f"{words[0].upper()}{words[1:]}; {seeds}: [table](../results/gauntlet/table.md), [what it is](../gauntlet.md)."
    )
    return ["## In the gauntlet", "", line, ""]


def gallery() -> list[str]:
    """The groups of methods, and when to use which."""
    lines = []
    for group in GALLERY["group"]:
        lines += [f"### {group['title']}", "", group["about"], "", "| method | when to use it |", "|---|---|"]
        lines += [f"| [{title(name)}]({name}.md) | {GALLERY['method'][name]['when']} |" for name in group["methods"]]
        lines.append("")
    return lines


def title(name: str) -> str:
    return bound(registry.available("method")[name]).title


def shown(value: object) -> str:
    return ", ".join(str(v) for v in value) if isinstance(value, tuple) else str(value)


def overview() -> str:
    rows = []
    for name, cls in registry.available("method").items():
        method = bound(cls)
        copies = "; ".join(event(t) for t in method.schedule()) or "never"
        helpers = ", ".join(method.helpers()) or "none"
        row = [f"[{name}]({name}.md)", copies, events_per_click(method), helpers, method.serves, method.status]
        rows.append("| " + " | ".join(row) + " |")
    shared = [f"| `{o.name}` | {o.type} | {shown(o.default)} | {o.help} |" for o in config.options(Method)]
    return "\n".join(
        [
            "# Methods",
            "",
            GALLERY["about"],
            "## When to use which",
            "",
            *gallery(),
            "## Symbols",
            "",
            GALLERY["symbols"],
            "## Schedules",
            "",
            "When each method shows a click, with Criteo's windows. In events per click, p is the conversion rate and",
            "P(...) is the share of clicks whose conversion has such a delay.",
            "",
            "| method | a click is shown | events per click | helper nets | serves | status |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            "## Options that all methods share",
            "",
            "| option | type | default | what it is |",
            "|---|---|---|---|",
            *shared,
            "",
        ]
    )


def pages(counts: Mapping[str, str]) -> dict[str, str]:
    """Every file of the folder by name."""
    texts = {f"{name}.md": page(cls, counts[name]) for name, cls in registry.available("method").items()}
    return texts | {"README.md": overview()}


def counted() -> dict[str, str]:
    """The outcome of every check, by method."""
    report = checks.run()
    counts = {}
    for name in registry.available("method"):
        mine = Counter(o.status for o in report if o.method.partition("+")[0] == name)
        counts[name] = f"{sum(mine.values())} run: " + ", ".join(f"{n} {status}" for status, n in sorted(mine.items()))
    return counts


def kept() -> dict[str, str]:
    """The check counts that the pages have."""
    pattern = re.compile(r"^- Checks, alone and with each plugin: (.*)$", re.MULTILINE)
    counts = {}
    for name in registry.available("method"):
        path = FOLDER / f"{name}.md"
        match = pattern.search(path.read_text(encoding="utf-8")) if path.exists() else None
        counts[name] = match[1] if match else "not run"
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--keep", action="store_true", help="keep the check counts")
    counts = kept() if parser.parse_args().keep else counted()
    FOLDER.mkdir(exist_ok=True)
    (FOLDER.parent / "glossary.md").write_text(read_glossary(), encoding="utf-8")
    for name, text in pages(counts).items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
