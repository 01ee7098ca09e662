"""What one sender may ask for: connections, requests at work, the size of a body, how often, and how slowly."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tracecvr.base.config import option

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

ALWAYS = ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready")
"""Routes that are answered however much is going on, and whatever name they are asked by."""
LINGER_S = 5.0
_LINGER_BODIES = 32
"""How long, and how many times the largest body, is read and dropped after a body was refused. Who writes all of it
before reading an answer would see a reset connection otherwise, and no answer."""


@dataclass(frozen=True)
class Limits:
    """All of them have defaults that suit a small machine. Whoever is answered meanwhile waits for a body to be parsed,
    so that what bounds a body bounds his wait, too: some ten milliseconds."""

    rate: float = option(500.0, "requests per second of each token, with bursts of twice that", low=0.1)
    batch: int = option(500, "events or clicks of one request", low=1)
    body_bytes: int = option(1 << 18, "bytes of one request", low=1)
    body_seconds: float = option(10.0, "time to send a body: a slow sender gives way to others", above=0)
    text: int = option(1_000, "characters of an id, a user or a text among features", low=1)
    requests: int = option(256, "requests at work, sent as a whole; beyond, 503 at once", low=1)
    connections: int = option(4096, "open connections; beyond, new ones are closed", low=1)
    head_seconds: float = option(10.0, "time to send the head of a request, from its first byte or the start", above=0)
    idle_seconds: int = option(30, "time that a connection is kept open between requests", low=1)


class RateLimiter:
    """A bucket of requests for each sender, refilled at a steady rate."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.clock = rate, clock
        self._left: dict[str, tuple[float, float]] = {}

    def allowed(self, who: str) -> bool:
        """Whether one more request may pass now."""
        now, most = self.clock(), max(1.0, 2 * self.rate)
        left, since = self._left.get(who, (most, now))
        left = min(most, left + (now - since) * self.rate)
        self._left[who] = (left - 1.0 if left >= 1.0 else left, now)
        return left >= 1.0


class BoundedBodies:
    """Reads a body before anything is done with it, and no more of it than is allowed: nothing of one that declares to
    be larger, and as for the others, neither that nor the sender's speed is believed. Elsewhere nobody reads bodies."""

    def __init__(self, app: App, limits: Limits) -> None:
        self.app, self.limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].startswith(("/v1/", "/v2/")):
            await self.app(scope, receive, send)
            return
        try:
            if _declared(scope) > self.limits.body_bytes:
                raise _TooLargeError
            async with asyncio.timeout(self.limits.body_seconds):
                body = await self._body(receive)
        except TimeoutError:
            await refuse(send, 408, "the body took too long to send")
            return
        except _TooLargeError:
            why = f"the body is larger than {self.limits.body_bytes} bytes: send smaller batches"
            await refuse(send, 413, why, lambda: self._drop(receive))
            return
        if body is None:
            await refuse(send, 400, "the sender is gone")  # nobody reads it, but whoever counts answers wants one
            return
        given = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> Message:
            return next(given, None) or await receive()

        await self.app(scope, replay, send)

    async def _body(self, receive: Receive) -> bytes | None:
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.limits.body_bytes:
                raise _TooLargeError
            if not message.get("more_body", False):
                return b"".join(parts)

    async def _drop(self, receive: Receive) -> None:
        """Read what is left of a body, up to a point, and keep nothing."""
        left = _LINGER_BODIES * self.limits.body_bytes
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while left > 0:
                    message = await receive()
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return
                    left -= len(message.get("body", b""))


class Load:
    """Requests at work: those that came whole and are not answered yet. Entered by each of them."""

    def __init__(self, most: int) -> None:
        self.most, self._count = most, 0

    @property
    def is_full(self) -> bool:
        return self._count >= self.most

    def __enter__(self) -> None:
        self._count += 1

    def __exit__(self, *_: object) -> None:
        self._count -= 1


class AtWork:
    """So many requests at once, and no more. A connection on which nothing is asked is none of them, nor is a body that
    is still being sent."""

    def __init__(self, app: App, load: Load) -> None:
        self.app, self.load = app, load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in ALWAYS:
            await self.app(scope, receive, send)
        elif self.load.is_full:
            await refuse(send, 503, "too many requests at work: try again later", headers=[(b"retry-after", b"1")])
        else:
            with self.load:
                await self.app(scope, receive, send)


async def deliver(send: Send, message: Message) -> None:
    """Send; nothing if the peer is gone. uvloop raises an error then, if several requests of a connection wait."""
    try:
        await send(message)
    except RuntimeError as error:
        if "handler is closed" not in str(error):
            raise


def _declared(scope: Scope) -> int:
    text = dict(scope["headers"]).get(b"content-length", b"0")
    return int(text) if text.isdigit() else 0


class _TooLargeError(Exception):
    pass


async def refuse(
    send: Send,
    status: int,
    why: str,
    before_closing: Callable[[], Awaitable[None]] | None = None,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    """Answer without asking the application, and close the connection. The answer is whole before it is closed."""
    body = json.dumps({"error": why}).encode()
    length = (b"content-length", str(len(body)).encode())
    all_headers = [(b"content-type", b"application/json"), length, (b"connection", b"close"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    if before_closing is not None:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await before_closing()
        body = b""
    await send({"type": "http.response.body", "body": body})
