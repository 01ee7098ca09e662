"""Options of `tracecvr serve`. The command line declares a flag for each of them: this module imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tracecvr.base.config import option


@dataclass(frozen=True)
class Limits:
    """What one request and one sender may take. What bounds a body bounds how long others wait for it to be parsed."""

    rate: float = option(500.0, "requests per second of each token, with bursts of twice that", low=0.1)
    batch: int = option(500, "events or clicks of one request", low=1)
    body_bytes: int = option(1 << 18, "bytes of one request", low=1)
    body_seconds: float = option(10.0, "time to send a body: a slow sender gives way to others", low=0.01)
    text: int = option(1_000, "characters of an id, a user or a text among features", low=1)
    requests: int = option(256, "requests at work, sent as a whole; beyond, 503 at once", low=1)
    connections: int = option(4096, "open connections; beyond, new ones are closed", low=1)
    head_seconds: float = option(10.0, "time to send the head of a request, from its first byte or the start", low=0.01)
    idle_seconds: int = option(30, "time that a connection is kept open between requests", low=1)


@dataclass(frozen=True)
class Options(Limits):
    host: str = option("127.0.0.1", "address to listen at")
    host_names: tuple[str, ...] = option((), "names by which it is asked, beside localhost and the address")
    port: int = option(8000, "port to listen at, 0 for any that is free", low=0, high=65535)
    tokens: Path | None = option(None, "TOML file of tokens and scopes")
    certificate: Path | None = option(None, "TLS certificate, PEM")
    key: Path | None = option(None, "TLS key, PEM")
    replica: str | None = option(None, "directory of a store, or address of the service that writes it: only score")
    replica_token: Path | None = option(None, "file that holds the token for that service, of the scope replicate")
    workers: int = option(0, "processes beside it that only score and share a port", low=0)
    scoring_port: int | None = option(None, "that port; the next one by default", low=0, high=65535)
    learn: bool = option(True, "run the learner beside it")

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.certificate is None else 'https'}://{host}:{self.port}"
