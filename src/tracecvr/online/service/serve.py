"""`tracecvr serve`: the service and, beside it, the learner, which is started again if it ends.

A second one on the same store does no harm: both score and accept, and the second's learner, refused as long as the
first's holds the store, takes over when that is gone.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import uvicorn
from fastapi import FastAPI
from threadpoolctl import threadpool_limits

from tracecvr.base.errors import UserError
from tracecvr.online.service.app import application
from tracecvr.online.service.auth import Tokens
from tracecvr.online.service.connections import Config, Watch
from tracecvr.online.service.learner_process import LearnerProcess
from tracecvr.online.service.limits import Limits
from tracecvr.online.service.replica import Mirror, replica
from tracecvr.online.service.workers import Workers
from tracecvr.online.sources import BrokerSource
from tracecvr.online.sources.pump import Pumping
from tracecvr.online.store.store import Store


@dataclass(frozen=True)
class Address:
    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    key: Path | None = None
    names: tuple[str, ...] = ()
    """By which it is asked, beside localhost and the host."""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.certificate is None else 'https'}://{host}:{self.port}"

    def asked_by(self, tokens: Tokens) -> tuple[str, ...]:
        """All such names, where names are checked."""
        return (self.host, *self.names) if self.names or not tokens.required else ()


def serve(
    store: Store,
    tokens: Path | None,
    address: Address,
    limits: Limits,
    learn: bool,
    source: BrokerSource | None = None,
    heard: Callable[[str], None] = lambda _: None,
) -> None:
    """Answer until stopped. Once it listens, `heard` is told where."""
    known = _allow(tokens, address)
    pumping = Pumping(store, source)
    with _bound(address) as listening, LearnerProcess(store.folder, learn) as learning, pumping:
        _answer(
            application(store, known, limits, learning.state, address.asked_by(known)),
            address,
            limits,
            listening,
            heard,
        )


@contextmanager
def scoring_workers(
    store: Store, count: int, tokens: Path | None, address: Address, limits: Limits
) -> Iterator[Address]:
    """So many replicas of a store, each a process, that share one port: the kernel gives each of them connections."""
    _allow(tokens, address)
    with _bound(address, shared=True) as held:  # it does not listen: a port that is taken is an error here, not there
        where = replace(address, port=held.getsockname()[1])
        with Workers(count, _score, store.folder, tokens, where, limits):
            yield where


def _score(folder: Path, tokens: Path | None, address: Address, limits: Limits) -> None:
    known = _allow(tokens, address)
    with _bound(address, shared=True) as listening:
        app = replica(Store.open(folder, check=False), known, limits, None, address.asked_by(known))
        _answer(app, address, limits, listening, lambda _: None)


def serve_replica(
    store: Store,
    mirror: Mirror | None,
    tokens: Path | None,
    address: Address,
    limits: Limits,
    heard: Callable[[str], None] = lambda _: None,
) -> None:
    """Score from published versions until stopped."""
    known = _allow(tokens, address)
    with _bound(address) as listening:
        _answer(replica(store, known, limits, mirror, address.asked_by(known)), address, limits, listening, heard)


def _allow(tokens: Path | None, address: Address) -> Tokens:
    """The tokens; an error if the service would be open to other machines without any."""
    known = Tokens() if tokens is None else Tokens.read(tokens)
    if not known.required and not _is_loopback(address.host):
        raise UserError(f"--host {address.host} can be reached by others: give --tokens FILE, or stay on 127.0.0.1")
    if (address.certificate is None) != (address.key is None):
        raise UserError("TLS needs both --certificate and --key")
    return known


def _answer(
    app: FastAPI, address: Address, limits: Limits, listening: socket.socket, heard: Callable[[str], None]
) -> None:
    threadpool_limits(1)
    torch.set_num_threads(1)  # one click is nothing to share, and the learner wants the other cores
    sys.setswitchinterval(0.001)  # a thread that reads a large batch gives way after 1 ms, not after 5
    config = Config(app, limits, ssl_certfile=address.certificate, ssl_keyfile=address.key)

    def listens() -> None:
        _settle()
        heard(replace(address, port=listening.getsockname()[1]).url)

    Server(config, listens).run([listening])


class Server(uvicorn.Server):
    """Tells when it has begun to listen."""

    config: Config

    def __init__(self, config: Config, listens: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self._listens = listens

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._watch = asyncio.create_task(Watch(self.config, self.server_state.connections).look_for_ever())
            # What goes wrong with a request is in our log. What peers do to their connections is no news.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            self._listens()


def _settle() -> None:
    """What is in memory by now stays. The collector of garbage would look through all of it, torch's modules too, again
    and again while a large body is parsed: that took several times as long as the parsing."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _bound(address: Address, shared: bool = False) -> socket.socket:
    """Bind the address before anything else is started, so that an error leaves no learner behind. A shared one may be
    bound by several processes of this user."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # The protocol is named, or asyncio leaves Nagle's delay on.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # not to wait for connections of one killed before
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shared))
        listener.bind((address.host, address.port))
    except OSError as error:
        listener.close()
        where = f"--host {address.host} --port {address.port}"
        raise UserError(f"{where} cannot be listened at ({error.strerror}): choose others") from None
    return listener


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
