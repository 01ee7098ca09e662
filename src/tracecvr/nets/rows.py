"""Rows: a table of embeddings that is looked up by our fast forms; and Lag, for tables of averaged nets."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tracecvr.base.devices import double
from tracecvr.nets.fused import lookup
from tracecvr.nets.row_access import read_rows, write_rows


class Rows(nn.Embedding):
    """An embedding table. `lag` is set in an averaged net whose rows are brought up to date when they are read."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__(rows, dim)
        self.lag: Lag | None = None

    def of(self, ids: Tensor) -> Tensor:  # (n,) -> (n, dim)
        return self.sums(ids[:, None])

    def sums(self, ids: Tensor) -> Tensor:  # (B, n) -> (B, dim)
        """The sum of several rows for each click."""
        if self.lag is not None:
            return self.lag.rows(ids.reshape(-1)).view(*ids.shape, self.embedding_dim).sum(1)
        return lookup(self.weight, ids, self.sparse)


class Lag:
    """How far each row of an averaged table is behind.

    Averaging is `average = d * average + (1 - d) * newest` in each interval. While the newest row does not change, many
    intervals are like one, whose d is the product of all. So a row has to be written only before the newest one
    changes. A reader adds the intervals since it was written. `clock` is the sum of log(d) over all
    intervals, `since` what it was when each row was written.
    """

    def __init__(self, average: Tensor, newest: Tensor) -> None:
        self.average, self.newest = average, newest
        self.since = double(torch.zeros(len(newest)))
        self.clock = double(torch.zeros(()))

    def rows(self, ids: Tensor) -> Tensor:
        """Averaged rows as of now: (n,) to (n, dim)."""
        return self._move(ids, read_rows(self.newest, ids))

    def catch_up(self, ids: Tensor, newest: Tensor) -> None:
        """Write rows as of now, because the newest ones, which are given, are about to change."""
        write_rows(self.average, ids, self._move(ids, newest))
        self.since.index_fill_(0, ids, self.clock)

    def _move(self, ids: Tensor, newest: Tensor) -> Tensor:
        share = torch.exp(self.clock - read_rows(self.since, ids)).to(self.average.dtype)[:, None]
        return torch.lerp(newest, read_rows(self.average, ids), share)

    def settled(self) -> Tensor:
        """The whole averaged table as of now."""
        return self.rows(torch.arange(len(self.average)))
