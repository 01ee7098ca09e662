"""What a request has to pass before it comes to a route: the name it asks for, its token and rate, the size and speed
of its body, and how many others are at work.

A body with a few clicks that are right is answered here, the short way: bytes to raw values, ids, log-odds and bytes,
each once. Whatever is wrong or large is left to the application, which knows what to answer.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from fastapi import FastAPI, HTTPException
from msgspec import Meta, Struct, defstruct, json
from msgspec.structs import astuple
from starlette.types import Message, Receive, Scope, Send

from tracecvr.online.service.front import ALWAYS, HEADERS, LINGER_S, Names, error_response, refuse
from tracecvr.online.service.scorer import FEW
from tracecvr.online.service.scoring import Registration, Scoring, Service

_log = logging.getLogger("tracecvr.service")
_GUARDED = ("/v1/", "/v2/models/", "/metrics")
"""Where a token is needed, if there are any, and bodies are read."""
_LINGER_BODIES = 32
"""How many times the largest body is read and dropped after a body was refused, for `LINGER_S` at most. Who writes all
of it before reading an answer would see a reset connection otherwise, and no answer."""
_SHORT_BYTES = 1 << 15
_OF_JSON = [(b"content-type", b"application/json"), *HEADERS]
FAILED = "the service failed at this request: its log says where"


class Gate(FastAPI):
    """An application behind its gate. `names` are those that it may be asked by; None for any."""

    def __init__(self, service: Scoring, names: Iterable[str] | None) -> None:
        super().__init__(
            title="tracecvr", lifespan=lambda _: service.run(), docs_url=None, redoc_url=None, redirect_slashes=False
        )
        self.service, self.names = service, Names(names)
        self.short_ways, self._at_work = short_ways(service), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        since, answer = self.service.gauges.clock(), _Answer(send)
        try:
            await self._pass(scope, receive, answer)
        except Exception as error:
            if isinstance(error, RuntimeError) and "handler is closed" in str(error):
                return  # of uvloop, if the peer is gone and several of its requests wait
            _log.error("a request failed: %s at %s", type(error).__name__, _where(error))
            if not answer.status:
                await refuse(answer, 500, FAILED)
            elif answer.status != 500:
                raise RuntimeError("a request failed while it was answered: see the line before") from None
        finally:
            route = answer.route or getattr(scope.get("route"), "path", "none")
            self.service.gauges.note(route, answer.status, since)

    async def _pass(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Refuse a request, or answer it. Token and rate are checked before a body is read."""
        path, headers, token, body = scope["path"], dict(scope["headers"]), None, None
        if (wrong := self.names.refuse(path, headers)) is not None:
            await refuse(answer, *wrong)
            return
        if path.startswith(_GUARDED):
            try:
                token = self.service.admit(headers)
            except HTTPException as error:
                await error_response(error)(scope, receive, answer)
                return
        if scope["method"] == "POST" and path.startswith(_GUARDED):
            body = await self._read_body(headers, receive, answer)
            if body is None:
                return
            receive = _replay(body, receive)
        if path in ALWAYS:
            await super().__call__(scope, receive, answer)
            return
        if self._at_work >= self.service.limits.requests:
            retry = [(b"retry-after", b"1")]
            await refuse(answer, 503, "too many requests at work: try again later", headers=retry)
            return
        self._at_work += 1
        try:
            short, content = self.short_ways.get(path), None
            if short and body and token and len(body) <= _SHORT_BYTES and short.token_scope in token.scopes:
                with suppress(Exception):  # whatever is wrong, the application says it
                    content = await short.answer(body)
            if content is not None:
                await answer.send_json(content, path)
            else:
                scope.setdefault("state", {})["token"] = token
                if body is not None:
                    scope["headers"] = _as_json(scope["headers"])
                await super().__call__(scope, receive, answer)
        finally:
            self._at_work -= 1

    async def _read_body(self, headers: dict[bytes, bytes], receive: Receive, answer: _Answer) -> bytes | None:
        """A body, and no more of it than is allowed: nothing of one that declares to be larger, and as for the others,
        neither that nor the sender's speed is believed. None if it was refused. A connection without the first byte of
        one is closed (`connections`)."""
        most, length = self.service.limits.body_bytes, headers.get(b"content-length", b"0")
        try:
            if length.isdigit() and int(length) > most:
                raise _TooLargeError
            parts = [await receive()]  # without a timer, which costs as much as to score a click
            if parts[0].get("more_body", False):
                async with asyncio.timeout(self.service.limits.body_seconds):
                    await _read_on(parts, receive, most)
            return _join(parts, most)
        except TimeoutError:
            await refuse(answer, 408, "the body took too long to send")
        except ConnectionError:
            await refuse(answer, 400, "the sender is gone")  # nobody reads it, but whoever counts answers wants one
        except _TooLargeError:
            why = f"the body is larger than {most} bytes: send smaller batches"
            await refuse(answer, 413, why, lambda: _drop(receive, _LINGER_BODIES * most))
        return None


