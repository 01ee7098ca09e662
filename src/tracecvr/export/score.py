"""What an engine scores, as a module of tensors alone, and the clicks that an export is checked with."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from tracecvr.base.seeds import generator
from tracecvr.data.table import Ints
from tracecvr.learn.engine import Engine

BATCHES = (1, 2, 1000)
"""How many clicks are asked about at once."""


class Score(nn.Module):
    """`Engine.score`: a method's nets, and what clicks that were left out of the log do to its odds."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.method, self.nets = engine.method, engine.method.nets
        self.kept = engine.schema.negatives_kept

    def forward(self, ids: Tensor) -> Tensor:  # (B, F) -> (B,)
        log_odds = self.method.log_odds(ids).float()
        return log_odds if self.kept == 1 else log_odds + math.log(self.kept)


def probes(engine: Engine, size: int) -> Ints:
    """Clicks to ask about: random features with many first and last ones; of growing columns, mostly values that have
    rows of their own."""
    rng, schema = generator(0, "export", size), engine.schema
    last = np.array([feature.size for feature in schema.features]) - 1
    pick = rng.random((size, len(last)))
    ids = np.where(pick < 0.1, 0, np.where(pick < 0.2, last, rng.integers(0, last + 1, pick.shape)))
    for j, feature in enumerate(schema.features):
        if feature.growth is not None and not feature.high and len(key := engine.growing.maps[feature.table].key):
            rng = generator(0, "export", feature.name)
            value = key.numpy()[rng.integers(0, len(key), size)]
            pair = np.stack([value & (1 << 31) - 1, value >> 31], axis=1)
            ids[:, j : j + 2] = np.where(rng.random((size, 1)) < 0.9, pair, ids[:, j : j + 2])
    return ids


def as_exported(engine: Engine, ids: Ints) -> Ints:
    """Ids as the exported module takes them: of a growing column it is given rows."""
    rows: Ints = engine.growing.as_rows(torch.from_numpy(ids)).numpy()
    return rows
