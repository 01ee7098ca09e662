"""The level of a net's outputs: the rates at which they start, and the fit of their biases when warm-up ends.

A net can rank clicks well and still predict too much or too little. Its hidden layers end in batch normalisation, whose
outputs have mean 0: so the level is in the biases of the outputs alone, and Adam moves these by about a step size per
step. A hundred steps of warm-up, or a week of the stream, are too few to correct a tenth. Therefore the biases are
fitted in one go when warm-up ends, and have larger steps in the stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tracecvr.authoring.part import Part
from tracecvr.base.devices import double
from tracecvr.learn.net_calls import BLOCK
from tracecvr.nets.backbones import output_layers, shift_outputs, start_at
from tracecvr.stream.reveal import LabelledReveals
from tracecvr.stream.source import History

_ENOUGH = 30
"""Events of either kind from which on mature clicks alone give the rate at which an output starts."""

_MOST = 1 << 18
"""Clicks that a level is fitted to, at most: evenly spread over history."""

_DOUBT = 100.0
"""What warm-up is believed to be off by is about a tenth, so a prior variance of .01: the fit counts in full only if it
rests on many more than so many conversions."""

_STEPS = 10


class StartingRates:
    """Counts of the events that outputs of nets estimate, over all of history and over its mature clicks."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Part, Tensor]] = {}

    def add(self, owner: str, part: Part, b: LabelledReveals) -> None:
        """Count a batch of history for all nets of a part."""
        for name in part.nets:
            if (rates := part.base_rates(name, b)) is not None:
                events = double(rates[1].flatten(1))
                mature = b.mature.repeat(len(events) // len(b))[:, None]
                both = torch.stack([events, events.where(mature, torch.nan)])
                counts = torch.stack([both.nansum(1), (~both.isnan()).sum(1)])  # (events and clicks, all or mature, J)
                key = f"{owner}.{name}"
                earlier = self._sums[key][1] if key in self._sums else torch.zeros_like(counts)
                self._sums[key] = part, earlier + counts

    def start(self, spread: float) -> None:
        """Set the biases of outputs. Clicks that are still open would lower the rates, so mature ones are enough."""
        for key, (part, (positives, clicks)) in self._sums.items():
            enough = torch.minimum(positives, clicks - positives)[1] >= _ENOUGH
            positives, clicks = (torch.where(enough, both[1], both[0]) for both in (positives, clicks))
            rate = ((positives + 0.5) / (clicks + 1)).where(clicks > 0, torch.nan)  # never 0 or 1
            start_at(part.nets[key.partition(".")[2]], torch.logit(rate), spread)


def fit_level(part: Part, name: str, history: History) -> None:
    """Shift the biases of a net's outputs so that their mean prediction over history is the mean outcome."""
    stride = -(-len(history) // _MOST) or 1
    pairs = []
    with torch.no_grad():
        for b in history.batches(BLOCK, None):
            sample = b.take(torch.arange(0, len(b), stride))
            if (pair := part.level(name, sample)) is not None:
                pairs.append(pair)
    if pairs:
        logit, outcome = (double(torch.cat(column)) for column in zip(*pairs, strict=True))
        shift_outputs(part.nets[name], best_shift(logit, outcome))


def best_shift(logit: Tensor, outcome: Tensor) -> Tensor:
    """The shift of logits (n, J) at which they have the mean of the outcomes, given as log-odds that move along: (J,).

    Newton's method on the likelihood of the shift. It is shrunk towards 0 by how little the clicks say. NaN where they
    say nothing.

    >>> logit, outcome = torch.zeros(80_000, 1), torch.tensor([[-40.0], [-40.0], [-40.0], [40.0]]).repeat(20_000, 1)
    >>> torch.sigmoid(best_shift(logit, outcome))
    tensor([0.2514])
    """
    used = ~(logit.isnan() | outcome.isnan())
    logit, outcome = logit.where(used, -torch.inf), outcome.where(used, -torch.inf)  # rates of 0 without a slope
    shift = torch.zeros(logit.shape[1], dtype=logit.dtype)
    for _ in range(_STEPS):
        predicted, expected = torch.sigmoid(logit + shift), torch.sigmoid(outcome + shift)
        information = (predicted * (1 - predicted) - expected * (1 - expected)).sum(0)
        step = (expected - predicted).sum(0) / information.clamp_min(1.0)
        shift = shift + step.clamp(-1.0, 1.0)
    shrunk = shift * information / (information + _DOUBT)
    return shrunk.where(information > 0, torch.nan)


@contextmanager
def larger_steps(net: nn.Module, factor: float, outputs: int | None) -> Iterator[None]:
    """While it lasts, what an optimiser changes in the biases of the first `outputs` (all by default) is so many times
    as much. With Adam, whose steps do not depend on the size of gradients, that is a larger step size for them."""
    biases = [layer.bias.data for layer in output_layers(net)] if factor != 1 else []
    before = [bias.clone() for bias in biases]
    yield
    for bias, old in zip(biases, before, strict=True):
        first = slice(0, len(bias) if outputs is None else outputs)
        outputs = None if outputs is None else max(outputs - len(bias), 0)
        bias[first] += (factor - 1) * (bias[first] - old[first])
