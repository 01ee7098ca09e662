"""GrowingMap: which row of its tables each value of a growing column has. All nets of a model share one map.

A value is known by 62 bits of its hash. Two values share a row only if these are equal: of ten million values, the
probability that any two do is 1 in 90,000. Row 0 is for all values that have no row of their own. A value gets one when
it was seen in `after` clicks, and gives it back when it was not seen for `forget` seconds; it then starts from nothing.

A fresh row starts as a copy of row 0, in every net. So nothing changes for a value when it gets its row: it is learnt
apart from then on. This also holds for frozen nets: when a row passes to another value, it becomes a copy of row 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tracecvr.data.table import Growth, Schema

_FIRST = 1024
"""Rows of a new table; it doubles when they do not suffice."""

_COLUMNS = ("key", "row", "count", "seen")


def keys(schema: Schema, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Of each growing column, the name of its table and what the values of clicks are known by: (B, F) to (B,)."""
    for j, feature in enumerate(schema.features):
        if feature.growth is not None and not feature.high:
            yield feature.table, x[:, j + 1].long() << 31 | x[:, j].long()


class GrowingMap:
    """Values by key, in rising order: their row, how often they were seen, and when last."""

    def __init__(self, growth: Growth) -> None:
        self.growth = growth
        self.key = self.row = self.count = self.seen = torch.empty(0, dtype=torch.int64)
        self.capacity = min(_FIRST, growth.most)

    def __deepcopy__(self, memo: Any) -> GrowingMap:
        """A copy of a net reads the same map."""
        return self

    def rows(self, key: Tensor) -> Tensor:
        if not len(self.key):
            return torch.zeros_like(key)
        place = torch.searchsorted(self.key, key).clamp_(max=len(self.key) - 1)
        return torch.where(self.key[place] == key, self.row[place], 0)

    def see(self, key: Tensor, at: Tensor) -> None:
        """Count the values of clicks, and when each click came."""
        distinct, inverse, counts = torch.unique(key, return_inverse=True, return_counts=True)
        last = torch.zeros_like(distinct).scatter_reduce(0, inverse, at, "amax", include_self=False)
        place = torch.searchsorted(self.key, distinct)
        known = place < len(self.key)
        known[known.clone()] = self.key[place[known]] == distinct[known]
        at_known = place[known]
        self.count[at_known] += counts[known]
        self.seen[at_known] = torch.maximum(self.seen[at_known], last[known])
        nothing = torch.zeros_like(counts[~known])
        new = {"key": distinct[~known], "row": nothing, "count": counts[~known], "seen": last[~known]}
        whole = {name: torch.cat([getattr(self, name), column]) for name, column in new.items()}
        self._take(whole, torch.argsort(whole["key"]))

    def settle(self, now: int) -> Tensor:
        """Drop values that were not seen for too long, then give rows to those that were seen often enough, the most
        frequent first if there are not enough rows. Returns the rows that have a new value. Of values without a row no
        more are remembered than there may be rows: the newest."""
        self._take({name: getattr(self, name) for name in _COLUMNS}, self.seen > now - self.growth.forget)
        waiting = ((self.row == 0) & (self.count >= self.growth.after)).nonzero()[:, 0]
        waiting = waiting[torch.sort(self.count[waiting], descending=True, stable=True).indices]
        used = int((self.row > 0).sum())
        waiting = waiting[: self.growth.most - 1 - used]
        while self.capacity < used + len(waiting) + 1:
            self.capacity = min(2 * self.capacity, self.growth.most)
        free = torch.ones(self.capacity, dtype=torch.bool)
        free[self.row] = False
        free[0] = False
        fresh = free.nonzero()[: len(waiting), 0]
        self.row[waiting] = fresh
        without = (self.row == 0).nonzero()[:, 0]
        if len(without) > self.growth.most:
            newest = torch.sort(self.seen[without], descending=True, stable=True).indices
            kept = torch.ones(len(self.row), dtype=torch.bool)
            kept[without[newest[self.growth.most :]]] = False
            self._take({name: getattr(self, name) for name in _COLUMNS}, kept)
        return fresh

    def state(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in _COLUMNS} | {"capacity": torch.tensor(self.capacity)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        for name in _COLUMNS:
            setattr(self, name, state[name].clone())
        self.capacity = int(state["capacity"])

    def _take(self, columns: dict[str, Tensor], index: Tensor) -> None:
        for name, column in columns.items():
            setattr(self, name, column[index])
