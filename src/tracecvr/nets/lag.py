"""Lag: rows of an averaged table that are brought up to date when they are read, not in every interval."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Lag:
    """How far each row of an averaged table is behind.

    Averaging is `average = d * average + (1 - d) * newest` in each interval. While the newest row does not change, many
    intervals are like one whose d is the product of theirs. So a row has to be written only before the newest one
    changes. Whoever reads it meanwhile makes up for the intervals in between. `clock` is the sum of log(d) over all
    intervals, `since` what it was when each row was written.
    """

    def __init__(self, average: nn.Parameter, newest: nn.Parameter) -> None:
        self.average, self.newest = average, newest
        self.since = torch.zeros(len(newest), dtype=torch.float64)
        self.clock = torch.zeros((), dtype=torch.float64)

    def rows(self, ids: Tensor) -> Tensor:
        """Averaged rows as of now: (n,) to (n, dim)."""
        share = torch.exp(self.clock - self.since[ids]).to(self.average.dtype)[:, None]
        return torch.lerp(self.newest.detach()[ids], self.average[ids], share)

    def catch_up(self, ids: Tensor) -> None:
        """Write rows as of now, because the newest ones are about to change."""
        self.average[ids] = self.rows(ids)
        self.since[ids] = self.clock

    def settled(self) -> Tensor:
        """The whole averaged table as of now."""
        return self.rows(torch.arange(len(self.average)))
