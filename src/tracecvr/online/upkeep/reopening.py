"""Reopening: undo closings that should not have been, and learn from the last good interval on once more."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from tracecvr.base.errors import UserError
from tracecvr.base.files import locked
from tracecvr.online.learner.archive import hold_log, restore
from tracecvr.online.log.event_log import Reopening
from tracecvr.online.store.challenge import Challenger, challengers
from tracecvr.online.store.store import Store
from tracecvr.online.store.versions import Versions

_STOP = "stop the learner (`tracecvr learn` or `serve`) first"


def reopen(store: Store, number: int, until: int | None = None) -> Reopening:
    """Open the intervals from `number` on again. Events that came since get the place that they would have had; those
    that are dated too far ahead, or after `until`, are set aside.

    Versions of these intervals are removed first. Killed anywhere, the learner makes the same ones again, or the
    command is repeated: the log changes in one transaction.
    """
    others = challengers(store)
    with ExitStack() as held:
        for model in (store, *others):
            held.enter_context(locked(model.home / "models", _STOP))
        held.enter_context(hold_log(store))
        log = store.log()
        try:
            if not 0 <= number < log.closed():
                raise UserError(f"interval {number} is not closed: there is nothing to reopen")
            _refuse_too_early(others, number)
            for model in (*others, store):
                Versions(model.home, model.settings.keep).forget_after(number)
            restore(store, number)
            return log.reopen(number, until)
        finally:
            log.close()


def _refuse_too_early(others: Sequence[Challenger], number: int) -> None:
    """A challenger that goes on from a version cannot go back to before it."""
    for challenger in others:
        if challenger.taken_over is not None and challenger.taken_over.intervals > number:
            raise UserError(
                f"challenger {challenger.name!r} goes on from version {challenger.taken_over.intervals}, which has "
                f"learnt interval {number}: drop it first (`tracecvr challengers drop`)"
            )
