"""The pump: pull a batch, commit its events and the position in one transaction, acknowledge; again and again.

If the broker is away or the disk is full, it tries again, and goes on from the store's position.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from tracecvr.base.errors import UserError
from tracecvr.base.files import locked
from tracecvr.online.log.event_log import Receipt
from tracecvr.online.log.inbox import Message, Parsed, parse, source_of
from tracecvr.online.sources import Broker, BrokerSource
from tracecvr.online.store.store import Store

_log = logging.getLogger("tracecvr.sources")
_PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before another try, the longer the oftener it went wrong at once."""
_PARTITIONS_S = 30.0
"""How often it looks for new partitions."""


def pump_lock(store: Store) -> AbstractContextManager[None]:
    """A store, for one pump alone: of what two pull by turns, neither has the position."""
    return locked(store.folder, "a store has one reader of brokers; stop the other first", ".pull.lock")


class Pump:
    def __init__(self, store: Store, source: BrokerSource, batch: int = 500, wait: float = 1.0) -> None:
        source.check()
        self.store, self.source, self.batch, self.wait = store, source, batch, wait
        self.log = store.log()
        self.client = f"tracecvr-{store.folder.resolve().name}-{self.log.reader():08x}"
        self._lag: dict[str, int] = {}
        self._counted = time.monotonic()

    def forget(self) -> None:
        """Forget how far the source was read. Events that come again count once."""
        with pump_lock(self.store):
            self.log.forget(self.source.sources)

    def run(self, stop: threading.Event) -> None:
        """Pull until stopped, whatever happens; as long as another does so, wait for it to end."""
        while not stop.is_set():
            try:
                with pump_lock(self.store):
                    self._pull(stop)
            except UserError as error:
                _log.info("%s", error)
                stop.wait(_PAUSES[1])

    def _pull(self, stop: threading.Event) -> None:
        failures = 0
        while not stop.is_set():
            since = time.monotonic()
            try:
                with self._connect() as broker:
                    while not (stop.is_set() or self._has_grown(broker)):
                        self.step(broker)
            except Exception as error:
                failures = 0 if time.monotonic() - since > 60 else failures + 1
                self._report_failure(error)
                stop.wait(_PAUSES[min(failures, len(_PAUSES)) - 1])

    def drain(self) -> int:
        """Pull until nothing is left; how many messages came."""
        count = 0
        with pump_lock(self.store), self._connect() as broker:
            while any(broker.lag().values()):
                count += self.step(broker)
            self.step(broker)  # for partitions that end in something that is not for us
        return count

    @contextmanager
    def _connect(self) -> Iterator[Broker]:
        broker = self.source.connect(self.client)
        try:
            self._go_on(broker)
            yield broker
        finally:
            broker.close()

    def step(self, broker: Broker) -> int:
        """Pull once, commit, acknowledge; how many messages came."""
        messages = broker.pull(self.batch, self.wait)
        contents = [parse(self.store.reader, message) for message in messages]
        lag = dict(broker.lag(ask=self._ends_something(contents)))
        if messages or lag != self._lag:
            receipt, aside = self.log.take(contents, lag)
            self._lag = lag
            self._tell(receipt, aside)
        if messages:
            broker.acknowledge({message.partition: message.position for message in messages})
        return len(messages)

    def _ends_something(self, contents: Sequence[Parsed]) -> bool:
        """Whether an interval may be closed by these: then it has to be known what is left in other partitions."""
        newest = max((event.ts for p in contents for event in p.events), default=0)
        return self.store.grid.closed(newest - self.store.grid.lateness) > self.log.closed()

    def _go_on(self, broker: Broker) -> None:
        """Put the broker where the store is, and a source that is new where it is to start."""
        known, bounds = self.log.positions(), broker.bounds()
        read_before = {source_of(partition) for partition in known}
        following, lost = {}, {}
        for partition, (first, end) in bounds.items():
            if partition not in known:  # all of a new partition of a topic that is read is new
                is_late = self.source.start == "latest" and source_of(partition) not in read_before
                following[partition] = end if is_late else first
                continue
            following[partition] = max(known[partition] + 1, first)
            lost[partition] = following[partition] - known[partition] - 1
            if following[partition] > end:
                raise UserError(
                    f"{partition} ends before {end}, and this store has read up to {known[partition]}: the broker lost "
                    "messages, or it is another one; `tracecvr pull --again` reads it from --from on"
                )
        self.log.begin(broker.identities(), following, lost)
        for partition, n in lost.items():
            if n:
                _log.error("%s: %d messages were gone before they were read", partition, n)
        broker.seek(following)
        self._lag = {}

    def _tell(self, receipt: Receipt, aside: Sequence[Message]) -> None:
        """That messages or events were set aside; not what was in them."""
        if aside:
            first, *others = aside
            more = f" and {len(others)} others" if others else ""
            _log.warning("%s: message %d%s set aside: see `tracecvr aside list`", first.partition, first.position, more)
        if future := receipt.counts["future"]:
            _log.warning("%s: %d events dated too far ahead set aside: see `tracecvr aside list`", self.source, future)

    def _report_failure(self, error: Exception) -> None:
        problem = " ".join(str(error).split()) or type(error).__name__
        _log.error("%s: %s", self.source, problem, exc_info=None if isinstance(error, UserError) else error)
        try:
            self.log.note_problem(self.source.sources, problem)
        except UserError as worse:
            _log.error("%s", worse)

    def _has_grown(self, broker: Broker) -> bool:
        """Whether there are partitions that are not read yet; asked now and then."""
        now = time.monotonic()
        if now - self._counted < _PARTITIONS_S:
            return False
        self._counted = now
        return not set(broker.bounds()) <= set(broker.lag())
