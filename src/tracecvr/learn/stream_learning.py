"""How the stream is learnt, apart from the method: optimiser, step size, batch size, and averaged weights for serving.

The same settings serve every method, in replay and live. They matter as much as the choice of the method, so a fair
comparison gives every method the same ones, or tunes them for every method alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tracecvr.base.config import HOUR, Seconds, option
from tracecvr.base.devices import PRECISIONS, choose, choose_precision, under
from tracecvr.base.errors import UserError
from tracecvr.learn.optimisers import ShareOptimiser, make_optimisers
from tracecvr.nets.blend import Blend

_HOURLY_STEP = 3e-4
"""Step size for intervals of an hour: good for all on the tuning days of criteo_search. For longer intervals, NLL of
Telescoped at 3e-4, 6e-4 and 1e-3: synthetic logs of 20,000 clicks that drift, 6 hours: .4359, .4339, .4336 and .4367,
.4347, .4340; a log that does not drift, 12 hours: .4272, .4288, .4307."""
_LARGEST = 65_536
"""Events of one optimiser step at most, so that a huge interval does not exhaust the memory."""


AUTO = "auto"
"""In place of an optimiser's name: the one that suits the size of tables."""
_MANY_ROWS = 100_000
"""Rows of all tables above which lazy Adam is faster. Adam moves all rows in every step. Time of a step of Adam over
that of lazy Adam, paper's net, batches of 512 and 4,096: 50,000 rows 1.06 and 1.11, 100,000 rows 1.16 and 1.00, 200,000
rows 1.7 and 1.07, 400,000 rows 2.0 and 1.5, 1.6 million rows 12 and 3.5."""


@dataclass(frozen=True)
class StreamLearning:
    """Settings of learning in the stream, as opposed to warm-up. None stands for the value that warm-up has.

    >>> StreamLearning(batch_size=0).batches(10_000, 4096)
    [slice(0, 10000, None)]
    >>> StreamLearning().batches(9_000, 4096)
    [slice(0, 4500, None), slice(4500, 9000, None)]
    """

    learning_rate: float | None = option(
        0.0,
        "step size in the stream; 0 for one that fits the interval: 3e-4 for an hour, in proportion for others, "
        "between 1e-4 and 6e-4; none for that of warm-up",
        low=0,
    )
    batch_size: int | None = option(
        None,
        "events per optimiser step in the stream, roughly; by default as many as in warm-up, where they fit the log; 0 "
        "for one step per interval",
        low=0,
    )
    optimiser: str = option(
        AUTO,
        "optimiser of stream and warm-up; auto: lazy_adam if tables have more than 100,000 rows in all, else adam",
        choices=(AUTO, "adam", "lazy_adam"),
    )
    device: str = option("cpu", "where nets learn: cpu, cuda or mps; auto: the first of cuda, mps and cpu that is here")
    precision: str = option(
        "auto",
        "factors of large matrix products while nets learn: float32 or bfloat16; auto: bfloat16 on processors with "
        "instructions for it. Weights, losses, optimisers and scores are float32",
        choices=PRECISIONS,
    )
    level_steps: float = option(
        10.0,
        "how many times as large steps are for the biases of outputs that are rates: they alone carry the level of all "
        "predictions, which drifts faster than anything else",
        low=1,
    )
    average: Seconds | None = option(
        12 * HOUR,
        "serve weights averaged over the stream, older ones with less weight: the time in which it falls to 37 %; none "
        "to serve the newest weights",
        above=0,
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", choose(self.device))
        object.__setattr__(self, "precision", choose_precision(self.precision, self.device))
        if self.batch_size == 1:
            raise UserError(
                "stream.batch_size = 1: batch normalisation needs 2 events or more, or 0 for a whole interval"
            )

    def fit_to(self, interval: int, rows: int | None = None) -> StreamLearning:
        """The same settings, with a step size for intervals of so many seconds where it is 0, and an optimiser for
        tables of so many rows where it is "auto". With one step per interval, a model learns as fast by the hour,
        whatever the interval: Adam moves weights by about the step size.

        >>> [StreamLearning().fit_to(seconds).learning_rate for seconds in (60, 3600, 7200, 86400)]
        [0.0001, 0.0003, 0.0006, 0.0006]
        >>> [StreamLearning().fit_to(3600, rows).optimiser for rows in (100_000, 100_001)]
        ['adam', 'lazy_adam']
        """
        chosen: dict[str, Any] = {}
        if rows is not None and self.optimiser == AUTO:
            chosen["optimiser"] = "lazy_adam" if rows > _MANY_ROWS else "adam"
        if self.learning_rate == 0:
            chosen["learning_rate"] = min(max(_HOURLY_STEP * interval / HOUR, 1e-4), 6e-4)
        return replace(self, **chosen)

    def optimisers(self, net: nn.Module, learning_rate: float, weight_decay: float) -> dict[str, torch.optim.Optimizer]:
        """The stream's optimisers by the name under which their state is kept; `learning_rate` is that of warm-up."""
        optimisers = make_optimisers(self.optimiser, net, self.learning_rate or learning_rate, weight_decay)
        return optimisers | ({"shares": ShareOptimiser(net.shares)} if isinstance(net, Blend) else {})

    def batches(self, events: int, batch_size: int) -> list[slice]:
        """How the events of an interval are cut into optimiser steps of about equal size; `batch_size` is that of
        warm-up."""
        wanted = batch_size if self.batch_size is None else self.batch_size or events
        steps = max(round(events / max(wanted, 1)), -(-events // _LARGEST), 1)
        size = max(-(-events // steps), 1)
        return [slice(first, min(first + size, events)) for first in range(0, events, size)]

    def decay(self, seconds: int) -> float:
        """What is left of the weight of older models after an interval of so many seconds."""
        return math.exp(-seconds / self.average) if self.average else 0.0


AS_WARM_UP = StreamLearning(
    learning_rate=None, batch_size=None, optimiser="adam", precision="float32", level_steps=1.0, average=None
)
"""The stream is learnt with warm-up's optimiser, step size and batch size, and its newest weights are served."""


def moments(optimisers: dict[str, torch.optim.Optimizer], net: nn.Module) -> dict[str, Tensor]:
    """The state of optimisers by name of optimiser, parameter and entry."""
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    return {
        f"{kind}.{names[id(parameter)]}.{key}": value
        for kind, optimiser in optimisers.items()
        for parameter, entries in optimiser.state.items()
        for key, value in entries.items()
    }


def load_moments(optimisers: dict[str, torch.optim.Optimizer], net: nn.Module, state: dict[str, Tensor]) -> None:
    """Give new optimisers the state that `moments` returned."""
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    for kind, optimiser in optimisers.items():
        for parameter in (parameter for group in optimiser.param_groups for parameter in group["params"]):
            if entries := under(state, f"{kind}.{names[id(parameter)]}."):
                optimiser.state[parameter] = {key: value.to(parameter.device) for key, value in entries.items()}
