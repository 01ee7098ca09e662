"""Clicks of the log that a store started from, by their ids."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from tracecvr.data.table import ClickTable, Ints


class BaseClicks:
    """Those that were known at the split, and not longer than `memory` seconds before."""

    def __init__(self, table: ClickTable, split: int, memory: int) -> None:
        self.table, self.memory = table, memory
        self.first, self.end = (int(row) for row in np.searchsorted(table.arrival_ts, (split - memory, split)))

    def rows_of(self, ids: Ints, now: int) -> Ints:
        """The rows of clicks; -1 of those that are not there, or are too old by now."""
        oldest = int(np.searchsorted(self.table.arrival_ts, now - self.memory))
        if oldest >= self.end or not len(ids):
            return np.full(len(ids), -1)
        keys, rows = self._index
        after = np.searchsorted(keys, ids, "right")
        hit = (after > 0) & (keys[np.maximum(after, 1) - 1] == ids)
        row = np.where(hit, rows[np.maximum(after, 1) - 1], -1)
        return np.where(row >= oldest, row, -1)

    @cached_property
    def _index(self) -> tuple[Ints, Ints]:
        ids = np.array(self.table.click_id[self.first : self.end])
        order = np.argsort(ids, kind="stable")
        return ids[order], self.first + order
