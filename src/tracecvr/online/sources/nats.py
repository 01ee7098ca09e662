"""NATS JetStream: a durable pull consumer that starts at the store's position, made anew at every connection.

A stream is one partition, its sequence is the position. Acknowledgements are for those who watch the broker.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy, StreamInfo
from nats.js.errors import NotFoundError

from tracecvr.base.errors import UserError
from tracecvr.online.log.inbox import Message
from tracecvr.online.sources import BrokerSource

_SECONDS = 10.0
_FORGOTTEN = 7 * 86_400.0
"""Seconds after which the server drops an unused consumer, which only looks."""
_TLS = ("tls_ca", "tls_certificate", "tls_key")
_SETTINGS = ("user", "password", "token", "user_credentials", "nkeys_seed", "tls_hostname", *_TLS)

_T = TypeVar("_T")


class Connection:
    """A stream. The client is asynchronous: its loop runs while we ask, and answers the server's pings then."""

    def __init__(self, source: BrokerSource, client: str) -> None:
        self.source, self.stream = source, source.names[0]
        self.partition = f"{source.sources[0]}/0"
        self._name = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in client)
        self._options = _options(source.settings)
        self._runner = asyncio.Runner()
        self._nc = Client()
        self._last: Msg | None = None
        self._left = self._delivered = 0
        try:
            self._ask(self._connect())
        except BaseException:
            self.close()
            raise

    def identities(self) -> Mapping[str, str]:
        created = self._info().created
        return {self.source.sources[0]: f"made {created.isoformat() if created else 'once'}"}

    def bounds(self) -> Mapping[str, tuple[int, int]]:
        state = self._info().state
        return {self.partition: (max(1, state.first_seq), state.last_seq + 1)}

    def seek(self, following: Mapping[str, int]) -> None:
        info = self._ask(self._consumer(following[self.partition]))
        self._left, self._delivered = info.num_pending or 0, 0

    def pull(self, count: int, seconds: float) -> list[Message]:
        messages = []
        for msg in self._ask(self._fetch(count, seconds)):
            metadata = msg.metadata
            self._delivered += 1
            if metadata.sequence.consumer != self._delivered:
                raise UserError(f"{self.source}: a message did not arrive; reading again from the store's position")
            messages.append(Message(self.partition, metadata.sequence.stream, msg.data))
            self._last, self._left = msg, metadata.num_pending
        return messages

    def lag(self, ask: bool = False) -> Mapping[str, int]:
        return {self.partition: self._left}

    def acknowledge(self, positions: Mapping[str, int]) -> None:
        if self._last is not None:
            self._ask(self._last.ack())  # and with it all before

    def close(self) -> None:
        with suppress(UserError):  # it may be gone already
            self._ask(self._nc.close())
        self._runner.close()

    # Inside the loop.

    async def _connect(self) -> None:
        servers = [f"nats://{host}" for host in self.source.hosts.split(",")]

        async def heard(_: Exception) -> None:
            """Keep an error for the next call."""

        await self._nc.connect(
            servers,
            name=self._name,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            connect_timeout=int(_SECONDS),
            error_cb=heard,
            **self._options,
        )

    @property
    def _js(self) -> JetStreamContext:
        return self._nc.jetstream(timeout=_SECONDS)

    def _info(self) -> StreamInfo:
        info = self._ask(self._js.stream_info(self.stream))
        if info.config.retention != "limits":
            raise UserError(
                f"{self.source}: the stream drops what was acknowledged (retention {info.config.retention}), so that "
                "it cannot be read again; use one with retention limits"
            )
        return info

    async def _consumer(self, first: int) -> ConsumerInfo:
        with suppress(NotFoundError):
            await self._js.delete_consumer(self.stream, self._name)
        config = ConsumerConfig(
            durable_name=self._name,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=first,
            ack_policy=AckPolicy.ALL,
            max_ack_pending=-1,
            inactive_threshold=_FORGOTTEN,
        )
        info = await self._js.add_consumer(self.stream, config)
        self._pulling = await self._js.pull_subscribe_bind(self._name, self.stream)
        return info

    async def _fetch(self, count: int, seconds: float) -> list[Msg]:
        messages: list[Msg] = []
        with suppress(TimeoutError):
            messages = await self._pulling.fetch(count, timeout=seconds)
        if not messages:  # it looks the same if somebody has deleted the consumer: ask
            self._left = (await self._pulling.consumer_info()).num_pending or 0
        return messages

    def _ask(self, question: Coroutine[Any, Any, _T]) -> _T:
        try:
            return self._runner.run(question)
        except (Error, OSError, TimeoutError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"{self.source}: {reason}; is the server up, and is there such a stream?") from error


def _options(settings: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := sorted(set(settings) - set(_SETTINGS)):
        raise UserError(f"--source-config: unknown {unknown[0]!r}; known for nats: {', '.join(_SETTINGS)}")
    options = {name: value for name, value in settings.items() if name not in _TLS}
    if any(name in settings for name in _TLS):
        try:
            context = ssl.create_default_context(cafile=settings.get("tls_ca"))
            if "tls_certificate" in settings:
                context.load_cert_chain(settings["tls_certificate"], settings.get("tls_key"))
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"--source-config: a file for TLS cannot be used ({error})") from None
        options["tls"] = context
    return options
