"""The short way of a request with a few clicks: bytes to features, ids, log-odds and bytes, each once.

It is for requests that are right. Whatever is wrong, large, slow or refused goes the long way, through the application,
with what was read of it so far: that way knows what to answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic_core import from_json

from tracecvr.online.service import bodies
from tracecvr.online.service.auth import Token
from tracecvr.online.service.front import HEADERS, Names
from tracecvr.online.service.limits import App, Message, Receive, Scope, Send, deliver
from tracecvr.online.service.scoring import FEW, Scoring, Service


class Route(NamedTuple):
    """A route with a short way."""

    token_scope: str
    body: type[BaseModel]
    items: str
    """The key of a body that has the clicks."""
    answer: Callable[[Any], Awaitable[bytes]]


class FewClicks:
    """The outermost layer of an application. `names` are those that it may be asked by; None for any."""

    def __init__(self, app: App, service: Scoring, names: Iterable[str] | None) -> None:
        self.app, self.service, self.names = app, service, Names(names)
        self.routes = {"/v1/score": Route("score", bodies.Features, "features", service.score)}
        if isinstance(service, Service):
            self.routes["/v1/clicks"] = Route("ingest", bodies.Clicks, "clicks", service.register)
        self._few, gauges = min(FEW, service.limits.batch), service.gauges
        self._noted = {p: (gauges.requests.labels(p, "200").inc, gauges.seconds.labels(p).observe) for p in self.routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self.routes.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if route is None or (token := self._token(scope, route)) is None:
            await self.app(scope, receive, send)
            return
        since = time.perf_counter()
        scope.setdefault("state", {})["token"] = token
        try:
            async with asyncio.timeout(self.service.limits.body_seconds):
                message = await receive()
        except TimeoutError:
            await self.app(scope, _late, send)
            return
        content = await self._answer(route, message)
        if content is None:
            await self.app(scope, _replay(message, receive), send)
            return
        length = (b"content-length", str(len(content)).encode())
        await deliver(send, {"type": "http.response.start", "status": 200, "headers": [length, *_HEADERS]})
        await deliver(send, {"type": "http.response.body", "body": content})
        count, observe = self._noted[scope["path"]]
        count()
        observe(time.perf_counter() - since)

    def _token(self, scope: Scope, route: Route) -> Token | None:
        """The client, if it may ask this now and has declared a body that may be read."""
        headers, limits = dict(scope["headers"]), self.service.limits
        length = headers.get(b"content-length", b"")
        readable = length.isdigit() and len(length) < 10 and int(length) <= limits.body_bytes
        if not readable or self.service.load.is_full or self.names.refuse(scope["path"], headers) is not None:
            return None
        token = self.service.known(headers)
        return token if token and route.token_scope in token.scopes and self.service.pace.allowed(token.name) else None

    async def _answer(self, route: Route, message: Message) -> bytes | None:
        """The answer to a request that came whole and is right."""
        if message["type"] != "http.request" or message.get("more_body", False):
            return None
        try:
            content = from_json(message["body"])
            if len(content[route.items]) > self._few:
                return None
            with self.service.load:
                return await route.answer(route.body.model_validate(content))
        except Exception:  # whatever it is, the long way comes to it again, and says so
            return None


_HEADERS = [(b"content-type", b"application/json"), *HEADERS]


async def _late() -> Message:
    raise TimeoutError


def _replay(first: Message, receive: Receive) -> Receive:
    given = iter([first])

    async def replay() -> Message:
        return next(given, None) or await receive()

    return replay
