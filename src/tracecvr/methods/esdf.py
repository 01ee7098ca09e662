"""ESDF: a rate and a delay that falls into one of a few slots."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tracecvr.authoring.losses import NOTHING
from tracecvr.base.config import DAY, HOUR, MINUTE, Seconds, option
from tracecvr.base.errors import UserError
from tracecvr.families.survival import Survival

_DEFAULT = (15 * MINUTE, HOUR, 6 * HOUR, *(day * DAY for day in (*range(1, 8), 14, 30)))


@dataclass
class ESDF(Survival):
    """Models whether a click converts within d_max and, if it does, in which slot of time: a law of delays in steps. A
    click without a conversion is a negative, or a conversion of a later slot; its age says how likely each is.

    Reconstructed from notes on the paper. Assumed: only clicks are modelled, so the towers for impressions and clicks
    are left out; the slots; the stream, which is that of `dfm`. Window and looks end where a slot ends: by default, the
    slots that contain the horizons. A warm-up click is taken as it was when the last slot before its age ended.
    """

    name = "esdf"
    title = "ESDF"
    reference = "Wang et al., Delayed Feedback Modeling for the Entire Space Conversion Rate Prediction, 2020"
    status = "reconstructed"

    slots: tuple[Seconds, ...] | None = option(
        None,
        "ends of the slots, the last of which is d_max whatever is given; by default those for the "
        "dataset or for a month, the window, and later horizons",
        low=0,
    )

    @property
    def edges(self) -> tuple[int, ...]:
        """The ends of the slots in force."""
        default = self.schema.windows or _DEFAULT
        later = (end for end in self.ends if end > default[-1])
        slots = sorted({*default, self.wait, *later}) if self.slots is None else self.slots
        return (*(end for end in slots if end < self.schema.d_max), self.schema.d_max)

    @property
    def default_looks(self) -> tuple[int, ...]:
        """The ends of the slots in which the horizons are. Inside a slot the law cannot distinguish open clicks from
        converted ones."""
        edges = self.edges
        return tuple(edges[bisect_left(edges, end)] for end in self.ends)

    def check_options(self) -> None:
        super().check_options()
        if self.slots is not None and list(self.slots) != sorted(set(self.slots)):
            raise UserError(f"option 'slots' is {self.slots}: give distinct durations in rising order")
        for age in self.ages:
            if age not in self.edges:
                raise UserError(
                    f"a click's age of {age} s (option 'window' or 'looks') is inside a slot of esdf: choose from "
                    f"{', '.join(map(str, self.edges))}, or other 'slots'"
                )

    def heads(self) -> int:
        return 1 + len(self.edges)

    def log_density(self, law: Tensor, delay: Tensor) -> Tensor:
        slot = torch.bucketize(delay, torch.tensor(self.edges)).clamp_max(len(self.edges) - 1)
        return F.log_softmax(law, dim=1).gather(1, slot[:, None])[:, 0]

    def log_survival(self, law: Tensor, elapsed: Tensor) -> Tensor:
        over = torch.tensor(self.edges) <= elapsed[:, None]  # (B, slots)
        return torch.logsumexp(F.log_softmax(law, dim=1).masked_fill(over, NOTHING), dim=1)

    def resolve(self, elapsed: Tensor) -> Tensor:
        ended = torch.bucketize(elapsed, torch.tensor(self.edges), right=True)
        return torch.tensor((-1, *self.edges))[ended]  # before the first slot ends, nothing

    def fixed_point(self, p: float, delayed: float) -> float:
        return p
