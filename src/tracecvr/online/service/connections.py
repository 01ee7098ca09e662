"""Connections whose peer does nothing are closed in time.

uvicorn closes those on which nothing is asked, and waits only so long when it stops. Here is the rest: the time to send
a request and to read its answer, and how many connections there may be. It is in the callbacks of asyncio and of the
HTTP parser. A proxy does more: limits for each address, and for TLS handshakes (`deploy/nginx.conf`).
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tracecvr.online.service.limits import LINGER_S, Limits

_RESERVE = 256
"""File descriptors that are not for connections: the store, the learner, a broker."""
_STOP_S = 3
"""Seconds that requests at work are given when the service stops. Of a body that is still being sent, nobody was told
that it was accepted."""


class Config(uvicorn.Config):
    """Limits of connections."""

    def __init__(self, app: Any, limits: Limits, **others: Any) -> None:
        super().__init__(
            app,
            http=Timed,
            log_level="error",  # what strangers send amiss is no news, and should not fill a disk
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


class Timed(HttpToolsProtocol):
    """A connection whose peer must send a request in time, and read what it is answered. Bytes give no more time."""

    config: Config
    _unsent: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _sends_body = _has_asked = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.config.most:
            transport.abort()
        else:
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unsent, self._unread = _stop(self._unsent), _stop(self._unread)

    def data_received(self, data: bytes) -> None:
        self._has_asked = False
        super().data_received(data)
        if self._has_asked and not self._sends_body:
            self._unsent = _stop(self._unsent)
        elif self._unsent is None:
            self._await_request()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._sends_body, self._unsent = True, _stop(self._unsent)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._sends_body, self._has_asked = False, True

    def pause_writing(self) -> None:
        """The peer does not read: its answers fill the buffer."""
        super().pause_writing()
        self._unread = self._unread or self.loop.call_later(self.config.head_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread = _stop(self._unread)

    def _await_request(self) -> None:
        seconds = self.config.body_seconds if self._sends_body else self.config.head_seconds
        self._unsent = self.loop.call_later(seconds, self.transport.abort)


def _stop(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Nothing, where a timer was."""
    if timer is not None:
        timer.cancel()
    return None
