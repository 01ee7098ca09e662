"""Limits of connections that uvicorn lacks: their number, and the time to send a request and to read its answer."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Collection
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tracecvr.online.service.front import LINGER_S
from tracecvr.online.service.options import Limits

_RESERVE = 256
"""File descriptors that are not for connections: the store, the learner, a broker."""
_STOP_S = 3
"""Seconds that requests at work are given when the service stops."""


class Config(uvicorn.Config):
    def __init__(self, app: Any, limits: Limits, **others: Any) -> None:
        super().__init__(
            app,
            http=Counted,
            log_level="error",  # errors of unknown clients should not fill a disk
            ws="none",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # an address that a header claims is of no use here
            timeout_keep_alive=limits.idle_seconds,
            timeout_graceful_shutdown=_STOP_S,
            **others,
        )
        self.head_seconds, self.body_seconds = limits.head_seconds, limits.body_seconds + LINGER_S
        self.most = min(limits.connections, descriptors(limits.connections))


def descriptors(wanted: int) -> int:
    """How many connections the process may have. The soft limit of file descriptors is raised if it is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _RESERVE
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else max(1, soft - _RESERVE)


class Counted(HttpToolsProtocol):
    config: Config

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.config.most:
            transport.abort()


class Watch:
    """Closes connections whose peer takes too long. It looks now and then: a timer for each request would cost more."""

    def __init__(self, config: Config, connections: Collection[Any]) -> None:
        self._config, self._connections = config, connections
        self._waiting: dict[Any, tuple[tuple[str, object] | None, float]] = {}

    async def look_for_ever(self) -> None:
        seconds = min(self._config.head_seconds, self._config.body_seconds)
        while True:
            await asyncio.sleep(min(0.25, seconds / 8))
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Close what has waited for the same for too long. Bytes give no more time."""
        before, self._waiting = self._waiting, {}
        for one in list(self._connections):
            if (awaited := _find_awaited(one)) is None:
                continue
            known, since = before.get(one, (None, now))
            since = since if known == awaited else now
            self._waiting[one] = awaited, since
            if now - since > (self._config.body_seconds if awaited[0] == "body" else self._config.head_seconds):
                one.transport.abort()


def _find_awaited(one: HttpToolsProtocol) -> tuple[str, object] | None:
    """What the peer of a connection has to do, and of which request; None if it has to do nothing in time."""
    request = one.cycle
    if one.flow.write_paused:
        return "read", request
    if request is not None and request.more_body:
        return "body", request
    if one.timeout_keep_alive_task is None and (request is None or request.response_complete):
        return "head", request
    return None  # idle between requests, which uvicorn limits, or at work
