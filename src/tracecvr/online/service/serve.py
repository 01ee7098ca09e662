"""`tracecvr serve`: the service and, beside it, the learner, which is started again if it ends.

A second one on the same store does no harm: both score and accept, and the second's learner, refused as long as the
first's holds the store, takes over when that is gone.
"""

from __future__ import annotations

import gc
import ipaddress
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import uvicorn

from tracecvr.errors import UserError
from tracecvr.online.service.app import application
from tracecvr.online.service.auth import Tokens
from tracecvr.online.service.learning import Learning
from tracecvr.online.service.limits import Limits
from tracecvr.online.sources import Source
from tracecvr.online.sources.pump import Pumping
from tracecvr.online.store import Store


@dataclass(frozen=True)
class Address:
    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    key: Path | None = None


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
        config = uvicorn.Config(
            application(store, known, limits, learning.state),
            log_level="warning",
            limit_concurrency=limits.connections,
            timeout_keep_alive=30,
            ssl_certfile=address.certificate,
            ssl_keyfile=address.key,
            server_header=False,
        )
        _Server(config, lambda: heard(_url(address, listening.getsockname()[1]))).run([listening])


class _Server(uvicorn.Server):
    """Tells when it has begun to listen."""

    def __init__(self, config: uvicorn.Config, listens: Callable[[], None]) -> None:
        super().__init__(config)
        self._listens = listens

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        _settle()
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


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
