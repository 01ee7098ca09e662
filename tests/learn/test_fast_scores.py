"""Scores by NumPy calls are torch's, or are not used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tracecvr.base import registry
from tracecvr.checks.subject import small_log
from tracecvr.data.table import Feature, Schema
from tracecvr.learn import fast_scores
from tracecvr.learn.engine import Engine
from tracecvr.learn.fast_scores import fast_score
from tracecvr.learn.stream_learning import AS_WARM_UP, StreamLearning
from tracecvr.nets import numpy_mlp
from tracecvr.nets.numpy_mlp import NumpyMLP
from tracecvr.nets.rows import Rows
from tracecvr.stream.source import TableSource

DAY = 86400
SMALL: dict[str, Any] = {"hidden": (24, 8), "warm_epochs": 1, "batch_size": 128}


def trained(method: str = "vanilla", stream: StreamLearning = AS_WARM_UP, **options: Any) -> Engine:
    """An engine that has learnt a day: its batch statistics and averages are not those of the start."""
    table = small_log()
    source, split = TableSource(table), table.schema.split
    chosen = registry.get("method", method)(**SMALL | options)
    engine = Engine(chosen, table.schema, stream=stream)
    engine.warm_up(source.history(split, "censored"))
    engine.tick(source, split, split + DAY)
    return engine


@pytest.mark.parametrize("method", ["vanilla", "trace", "telescoped"])
@pytest.mark.parametrize("average", [None, "lazily"])
def test_scores_are_those_of_the_engine(method: str, average: str | None) -> None:
    lazily = StreamLearning(average=DAY, optimiser="lazy_adam")
    engine = trained(method, lazily if average else AS_WARM_UP)
    score = fast_score(engine)
    assert score is not None
    x = small_log().x.copy()
    assert np.abs(score(x) - engine.score(torch.from_numpy(x))).max() < 1e-5
    alone = np.concatenate([score(row[None]) for row in x[:50]])
    assert np.abs(alone - score(x[:50])).max() < 1e-5


def a_schema(**changed: Any) -> Schema:
    """Every kind of feature: two of one table, one-hot ones between others."""
    features = (
        Feature("one", 5, "one", True),
        Feature("a", 30, "shared"),
        Feature("b", 30, "shared"),
        Feature("two", 3, "two", True),
        Feature("c", 7, "c"),
    )
    return replace(small_log().schema, features=features, **changed)


@pytest.mark.parametrize("backbone", ["mlp", "wide_deep", "blend"])
@pytest.mark.parametrize("most", [0, 1 << 24])
def test_every_kind_of_feature_and_sampled_negatives(backbone: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_mlp, "_PROJECTED", most)
    schema = a_schema(negatives_kept=0.25)
    engine = Engine(registry.get("method", "vanilla")(**SMALL, backbone=backbone), schema, 3)
    rng = np.random.default_rng(0)
    x = np.stack([rng.integers(0, f.size, 400) for f in schema.features], axis=1).astype(np.int32)
    for module in engine.method.nets["main"].modules():
        if isinstance(module, Rows):
            torch.nn.init.normal_(module.weight)
    engine.forget()
    score = fast_score(engine)
    assert score is not None
    assert np.abs(score(x) - engine.score(torch.from_numpy(x))).max() < 1e-5


def test_another_backbone_is_left_to_torch() -> None:
    assert fast_score(trained(backbone="dcn_v2")) is None


def test_a_method_that_serves_something_else_is_left_to_torch() -> None:
    assert fast_score(trained("dfm")) is None


def test_a_form_that_disagrees_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = trained()

    class Wrong(NumpyMLP):
        def __call__(self, x: Any) -> Any:
            return super().__call__(x) + np.float32(1e-4)

    monkeypatch.setattr(fast_scores, "numpy_form", Wrong)
    assert fast_score(engine) is None
