"""What one sender may ask for: connections, requests at work, the size of a body, how often, and how slowly."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Depends, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from tracecvr.base.config import option

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

ALWAYS = ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready")
"""Routes that are answered however much is going on, and whatever name they are asked by."""
LINGER_S = 5.0
"""How long the rest of a body that was refused is read."""


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


def need(scope: str) -> Any:
    """A dependency of routes: the request needs a token with this scope."""

    def check(request: Request) -> None:
        if scope not in request.state.token.scopes:
            raise HTTPException(403, f"the token lacks the scope {scope!r}")

    return Depends(check)


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


def error_response(error: HTTPException) -> JSONResponse:
    """What an error of a route is answered with."""
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)
