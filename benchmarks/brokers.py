"""Real brokers on this machine, to measure and to test with: a NATS server as a process, and the broker that Kafka's
client has built in. They need the extra `brokers`."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import confluent_kafka
import nats
from nats.js import JetStreamContext

_QUIET = logging.getLogger("tests.kafka")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False


class Running(Protocol):
    """A broker that runs, with one stream or topic of events in it."""

    url: str

    def publish(self, payloads: Sequence[bytes], keys: Sequence[int] | None = None) -> None:
        """When this returns, the broker has them. Those of one key keep their order."""

    def heard(self, target: str) -> list[dict[str, Any]]:
        """What was announced there."""

    def acknowledged(self, client: str) -> int:
        """How many messages the broker takes to be dealt with by a client."""

    def close(self) -> None: ...


@dataclass
class Nats:
    """A server of its own, with its files in `room`."""

    room: Path
    port: int
    config: str = ""
    url: str = field(init=False)
    _process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.url = f"nats://127.0.0.1:{self.port}/EVENTS"
        self.start()
        if not self.config:
            self.ask(lambda js: js.add_stream(name="EVENTS", subjects=["events"]))
            self.ask(lambda js: js.add_stream(name="VERSIONS", subjects=["versions"]))

    def start(self) -> None:
        config = self.room / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\njetstream {{ store_dir: "{self.room}", sync_interval: always }}\n'
            f"{self.config}"
        )
        words = [str(Path(sys.executable).with_name("nats-server")), "--config", str(config)]
        self._process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with suppress(OSError):
                asyncio.run(_reached(self.port))
                return
            time.sleep(0.05)
        raise AssertionError("the server does not start")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def publish(self, payloads: Sequence[bytes], keys: Sequence[int] | None = None) -> None:
        async def all_of_them(js: JetStreamContext) -> None:
            for first in range(0, len(payloads), 200):
                await asyncio.gather(*[js.publish("events", p) for p in payloads[first : first + 200]])

        self.ask(all_of_them)

    def heard(self, target: str) -> list[dict[str, Any]]:
        async def read(js: JetStreamContext) -> list[dict[str, Any]]:
            info = await js.stream_info("VERSIONS")
            numbers = range(1, info.state.last_seq + 1)
            return [json.loads((await js.get_msg("VERSIONS", n)).data or b"") for n in numbers]

        messages: list[dict[str, Any]] = self.ask(read)
        return messages

    def acknowledged(self, client: str) -> int:
        async def read(js: JetStreamContext) -> int:
            info = await js.consumer_info("EVENTS", client)
            return int(info.ack_floor.stream_seq)

        return int(self.ask(read))

    def ask(self, question: Any) -> Any:
        async def answer() -> Any:
            client = await nats.connect(f"nats://127.0.0.1:{self.port}")
            try:
                return await question(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(answer())

    def close(self) -> None:
        self.kill()


async def _reached(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()


@dataclass
class Kafka:
    """The broker lives in this process; others reach it by its port. It makes topics when somebody writes to them."""

    topic: str = "events"
    url: str = field(init=False)

    def __post_init__(self) -> None:
        settings = {"test.mock.num.brokers": 1, "bootstrap.servers": "", "linger.ms": 1}
        self.producer = confluent_kafka.Producer(settings, logger=_QUIET)
        (broker,) = self.producer.list_topics(timeout=10).brokers.values()
        self.address = f"{broker.host}:{broker.port}"
        self.url = f"kafka://{self.address}/{self.topic}"
        self.producer.list_topics(self.topic, timeout=10)

    def publish(self, payloads: Sequence[bytes], keys: Sequence[int] | None = None) -> None:
        for number, payload in enumerate(payloads):
            self.producer.produce(self.topic, payload, partition=(keys[number] if keys else 0) % 4)
            self.producer.poll(0)
        assert self.producer.flush(30) == 0

    def heard(self, target: str) -> list[dict[str, Any]]:
        consumer = self._consumer("listener")
        partitions = consumer.list_topics(target, timeout=10).topics[target].partitions
        consumer.assign([confluent_kafka.TopicPartition(target, number, 0) for number in partitions])
        contents = []
        while (message := consumer.poll(2.0)) is not None:
            assert message.error() is None
            contents.append(json.loads(message.value()))
        consumer.close()
        return contents

    def acknowledged(self, client: str) -> int:
        consumer = self._consumer(client)
        partitions = [confluent_kafka.TopicPartition(self.topic, number) for number in range(4)]
        count = sum(max(0, int(p.offset)) for p in consumer.committed(partitions, timeout=10))
        consumer.close()
        return count

    def _consumer(self, group: str) -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer({"bootstrap.servers": self.address, "group.id": group}, logger=_QUIET)

    def close(self) -> None:
        del self.producer
