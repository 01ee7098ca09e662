"""How senders are kept within their limits: how often they may ask, for what, and how a refusal is answered."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from fastapi import Depends, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

ALWAYS = ("/healthz", "/readyz")
"""Routes that are answered however much is going on, and whatever name they are asked by."""
LINGER_S = 5.0


class RateLimiter:
    """A bucket of requests for each sender, refilled at a steady rate."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.clock = rate, clock
        self._left: dict[str, tuple[float, float]] = {}

    def allow(self, who: str) -> bool:
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
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)
