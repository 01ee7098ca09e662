"""Group commit: events that arrive while the disk is busy share the next transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing
from queue import SimpleQueue

from tracecvr.online.log.event_log import EventLog, Receipt
from tracecvr.online.log.events import Event

_AT_ONCE = 5_000
"""Events of one transaction, roughly: requests should not wait long."""

_Sent = tuple[Sequence[Event], "Future[Receipt]"]


class Committer:
    """A thread with a connection of its own to the log. A future's result is there when its events are on disk."""

    def __init__(self, connect: Callable[[], EventLog]) -> None:
        self._connect = connect
        self._sent: SimpleQueue[_Sent | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Committer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._sent.put(None)
        self._thread.join()

    def submit(self, events: Sequence[Event]) -> Future[Receipt]:
        """Send a batch, which is accepted as a whole or not at all."""
        future: Future[Receipt] = Future()
        self._sent.put((events, future))
        return future

    def _work(self) -> None:
        with closing(self._connect()) as log:
            while (sent := self._sent.get()) is not None:
                group, count = [sent], len(sent[0])
                while count < _AT_ONCE and not self._sent.empty():
                    if (sent := self._sent.get()) is None:
                        self._sent.put(None)  # to end after this group
                        break
                    group.append(sent)
                    count += len(sent[0])
                self._commit(log, [sent for sent in group if sent[1].set_running_or_notify_cancel()])

    @staticmethod
    def _commit(log: EventLog, group: list[_Sent]) -> None:
        try:
            receipts = log.append_all([events for events, _ in group])
        except Exception as error:  # the senders' to deal with: whatever it is, nothing of theirs was accepted
            for _, future in group:
                future.set_exception(error)
            return
        for (_, future), receipt in zip(group, receipts, strict=True):
            future.set_result(receipt)
