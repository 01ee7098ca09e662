"""Warm-up and stream as they train: modes, order of clicks, a plugin's weight, and what a loaded state replaces."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tracecvr.authoring.method import Method
from tracecvr.base.config import DAY
from tracecvr.checks.subject import Subject, plan_for, small_log
from tracecvr.learn.engine import Engine
from tracecvr.learn.stream_learning import StreamLearning
from tracecvr.methods.vanilla import Vanilla
from tracecvr.plugins.completer import Completer
from tracecvr.stream.reveal import LabelledReveals, Reveals
from tracecvr.stream.source import TableSource

TABLE = small_log()
PLAN = plan_for(TABLE)


def warmed(method: Method, *plugins: Completer) -> tuple[Engine, TableSource]:
    engine, source = Engine(method, TABLE.schema, seed=1, plugins=plugins), TableSource(TABLE)
    engine.warm_up(source.history(PLAN.split, PLAN.warm_labels))
    return engine, source


def norms(net: nn.Module) -> list[nn.BatchNorm1d]:
    layers = [module for module in net.modules() if isinstance(module, nn.BatchNorm1d)]
    assert layers
    return layers


def copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in state.items()}


# A plugin's weight.


@dataclass
class Thrice(Completer):
    """Three times the completer's loss."""

    def loss(self, method: Method, b: Reveals) -> Tensor:
        return 3 * super().loss(method, b)


def main_after_a_day(*plugins: Completer) -> dict[str, Tensor]:
    engine, source = warmed(Vanilla(hidden=(8,), batch_size=256), *plugins)
    assert engine.tick(source, PLAN.split, PLAN.split + DAY) > 256
    return engine.method.nets["main"].state_dict()


def test_a_plugins_loss_counts_by_its_weight() -> None:
    by_weight, by_hand = main_after_a_day(Completer(weight=3.0)), main_after_a_day(Thrice(weight=1.0))
    assert all(torch.equal(value, by_hand[name]) for name, value in by_weight.items())
    once = main_after_a_day(Completer(weight=1.0))
    assert not all(torch.equal(value, once[name]) for name, value in by_weight.items())


def test_a_plugin_without_weight_changes_nothing() -> None:
    with_it, without = main_after_a_day(Completer(weight=0.0)), main_after_a_day()
    assert all(torch.equal(value, without[name]) for name, value in with_it.items())


# Modes of nets.


@dataclass
class Watching(Vanilla):
    """Notes the mode in which its net is trained, and which clicks it is shown."""

    modes: set[bool] = field(default_factory=set, init=False)
    shown: list[list[int]] = field(default_factory=list, init=False)

    def warm_loss(self, b: LabelledReveals) -> Tensor:
        self.modes.add(self.nets["main"].training)
        self.shown.append(b.row.tolist())
        return super().warm_loss(b)


def test_nets_are_warmed_up_in_training_mode_and_served_in_the_other() -> None:
    """Without training mode, batch normalisation would keep its initial statistics."""
    engine, _ = Subject("trace").warmed(TABLE, PLAN)
    nets = [engine.method.nets["main"], engine.method.nets["trajectory"], engine.plugins[0].nets["completer"]]
    for net in nets:
        assert not any(module.training for module in net.modules())
        for norm in norms(net):
            assert norm.num_batches_tracked is not None
            assert norm.num_batches_tracked > 0
            assert norm.running_mean is not None
            assert norm.running_mean.abs().max() > 1e-3


def test_a_loss_sees_the_served_net_in_training_mode() -> None:
    method = Watching(hidden=(8,), batch_size=256)
    engine, _ = warmed(method)
    assert True in method.modes
    assert not engine.method.nets["main"].training


def test_a_refreshed_helper_is_trained_in_training_mode_and_frozen_again() -> None:
    engine, source = Subject("ulc").warmed(TABLE, PLAN)
    net = engine.method.nets["later"]
    before = [int(norm.num_batches_tracked) for norm in norms(net) if norm.num_batches_tracked is not None]
    for start in (PLAN.split, PLAN.split + DAY):  # the first day has not learnt yet: nothing to refresh
        engine.tick(source, start, start + DAY)
    after = [int(norm.num_batches_tracked) for norm in norms(net) if norm.num_batches_tracked is not None]
    assert all(new > old for new, old in zip(after, before, strict=True))
    assert not any(module.training for module in net.modules())
    assert not any(weight.requires_grad for weight in net.parameters())


# The order of warm-up clicks.


def test_batches_of_history_are_shuffled_by_their_generator_alone() -> None:
    history = TableSource(TABLE).history(PLAN.split, "mature")

    def rows(seed: int | None) -> list[int]:
        rng = None if seed is None else np.random.default_rng(seed)
        return [row for b in history.batches(100, rng) for row in b.row.tolist()]

    in_order = rows(None)
    assert in_order == list(range(len(history)))
    assert sorted(rows(1)) == in_order
    assert rows(1) == rows(1) != rows(2)
    early = sum(row < len(history) // 2 for row in rows(1)[: len(history) // 2])
    assert early / len(history) == pytest.approx(0.25, abs=0.05)  # half of the first half


def test_warm_up_shows_clicks_in_another_order_each_time() -> None:
    """In time order, the last steps would see the last clicks only."""
    method = Watching(hidden=(8,), batch_size=256, warm_epochs=2)
    warmed(method)
    half = len(method.shown) // 2
    first, second = method.shown[:half], method.shown[half:]
    for batch in (first[0], second[0]):
        assert batch != sorted(batch)
        assert max(batch) - min(batch) > 2 * len(batch)
    assert first != second


# What a loaded state replaces.


def test_an_engine_that_has_learnt_can_go_back_to_the_start_of_the_stream() -> None:
    """The optimiser's moments go back, too."""
    engine, source = Subject("trace").warmed(TABLE, PLAN)
    start, fingerprint = copied(engine.state()), engine.fingerprint()
    engine.tick(source, *PLAN.bounds(0))
    once = engine.fingerprint()
    assert once != fingerprint
    engine.load_state(copied(start))
    assert engine.fingerprint() == fingerprint
    engine.tick(source, *PLAN.bounds(0))
    assert engine.fingerprint() == once


def test_a_second_warm_up_starts_the_stream_anew() -> None:
    """The moments of the first stream belong to weights that have been replaced."""
    engine, source = (
        Engine(Vanilla(hidden=(8,), batch_size=256), TABLE.schema, stream=StreamLearning()),
        TableSource(TABLE),
    )
    engine.warm_up(source.history(PLAN.split, PLAN.warm_labels))
    engine.tick(source, *PLAN.bounds(0))
    assert [name for name in engine.state() if name.startswith("adam.")]
    weights = copied(engine.method.nets["main"].state_dict())
    engine.warm_up(source.history(PLAN.split, PLAN.warm_labels))
    again = engine.method.nets["main"].state_dict()
    assert not all(torch.equal(value, weights[name]) for name, value in again.items())
    assert not [name for name in engine.state() if name.startswith("adam.")]
