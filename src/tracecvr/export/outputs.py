"""What an engine answers, as modules of tensors alone, and the questions that an export is checked with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tracecvr.authoring.method import Method
from tracecvr.base.seeds import generator
from tracecvr.data.table import NEVER, Ints, Schema
from tracecvr.learn.engine import Engine
from tracecvr.stream.reveal import Reveals, reveal

Inputs = tuple[Ints, ...]
"""Inputs of one batch, in the order in which a module takes them."""

BATCHES = (1, 2, 1000)
"""How many clicks are asked about at once."""


@dataclass(frozen=True)
class ModelOutput:
    """Something that a model answers: its name, its inputs' names, its module, and whom to ask for the right answer."""

    name: str
    inputs: tuple[str, ...]
    module: nn.Module
    ask: Callable[[Inputs], npt.NDArray[np.float32]]
    batches: list[Inputs]
    """What it is checked with."""


def model_outputs(engine: Engine) -> list[ModelOutput]:
    """What a model can be asked: the score of a click, and the posterior of an open one if that is more."""
    method, schema = engine.method, engine.schema
    batches: list[Inputs] = [_with_known_values(engine, probes(schema, method.ends, size)) for size in BATCHES]

    def score(inputs: Inputs) -> npt.NDArray[np.float32]:
        return engine.score(torch.from_numpy(inputs[0]))

    def posterior(inputs: Inputs) -> npt.NDArray[np.float32]:
        return engine.posterior_log_odds(known(schema.d_max, *inputs))

    outputs = [ModelOutput("score", ("ids",), Score(engine), score, [batch[:1] for batch in batches])]
    if type(method).posterior is not Method.posterior:
        outputs.append(ModelOutput("posterior", ("ids", "elapsed", "age"), Posterior(engine), posterior, batches))
    return outputs


def _with_known_values(engine: Engine, inputs: Inputs) -> Inputs:
    """The same clicks, most of them with values of growing columns that have rows of their own."""
    ids, schema = inputs[0].copy(), engine.schema
    for j, feature in enumerate(schema.features):
        if feature.growth is not None and not feature.high and len(key := engine.growing.maps[feature.table].key):
            rng = generator(0, "export", feature.name)
            value = key.numpy()[rng.integers(0, len(key), len(ids))]
            pair = np.stack([value & (1 << 31) - 1, value >> 31], axis=1)
            ids[:, j : j + 2] = np.where(rng.random((len(ids), 1)) < 0.9, pair, ids[:, j : j + 2])
    return ids, *inputs[1:]


def as_exported(engine: Engine, inputs: Inputs) -> Inputs:
    """Inputs as an exported module takes them: of a growing column it is given rows."""
    return engine.growing.as_rows(torch.from_numpy(inputs[0])).numpy(), *inputs[1:]


class ServedModule(nn.Module):
    """A method's nets, and what clicks that were left out of the log do to its odds."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.method, self.nets = engine.method, engine.method.nets
        self.d_max, self.kept = engine.schema.d_max, engine.schema.negatives_kept

    def corrected(self, log_odds: Tensor) -> Tensor:
        return log_odds.float() if self.kept == 1 else log_odds.float() + math.log(self.kept)


class Score(ServedModule):
    """`Engine.score`."""

    def forward(self, ids: Tensor) -> Tensor:  # (B, F) -> (B,)
        return self.corrected(self.method.log_odds(ids))


class Posterior(ServedModule):
    """`Engine.posterior_log_odds`. What is known of a click is given; of it, `reveal` would show the same: checked."""

    def forward(self, ids: Tensor, elapsed: Tensor, age: Tensor) -> Tensor:  # (B, F), (B,), (B, K) -> (B,)
        nothing = torch.zeros_like(elapsed)
        never = torch.full_like(elapsed, NEVER)
        b = Reveals(
            row=nothing,
            x=ids,
            arrival=nothing,
            lateness=nothing,
            elapsed=elapsed,
            trigger=nothing,
            age=age,
            converted=age[:, 0] <= self.d_max,
            mature=elapsed >= self.d_max,
            known=torch.where(age[:, 0] <= self.d_max, age[:, 0], never),
            refund=never,
        )
        return self.corrected(self.method.posterior(b))


def known(d_max: int, ids: Ints, elapsed: Ints, age: Ints) -> Reveals:
    """The same by the function that everything else is revealed by."""
    start = np.zeros_like(elapsed)
    return reveal(ids.astype(np.int32), start, age, age, elapsed, d_max, np.arange(len(ids)))


def probes(schema: Schema, ends: tuple[int, ...], size: int) -> tuple[Ints, Ints, Ints]:
    """Clicks to ask about: random features with many first and last ones, at and beside every age at which a window
    ends, with no action, some or all. The first is fresh, with no window to be seen; the last has all of them."""
    rng = generator(0, "export", size)
    last = np.array([feature.size for feature in schema.features]) - 1
    pick = rng.random((size, len(last)))
    ids = np.where(pick < 0.1, 0, np.where(pick < 0.2, last, rng.integers(0, last + 1, pick.shape)))
    edges = {edge + step for edge in (*ends, schema.d_max) for step in (-1, 0, 1)}
    elapsed = rng.choice(sorted({0} | {edge for edge in edges if edge > 0}), size)
    elapsed[-1], elapsed[0] = schema.d_max, 0
    share = rng.choice([0.0, 0.5, 1.0], size)
    share[-1], share[0] = 1.0, 0.0
    delay = rng.integers(0, elapsed[:, None] + 1, (size, len(schema.actions)))
    return ids, elapsed, np.where(rng.random(delay.shape) < share[:, None], delay, NEVER)
