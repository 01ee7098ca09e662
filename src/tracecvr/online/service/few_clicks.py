"""The short way of a request with a few clicks: bytes to raw values, ids, log-odds and bytes, each once.

It is for requests that are right. Whatever is wrong, large, slow or refused goes the long way, through the application,
with what was read of it so far: that way knows what to answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from types import coroutine
from typing import Annotated, Any, NamedTuple, cast

from msgspec import Meta, Struct, defstruct, json
from msgspec.structs import astuple

from tracecvr.base.errors import UserError
from tracecvr.online.service.auth import Token
from tracecvr.online.service.front import HEADERS, Names
from tracecvr.online.service.limits import App, Message, Receive, Scope, Send, deliver
from tracecvr.online.service.scoring import FEW, Registration, Scoring, Service

Value = str | int | float | bool | None
_LARGE = 1 << 63


class Route(NamedTuple):
    """A route with a short way."""

    token_scope: str
    decoder: json.Decoder[Any]
    answer: Callable[[Any], Awaitable[bytes]]


class FewClicks:
    """The outermost layer of an application. `names` are those that it may be asked by; None for any."""

    def __init__(self, app: App, service: Scoring, names: Iterable[str] | None) -> None:
        self.app, self.service, self.names = app, service, Names(names)
        features, most = _feature_struct(service.store.reader.features), min(FEW, service.limits.batch)
        self.routes = {"/v1/score": Route("score", _decoder("features", features, most), self._score)}
        if isinstance(service, Service):
            types = {"click_id": int | str, "ts": int | float | str, "features": features}
            keys: list[Any] = [*types.items(), ("user", str | None, None)]
            click = defstruct("Click", keys, forbid_unknown_fields=True)
            self.routes["/v1/clicks"] = Route("ingest", _decoder("clicks", click, most), self._register)
            self._commit = service.register_values
        gauges = service.gauges
        self._noted = {p: (gauges.requests.labels(p, "200").inc, gauges.seconds.labels(p).observe) for p in self.routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self.routes.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if route is None or (token := self._token(scope, route)) is None:
            await self.app(scope, receive, send)
            return
        since = time.perf_counter()
        scope.setdefault("state", {})["token"] = token
        try:
            message = await _read_first(receive, self.service.limits.body_seconds)
        except TimeoutError:
            await self.app(scope, _late, send)
            return
        if (content := await self._answer(route, message)) is None:
            await self.app(scope, _replay(message, receive), send)
            return
        length = (b"content-length", b"%d" % len(content))
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
            with self.service.load:
                return await route.answer(route.decoder.decode(message["body"]))
        except Exception:  # whatever it is, the long way comes to it again, and says so
            return None

    async def _score(self, body: Any) -> bytes:
        return await self.service.score_values([self._plain(astuple(features)) for features in body.features])

    async def _register(self, body: Any) -> bytes:
        clicks = []
        for click in body.clicks:
            click_id, ts, user = self._plain((click.click_id, click.ts, click.user))
            clicks.append(Registration(click_id, ts, self._plain(astuple(click.features)), user))
        return await self._commit(clicks)

    def _plain(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The same values, if the log can keep them as they are."""
        most = self.service.limits.text
        for value in values:
            if (type(value) is str and len(value) > most) or (type(value) is int and abs(value) >= _LARGE):
                raise UserError("a value is too large")
        return values


def _feature_struct(names: Sequence[str]) -> type[Struct]:
    """The features of a click: each column once, and no other."""
    keys = [f"column_{number}" for number in range(len(names))]
    renamed = dict(zip(keys, names, strict=True))
    return defstruct("Features", [(key, Value) for key in keys], rename=renamed, forbid_unknown_fields=True)


def _decoder(key: str, item: type[Struct], most: int) -> json.Decoder[Any]:
    """Of a body with one key, that has a few items."""
    items = Annotated[list[item], Meta(min_length=1, max_length=most)]  # type: ignore[valid-type]
    return json.Decoder(defstruct("Body", [(key, items)], forbid_unknown_fields=True))


_HEADERS = [(b"content-type", b"application/json"), *HEADERS]


async def _read_first(receive: Receive, seconds: float) -> Message:
    """The first message of a request. A timer costs as much as to score a click: what is there needs none."""
    reading = cast(Coroutine[Any, Any, Message], receive())
    try:
        waits_for = reading.send(None)
    except StopIteration as done:
        message: Message = done.value
        return message
    async with asyncio.timeout(seconds):
        return await _resume(reading, waits_for)


@coroutine
def _resume(reading: Coroutine[Any, Any, Message], waits_for: Any) -> Generator[Any, Any, Message]:
    """Go on with a coroutine that has begun to wait."""
    try:
        yield waits_for
        return (yield from reading)  # type: ignore[no-any-return]
    finally:
        reading.close()


async def _late() -> Message:
    raise TimeoutError


def _replay(first: Message, receive: Receive) -> Receive:
    given = iter([first])

    async def replay() -> Message:
        return next(given, None) or await receive()

    return replay
