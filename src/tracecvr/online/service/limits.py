"""What one sender may ask for: the size of a body, the pace of requests, and how long it may take to send one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from tracecvr.config import option

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True)
class Limits:
    """All of them have defaults that suit a small machine."""

    rate: float = option(500.0, "requests per second of each token, with bursts of twice that", low=0.1)
    batch: int = option(2_000, "events or clicks of one request", low=1)
    body_bytes: int = option(1 << 20, "bytes of one request", low=1)
    body_seconds: float = option(10.0, "time to send a body: a slow sender gives way to others", above=0)
    text: int = option(1_000, "characters of an id, a user or a text among features", low=1)
    connections: int = option(256, "requests at work or waiting; beyond, 503 at once", low=1)


class Pace:
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
    """Reads a body before anything else happens, and no more of it than is allowed: neither its declared length nor the
    sender's speed is believed."""

    def __init__(self, app: App, limits: Limits) -> None:
        self.app, self.limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in ("POST", "PUT", "PATCH"):
            await self.app(scope, receive, send)
            return
        try:
            body = await asyncio.wait_for(self._body(receive), self.limits.body_seconds)
        except TimeoutError:
            await _refuse(send, 408, "the body took too long to send")
            return
        except _TooLargeError:
            await _refuse(send, 413, f"the body is larger than {self.limits.body_bytes} bytes: send smaller batches")
            return
        if body is None:
            await _refuse(send, 400, "the sender is gone")  # nobody reads it, but whoever counts answers wants one
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


class _TooLargeError(Exception):
    pass


async def _refuse(send: Send, status: int, why: str) -> None:
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"error": "' + why.encode() + b'"}'})
