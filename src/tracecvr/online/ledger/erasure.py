"""Erasure in a ledger: what the log has no more is in no file of it, and rows keep their numbers.

The log leaves the place of an erased click, without its id. So intervals of which the log has more such places than
the ledger has erased rows are read once more. Nothing is kept of clicks that are over, erased or not: the log may have
moved them to the archive, where no place is left.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from tracecvr.base.errors import HeldError
from tracecvr.base.files import locked
from tracecvr.data.table import Ints
from tracecvr.online.ledger.database import DATABASE, LEDGER, DamagedLedgerError
from tracecvr.online.ledger.ledger import Ledger
from tracecvr.online.log.event_log import EventLog
from tracecvr.online.log.events import CLICK
from tracecvr.online.store.store import Store

ANSWERS = "answers"
"""The folder of a store, or of a challenger, in which the learner keeps what frozen nets say of open clicks."""


def apply_erasures(ledger: Ledger) -> list[int]:
    """Let a ledger forget what was erased from its log since it was told last; the intervals that had some of it."""
    erasures = ledger.log.facts().get("erasures", 0)
    if erasures == ledger.erasures:
        return []
    over = ledger.grid.bounds(ledger.done)[0] - ledger.memory
    intervals = _intervals(ledger, over)
    rows = _erased_rows(ledger, intervals)
    if rows is None:  # the log cannot tell them any more
        ledger.rebuild(ledger.done, ledger.rows, dict(ledger.counts))
    else:
        _blank_what_is_over(ledger, over)
        _blank(ledger, rows)
        _blank_waiting(ledger)
    ledger.erasures = erasures
    ledger.commit()
    return intervals


def erase_at_rest(store: Store, log: EventLog) -> bool:
    """Let the files of a model's ledger forget what was erased from its log; False if a learner is at work on them,
    which does it before its next tick."""
    folder = store.home / LEDGER
    if not (folder / DATABASE).is_file():
        return remove_at_rest(store.home)
    try:
        with locked(store.home / "models", "the learner erases it"):
            ledger = Ledger(store.base, store.grid, store.reader, log, 0, folder)
            try:
                intervals = apply_erasures(ledger) if ledger.open_as_it_is() else None
            except DamagedLedgerError:
                intervals = None
            ledger.close()
            if intervals is None:
                _remove(store.home)
            for number in intervals or ():
                for path in (store.home / ANSWERS).glob(f"*/{store.grid.bounds(number)[0]}"):
                    path.unlink()
    except HeldError:
        return False
    return True


def remove_at_rest(home: Path) -> bool:
    """Remove all files of a model's ledger, which the learner builds anew from the log; False if a learner is at work
    on them."""
    try:
        (home / "models").mkdir(exist_ok=True)
        with locked(home / "models", "the learner erases it"):
            _remove(home)
    except HeldError:
        return False
    return True


def _remove(home: Path) -> None:
    for name in (LEDGER, ANSWERS):
        shutil.rmtree(home / name, ignore_errors=True)


def _intervals(ledger: Ledger, over: int) -> list[int]:
    """Intervals of which the log has erased clicks that the ledger still has."""
    now = ledger.grid.bounds(ledger.done)[0]
    places = Counter(map(ledger.grid.number, ledger.log.erased_between(max(over, ledger.grid.split), now)))
    return [number for number, count in places.items() if count != _known_erased(ledger, number)]


def _known_erased(ledger: Ledger, number: int) -> int:
    first, last = ledger.table.rows_between(*ledger.grid.bounds(number))
    return last - first - len(ledger.known_between(*ledger.grid.bounds(number)))


def _erased_rows(ledger: Ledger, intervals: list[int]) -> Ints | None:
    """Numbers of the rows of clicks that were erased from some intervals; None if they cannot be told."""
    rows = [np.empty(0, np.int64)]
    for number in intervals:
        bounds = ledger.grid.bounds(number)
        clicks = ledger.fresh([row for row in ledger.log.between(*bounds) if row[0] == CLICK], number)
        first, last = ledger.table.rows_between(*bounds)
        if len(clicks) != last - first:
            return None
        rows.append(ledger.files.first + first + np.flatnonzero([row[4] is None for row in clicks]))
    return np.concatenate(rows)


def _blank_what_is_over(ledger: Ledger, over: int) -> None:
    first, end = ledger.files.first, ledger.files.search(over)
    if end > first:
        _blank(ledger, np.arange(first, end))
        ledger.whole_since = over


def _blank(ledger: Ledger, rows: Ints) -> None:
    """Leave of clicks that they were there and when."""
    size = len(rows)
    values: dict[str, Any] = {
        "x": np.zeros((size, len(ledger.schema.features)), np.int32),
        "click_id": np.full(size, -1),
        "version": np.full(size, -1),
        "score": np.full(size, np.nan, np.float32),
        "erased": np.ones(size, np.bool_),
    }
    ledger.files.change(rows, values)
    ledger.files.forget_actions(rows.tolist())


def _blank_waiting(ledger: Ledger) -> None:
    """Actions that waited and are not in the log any more, or that have waited too long."""
    over = ledger.grid.bounds(ledger.done)[0] - ledger.grid.d_max
    waited = ledger.files.waiting()
    gone = [row for row, seen, ts, kind, click in waited if seen < over or not ledger.log.has(click, kind, ts)]
    ledger.files.forget_waiting(gone)
