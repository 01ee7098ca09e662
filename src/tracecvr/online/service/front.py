"""What is looked at before anything else of a request, how it is refused, and the headers of every answer.

Where no token is needed, the host name and the page that asks are checked: any page can make a browser ask localhost,
by a form or under a name of its own that points there (DNS rebinding).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import Depends, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Send

from tracecvr.base.glossary import read_terms

ALWAYS = ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready")
"""Routes that are answered however much is going on, and whatever name they are asked by."""
LINGER_S = 5.0
"""How long the rest of a body that was refused is read."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", _NOTHING.encode()),
]


class Names:
    """Those that a service may be asked by; None for any."""

    def __init__(self, names: Iterable[str] | None) -> None:
        self.names = None if names is None else frozenset(name.lower().strip("[]") for name in names)
        self._judge = lru_cache(256)(self._find_fault)

    def refuse(self, path: str, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        """Status and reason, if no good client sends such a request."""
        if b"transfer-encoding" in headers and b"content-length" in headers:
            return 400, "both Content-Length and Transfer-Encoding: send one"
        if self.names is None or path in ALWAYS:
            return None
        return self._judge(headers.get(b"host", b""), headers.get(b"origin"))

    def _find_fault(self, given: bytes, origin: bytes | None) -> tuple[int, str] | None:
        assert self.names is not None
        host = given.decode("latin-1")
        if name_of(host) not in self.names:
            return 421, "not served under this host name: ask for localhost, or name it with --host-name"
        page = host if origin is None else origin.decode("latin-1").partition("://")[2]
        if name_of(page) not in self.names or (name_of(page) in LOOPBACK and page.lower() != host.lower()):
            return 403, "pages of other sites may not ask"
        return None


def name_of(host: str) -> str:
    """The name in a Host header, without a port."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower().removesuffix(".")


def need(scope: str) -> Any:
    """A dependency of routes: the request needs a token with this scope."""

    def check(request: Request) -> None:
        if scope not in request.state.token.scopes:
            raise HTTPException(403, f"the token lacks the scope {scope!r}")

    return Depends(check)


async def refuse(
    send: Send,
    status: int,
    why: str,
    before_closing: Callable[[], Awaitable[None]] | None = None,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    """Answer without asking the application, and close the connection. The answer is whole before it is closed."""
    body = json.dumps({"error": why}).encode()
    length = (b"content-length", str(len(body)).encode())
    all_headers = [(b"content-type", b"application/json"), length, (b"connection", b"close"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    if before_closing is not None:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await before_closing()
        body = b""
    await send({"type": "http.response.body", "body": body})


def error_response(error: HTTPException) -> JSONResponse:
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def page_text() -> str:
    """The page that watches a model, with the glossary that explains its words."""
    text = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    words = json.dumps({term.name: term.meaning for term in read_terms()})
    return text.replace("/*glossary*/{}", words.replace("<", "\\u003c"))


def page_policy(page: str) -> str:
    """The content security policy of a page: its own script and style by their hashes, and calls to its own origin."""
    sources = {"script-src": "", "style-src": "", "connect-src": " 'self'", "img-src": " data:"}
    for element, content in re.findall(r"<(script|style)>(.*?)</\1>", page, re.DOTALL):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        sources[f"{element}-src"] += f" 'sha256-{digest}'"
    return "; ".join([_NOTHING, *(name + allowed for name, allowed in sources.items())])
