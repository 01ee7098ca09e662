"""The world of the golden fixed points, p = 0.2 and pi_dp = 0.12, and SGD on events of clicks drawn from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from tracecvr.authoring.method import Method
from tracecvr.checks.loss import gradient
from tracecvr.checks.subject import KnownLaw, Subject
from tracecvr.data.table import Schema
from tracecvr.learn.engine import Engine

CELL = KnownLaw()


@dataclass(frozen=True)
class Unregistered(Subject):
    """A method by its class: a variant that is nobody's to choose."""

    kind: type[Method] = Method

    def engine(self, schema: Schema, publish_lag: int = 0, **options: Any) -> Engine:
        return Engine(
            self.kind(hidden=(16, 8), batch_size=256, warm_batch_size=256, **options),
            schema,
            seed=1,
            publish_lag=publish_lag,
        )


def engine_of(method: str | type[Method], logit: float = 0.0, cell: KnownLaw = CELL, **options: Any) -> Engine:
    """An engine with exact helpers and no plugins, whose served net is one constant."""
    subject = Subject(method) if isinstance(method, str) else Unregistered(method.__name__, kind=method)
    engine = cell.engine(subject, logit, **options)
    engine.plugins = ()
    return engine


def draw(cell: KnownLaw, clicks: int, rng: np.random.Generator) -> KnownLaw:
    """So many clicks of a cell's law, drawn at random."""
    shares = [n / cell.clicks for _, n in cell.conversions]
    counts = rng.multinomial(clicks, [*shares, 1 - sum(shares)])
    conversions = tuple((delay, int(n)) for (delay, _), n in zip(cell.conversions, counts[:-1], strict=True))
    return replace(cell, conversions=conversions, clicks=clicks)


def rate_after_sgd(engine: Engine, cell: KnownLaw = CELL, events: int = 1_000_000) -> float:
    """The rate served after decaying steps over about so many events of clicks that are drawn at random."""
    rng = np.random.default_rng(5)
    clicks = round(events * cell.clicks / len(cell.events(engine)))
    simulated = draw(cell, clicks, rng).events(engine)
    (value,) = engine.method.nets["main"].parameters()
    for step, index in enumerate(torch.from_numpy(rng.permutation(len(simulated))).split(5000)):
        slopes = gradient(engine, simulated.take(index), value.detach().clone())
        with torch.no_grad():
            value.sub_(8.0 / (1 + 0.1 * step) * slopes)
    engine.forget()
    with torch.no_grad():
        return float(torch.sigmoid(engine.method.log_odds(simulated.x[:1])))
