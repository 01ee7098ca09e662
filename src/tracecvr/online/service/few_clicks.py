"""The short way of a body with a few clicks: bytes to raw values, ids, log-odds and bytes, each once.

It is for requests that are right. Whatever is wrong or large raises an error here, and is left to the application,
which knows what to answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, Struct, defstruct, json
from msgspec.structs import astuple

from tracecvr.online.service.scorer import FEW
from tracecvr.online.service.scoring import Registration, Scoring, Service


class ShortWay(NamedTuple):
    """Of one route: the scope that a token needs, and the answer to a body."""

    token_scope: str
    answer: Callable[[bytes], Awaitable[bytes]]


def short_ways(service: Scoring) -> dict[str, ShortWay]:
    """By path. The types say what the log can keep as it is: texts that are not too long, and numbers of 64 bits."""
    text = Annotated[str, Meta(max_length=service.limits.text)]
    whole = Annotated[int, Meta(ge=1 - (1 << 63), le=(1 << 63) - 1)]
    features = _feature_struct(service.store.reader.features, text | whole | float | bool | None)
    most = min(FEW, service.limits.batch)
    scored = _decoder("features", features, most)

    async def score(body: bytes) -> bytes:
        return await service.score_values([astuple(one) for one in scored.decode(body).features])

    if not isinstance(service, Service):
        return {"/v1/score": ShortWay("score", score)}
    types = {"click_id": whole | text, "ts": whole | float | text, "features": features}
    keys: list[Any] = [*types.items(), ("user", text | None, None)]
    registered = _decoder("clicks", defstruct("Click", keys, forbid_unknown_fields=True), most)

    async def register(body: bytes) -> bytes:
        clicks = registered.decode(body).clicks
        return await service.register_values(
            [Registration(c.click_id, c.ts, astuple(c.features), c.user) for c in clicks]
        )

    return {"/v1/score": ShortWay("score", score), "/v1/clicks": ShortWay("ingest", register)}


def _feature_struct(names: Sequence[str], value: Any) -> type[Struct]:
    """The features of a click: each column once, and no other."""
    keys = [f"column_{number}" for number in range(len(names))]
    renamed = dict(zip(keys, names, strict=True))
    return defstruct("Features", [(key, value) for key in keys], rename=renamed, forbid_unknown_fields=True)


def _decoder(key: str, item: type[Struct], most: int) -> json.Decoder[Any]:
    items = Annotated[list[item], Meta(min_length=1, max_length=most)]  # type: ignore[valid-type]
    return json.Decoder(defstruct("Body", [(key, items)], forbid_unknown_fields=True))
