"""Who may ask for what, and how often: tokens with scopes, from a file of hashes that cannot be used as tokens.

```toml
[[token]]
name = "bidder"                # in log lines and metrics
sha256 = "9f86d081..."         # tracecvr token prints both the token and this
scopes = ["score", "ingest"]   # and admin: what serves, and status; and replicate: versions, for replicas
```
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tracecvr.base.errors import UserError
from tracecvr.base.files import read_toml

SCOPES = ("score", "ingest", "admin", "replicate")
_HEX = 64


@dataclass(frozen=True)
class Token:
    name: str
    sha256: str
    scopes: frozenset[str]


ANYBODY = Token("anybody", "", frozenset(SCOPES))
"""The client of a service without tokens, which listens on localhost only."""


class Tokens:
    """The tokens of a service. Without any, every request is allowed."""

    def __init__(self, tokens: tuple[Token, ...] = ()) -> None:
        self._tokens = tokens

    @classmethod
    def read(cls, path: Path) -> Tokens:
        content = read_toml(path, "--tokens")
        entries = content.get("token", [])
        if not entries or not isinstance(entries, list) or set(content) - {"token"}:
            raise UserError(f"{path}: expected [[token]] entries with name, sha256 and scopes")
        return cls(tuple(_token(path, number, entry) for number, entry in enumerate(entries, start=1)))

    @property
    def required(self) -> bool:
        return bool(self._tokens)

    def find(self, given: str) -> Token | None:
        """The holder of a token. Every entry is compared in constant time, so the time reveals nothing."""
        digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).hexdigest()
        holder = None
        for token in self._tokens:
            if hmac.compare_digest(token.sha256, digest):
                holder = token
        return holder


class RateLimiter:
    """A bucket of requests for each sender, refilled at a steady rate."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.clock = rate, clock
        self._left: dict[str, tuple[float, float]] = {}

    def allow(self, who: str) -> bool:
        """Whether one more request may pass now."""
        now, most = self.clock(), max(1.0, 2 * self.rate)
        left, since = self._left.get(who, (most, now))
        left = min(most, left + (now - since) * self.rate)
        self._left[who] = (left - 1.0 if left >= 1.0 else left, now)
        return left >= 1.0


def new_token() -> tuple[str, str]:
    token = secrets.token_urlsafe(32)
    return token, hashlib.sha256(token.encode()).hexdigest()


def _token(path: Path, number: int, entry: object) -> Token:
    where = f"{path}: token {number}"
    if not isinstance(entry, dict) or set(entry) != {"name", "sha256", "scopes"}:
        raise UserError(f"{where}: expected name, sha256 and scopes, nothing else")
    name, digest, scopes = entry["name"], entry["sha256"], entry["scopes"]
    if not isinstance(name, str) or not name.isprintable() or not name:
        raise UserError(f"{where}: name is {name!r}: expected text")
    if not isinstance(digest, str) or len(digest) != _HEX or set(digest) - set("0123456789abcdef"):
        raise UserError(f"{where}: sha256 is not 64 hexadecimal digits; `tracecvr token` makes one")
    if not isinstance(scopes, list) or not scopes or set(map(str, scopes)) - set(SCOPES):
        raise UserError(f"{where}: scopes are {scopes!r}: expected some of {', '.join(SCOPES)}")
    return Token(name, digest, frozenset(scopes))
