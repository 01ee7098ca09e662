"""The conformance suite on everything found, and proof that each check can fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tracecvr import checks
from tracecvr.authoring.losses import cross_entropy
from tracecvr.authoring.method import Method
from tracecvr.authoring.part import Helper
from tracecvr.base import registry
from tracecvr.base.errors import UserError
from tracecvr.checks import stream
from tracecvr.checks.subject import Subject
from tracecvr.data.table import ClickTable
from tracecvr.methods.pretrain import Pretrain
from tracecvr.methods.vanilla import Vanilla
from tracecvr.plugins.completer import Completer
from tracecvr.stream.reveal import After, LabelledReveals, On, Reveals, Schedule
from tracecvr.stream.source import TableSource

PAIRS = [(subject, name) for subject in checks.subjects() for name in checks.all_checks()]


@pytest.mark.parametrize(("subject", "check"), PAIRS, ids=[f"{s.name}-{c}" for s, c in PAIRS])
def test_everything_found_keeps_every_promise(subject: Subject, check: str) -> None:
    outcome = checks.run_one(subject, check)
    assert not outcome.unexpected, outcome.reason


def test_methods_and_plugins_are_found() -> None:
    assert set(registry.available("method")) >= {"pretrain", "vanilla", "vanilla_dup", "wait", "oracle", "trace"}
    names = [s.name for s in checks.subjects()]
    assert "vanilla+completer" in names
    assert "trace+completer" not in names
    assert len(PAIRS) == len(checks.subjects()) * len(checks.all_checks())


def test_oracle_fails_no_future_and_the_suite_says_so() -> None:
    outcome = checks.run_one(Subject("oracle"), "no_future")
    assert outcome.status == "expected failure"
    assert "1 expected failure" in checks.summary([outcome])


# Broken methods, each caught by the check it breaks.


@dataclass
class Peeking(Vanilla):
    """Calls itself unprivileged and learns from the final label all the same."""

    name = "peeking"

    def schedule(self) -> Schedule:
        return (After(0), After(self.schema.d_max))

    def loss(self, b: Reveals) -> Tensor:
        return cross_entropy(self.logit(b.x), PEEKED[b.row]).mean()


PEEKED = torch.zeros(0)


@dataclass
class Forgetful(Vanilla):
    """Keeps a generator across ticks."""

    name = "forgetful"

    def loss(self, b: Reveals) -> Tensor:
        if not hasattr(self, "dice"):
            self.dice = np.random.default_rng(0)
        return super().loss(b) * self.dice.random()


@dataclass
class Restless(Vanilla):
    """Counts how often it was asked."""

    name = "restless"

    def log_odds(self, x: Tensor) -> Tensor:
        self.counts["asked"] = self.counts.get("asked", torch.zeros(1)) + 1
        return super().log_odds(x)


@dataclass
class Random(Vanilla):
    """Uses a generator that nobody seeded."""

    name = "random"

    def loss(self, b: Reveals) -> Tensor:
        return super().loss(b) * np.random.default_rng().random()


@dataclass
class Leaking(Vanilla):
    """Trains its helper through the stream."""

    name = "leaking"

    def helpers(self) -> dict[str, Helper]:
        return {"aid": Helper(lambda: self.net(1))}

    def helper_loss(self, name: str, b: LabelledReveals) -> Tensor:
        return cross_entropy(self.nets[name](b.x)[:, 0], b.truth).mean()

    def loss(self, b: Reveals) -> Tensor:
        with torch.no_grad():
            self.nets["aid"].layers[-1].bias += 1  # type: ignore[index,union-attr]
        return super().loss(b)


@dataclass
class Careless(Leaking):
    """Trains its helper on the opposite."""

    name = "careless"

    def helper_loss(self, name: str, b: LabelledReveals) -> Tensor:
        loss = super().helper_loss(name, b)
        return -loss if torch.is_grad_enabled() else loss


@dataclass
class Biased(Vanilla):
    """Claims to be unbiased."""

    name = "biased"

    def fixed_point(self, p: float, delayed: float) -> float:
        return p


@dataclass
class Unstopped(Vanilla):
    """Weights events by its own rate, part of it behind a stop-gradient that is not one."""

    name = "unstopped"

    def stop_gradient(self, value: Tensor) -> Tensor:
        return value

    def loss(self, b: Reveals) -> Tensor:
        s = self.logit(b.x)
        return (torch.sigmoid(s).detach() * cross_entropy(s, b.label)).mean()


@dataclass
class Overflowing(Vanilla):
    """Takes the logarithm of a sigmoid."""

    name = "overflowing"

    def loss(self, b: Reveals) -> Tensor:
        p = torch.sigmoid(self.logit(b.x))
        return -(b.label * p.log() + (1 - b.label) * (1 - p).log()).mean()


@dataclass
class Presumptuous(Vanilla):
    """Has a posterior other than the prior before anything is known."""

    name = "presumptuous"

    def posterior(self, b: Reveals) -> Tensor:
        return self.log_odds(b.x) - 1


@dataclass
class Idle(Vanilla):
    """Has a schedule, and a loss without effect."""

    name = "idle"
    weight_decay: float = 0.0

    def loss(self, b: Reveals) -> Tensor:
        return super().loss(b) * 0


@dataclass
class Unwarmed(Pretrain):
    """Learns the opposite of the label in warm-up."""

    name = "unwarmed"

    def warm_loss(self, b: LabelledReveals) -> Tensor:
        return cross_entropy(self.logit(b.x), 1 - b.truth).mean()


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (Forgetful, "resume"),
        (Restless, "scoring_is_pure"),
        (Random, "deterministic"),
        (Leaking, "helpers_stay_frozen"),
        (Careless, "helpers_generalise"),
        (Biased, "fixed_point"),
        (Unstopped, "gradient"),
        (Overflowing, "extreme_logits"),
        (Presumptuous, "posterior_starts_at_prior"),
        (Idle, "stream_trains"),
        (Unwarmed, "warm_up_learns"),
    ],
)
def test_a_broken_method_is_caught(broken: type[Method], check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    add(monkeypatch, broken)
    assert checks.run_one(Subject(broken.name), check).status == "failed"


def test_a_method_that_looks_ahead_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peeking method is handed each table's final labels behind the engine's back."""
    add(monkeypatch, Peeking)
    original: Callable[..., Any] = stream._run

    def run(subject: Subject, table: Any, plan: Any) -> Any:
        global PEEKED
        PEEKED = torch.from_numpy(table.label.astype(np.float32))
        return original(subject, table, plan)

    monkeypatch.setattr(stream, "_run", run)
    assert checks.run_one(Subject("peeking"), "no_future").status == "failed"


