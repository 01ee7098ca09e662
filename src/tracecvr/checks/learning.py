"""Promises about learning: warm-up beats knowing the base rate only, and the stream moves what is served."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from tracecvr.authoring.part import Part
from tracecvr.base.config import DAY
from tracecvr.base.metrics import nll
from tracecvr.base.seeds import generator
from tracecvr.checks.subject import NotApplicable, Subject, plan_for, small_log
from tracecvr.data.table import ClickTable
from tracecvr.stream.reveal import LabelledReveals
from tracecvr.stream.source import TableSource


def check_warm_up_learns(subject: Subject) -> None:
    """After warm-up, clicks never seen are scored better than by the warm-up part's mean rate."""
    table = small_log(clicks=20_000)
    plan = plan_for(table, warm_labels="mature")
    engine, source = subject.warmed(table, plan, warm_epochs=4, learning_rate=0.005)
    split = int(np.searchsorted(table.click_ts, table.schema.split))
    rate = table.label[:split].mean()
    later = source.clicks(table.schema.split, table.schema.split + DAY)
    label = table.label[later.row]
    ours = nll(engine.score(later.x).astype(float), label).mean()
    constant = nll(np.full(len(label), np.log(rate / (1 - rate))), label).mean()
    assert ours < constant, f"NLL {ours:.4f} is no better than the base rate's {constant:.4f}"


def check_helpers_generalise(subject: Subject) -> None:
    """Warm-up makes each helper better on warm-up clicks that it was not trained on."""
    table = small_log(clicks=20_000)
    # Halves that share all days, not earlier and later clicks: some helpers can learn from the oldest ones only.
    half, other = (_every_other(table, first).history(table.schema.split, "mature") for first in (0, 1))
    engine, untrained = (subject.engine(table.schema, learning_rate=0.01) for _ in range(2))
    if not any(part.helpers() for part in (engine.method, *engine.plugins)):
        raise NotApplicable("it has no helper nets")
    engine.warm_up(half)
    held_out = next(other.batches(len(other), None))
    for part, fresh in zip((engine.method, *engine.plugins), (untrained.method, *untrained.plugins), strict=True):
        for name in part.helpers():
            losses = [_held_out_loss(p, name, replace(held_out, rng=generator(0, name))) for p in (part, fresh)]
            assert losses[0] < losses[1], f"helper {name!r}: loss {losses[0]:.4f} held out, {losses[1]:.4f} untrained"


def _every_other(table: ClickTable, first: int) -> TableSource:
    rows = slice(first, None, 2)
    columns = table.x[rows], table.click_ts[rows], table.click_id[rows], table.action_ts[rows]
    return TableSource(ClickTable(*columns, table.schema))


def _held_out_loss(part: Part, name: str, b: LabelledReveals) -> float:
    part.nets[name].eval()
    with torch.no_grad():
        return part.helper_loss(name, b).item()


def check_stream_trains(subject: Subject) -> None:
    """A tick with events changes the served net's weights; a method without a schedule never changes."""
    table = small_log()
    engine, source = subject.warmed(table, plan_for(table))
    weights = list(engine.method.nets["main"].parameters())  # not running statistics, which any forward changes
    before = [weight.detach().clone() for weight in weights]
    events = engine.tick(source, table.schema.split, table.schema.split + DAY)
    changed = not all(torch.equal(old, new) for old, new in zip(before, weights, strict=True))
    assert changed == (events > 0), f"{events} events, weights {'changed' if changed else 'unchanged'}"
    assert (events > 0) == bool(engine.schedule), "a schedule gave no events in a day"
