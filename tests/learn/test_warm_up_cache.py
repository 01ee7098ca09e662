"""Warm-ups taken over from another run: the same bits, and nothing shared that could differ."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tracecvr.authoring.method import Method, Plugin
from tracecvr.base import registry
from tracecvr.checks.subject import small_log
from tracecvr.families.late_conversions import DelayAware
from tracecvr.learn.engine import Engine
from tracecvr.learn.warm_up import Fit, Fitted
from tracecvr.learn.warm_up_cache import WarmUpCache
from tracecvr.methods.es_dfm import ESDFM
from tracecvr.plugins.completer import Completer
from tracecvr.stream.reveal import LabelledReveals
from tracecvr.stream.source import TableSource

HISTORY = {"fingerprint": "small", "split": 3, "labels": "mature"}


LOG = small_log(clicks=1000)

SMALL: dict[str, Any] = {"hidden": (16, 8), "batch_size": 256, "warm_epochs": 1, "warm_batch_size": 256}


def engine(method: Method, *plugins: Plugin, seed: int = 1) -> Engine:
    return Engine(method, LOG.schema, seed, plugins)


def small(name: str, **options: Any) -> Method:
    method: Method = registry.get("method", name)(**(SMALL | options))
    return method


def warmed(one: Engine, share: Any = None) -> Engine:
    history = TableSource(LOG).history(LOG.schema.split, "mature")
    if share is None:
        one.warm_up(history)
    else:
        one.warm_up(history, share=share)
    return one


class Counting(WarmUpCache):
    """Counts the nets that are trained."""

    trained: int = 0

    def __call__(self, fit: Fit, facts: dict[str, Any], train: Callable[[Fit], Fitted]) -> Fitted:
        def counted(fit: Fit) -> Fitted:
            self.trained += 1
            return train(fit)

        return super().__call__(fit, facts, counted)


def test_every_method_starts_its_stream_from_the_same_bits(tmp_path: Path) -> None:
    """All methods through one directory, and through it again: each as if it had been alone."""
    shared = Counting(tmp_path, HISTORY)
    alone = {name: warmed(engine(small(name), *added(name))).fingerprint() for name in registry.available("method")}
    trained = []
    for _ in range(2):
        for name in registry.available("method"):
            assert warmed(engine(small(name), *added(name)), shared).fingerprint() == alone[name], name
        trained.append(shared.trained)
    assert trained[0] == trained[1] == len(list(tmp_path.glob("*.safetensors")))
    assert trained[0] < 30  # of 59 nets
    assert shared.seconds > 0


def added(name: str) -> list[Plugin]:
    return [] if "completer" in small(name).contains else [Completer(epochs=1)]


def test_variants_share_the_served_net_and_plugins_of_the_same_options(tmp_path: Path) -> None:
    shared = Counting(tmp_path, HISTORY)
    warmed(engine(small("trace")), shared)
    assert shared.trained == 3  # the served net, the trajectory estimator and the completer
    warmed(engine(small("trace", beta=1.0)), shared)
    assert shared.trained == 4  # an estimator of its own
    warmed(engine(small("trace", trajectory=False)), shared)
    warmed(engine(small("vanilla")), shared)
    assert shared.trained == 4


@pytest.mark.parametrize(
    ("other", "seed", "trained"),
    [
        (small("trace"), 2, 3),
        (small("trace", hidden=(8, 8)), 1, 2),  # the completer has sizes of its own
        (small("trace", batch_size=512), 1, 1),  # warm-up's batches have a size of their own
        (small("trace", warm_batch_size=32), 1, 3),
        (small("trace", learning_rate=2e-3), 1, 3),
        (small("trace", weight_decay=0.0), 1, 3),
        (small("trace", warm_epochs=2), 1, 2),
        (small("trace", horizons=(60, 3600, 7200, 86400, 172800)), 1, 2),
        (small("trace", reading="paper"), 1, 2),
    ],
)
def test_what_differs_is_trained_anew(tmp_path: Path, other: Method, seed: int, trained: int) -> None:
    shared = Counting(tmp_path, HISTORY)
    warmed(engine(small("trace")), shared)
    before = shared.trained
    alone = warmed(engine(other, seed=seed)).fingerprint()
    assert warmed(engine(other, seed=seed), shared).fingerprint() == alone
    assert shared.trained - before == trained


def test_a_net_that_starts_elsewhere_is_trained_anew(tmp_path: Path) -> None:
    """Same seed, same form, other first weights: a third party's way to initialise, for example."""
    shared, ends = Counting(tmp_path, HISTORY), []
    for factor in (1.0, 0.5):
        one = engine(small("vanilla"))
        with torch.no_grad():
            for weight in one.method.nets["main"].parameters():
                weight.mul_(factor)
        ends.append(warmed(one, shared).fingerprint())
    assert shared.trained == 2
    assert ends[0] != ends[1]


