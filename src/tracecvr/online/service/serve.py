"""`tracecvr serve`: the service and, beside it, the learner, which is started again if it ends.

A second one on the same store does no harm: both score and accept, and the second's learner, refused as long as the
first's holds the store, takes over when that is gone.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

import torch
import uvicorn

from tracecvr.errors import UserError
from tracecvr.online.service.app import application
from tracecvr.online.service.auth import Tokens
from tracecvr.online.service.connections import Config
from tracecvr.online.service.limits import Limits
from tracecvr.online.sources import Source
from tracecvr.online.sources.pump import Pumping
from tracecvr.online.store import Store

_QUEUE = 2048
"""Connections that wait to be accepted. asyncio accepts as many in one turn unless it is told so afterwards."""
_PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before the learner is started again, the longer the oftener it has ended at once."""


@dataclass(frozen=True)
class Address:
    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    key: Path | None = None
    names: tuple[str, ...] = ()
    """By which it is asked, beside localhost and the host."""


def serve(
    store: Store,
    tokens: Path | None,
    address: Address,
    limits: Limits,
    learn: bool,
    source: Source | None = None,
    heard: Callable[[str], None] = lambda _: None,
) -> None:
    """Answer until stopped. Once it listens, `heard` is told where."""
    known = Tokens() if tokens is None else Tokens.read(tokens)
    if not known.required and not _is_loopback(address.host):
        raise UserError(f"--host {address.host} can be reached by others: give --tokens FILE, or stay on 127.0.0.1")
    if (address.certificate is None) != (address.key is None):
        raise UserError("TLS needs both --certificate and --key")
    torch.set_num_threads(1)  # one click is nothing to share, and the learner wants the other cores
    sys.setswitchinterval(0.001)  # who reads a large batch lets the others go on after a millisecond, not after five
    pumping = Pumping(store, source)
    with _bound(address) as listening, Learning(store.folder, learn) as learning, pumping:
        names = (address.host, *address.names) if address.names or not known.required else ()
        config = Config(
            application(store, known, limits, learning.runs, names),
            limits,
            ssl_certfile=address.certificate,
            ssl_keyfile=address.key,
        )

        def listens() -> None:
            _settle()
            heard(_url(address, listening.getsockname()[1]))

        Server(config, listens).run([listening])


class Server(uvicorn.Server):
    """Tells when it has begun to listen."""

    config: Config

    def __init__(self, config: Config, listens: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self._listens = listens

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        if self.config.is_ssl:  # who does not finish a handshake is not counted as a connection yet
            loop.create_server = partial(loop.create_server, ssl_handshake_timeout=self.config.head_seconds)  # type: ignore[method-assign]
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(_QUEUE)
        if self.started:
            self._listens()


def _settle() -> None:
    """What is in memory by now stays. The collector of garbage would look through all of it, torch's modules too, again
    and again while a large body is parsed: that took several times as long as the parsing."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _url(address: Address, port: int) -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{'http' if address.certificate is None else 'https'}://{host}:{port}"


def _bound(address: Address) -> socket.socket:
    """Hold the address before anything is started: who cannot have it should be told, not find a learner at work."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, or asyncio leaves Nagle's delay on
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not to wait for connections of one killed before
        found.bind((address.host, address.port))
    except OSError as error:
        found.close()
        where = f"--host {address.host} --port {address.port}"
        raise UserError(f"{where} cannot be listened at ({error.strerror}): choose others") from None
    return found


class Learning:
    """The learner as a process of its own, of lower priority, watched by a thread."""

    def __init__(self, folder: Path, wanted: bool) -> None:
        self.folder, self.wanted = folder, wanted
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Learning:
        if self.wanted:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self._ended.set()
        if self.wanted:
            self._thread.join()

    def runs(self) -> bool | None:
        """Whether it does; None if it was not wanted."""
        return None if not self.wanted else self._process is not None and self._process.poll() is None

    def _watch(self) -> None:
        failures = 0
        while not self._ended.is_set():
            since = time.monotonic()
            words = [sys.executable, "-m", "tracecvr.cli", "learn", str(self.folder), "--with-parent"]
            self._process = subprocess.Popen(words, stdin=subprocess.PIPE, preexec_fn=lambda: os.nice(5))
            while self._process.poll() is None and not self._ended.wait(0.2):
                pass
            if self._ended.is_set():
                self._process.kill()
                self._process.wait()
                return
            failures = 0 if time.monotonic() - since > 60 else failures + 1
            self._ended.wait(_PAUSES[min(failures, len(_PAUSES)) - 1])


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
