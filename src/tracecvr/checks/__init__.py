"""The conformance suite: every method and plugin that is found is run through every check.

A third party's method is checked by `tracecvr check NAME` or `checks.run(["NAME"])` without writing a test. A check is
a function in one of the files here whose name starts with `check_`; it takes a `Subject` and raises `AssertionError`
when the promise is broken, or `NotApplicable` when there is nothing to be held to.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from tracecvr import registry
from tracecvr.checks.subject import NotApplicable, Subject

Check = Callable[[Subject], None]

CARRIER = "vanilla"
"""The method on which plugins are checked."""


@dataclass(frozen=True)
class Outcome:
    """One method x check pair. `expected failure` is a pass: the check proves that it can tell."""

    method: str
    check: str
    status: str
    reason: str
    seconds: float

    @property
    def unexpected(self) -> bool:
        return self.status in ("failed", "passed unexpectedly")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def found() -> dict[str, Check]:
    """Every check by name."""
    checks: dict[str, Check] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("check_") and function.__module__ == module.__name__:
                checks[name.removeprefix("check_")] = function
    return dict(sorted(checks.items()))


def subjects(methods: Iterable[str] | None = None) -> list[Subject]:
    """The named methods; without names, every method, and every plugin on a method that does not contain it."""
    if methods is not None:
        return [Subject(name) for name in methods]
    return [Subject(name) for name in registry.found("method")] + [
        Subject(CARRIER, plugin) for plugin in registry.found("plugin")
    ]


def run(methods: Iterable[str] | None = None) -> list[Outcome]:
    """Run every check on every subject."""
    return [run_one(subject, name) for subject in subjects(methods) for name in found()]


def run_one(subject: Subject, name: str) -> Outcome:
    """Run one check on one subject."""
    check, expected = found()[name], subject.expected_failures().get(name)
    clock = time.monotonic()
    try:
        check(subject)
        status, reason = ("passed", "") if expected is None else ("passed unexpectedly", f"should fail: {expected}")
    except NotApplicable as nothing:
        status, reason = "not applicable", str(nothing)
    except AssertionError as broken:
        status, reason = ("failed", str(broken)) if expected is None else ("expected failure", expected)
    return Outcome(subject.name, name, status, reason, round(time.monotonic() - clock, 3))


def summary(report: Iterable[Outcome]) -> str:
    """How many pairs ran, and how they ended."""
    counts = Counter(outcome.status for outcome in report)
    return f"{sum(counts.values())} method x check pairs: " + ", ".join(f"{n} {s}" for s, n in sorted(counts.items()))
