"""Events from brokers: `nats://HOST/STREAM` and `kafka://HOST/TOPIC`. Extras: `tracecvr[nats]`, `tracecvr[kafka]`.

A pump pulls a batch, commits its events and the position in one transaction, then acknowledges: at least once in,
exactly once in effect. After a crash, reading resumes at the position in the store, which `log.inbox` keeps.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from tracecvr.base.config import check_choice, settings_of
from tracecvr.base.errors import UserError
from tracecvr.base.files import read_toml
from tracecvr.online.log.inbox import Message

_CLIENTS = {"nats": "nats", "kafka": "confluent_kafka"}
"""Of each scheme, the library that has to be there. Its broker is in the module of its name."""
STARTS = ("earliest", "latest")


class Broker(Protocol):
    """One connection to a broker. Whatever goes wrong is a UserError, after which it is closed and opened anew."""

    def identities(self) -> Mapping[str, str]:
        """Of each source: what makes it the same one, whatever its address."""

    def bounds(self) -> Mapping[str, tuple[int, int]]:
        """Of each partition: the first position that can be read, and the one after the last."""

    def seek(self, following: Mapping[str, int]) -> None:
        """Go on with these positions."""

    def pull(self, count: int, seconds: float) -> list[Message]:
        """At most so many messages, those of a partition in order; none if none come within the time."""

    def lag(self, ask: bool = False) -> Mapping[str, int]:
        """Of each partition: how many messages are left after those that were pulled; as far as is known, or asked."""

    def acknowledge(self, positions: Mapping[str, int]) -> None:
        """Tell the broker what was dealt with, for those who watch it there. That may be lost."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class BrokerSource:
    """What a store pulls its events from, and how to get there."""

    scheme: str
    hosts: str
    """HOST:PORT, several with commas."""
    names: tuple[str, ...]
    start: str = STARTS[0]
    """Where one starts that was not read before."""
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """For the client: credentials and the like, never shown."""

    @classmethod
    def of(cls, url: str, start: str = STARTS[0], config: Path | None = None) -> BrokerSource:
        parts = urlsplit(url)
        if parts.scheme not in _CLIENTS:
            shown = re.sub(r"//[^/@]*@", "//...@", url)
            raise UserError(f"--source {shown}: expected nats://HOST/STREAM or kafka://HOST/TOPIC")
        if "@" in parts.netloc:
            raise UserError("--source: credentials belong into the file of --source-config: others see command lines")
        names = tuple(sorted(set(parts.path.strip("/").split(","))))
        if not parts.netloc or parts.query or not all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in names):
            raise UserError(
                f"--source {url}: expected {parts.scheme}://HOST:PORT/NAME, with a name of letters and digits"
            )
        if parts.scheme == "nats" and len(names) > 1:
            raise UserError(f"--source {url}: give one stream; a stream may have several subjects")
        settings = {} if config is None else settings_of(read_toml(config, "--source-config"))
        return cls(parts.scheme, parts.netloc, names, check_choice(start, STARTS, "--from"), settings)

    @property
    def sources(self) -> tuple[str, ...]:
        """What positions are kept of: streams and topics by name, wherever they are."""
        return tuple(f"{self.scheme}:{name}" for name in self.names)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.hosts}/{','.join(self.names)}"

    def check(self) -> None:
        try:
            importlib.import_module(_CLIENTS[self.scheme])
        except ImportError:
            raise UserError(f"events from {self.scheme} are an extra: pip install 'tracecvr[{self.scheme}]'") from None

    def connect(self, client: str) -> Broker:
        """A connection; `client` is the name that the broker shows for it."""
        broker: Broker = importlib.import_module(f"{__name__}.{self.scheme}").Connection(self, client)
        return broker
