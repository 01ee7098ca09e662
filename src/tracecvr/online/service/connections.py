"""Connections that cost next to nothing while their peer does nothing: timeouts, and a bound on how many are open.

A connection *waits* until all of a request has come, and again once it is answered. Only waiting connections are
closed to make room for others: whatever is at work is answered.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
from collections import Counter
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tracecvr.online.service.limits import Limits

_RESERVE = 256
"""File descriptors that are not for connections: the store, the learner, a broker."""
_ACCEPTED = 64
"""Connections accepted in one turn of the event loop: those that are being answered wait for as many, not for all."""


class Config(uvicorn.Config):
    """Limits of connections."""

    def __init__(self, app: Any, limits: Limits, **others: Any) -> None:
        super().__init__(
            app,
            http=Guarded,
            log_level="error",  # what strangers send amiss is no news, and should not fill a disk
            ws="none",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # an address that a header claims is of no use here
            timeout_keep_alive=limits.idle_seconds,
            backlog=_ACCEPTED,
            **others,
        )
        self.head_seconds = limits.head_seconds
        self.open = Connections(min(limits.connections, descriptors(limits.connections)), limits.peer_connections)


def descriptors(wanted: int) -> int:
    """How many connections the process may have. The soft limit of file descriptors is raised if it is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _RESERVE
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else max(1, soft - _RESERVE)


class Connections:
    """Those that are open. Beyond the most of all, or of one address, the one that has waited longest is closed."""

    def __init__(self, most: int, most_of_peer: int) -> None:
        self.most, self.most_of_peer = most, most_of_peer
        self._count: Counter[str] = Counter()
        self._waiting: dict[Guarded, None] = {}  # in the order in which they began to wait
        self._of_peer: dict[str, dict[Guarded, None]] = {}

    def opened(self, new: Guarded) -> None:
        """Count a connection, and make room for it."""
        self._count[new.peer] += 1
        self.waits(new)
        if self._count[new.peer] > self.most_of_peer:
            next(iter(self._of_peer[new.peer])).drop()  # the new one itself if no other waits
        elif self._count.total() > self.most:
            next(iter(self._waiting)).drop()

    def closed(self, old: Guarded) -> None:
        self.works(old)
        self._count[old.peer] -= 1
        if not self._count[old.peer]:
            del self._count[old.peer]

    def waits(self, connection: Guarded) -> None:
        """It begins to wait for its peer, if it has not before."""
        self._waiting.setdefault(connection)
        self._of_peer.setdefault(connection.peer, {}).setdefault(connection)

    def works(self, connection: Guarded) -> None:
        """It does not wait any more."""
        self._waiting.pop(connection, None)
        of_peer = self._of_peer.get(connection.peer, {})
        of_peer.pop(connection, None)
        if not of_peer:
            self._of_peer.pop(connection.peer, None)


class Guarded(H11Protocol):
    """A connection whose peer must send the head of a request in time, and read what it is answered."""

    config: Config
    peer = ""
    _asked: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.peer = _network(self.client[0] if self.client else "")
        self._unsent, self._unread = (_Alarm(self.loop, self.config.head_seconds, self.drop) for _ in range(2))
        self._unsent.start()
        self.config.open.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._unsent.stop()
        self._unread.stop()
        self.config.open.closed(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def _look(self) -> None:
        """Who has been answered, or has not asked yet, is given some seconds from the first byte on to do so. Bytes do
        not give more of them. The time to send a body is bounded elsewhere."""
        answered = self.cycle is None or self.cycle.response_complete
        if not answered:
            self._unsent.stop()
        elif self.timeout_keep_alive_task is None:
            self._unsent.start()
        if self.transport.is_closing():
            return  # counted until it is closed; there is nothing to gain from closing it once more
        if self.cycle is not self._asked:  # of those that wait, one that has begun to ask is the newest
            self._asked = self.cycle
            self.config.open.works(self)
        if answered or self.cycle.more_body:
            self.config.open.waits(self)
        else:
            self.config.open.works(self)

    def pause_writing(self) -> None:
        """The peer does not read: its answers fill the buffer."""
        super().pause_writing()
        self._unread.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread.stop()

    def shutdown(self) -> None:
        """A body that is still being sent is not waited for: nobody was told that it was accepted."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.more_body:
            super().shutdown()
        else:
            self.drop()

    def timeout_keep_alive_handler(self) -> None:
        self.drop()

    def drop(self) -> None:
        """Close it, whatever is left to be sent: a peer that does not read would keep it open."""
        self.config.open.works(self)
        self.transport.abort()

    def _should_upgrade(self) -> bool:
        return False  # to nothing, and nobody makes us write log lines about it


class _Alarm:
    """Rings once, some seconds after it was started first, unless it is stopped before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, rings: Callable[[], None]) -> None:
        self._loop, self._seconds, self._rings = loop, seconds, rings
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._rings)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _network(host: str) -> str:
    """Of an IPv6 address its network: one peer has all of the addresses in it."""
    return str(ipaddress.ip_network((host.partition("%")[0], 64), strict=False)) if ":" in host else host
