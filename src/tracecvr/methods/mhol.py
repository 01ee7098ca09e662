"""MHOL: one head for each bucket of delays, learnt as soon as the bucket is over; the sum of their rates is served."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from tracecvr.authoring.losses import CERTAIN, NOTHING, cross_entropy, log_odds_of_sum, mean_over
from tracecvr.authoring.method import MultiWindow
from tracecvr.base.config import DAY, Seconds, option
from tracecvr.stream.reveal import After, LabelledReveals, Reveals, Schedule


@dataclass
class MHOL(MultiWindow):
    """Cuts the time after a click into buckets. One head for each bucket learns the share of clicks that convert in it,
    when the bucket is over. Early heads are fresh, and no label is ever wrong. The sum of the heads is served. The
    posterior of an open click is the share of the buckets that are not over, given no conversion in the others.

    Reconstructed from the paper's abstract, which gives the buckets (day 1, day 2, days 3 to 7 and 8 to 30) and a model
    for each. Assumed: every click teaches every head, as a negative where it converts in another bucket; the sum, kept
    below 1; heads share a plain backbone; all events weigh the same; on logs with windows of their own, these are the
    ends of the buckets.

    A conversion counts in the bucket in which it becomes known, so that one that is reported late counts once. One that
    is refunded after its bucket stays a conversion. In warm-up, a head learns from clicks whose bucket is over by then,
    converted or not: the others are open, and without them a converted click would be one of a biased choice. A head
    without any such click keeps the rate that it starts at, of what is known so far.
    """

    name = "mhol"
    title = "MHOL"
    reference = "Gao and Yang, Multi-Head Online Learning for Delayed Feedback Modeling, 2022"
    status = "reconstructed"
    serves = "the sum of the heads' rates"
    default_windows = (DAY, 2 * DAY, 7 * DAY, 30 * DAY)

    windows: tuple[Seconds, ...] | None = option(
        None, "ends of the buckets; by default the dataset's, else 1, 2, 7 and 30 days, scaled to d_max", low=1
    )

    def schedule(self) -> Schedule:
        return tuple(After(end) for end in self.spans)

    def heads(self) -> int:
        return len(self.spans)

    def log_odds(self, x: Tensor) -> Tensor:
        return reduce(log_odds_of_sum, self.call("main", x).unbind(1))

    def loss(self, b: Reveals) -> Tensor:
        own = b.trigger[:, None]  # the bucket that is over
        return cross_entropy(self.call("main", b.x).gather(1, own), self.labels(b).gather(1, own)).mean()

    def warm_loss(self, b: LabelledReveals) -> Tensor:
        return mean_over(cross_entropy(self.call("main", b.x), self.labels(b)), self.over(b))

    def base_rates(self, name: str, b: LabelledReveals) -> tuple[tuple[Tensor, ...], Tensor] | None:
        return (b.x,), self.labels(b)

    def posterior(self, b: Reveals) -> Tensor:
        # With S the sum of all heads and R that of the heads not over, the odds are R / (1 - S).
        log_rate = F.logsigmoid(self.call("main", b.x))
        left = torch.logsumexp(log_rate.masked_fill(self.over(b), NOTHING), 1) - torch.logsumexp(log_rate, 1)
        return torch.where(b.converted, CERTAIN, (self.log_odds(b.x) + left).clamp(-CERTAIN, CERTAIN))

    def labels(self, b: Reveals) -> Tensor:
        """1 in the bucket in which the conversion became known, if it was not taken back since: (B, buckets)."""
        bucket = torch.bucketize(b.known, torch.tensor(self.spans))
        return b.label[:, None] * (bucket[:, None] == torch.arange(len(self.spans)))

    def over(self, b: Reveals) -> Tensor:
        """The buckets that are over by the clock: (B, buckets)."""
        return torch.tensor(self.spans) <= b.elapsed[:, None]
