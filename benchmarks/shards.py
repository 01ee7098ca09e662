"""Sharded live learning, in simulation: event logs and ledgers by click, one learner that merges what they reveal.

Each shard has a log and a ledger of its own, the real ones, and sees only its clicks; shards hear of nothing but their
own events, each at its own pace. An interval is learnt when every shard has closed it. What is merged are reveals;
a click's features stay on its shard until one of its events is due.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tracecvr.data.encoder import Encoder
from tracecvr.data.table import ClickTable, Ints
from tracecvr.online.ledger.ledger import Ledger
from tracecvr.online.log.event_log import EventLog
from tracecvr.online.log.events import Reader
from tracecvr.online.log.times import Grid
from tracecvr.stream.reveal import Reveals, Schedule
from tracecvr.stream.source import Clicks, TableSource


def shard_of(click: Ints | int, shards: int) -> Any:
    """Where a click lives: by its id alone, so that its actions find it without asking."""
    return click % shards


class Shards(TableSource):
    """A source made of shards. Rows are numbered as in one ledger: by when clicks became known, their time and id.
    Warm-up comes from the log that the shards started from."""

    def __init__(self, room: Path, base: ClickTable, encoder: Encoder, grid: Grid, memory: int, shards: int) -> None:
        super().__init__(base)
        self.grid, self.done = grid, 0
        self.reader = Reader(base.schema, encoder)
        # A clock far ahead of the log: no event of a log that is being replayed is dated in the future.
        self.logs = [EventLog(room / f"{n}.db", grid, lambda: 4e9) for n in range(shards)]
        owner = shard_of(base.click_id, shards)
        tables = [_part(base, np.flatnonzero(owner == n)) for n in range(shards)]
        self.ledgers = [
            Ledger(table, grid, self.reader, log, memory) for table, log in zip(tables, self.logs, strict=True)
        ]
        self._row = [np.flatnonzero(owner == n) for n in range(shards)]
        """From a shard's own rows to those of all."""
        self._rows = int(np.searchsorted(base.arrival_ts, grid.split))
        for n, ledger in enumerate(self.ledgers):
            self._row[n] = self._row[n][: ledger.rows]

    def send(self, events: Sequence[dict[str, Any]]) -> None:
        """Route events to their shards."""
        read = [self.reader.read(event) for event in events]
        for n, log in enumerate(self.logs):
            if mine := [event for event in read if shard_of(event.click, len(self.logs)) == n]:
                log.append(mine)

    def closed(self) -> int:
        """How many intervals every shard has closed: what the learner may learn."""
        return min(log.closed() for log in self.logs)

    def advance(self) -> None:
        """Take in the next interval, shard by shard, and number its clicks as one ledger would."""
        fresh = []
        for ledger in self.ledgers:
            before = ledger.rows
            ledger.advance()
            fresh.append(np.arange(before, ledger.rows) - ledger.first_row)
        tables = [ledger.table for ledger in self.ledgers]
        keys = [(t.arrival_ts[new], t.click_ts[new], t.click_id[new]) for t, new in zip(tables, fresh, strict=True)]
        came, ts, click = (np.concatenate(part) for part in zip(*keys, strict=True))
        place = np.empty(len(click), np.int64)
        place[np.lexsort((click, ts, came))] = self._rows + np.arange(len(click))
        ends = np.cumsum([len(new) for new in fresh])[:-1]
        self._row = [np.concatenate(pair) for pair in zip(self._row, np.split(place, ends), strict=True)]
        self._rows += len(click)
        self.done += 1

    def clicks(self, start: int, end: int) -> Clicks:
        parts = [ledger.clicks(start, end) for ledger in self.ledgers]
        row = np.concatenate([self._row[n][clicks.row] for n, clicks in enumerate(parts)])
        order = np.argsort(row)
        return Clicks(row[order], torch.cat([clicks.x for clicks in parts])[torch.from_numpy(order)])

    def reveals(self, schedule: Schedule, start: int, end: int, truth: bool = False) -> Reveals:
        """The shards' reveals in one ledger's order: by fire time, then by row, then by trigger."""
        parts = [ledger.reveals(schedule, start, end, truth) for ledger in self.ledgers]
        merged = _concatenated(
            [replace(part, row=torch.from_numpy(self._row[n][part.row.numpy()])) for n, part in enumerate(parts)]
        )
        fire = merged.arrival + merged.elapsed  # of clicks that came in time, and of events that are no repetition
        order = np.lexsort((merged.trigger.numpy(), merged.row.numpy(), fire.numpy()))
        return merged.take(torch.from_numpy(order))


def _part(table: ClickTable, rows: Ints) -> ClickTable:
    return ClickTable(table.x[rows], table.click_ts[rows], table.click_id[rows], table.action_ts[rows], table.schema)


def _concatenated(parts: Sequence[Reveals]) -> Reveals:
    columns: dict[str, Any] = {
        f.name: torch.cat([getattr(part, f.name) for part in parts])
        for f in fields(Reveals)
        if isinstance(getattr(parts[0], f.name), Tensor)
    }
    return replace(parts[0], **columns)
