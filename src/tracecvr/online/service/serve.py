"""`tracecvr serve`: the service and, beside it, the learner, which is started again if it ends.

A second one on the same store does no harm: its learner waits, and takes over when the first one is gone.

Of connections, what uvicorn does not limit is limited here: their number, and the time to send a request and to read
its answer.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import resource
import socket
import sys
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from threadpoolctl import threadpool_limits
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tracecvr.base.errors import UserError
from tracecvr.online.service.app import application
from tracecvr.online.service.auth import Tokens
from tracecvr.online.service.front import LINGER_S
from tracecvr.online.service.options import Limits, Options
from tracecvr.online.service.processes import LearnerState, SupervisedProcess
from tracecvr.online.service.replica import open_published, replica
from tracecvr.online.store.store import Store

_NICE = 15
"""How nice the learner is: 99 % of scores take at most 1.5 times as long as without it; with 5 it was 12 times."""
_RESERVE = 256
"""File descriptors that are not for connections: the store, the learner, a broker."""
_STOP_S = 3
"""Seconds that requests at work are given when the service stops."""


def serve(
    store: Store,
    options: Options,
    learn: Callable[[Path], None] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Answer until stopped: the writer of a store, with `learn` and processes that score beside it."""
    tokens = _read_tokens(options)
    with ExitStack() as beside:
        listener = beside.enter_context(_bind(options))
        if options.workers:
            next_port = options.port and (options.port + 1) % (1 << 16)  # 0 is any that is free
            port = next_port if options.scoring_port is None else options.scoring_port
            scoring = replace(options, port=port, replica=str(store.folder), workers=0)
            held = beside.enter_context(_bind(scoring))  # not listened at: a port that is taken is an error here
            scoring = replace(scoring, port=held.getsockname()[1])
            for number in range(options.workers):
                beside.enter_context(SupervisedProcess(f"worker {number}", serve_replica, store.folder, scoring))
            say(f"scoring: {scoring.url}, {options.workers} processes")
        learner: Callable[[], LearnerState] = LearnerState
        if learn is not None:
            learner = beside.enter_context(SupervisedProcess("the learner", learn, store.folder, nice=_NICE)).state
        app = application(store, tokens, options, learner, _list_names(options, tokens))
        _answer(app, options, listener, lambda url: say(f"listening: {url}\ndashboard: {url}/"))


def serve_replica(folder: Path | None, options: Options, say: Callable[[str], None] = lambda _: None) -> None:
    """Score from published versions until stopped; `folder` keeps the copy. It neither learns nor accepts events."""
    if options.workers:
        raise UserError("--workers is for the writer: leave it out beside --replica")
    assert options.replica is not None
    tokens = _read_tokens(options)
    with ExitStack() as room:
        folder = folder or Path(room.enter_context(TemporaryDirectory(prefix="tracecvr_replica_")))
        store, mirror = open_published(options.replica, folder, options.replica_token, say)
        listener = room.enter_context(_bind(options))
        app = replica(store, tokens, options, mirror, _list_names(options, tokens))
        _answer(app, options, listener, lambda url: say(f"listening: {url}"))


def _list_names(options: Options, tokens: Tokens) -> tuple[str, ...]:
    """All names by which it is asked, beside localhost, where names are checked."""
    return (options.host, *options.host_names) if options.host_names or not tokens.required else ()


def _read_tokens(options: Options) -> Tokens:
    """The tokens; an error if the service would be open to other machines without any."""
    tokens = Tokens() if options.tokens is None else Tokens.read(options.tokens)
    if not tokens.required and not _is_loopback(options.host):
        raise UserError(f"--host {options.host} can be reached by others: give --tokens FILE, or stay on 127.0.0.1")
    if (options.certificate is None) != (options.key is None):
        raise UserError("TLS needs both --certificate and --key")
    return tokens


def _answer(app: FastAPI, options: Options, listener: socket.socket, listens: Callable[[str], None]) -> None:
    """Answer until stopped. Once it listens, `listens` is told where."""
    threadpool_limits(1)
    torch.set_num_threads(1)  # one click is nothing to share, and the learner wants the other cores
    sys.setswitchinterval(0.001)  # a thread that reads a large batch gives way after 1 ms, not after 5
    config = Config(app, options, ssl_certfile=options.certificate, ssl_keyfile=options.key)

    def begin() -> None:
        _settle()
        listens(replace(options, port=listener.getsockname()[1]).url)

    Server(config, begin).run([listener])


class Server(uvicorn.Server):
    config: Config

    def __init__(self, config: Config, listens: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self._listens = listens

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._watch = asyncio.create_task(Watch(self.config, self.server_state.connections).look_for_ever())
            # Failed requests are in our log. Connections that peers break are not logged.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            self._listens()


def _settle() -> None:
    """Let the collector of garbage leave out what is in memory: parsing a large body took several times as long."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _bind(options: Options) -> socket.socket:
    """Bind the address before anything else is started. Replicas of one user may share theirs."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    # The protocol is named, or asyncio leaves Nagle's delay on.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # Not to wait for connections of one killed before.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(options.replica is not None))
        listener.bind((options.host, options.port))
    except OSError as error:
        listener.close()
        where = f"--host {options.host} --port {options.port}"
        raise UserError(f"{where} cannot be listened at ({error.strerror}): choose others") from None
    return listener


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# Limits of connections.


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