def test_another_history_shares_nothing(tmp_path: Path) -> None:
    warmed(engine(small("trace")), Counting(tmp_path, HISTORY))
    other = Counting(tmp_path, HISTORY | {"labels": "censored"})
    warmed(engine(small("trace")), other)
    assert other.trained == 3


@dataclass
class Twisted(ESDFM):
    """Has a loss of its own for the helper."""

    name = "twisted"
    twist: float = 1.0

    def helper_loss(self, name: str, b: LabelledReveals) -> Tensor:
        return self.twist * DelayAware.helper_loss(self, name, b) ** 2


@dataclass
class Shifted(ESDFM):
    """Has a logit of its own, which the inherited warm-up loss uses."""

    name = "shifted"

    def logit(self, x: Tensor) -> Tensor:
        return super().logit(x) + 1


@pytest.mark.parametrize("cls", [Twisted, Shifted])
def test_other_code_shares_nothing(tmp_path: Path, cls: type[ESDFM]) -> None:
    shared = Counting(tmp_path, HISTORY)
    warmed(engine(ESDFM(**SMALL)), shared)
    alone = warmed(engine(cls(**SMALL))).fingerprint()
    assert warmed(engine(cls(**SMALL)), shared).fingerprint() == alone
    assert shared.trained == (3 if cls is Twisted else 4)  # a loss of the helper alone, or of both nets
    if cls is Twisted:
        warmed(engine(Twisted(**SMALL, twist=2.0)), shared)
        assert shared.trained == 4


def test_a_damaged_file_is_made_again(tmp_path: Path) -> None:
    shared = Counting(tmp_path, HISTORY)
    first = warmed(engine(small("vanilla")), shared).fingerprint()
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:100])
    assert warmed(engine(small("vanilla")), shared).fingerprint() == first
    assert shared.trained == 2
    before = time.monotonic()
    assert warmed(engine(small("vanilla")), shared).fingerprint() == first
    assert shared.trained == 2
    assert time.monotonic() - before < 10


@dataclass
class Reading(ESDFM):
    """Reads an option, a stored tensor and something unknown."""

    name = "reading"
    late: float = 1.0
    secret: object = None
    table: Tensor = field(default_factory=lambda: torch.ones(2000))

    def warm_loss(self, b: LabelledReveals) -> Tensor:
        self.counts["seen"] = self.counts.get("seen", torch.zeros(())) + len(b)
        return (self.late + len(str(self.secret))) * self.table.mean() * super().warm_loss(b)


@pytest.mark.parametrize(
    ("options", "trained"),
    [
        ({}, 0),
        ({"late": 2.0}, 2),
        ({"table": torch.arange(2000.0)}, 2),
        ({"window": 60}, 2),
    ],
)
def test_what_a_loss_may_read_decides(tmp_path: Path, options: dict[str, Any], trained: int) -> None:
    """And what was counted while a net was trained is taken over with it."""
    shared = Counting(tmp_path, HISTORY)
    warmed(engine(Reading(**SMALL)), shared)
    before, other = shared.trained, Reading(**SMALL, **options)
    alone = warmed(engine(Reading(**SMALL, **options))).fingerprint()
    assert warmed(engine(other), shared).fingerprint() == alone
    assert shared.trained - before == trained


def test_what_cannot_be_compared_is_not_shared(tmp_path: Path) -> None:
    shared = Counting(tmp_path, HISTORY)
    for _ in range(2):
        warmed(engine(Reading(**SMALL, secret=object())), shared)
    assert shared.trained == 4
    assert not list(tmp_path.glob("*.safetensors"))
