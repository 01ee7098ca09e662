"""What routes declare: the scope that a token needs, and the errors that they may answer with."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, HTTPException, Request

from tracecvr.online.service import bodies
from tracecvr.online.service.auth import Token

ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": bodies.Failure} for code in (400, 401, 403, 404, 408, 413, 421, 422, 429, 503)
}


def need(scope: str) -> Any:
    """A dependency of routes: the request needs a token with this scope."""

    def check(request: Request) -> Token:
        token: Token = request.state.token
        if scope not in token.scopes:
            raise HTTPException(403, f"the token lacks the scope {scope!r}")
        return token

    return Depends(check)
