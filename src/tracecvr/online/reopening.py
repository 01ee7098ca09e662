"""Reopening: undo closings that should not have been, and learn from the last good interval on once more."""

from __future__ import annotations

from tracecvr.base.errors import UserError
from tracecvr.base.files import locked
from tracecvr.online.archive import restore
from tracecvr.online.event_log import Reopening
from tracecvr.online.store import Store
from tracecvr.online.versions import Versions


def reopen(store: Store, number: int, until: int | None = None) -> Reopening:
    """Open the intervals from `number` on again. Events that came since get the place that they would have had; those
    that are dated too far ahead, or after `until`, are set aside.

    Versions of these intervals are removed first. Killed anywhere, the learner makes the same ones again, or the
    command is repeated: the log changes in one transaction.
    """
    with locked(store.folder / "models", "stop the learner (`tracecvr learn` or `serve`) first"):
        log = store.log()
        try:
            if not 0 <= number < log.closed():
                raise UserError(f"interval {number} is not closed: there is nothing to reopen")
            Versions(store.folder, store.settings.keep).forget_after(number)
            restore(store, number)
            return log.reopen(number, until)
        finally:
            log.close()