class _Answer:
    """Sends an answer with the headers of all of them, and remembers its status."""

    def __init__(self, send: Send) -> None:
        self.send, self.status, self.route = send, 0, ""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, given = message["status"], message.get("headers", ())
            own = any(name == b"content-security-policy" for name, _ in given)  # the page has one
            message["headers"] = [*given, *(HEADERS[:-1] if own else HEADERS)]
        await self.send(message)

    async def send_json(self, content: bytes, route: str) -> None:
        """Send a whole answer."""
        self.status, self.route = 200, route
        headers = [*_OF_JSON, (b"content-length", b"%d" % len(content))]
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})
        await self.send({"type": "http.response.body", "body": content})


async def _read_on(parts: list[Message], receive: Receive, most: int) -> None:
    """Read the other messages of a body, the last of which may say that its sender is gone."""
    size = len(parts[0].get("body", b""))
    while parts[-1].get("more_body", False) and size <= most:
        parts.append(await receive())
        size += len(parts[-1].get("body", b""))


def _join(parts: Sequence[Message], most: int) -> bytes:
    if parts[-1]["type"] == "http.disconnect":
        raise ConnectionError
    body: bytes = parts[0]["body"] if len(parts) == 1 else b"".join(part.get("body", b"") for part in parts)
    if len(body) > most:
        raise _TooLargeError
    return body


def _as_json(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Every body is JSON, whatever a client calls it: `curl -d` calls it a form."""
    return [*(one for one in headers if one[0] != b"content-type"), (b"content-type", b"application/json")]


def _replay(body: bytes, receive: Receive) -> Receive:
    given = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replay() -> Message:
        return next(given, None) or await receive()

    return replay


async def _drop(receive: Receive, left: int) -> None:
    """Read what is left of a body, up to a point, and keep nothing."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while left > 0:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
                left -= len(message.get("body", b""))


class _TooLargeError(Exception):
    pass


def _where(error: Exception) -> str:
    """The last places of a traceback, on one line. What the error says may hold values of a request: it is left out."""
    places = traceback.extract_tb(error.__traceback__)[-4:]
    return " > ".join(f"{Path(place.filename).name}:{place.lineno}" for place in places)


# The short way of a few clicks.


class ShortWay(NamedTuple):
    """Of one route: the scope that a token needs, and the answer to a body."""

    token_scope: str
    answer: Callable[[bytes], Awaitable[bytes]]


def short_ways(service: Scoring) -> dict[str, ShortWay]:
    """By path. The types say what the log can keep as it is: texts that are not too long, and numbers of 64 bits."""
    text = Annotated[str, Meta(max_length=service.limits.text)]
    whole = Annotated[int, Meta(ge=1 - (1 << 63), le=(1 << 63) - 1)]
    features = _feature_struct(service.store.reader.features, text | whole | float | bool | None)
    most = min(FEW, service.limits.batch)
    scored = _decoder("features", features, most)

    async def score(body: bytes) -> bytes:
        return await service.score_values([astuple(one) for one in scored.decode(body).features])

    if not isinstance(service, Service):
        return {"/v1/score": ShortWay("score", score)}
    types = {"click_id": whole | text, "ts": whole | float | text, "features": features}
    keys: list[Any] = [*types.items(), ("user", text | None, None)]
    registered = _decoder("clicks", defstruct("Click", keys, forbid_unknown_fields=True), most)

    async def register(body: bytes) -> bytes:
        clicks = registered.decode(body).clicks
        return await service.register_values(
            [Registration(c.click_id, c.ts, astuple(c.features), c.user) for c in clicks]
        )

    return {"/v1/score": ShortWay("score", score), "/v1/clicks": ShortWay("ingest", register)}


def _feature_struct(names: Sequence[str], value: Any) -> type[Struct]:
    """The features of a click: each column once, and no other."""
    keys = [f"column_{number}" for number in range(len(names))]
    renamed = dict(zip(keys, names, strict=True))
    return defstruct("Features", [(key, value) for key in keys], rename=renamed, forbid_unknown_fields=True)


def _decoder(key: str, item: type[Struct], most: int) -> json.Decoder[Any]:
    items = Annotated[list[item], Meta(min_length=1, max_length=most)]  # type: ignore[valid-type]
    return json.Decoder(defstruct("Body", [(key, items)], forbid_unknown_fields=True))
