"""A client of the service, for benchmarks and tests: it tries again when it may.

Everything it sends is safe to send again: the service counts each event once.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlsplit

from tracecvr.base.errors import UserError

_AGAIN = {408, 429, 500, 502, 503, 504}


@dataclass
class Client:
    """One connection, kept open. Not for several threads at once."""

    url: str
    token: str | None = None
    timeout: float = 10.0
    retries: int = 8
    """How often a request is tried again, after pauses that double from a tenth of a second to five."""
    _connection: HTTPConnection | None = field(default=None, init=False, repr=False)

    def clicks(self, clicks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Register and score clicks; when this returns, they are on disk."""
        return self._ask("POST", "/v1/clicks", {"clicks": list(clicks)})

    def events(self, events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Send actions; when this returns, they are on disk."""
        return self._ask("POST", "/v1/events", {"events": list(events)})

    def score(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Score clicks without registering them."""
        return self._ask("POST", "/v1/score", {"features": list(features)})

    def click(self, click_id: int | str) -> dict[str, Any]:
        """A click as it is known now. The id 777 and the text "777" are two clicks."""
        kind = "number" if isinstance(click_id, int) else "text"
        return self._ask("GET", f"/v1/clicks/{quote(str(click_id), safe='')}?type={kind}")

    def model(self) -> dict[str, Any]:
        """The version that serves."""
        return self._ask("GET", "/v1/model")

    def status(self) -> dict[str, Any]:
        """Events, progress, versions and live metrics."""
        return self._ask("GET", "/v1/status")

    def promote(self, version: int | None) -> dict[str, Any]:
        """Choose the version that serves; None for the newest."""
        return self._ask("POST", "/v1/promote", {"version": version})

    def promote_model(self, model: str | None) -> dict[str, Any]:
        """Choose the challenger that serves; None for the store's own model."""
        return self._ask("POST", "/v1/promote", {"model": model})

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        text = None if body is None else json.dumps(body).encode()
        for left in range(self.retries, -1, -1):
            try:
                status, answer = self._once(method, path, text)
            except (OSError, HTTPException) as error:
                self.close()
                status, answer = 503, {"error": f"{type(error).__name__}: {error}"}
            if status < 400:
                return answer
            if status not in _AGAIN or not left:
                raise UserError(f"{self.url}{path}: {status}: {answer.get('error', 'no answer')}")
            time.sleep(min(5.0, 0.1 * 2 ** (self.retries - left)) * random.uniform(0.5, 1.0))
        raise AssertionError

    def _once(self, method: str, path: str, text: bytes | None) -> tuple[int, dict[str, Any]]:
        if self._connection is None:
            where = urlsplit(self.url)
            kind = HTTPSConnection if where.scheme == "https" else HTTPConnection
            self._connection = kind(where.hostname or "127.0.0.1", where.port, timeout=self.timeout)
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        with suppress(BrokenPipeError, ConnectionResetError):  # it may have been answered before all of it was sent
            self._connection.request(method, path, text, headers)
        response = self._connection.getresponse()
        content = response.read()
        try:
            answer = json.loads(content)
        except json.JSONDecodeError:
            answer = {"error": content[:200].decode("utf-8", "replace")}
        return response.status, answer if isinstance(answer, dict) else {"error": str(answer)}
