"""Several workers compute what one computes: gradients, weights, statistics, whole runs; and how they end."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import ranked
from ranked import Case, Taken
from tracecvr import registry
from tracecvr.scratch import silent
from tracecvr.workers import together

METHODS = registry.found("method")
EVERY: list[Case] = [
    *((name, ()) for name in METHODS),
    *((name, ("completer", "rehearsal")) for name, method in METHODS.items() if not method.contains),
]
FOUR: list[Case] = [
    ("trace", ()),
    *((name, plugins) for name in ("es_dfm", "defuse", "gdfm") for plugins in ((), ("completer",))),
]
BACKBONES: list[str] = sorted(set(registry.found("backbone")) - {"mlp"})


def jobs(two: bool) -> dict[Any, Any]:
    """What is computed by one process and by several: by two everything, by three what shows rows that are left over:
    of batches of 4 and of 2, the third has none."""
    found: dict[Any, Any] = {"odd nets": ranked.odd_nets}
    for size, case in product((4, 2), FOUR):
        found[size, case] = partial(ranked.gradients, case, torch.float64, hourly=1, batch_size=size)
    if two:
        found |= {("gradients", case): partial(ranked.gradients, case, torch.float64) for case in EVERY}
        found |= {("single", case): partial(ranked.gradients, case, torch.float32) for case in FOUR}
        found |= {("trained", case): partial(ranked.trained, case, 40, 20, torch.float64) for case in FOUR}
        for name in BACKBONES:
            found["backbone", name] = partial(ranked.gradients, ("es_dfm", ()), torch.float64, backbone=name)
    return found


@pytest.fixture(scope="module")
def alone() -> dict[Any, Any]:
    return ranked.all_of(jobs(two=True), silent)


@pytest.fixture(scope="module")
def two() -> list[dict[Any, Any]]:
    return together(partial(ranked.all_of, jobs(two=True)), 2)


@pytest.fixture(scope="module")
def three() -> list[dict[Any, Any]]:
    return together(partial(ranked.all_of, jobs(two=False)), 3)


def assert_gradients_close(ours: Taken, theirs: Taken, share: float) -> None:
    """Every step's gradient is within a share of its norm."""
    assert len(theirs.steps) >= 5
    assert ours.missing == theirs.missing
    for a, b in zip(ours.steps, theirs.steps, strict=True):
        assert np.linalg.norm(a - b) <= share * np.linalg.norm(b)


def distance(ours: Taken, theirs: Taken, name: str = "") -> float:
    """How far states are apart, as a share of their norm, in tensors whose names contain this."""
    assert ours.state.keys() == theirs.state.keys()
    a, b = (np.concatenate([v.ravel() for n, v in taken.state.items() if name in n]) for taken in (ours, theirs))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.parametrize("case", EVERY, ids=str)
def test_gradients_are_those_of_one_process(case: Case, alone: dict[Any, Any], two: list[dict[Any, Any]]) -> None:
    for rank in two:
        ours, theirs = rank["gradients", case], alone["gradients", case]
        assert_gradients_close(ours, theirs, 1e-9)
        assert distance(ours, theirs) < 1e-9
        assert distance(ours, theirs, "running") < 1e-9
        np.testing.assert_allclose(ours.scores, theirs.scores, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", BACKBONES)
def test_so_they_are_of_every_backbone(name: str, alone: dict[Any, Any], two: list[dict[Any, Any]]) -> None:
    for rank in two:
        assert_gradients_close(rank["backbone", name], alone["backbone", name], 1e-9)


@pytest.mark.parametrize("case", FOUR, ids=str)
def test_in_single_precision_they_are_near(case: Case, alone: dict[Any, Any], two: list[dict[Any, Any]]) -> None:
    for rank in two:
        assert_gradients_close(rank["single", case], alone["single", case], 1e-3)


@pytest.mark.parametrize("case", FOUR, ids=str)
def test_weights_stay_together_for_a_hundred_steps(
    case: Case, alone: dict[Any, Any], two: list[dict[Any, Any]]
) -> None:
    """Of warm-up and stream. That is as near as one process stays to itself if its first weights are an ulp away."""
    theirs = alone["trained", case]
    for rank in two:
        assert distance(rank["trained", case], theirs, ".net.") < 1e-9
    assert two[0]["trained", case].fingerprint == two[1]["trained", case].fingerprint


@pytest.mark.parametrize("case", FOUR, ids=str)
def test_batches_may_be_smaller_than_the_number_of_workers(
    case: Case, alone: dict[Any, Any], two: list[dict[Any, Any]], three: list[dict[Any, Any]]
) -> None:
    for rank in (*two, *three):
        assert_gradients_close(rank[4, case], alone[4, case], 1e-9)
        assert_gradients_close(rank[2, case], alone[2, case], 1e-8)  # two rows normalised are 1 and -1, or nearly so
    assert len({rank[2, case].fingerprint for rank in three}) == 1


def test_nets_may_be_used_in_odd_ways(
    alone: dict[Any, Any], two: list[dict[Any, Any]], three: list[dict[Any, Any]]
) -> None:
    for rank in (*two, *three):
        for ours, theirs in zip(rank["odd nets"], alone["odd nets"], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
