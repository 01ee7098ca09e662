"""What losses are made of: cross-entropy, means over some of the events, mixtures; all stable for any logit."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

CERTAIN = 30.0
"""Log-odds of an outcome that is known."""

NOTHING = -1e9
"""The logarithm of no probability, finite so that differences of such remain numbers."""

_EPS = 1e-6
"""How far from 1 a sum of rates stays."""


def cross_entropy(logit: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy of each event. `target` may be soft: a probability instead of a label.

    >>> cross_entropy(torch.zeros(2), torch.tensor([1.0, 0.3]))
    tensor([0.6931, 0.6931])
    """
    return F.binary_cross_entropy_with_logits(logit, target, reduction="none")


def weighted_cross_entropies(logit: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """For each event, the loss of a positive times one weight plus the loss of a negative times another.

    >>> weighted_cross_entropies(torch.zeros(2), torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.5]))
    tensor([1.3863, 0.3466])
    """
    as_positive = cross_entropy(logit, torch.ones_like(logit))
    as_negative = cross_entropy(logit, torch.zeros_like(logit))
    return positive * as_positive + negative * as_negative


def mean_over(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of `values` where `mask` holds; 0 if it holds nowhere.

    >>> mean_over(torch.tensor([1.0, 2.0, 6.0]), torch.tensor([True, False, True]))
    tensor(3.5000)
    """
    chosen = mask.to(values.dtype)
    return (values * chosen).sum() / chosen.sum().clamp_min(1.0)


def mixture(log_weight: Tensor, logit: Tensor) -> Tensor:
    """Log-odds of a weighted mean of rates (B, J), from the logarithms of weights that sum to 1 and from logits.

    >>> half = torch.full((1, 2), 0.5).log()
    >>> torch.sigmoid(mixture(half, torch.logit(torch.tensor([[0.2, 0.4]]))))
    tensor([0.3000])
    """
    converts = torch.logsumexp(log_weight + F.logsigmoid(logit), dim=1)
    return converts - torch.logsumexp(log_weight + F.logsigmoid(-logit), dim=1)


def log_odds_of_sum(a: Tensor, b: Tensor) -> Tensor:
    """The logit of min(sigmoid(a) + sigmoid(b), 1 - 1e-6), from logits alone.

    With A = exp(a) and B = exp(b) the sum has the odds (A + B + 2AB) / (1 - AB); there are none where AB >= 1.

    >>> sum_of = log_odds_of_sum(torch.tensor([-2.0, 3.0]), torch.tensor([-1.0, 0.0]))
    >>> [round(rate, 6) for rate in torch.sigmoid(sum_of).tolist()]
    [0.388144, 0.999999]
    """
    above = torch.logsumexp(torch.stack([a, b, a + b + math.log(2)]), 0)
    below = torch.log(-torch.expm1((a + b).clamp_max(-_EPS)))
    return (above - below).clamp_max(math.log((1 - _EPS) / _EPS))


def entropy_bits(logit: Tensor) -> Tensor:
    """The entropy, in bits, of a Bernoulli variable given by its logit.

    >>> entropy_bits(torch.zeros(1))
    tensor([1.])
    """
    return cross_entropy(logit, torch.sigmoid(logit)) / math.log(2)
