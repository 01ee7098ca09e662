"""What was bought and taken back after a click: a conversion stands as long as less was taken back than bought.

The rule is that of `data.own_log.cleaning`, by when things became known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from tracecvr.data.table import TURNS

UNKNOWN = -1.0
"""The amount of a conversion of the base, which any refund takes back; a refund of it takes back everything."""
_LITTLE, _ROUNDING = 1e-3, 1e-9
_MOST = 100


class KnownAction(NamedTuple):
    """An action as the log tells it; ordered by when it became known."""

    seen: int
    ts: int
    kind: int
    click: int
    amount: float = 1.0


class Payment(NamedTuple):
    seen: int
    ts: int
    refund: bool
    amount: float


def find_turns(payments: Iterable[Payment]) -> list[int]:
    """When it became known that nothing stands any more, that something does again, and so on."""
    known, turns, stood = sorted(payments)[:_MOST], list[int](), True
    if not any(payment.refund for payment in known):
        return []
    for now in sorted({payment.seen for payment in known}):
        if _stands([payment for payment in known if payment.seen <= now]) != stood:
            stood = not stood
            turns.append(now)
    return turns[: len(TURNS)]


def _stands(payments: Sequence[Payment]) -> bool:
    first = min((payment.ts for payment in payments if not payment.refund), default=None)
    counted = [payment for payment in payments if first is not None and payment.ts >= first]
    level = least = ever = 0.0
    for _, second in groupby(sorted(counted, key=lambda payment: payment.ts), lambda payment: payment.ts):
        of_second = list(second)
        plus = sum(_LITTLE if p.amount == UNKNOWN else p.amount for p in of_second if not p.refund)
        refunds = [p.amount for p in of_second if p.refund]
        ever += plus
        level += plus - (ever if UNKNOWN in refunds else sum(refunds))
        least = min(least, level)  # no more is taken back than was bought
    return not counted or level - least > _ROUNDING * ever
