"""The short way of a body with a few clicks: bytes to raw values, ids, log-odds and bytes, each once.

It is for requests that are right. Whatever is wrong or large raises an error here, and is left to the application,
which knows what to answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, Struct, defstruct, json
from msgspec.structs import astuple

from tracecvr.base.errors import UserError
from tracecvr.online.service.scoring import FEW, Registration, Scoring, Service

Value = str | int | float | bool | None
_LARGE = 1 << 63


class ShortWay(NamedTuple):
    """Of one route: the scope that a token needs, and the answer to a body."""

    token_scope: str
    answer: Callable[[bytes], Awaitable[bytes]]


def short_ways(service: Scoring) -> dict[str, ShortWay]:
    """By path."""
    features, most = _feature_struct(service.store.reader.features), min(FEW, service.limits.batch)
    scored = _decoder("features", features, most)

    async def score(body: bytes) -> bytes:
        return await service.score_values([plain(astuple(one)) for one in scored.decode(body).features])

    def plain(values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The same values, if the log can keep them as they are."""
        for value in values:
            if (type(value) is str and len(value) > service.limits.text) or (
                type(value) is int and abs(value) >= _LARGE
            ):
                raise UserError("a value is too large")
        return values

    if not isinstance(service, Service):
        return {"/v1/score": ShortWay("score", score)}
    types = {"click_id": int | str, "ts": int | float | str, "features": features}
    keys: list[Any] = [*types.items(), ("user", str | None, None)]
    registered = _decoder("clicks", defstruct("Click", keys, forbid_unknown_fields=True), most)

    async def register(body: bytes) -> bytes:
        clicks = []
        for one in registered.decode(body).clicks:
            click_id, ts, user = plain((one.click_id, one.ts, one.user))
            clicks.append(Registration(click_id, ts, plain(astuple(one.features)), user))
        return await service.register_values(clicks)

    return {"/v1/score": ShortWay("score", score), "/v1/clicks": ShortWay("ingest", register)}


def _feature_struct(names: Sequence[str]) -> type[Struct]:
    """The features of a click: each column once, and no other."""
    keys = [f"column_{number}" for number in range(len(names))]
    renamed = dict(zip(keys, names, strict=True))
    return defstruct("Features", [(key, Value) for key in keys], rename=renamed, forbid_unknown_fields=True)


def _decoder(key: str, item: type[Struct], most: int) -> json.Decoder[Any]:
    """Of a body with one key, that has a few items."""
    items = Annotated[list[item], Meta(min_length=1, max_length=most)]  # type: ignore[valid-type]
    return json.Decoder(defstruct("Body", [(key, items)], forbid_unknown_fields=True))
