"""Outages: times in which what follows clicks was not recorded. A click whose outcome one hides teaches nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracecvr.base.durations import exact_duration
from tracecvr.base.errors import UserError

Ints = npt.NDArray[np.int64]

Outages = tuple[tuple[int, int], ...]
"""Start and end (exclusive) of each, in seconds of the log."""

_SHORT = 0.1
"""An outage hides the outcome of an open click unless it is shorter than this share of the click's age when it began.
Delays spread over orders of magnitude: in so short a time few of the conversions come that are still to come."""


def pair(times: Sequence[int], where: str) -> Outages:
    """Outages from a flat list of their starts and ends.

    >>> pair((10, 20, 50, 60), "outages")
    ((10, 20), (50, 60))
    """
    starts, ends = tuple(times[::2]), tuple(times[1::2])
    wrong = len(starts) != len(ends) or any(start >= end for start, end in zip(starts, ends, strict=False))
    if wrong:
        given = ", ".join(map(exact_duration, times))
        raise UserError(f"{where} = {given}: give start and end of each outage, such as 14d,16d or 14d,16d,20d,21d")
    return tuple(zip(starts, ends, strict=True))


def hides(outages: Outages, click_ts: Ints, clock: Ints) -> npt.NDArray[np.bool_]:
    """Whether what is known of clicks at their clocks may be false for an outage: clocks in it, and later clocks of
    clicks that were open in it. Conversions after it are hidden, too: without the negatives that they belong to, they
    would raise rates.

    >>> hides(((100, 200),), np.array([50, 50, 50, 150, 200]), np.array([99, 100, 300, 300, 300])).tolist()
    [False, True, True, True, False]
    """
    hidden = np.zeros(len(click_ts), bool)
    for start, end in outages:
        begun = (clock >= start) & (click_ts < end)
        hidden |= begun & ((clock < end) | (end - start > _SHORT * (start - click_ts)))
    return hidden
