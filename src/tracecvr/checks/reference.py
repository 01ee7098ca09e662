"""A source that is told events one by one, as they arrive, and knows nothing else: the plain form of a live ledger.

It shares no code with `TableSource` but the function that builds reveals; it is slow and obvious on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tracecvr.data.table import NEVER, TURNS, ClickTable, Ids, Schema
from tracecvr.stream.reveal import On, Reveals, Schedule, Trigger, reveal


@dataclass
class _Click:
    click_ts: int
    x: Ids
    action_ts: list[int]
    refund_ts: list[int]


@dataclass
class EventByEvent:
    """Clicks and actions received so far."""

    schema: Schema
    clicks: list[_Click] = field(default_factory=list)

    def receive(self, table: ClickTable, start: int, end: int) -> None:
        """What a live system would be told in [start, end)."""
        for row in np.flatnonzero((table.click_ts >= start) & (table.click_ts < end)):
            nothing = [NEVER] * len(self.schema.actions)
            self.clicks.append(_Click(int(table.click_ts[row]), table.x[row], nothing, [NEVER] * len(TURNS)))
        for row, action in np.argwhere((table.known_ts >= start) & (table.known_ts < end)):
            self.clicks[row].action_ts[action] = int(table.action_ts[row, action])
        if table.refund_ts is not None:
            for row, turn in np.argwhere((table.refund_ts >= start) & (table.refund_ts < end)):
                self.clicks[row].refund_ts[turn] = int(table.refund_ts[row, turn])

    def reveals(self, schedule: Schedule, start: int, end: int) -> Reveals:
        """Events that fire in [start, end)."""
        events = []
        for row, click in enumerate(self.clicks):
            for number, trigger in enumerate(schedule):
                clock = self._fires(trigger, click)
                if clock is not None and start <= clock < end:
                    events.append((clock, row, number))
        events.sort()
        clicks, count = [self.clicks[row] for _, row, _ in events], len(events)
        actions = np.array([c.action_ts for c in clicks], np.int64).reshape(count, len(self.schema.actions))
        return reveal(
            x=np.array([c.x for c in clicks], np.int32).reshape(count, len(self.schema.features)),
            click_ts=np.array([c.click_ts for c in clicks], np.int64),
            action_ts=actions,
            known_ts=actions,
            clock=np.array([clock for clock, _, _ in events], np.int64),
            d_max=self.schema.d_max,
            row=np.array([row for _, row, _ in events], np.int64),
            trigger=np.array([number for _, _, number in events], np.int64),
            refund_ts=np.array([c.refund_ts for c in clicks], np.int64).reshape(count, len(TURNS)),
        )

    def _fires(self, trigger: Trigger, click: _Click) -> int | None:
        """When the trigger fires for this click."""
        if isinstance(trigger, On):
            at = click.action_ts[trigger.action]
            wait = at - click.click_ts
            stands = trigger.action > 0 or self._stands(click, at)
            return at if at != NEVER and stands and trigger.later_than < wait <= self.schema.d_max else None
        at = click.click_ts + trigger.seconds
        final = click.click_ts + self.schema.d_max
        converted = click.action_ts[0] <= min(at, final) and self._stands(click, min(at, final))
        return None if trigger.seen is not None and trigger.seen != converted else at

    def _stands(self, click: _Click, at: int) -> bool:
        """Whether its conversion has not been taken back by a moment, or another one came after that."""
        return sum(turn <= at for turn in click.refund_ts) % 2 == 0
