"""Promises about learning: a loss with the right root and gradients that are what they seem, in finite numbers; warm-up
beats knowing the base rate only, and the stream moves what is served."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import numpy as np
import torch
from torch import Tensor

from tracecvr.authoring.part import Part
from tracecvr.base.config import DAY
from tracecvr.base.metrics import nll
from tracecvr.base.seeds import generator
from tracecvr.checks.subject import KnownLaw, NotApplicable, Subject, plan_for, small_log
from tracecvr.data.table import ClickTable
from tracecvr.learn.engine import Engine
from tracecvr.stream.reveal import LabelledReveals, Reveals
from tracecvr.stream.source import TableSource


def check_fixed_point(subject: Subject) -> None:
    """On a stationary stream with exact helpers, the expected gradient vanishes at the method's stated rate."""
    if subject.plugin is not None:
        raise NotApplicable("a plugin's pull has no root of its own")
    cell = KnownLaw()
    engine = cell.engine(subject)
    stated = engine.method.fixed_point(cell.p, cell.delayed)
    if not engine.schedule:
        raise NotApplicable("it is never updated")
    if stated is None:
        raise NotApplicable("it states no root that p and pi_dp decide: it has tests of its own")
    engine.plugins = ()
    rate = root(engine, cell.events(engine))
    assert abs(rate - stated) < 1e-3, f"the gradient vanishes at {rate:.4f}, not at {stated:.4f}"


def check_gradient(subject: Subject) -> None:
    """Autograd agrees with finite differences when everything behind a stop-gradient is held still."""
    engine = KnownLaw().engine(subject, logit=-0.5)
    events = KnownLaw().events(engine)
    if not len(events):
        raise NotApplicable("it is never updated")
    held: list[Tensor] = []
    _replace_stop_gradient(engine, lambda value: held.append(value.detach().clone()) or held[-1])  # type: ignore[func-returns-value]
    slopes = gradient(engine, events, -0.5)
    losses = []
    for logit in (-0.5 + 0.01, -0.5 - 0.01):
        turn = count()
        _replace_stop_gradient(engine, lambda _, turn=turn: held[next(turn)])
        losses.append(_loss(engine, events, logit).item())
    difference = (losses[0] - losses[1]) / 0.02
    slope = float(slopes.sum())
    assert abs(slope - difference) < 1e-3, f"autograd gives {slope:.5f}, differences give {difference:.5f}"


def check_extreme_logits(subject: Subject) -> None:
    """Logits of -40 and 40 give finite losses and gradients in single precision."""
    for logit in (-40.0, 40.0):
        engine = KnownLaw().engine(subject, logit=logit)
        events = KnownLaw().events(engine)
        if not len(events):
            raise NotApplicable("it is never updated")
        slopes = gradient(engine, events, logit)
        assert torch.isfinite(slopes).all(), f"the gradient is {slopes.tolist()} at logits of {logit}"
        assert torch.isfinite(_loss(engine, events, logit)), f"the loss is not finite at a logit of {logit}"


def check_posterior_starts_at_prior(subject: Subject) -> None:
    """Before any window has ended there is no evidence: the posterior is exactly what is served."""
    table = small_log()
    engine, source = subject.warmed(table, plan_for(table))
    clock = int(table.click_ts[len(table) // 3])
    fresh = source.known_at(clock, clock - engine.method.ends[0] + 1, clock + 1)
    assert len(fresh) > 0, "the log has no fresh click"
    posterior = engine._answer(lambda rows: engine.method.posterior(fresh.take(rows)), torch.arange(len(fresh)))
    assert (posterior == engine.score(fresh.x)).all(), (
        "a click that nothing is known of has another posterior than prior"
    )


def root(engine: Engine, events: Reveals) -> float:
    """The served rate at which the expected gradient vanishes, found by following it down, with care, to where it does.

    Losses with stop-gradients have no function to be minimised: only a root that attracts counts.
    """
    at, step = torch.zeros(engine.method.heads()), torch.full((engine.method.heads(),), 4.0)
    last = gradient(engine, events, at)
    for _ in range(3000):
        at = (at - step * last).clamp(-20, 20)
        slopes = gradient(engine, events, at)
        step = torch.where(slopes * last > 0, step * 1.2, step * 0.4).clamp(1e-3, 200.0)
        last = slopes
        if slopes.abs().max() < 1e-7:
            break
    assert last.abs().max() < 1e-5, f"the gradient has no root: still {last.tolist()} at {at.tolist()}"
    _loss(engine, events, at)
    with torch.no_grad():
        return float(torch.sigmoid(engine.method.log_odds(events.x[:1])))


def gradient(engine: Engine, events: Reveals, logits: Tensor | float) -> Tensor:
    """The derivatives of the whole loss in the outputs of a constant served net."""
    (slopes,) = torch.autograd.grad(_loss(engine, events, logits), list(engine.method.nets["main"].parameters()))
    return slopes


def _loss(engine: Engine, events: Reveals, logits: Tensor | float) -> Tensor:
    with torch.no_grad():
        next(engine.method.nets["main"].parameters()).copy_(torch.as_tensor(logits))
    engine.forget()
    loss = engine.method.loss(events)
    for plugin in engine.plugins:
        loss = loss + plugin.weight * plugin.loss(engine.method, events)
    return loss


def _replace_stop_gradient(engine: Engine, stop: object) -> None:
    for part in (engine.method, *engine.plugins):
        part.stop_gradient = stop  # type: ignore[assignment,method-assign]


# Warm-up and the stream.


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
