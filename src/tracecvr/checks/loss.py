"""Promises about the loss: the right root, gradients that are what they seem, finite numbers."""

from __future__ import annotations

import math
from itertools import count

import torch
from torch import Tensor

from tracecvr.checks.subject import Cell, NotApplicable, Subject, plan_for, small_log
from tracecvr.engine import Engine
from tracecvr.reveal import Reveals


def check_fixed_point(subject: Subject) -> None:
    """On a stationary stream with exact helpers, the expected gradient vanishes at the method's stated rate."""
    if subject.plugin is not None:
        raise NotApplicable("a plugin's pull has no root of its own")
    cell = Cell()
    engine = cell.engine(subject)
    if not engine.schedule:
        raise NotApplicable("it is never updated")
    engine.plugins = ()
    events = cell.events(engine)
    found, stated = root(engine, events), engine.method.fixed_point(cell.p, cell.delayed)
    assert abs(found - stated) < 1e-3, f"the gradient vanishes at {found:.4f}, not at {stated:.4f}"


def check_gradient(subject: Subject) -> None:
    """Autograd agrees with finite differences when everything behind a stop-gradient is held still."""
    engine = Cell().engine(subject, logit=-0.5)
    events = Cell().events(engine)
    if not len(events):
        raise NotApplicable("it is never updated")
    held: list[Tensor] = []
    _replace_sg(engine, lambda value: held.append(value.detach()) or held[-1])  # type: ignore[func-returns-value]
    slope = gradient(engine, events, -0.5)
    losses = []
    for logit in (-0.5 + 0.01, -0.5 - 0.01):
        turn = count()
        _replace_sg(engine, lambda _, turn=turn: held[next(turn)])
        losses.append(_loss(engine, events, logit).item())
    difference = (losses[0] - losses[1]) / 0.02
    assert abs(slope - difference) < 1e-3, f"autograd gives {slope:.5f}, differences give {difference:.5f}"


def check_extreme_logits(subject: Subject) -> None:
    """Logits of -40 and 40 give finite losses and gradients in single precision."""
    for logit in (-40.0, 40.0):
        engine = Cell().engine(subject, logit=logit)
        events = Cell().events(engine)
        if not len(events):
            raise NotApplicable("it is never updated")
        slope = gradient(engine, events, logit)
        assert math.isfinite(slope), f"the gradient is {slope} at a logit of {logit}"
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


def _loss(engine: Engine, events: Reveals, logit: float) -> Tensor:
    with torch.no_grad():
        next(engine.method.nets["main"].parameters()).fill_(logit)
    for part in (engine.method, *engine.plugins):
        part.forget()
    loss = engine.method.loss(events)
    for plugin in engine.plugins:
        loss = loss + plugin.weight * plugin.loss(engine.method, events)
    return loss


def gradient(engine: Engine, events: Reveals, logit: float) -> float:
    """The derivative of the whole loss in the one logit of a constant served net."""
    (slope,) = torch.autograd.grad(_loss(engine, events, logit), list(engine.method.nets["main"].parameters()))
    return float(slope)


def root(engine: Engine, events: Reveals, low: float = -8.0, high: float = 5.0) -> float:
    """The served rate at which the expected gradient crosses zero from below, by bisection."""
    assert gradient(engine, events, low) < 0 < gradient(engine, events, high), "the gradient has no root"
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if gradient(engine, events, middle) > 0 else (middle, high)
    _loss(engine, events, low)
    with torch.no_grad():
        return float(torch.sigmoid(engine.method.log_odds(events.x[:1])))


def _replace_sg(engine: Engine, stop: object) -> None:
    for part in (engine.method, *engine.plugins):
        part.sg = stop  # type: ignore[assignment,method-assign]