def test_a_source_that_differs_from_the_live_one_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TableSource._fire_on

    def early(self: TableSource, trigger: On, start: int, end: int) -> Any:
        return honest(self, replace(trigger, later_than=-1), start, end)

    monkeypatch.setattr(TableSource, "_fire_on", early)
    assert checks.run_one(Subject("vanilla_dup"), "replay_equals_live").status == "failed"


def test_a_source_that_repeats_events_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ClickTable.rows_between
    monkeypatch.setattr(ClickTable, "rows_between", lambda self, start, end: honest(self, start, end + 3600))
    assert checks.run_one(Subject("vanilla"), "every_event_once").status == "failed"


def test_an_unprivileged_oracle_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A privileged method that passed no-future would be reported, too."""

    @dataclass
    class Harmless(Vanilla):
        name = "harmless"
        privileged = True

    add(monkeypatch, Harmless)
    assert checks.run_one(Subject("harmless"), "no_future").status == "passed unexpectedly"


def test_a_check_that_crashes_is_a_failure_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Crashing(Vanilla):
        name = "crashing"

        def loss(self, b: Reveals) -> Tensor:
            raise AttributeError("no such thing")

    add(monkeypatch, Crashing)
    report = checks.run(["crashing"])
    failed = [o for o in report if o.method == "crashing" and o.check == "deterministic"]
    assert [(o.status, o.reason) for o in failed] == [("failed", "AttributeError: no such thing")]
    assert any(o.status == "passed" for o in report)


def test_a_double_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Again(Vanilla):
        name = "vanilla"

    walk = registry._walk
    monkeypatch.setattr(registry, "_walk", lambda home: [*walk(home), Again])
    with pytest.raises(UserError, match=r"two methods are named 'vanilla'.*tracecvr\.methods\.vanilla"):
        registry.available.__wrapped__("method")


def test_an_unknown_method_is_explained() -> None:
    with pytest.raises(UserError, match=r"did you mean 'trace'.*vanilla"):
        registry.get("method", "tracee")


def add(monkeypatch: pytest.MonkeyPatch, method: type[Method]) -> None:
    known, completer = registry.available("method"), {"completer": Completer}
    everything = {
        "method": known | {method.name: method},
        "plugin": completer,
        "backbone": registry.available("backbone"),
        "dataset": registry.available("dataset"),
    }
    monkeypatch.setattr(registry, "available", lambda kind: everything[kind])
