"""The conformance suite: every method and plugin that is found is run through every check.

A third party's method is checked by `tracecvr check NAME` or `checks.run(["NAME"])` without writing a test. A check is
a function in one of the files here whose name starts with `check_`; it takes a `Subject` and raises `AssertionError`
when the promise is broken, or `NotApplicable` when it does not apply.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tracecvr.base import registry
from tracecvr.checks.subject import NotApplicable, Subject

Check = Callable[[Subject], None]


@dataclass(frozen=True)
class CheckOutcome:
    """One method x check pair. `expected failure` is a pass: the check proves that it can tell."""

    method: str
    check: str
    status: str
    reason: str
    seconds: float

    @property
    def unexpected(self) -> bool:
        return self.status in ("failed", "passed unexpectedly")


def all_checks() -> dict[str, Check]:
    checks: dict[str, Check] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("check_") and function.__module__ == module.__name__:
                checks[name.removeprefix("check_")] = function
    return dict(sorted(checks.items()))


def subjects(methods: Iterable[str] | None = None) -> list[Subject]:
    """The named methods (all of them without names), each alone and with every plugin that it does not contain."""
    names = list(registry.available("method") if methods is None else methods)
    plugins = registry.available("plugin")
    return [Subject(n) for n in names] + [Subject(n, p) for n in names for p in plugins if Subject(n).takes(p)]


def run(methods: Iterable[str] | None = None, plugin: str | None = None) -> list[CheckOutcome]:
    """Run every check on the named methods (on all without names), alone and with plugins; or with one plugin only."""
    chosen = [subject for subject in subjects(methods) if plugin in (None, subject.plugin)]
    return [run_one(subject, name) for subject in chosen for name in all_checks()]


def run_one(subject: Subject, name: str) -> CheckOutcome:
    check, expected = all_checks()[name], subject.expected_failures().get(name)
    clock = time.monotonic()
    try:
        check(subject)
        status, reason = ("passed", "") if expected is None else ("passed unexpectedly", f"should fail: {expected}")
    except NotApplicable as nothing:
        status, reason = "not applicable", str(nothing)
    except AssertionError as broken:
        status, reason = ("failed", str(broken)) if expected is None else ("expected failure", expected)
    except Exception as crash:
        status, reason = "failed", f"{type(crash).__name__}: {crash}"
    return CheckOutcome(subject.name, name, status, reason, round(time.monotonic() - clock, 3))


def summary(report: Iterable[CheckOutcome]) -> str:
    """How many pairs ran, and how they ended."""
    counts = Counter(outcome.status for outcome in report)
    return f"{sum(counts.values())} method x check pairs: " + ", ".join(f"{n} {s}" for s, n in sorted(counts.items()))
