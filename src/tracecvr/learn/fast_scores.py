"""Scores of a trained engine by NumPy calls, checked against torch before they are used."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from tracecvr.authoring.method import Method
from tracecvr.base.seeds import generator
from tracecvr.data.table import Ids, Ints
from tracecvr.learn.engine import Engine
from tracecvr.nets.numpy_mlp import numpy_form

TOLERANCE = 1e-5
"""How far log-odds may be from torch's, relative to those above 1."""
_PROBES = 256

Score = Callable[[Ids], npt.NDArray[np.float32]]


def fast_score(engine: Engine) -> Score | None:
    """`engine.score` of an engine that learns no more, without a lock and without torch. None if the method serves more
    than its net's first output, if its net is not known to NumPy, or if the two do not agree."""
    if type(engine.method).log_odds is not Method.log_odds:
        return None
    with engine.exporting():
        net = numpy_form(engine.method.nets["main"])
    if net is None:
        return None
    shift = np.float32(np.log(engine.schema.negatives_kept))

    def score(x: Ids) -> npt.NDArray[np.float32]:
        return net(x) + shift

    return score if _agrees(engine, score) else None


def _agrees(engine: Engine, score: Score) -> bool:
    """Whether random clicks get the same scores. An engine whose scores are not finite is left to torch's error."""
    x = probes(engine, _PROBES).astype(np.int32)
    expected, computed = engine.score(torch.from_numpy(x)), score(x)
    return bool((np.abs(computed - expected) <= TOLERANCE * np.maximum(1, np.abs(expected))).all())


def probes(engine: Engine, size: int) -> Ints:
    """Clicks to ask about: random features with many first and last ones."""
    rng, schema = generator(0, "probes", size), engine.schema
    last = np.array([feature.size for feature in schema.features]) - 1
    pick = rng.random((size, len(last)))
    return np.where(pick < 0.1, 0, np.where(pick < 0.2, last, rng.integers(0, last + 1, pick.shape)))
