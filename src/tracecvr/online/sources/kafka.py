"""Kafka: all partitions of the topics, assigned by hand at the store's positions.

There is no group to be rebalanced. A position is an offset. Offsets that are committed are for those who watch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from tracecvr.base.errors import UserError
from tracecvr.online.log.inbox import Message
from tracecvr.online.sources import BrokerSource

_log = logging.getLogger("tracecvr.sources.kafka")
_log.addHandler(logging.NullHandler())
_log.propagate = False  # the library says on its own account what we are told by its errors
_SECONDS = 10.0
_OURS = ("bootstrap.servers", "enable.auto.commit", "enable.partition.eof", "auto.offset.reset")
"""Settings that are not the user's: what is promised depends on them."""
_LOST = (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError._FATAL)


class Connection:
    def __init__(self, source: BrokerSource, client: str) -> None:
        self.source = source
        if taken := sorted(set(source.settings) & set(_OURS)):
            raise UserError(f"--source-config: {taken[0]!r} is not to be chosen")
        self._next: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        self._error: KafkaError | None = None
        settings = {
            "group.id": client,
            "queued.max.messages.kbytes": 16_384,
            **source.settings,
            "bootstrap.servers": source.hosts,
            "client.id": client,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "error_cb": self._heard,
        }
        with _kafka_errors(source):
            self._consumer = Consumer(settings, logger=_log)
            self._asker = Consumer(settings, logger=_log)  # a question waits behind a pull on the same connection

    def identities(self) -> Mapping[str, str]:
        with _kafka_errors(self.source):
            cluster = self._asker.list_topics(timeout=_SECONDS).cluster_id
        return dict.fromkeys(self.source.sources, f"of cluster {cluster}")

    def bounds(self) -> Mapping[str, tuple[int, int]]:
        return {name: self._watermarks(partition) for name, partition in self._partitions().items()}

    def seek(self, following: Mapping[str, int]) -> None:
        self._next, self._ends = dict(following), {}
        self.lag(ask=True)
        with _kafka_errors(self.source):
            self._consumer.assign([_at(name, first) for name, first in following.items()])

    def pull(self, count: int, seconds: float) -> list[Message]:
        with _kafka_errors(self.source):
            first = self._consumer.poll(seconds)
            batch = [] if first is None else [first, *self._consumer.consume(count - 1, 0.0)]
        if self._error is not None:
            raise UserError(f"{self.source}: {self._error.str()}")
        messages = []
        for message in batch:
            name, offset = f"kafka:{message.topic()}/{message.partition()}", message.offset()
            error = message.error()
            if error is None:
                messages.append(Message(name, offset, message.value() or b""))
                self._next[name] = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                self._next[name] = offset  # beyond what was written about transactions, which is no message
            else:
                raise UserError(f"{self.source}: {error.str()}")
        return messages

    def lag(self, ask: bool = False) -> Mapping[str, int]:
        for name, following in self._next.items():
            offsets = self._consumer.get_watermark_offsets(_at(name), cached=True)  # as of the last messages
            self._ends[name] = max(self._ends.get(name, 0), int(offsets[1]) if offsets else 0)
            if ask and self._ends[name] <= following:
                self._ends[name] = self._watermarks(_at(name))[1]
        return {name: max(0, self._ends[name] - following) for name, following in self._next.items()}

    def acknowledge(self, positions: Mapping[str, int]) -> None:
        with _kafka_errors(self.source):
            self._consumer.commit(offsets=[_at(name, last + 1) for name, last in positions.items()], asynchronous=True)

    def close(self) -> None:
        self._consumer.close()
        self._asker.close()

    # What the broker knows.

    def _partitions(self) -> dict[str, TopicPartition]:
        partitions = {}
        for topic in self.source.names:
            with _kafka_errors(self.source):
                metadata = self._asker.list_topics(topic, timeout=_SECONDS).topics[topic]
            if metadata.error is not None or not metadata.partitions:
                raise UserError(
                    f"{self.source}: topic {topic}: {metadata.error.str() if metadata.error else 'no partitions'}"
                )
            for number in sorted(metadata.partitions):
                partitions[f"kafka:{topic}/{number}"] = TopicPartition(topic, number)
        return partitions

    def _watermarks(self, partition: TopicPartition) -> tuple[int, int]:
        with _kafka_errors(self.source):
            offsets = self._asker.get_watermark_offsets(partition, timeout=_SECONDS)
        if offsets is None:
            raise UserError(f"{self.source}: no answer about {partition.topic}/{partition.partition}")
        first, end = offsets
        return int(first), int(end)

    def _heard(self, error: KafkaError) -> None:
        if error.code() in _LOST:
            self._error = error


def _at(name: str, offset: int = OFFSET_INVALID) -> TopicPartition:
    topic, _, number = name.removeprefix("kafka:").rpartition("/")
    return TopicPartition(topic, int(number), offset)


@contextmanager
def _kafka_errors(source: BrokerSource) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        reason = error.args[0]
        why = reason.str() if isinstance(reason, KafkaError) else str(reason)
        raise UserError(f"{source}: {why}; are the brokers up, and is there such a topic?") from None
