"""From a message's payload to events: one JSON object, or a list of them, in the form that `tracecvr ingest` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tracecvr.base.errors import UserError
from tracecvr.online.log.events import Event, Reader
from tracecvr.online.log.inbox import Message, Parsed

_BYTES = 1 << 20
"""A message that is larger is set aside: to parse it would keep everything waiting."""
_REASON = 500
"""Characters of a reason: it may quote what was sent."""


def parse(reader: Reader, message: Message, fill: Mapping[str, Any] | None = None) -> Parsed:
    """A message and its events or, if one of them cannot be read, why not. `fill` has values for features that clicks
    lack."""
    try:
        events, unknown = _events(reader, message.payload, fill or {})
    except (UserError, ValueError, RecursionError) as error:
        where = f"{message.partition} at {message.position}"
        return Parsed(message, reason=f"{where}: {error or type(error).__name__}"[:_REASON])
    return Parsed(message, events, unknown)


def _events(reader: Reader, payload: bytes, fill: Mapping[str, Any]) -> tuple[list[Event], int]:
    if len(payload) > _BYTES:
        raise UserError(f"a message of {len(payload):,} bytes: at most {_BYTES:,} are read")
    content = json.loads(payload)
    contents = content if isinstance(content, list) else [content]
    events, unknown = [], 0
    for number, one in enumerate(contents):
        try:
            event, n = reader.read_tolerantly(_fill(one, fill) if fill else one)
        except UserError as error:
            raise UserError(f"event {number}: {error}" if contents is content else str(error)) from None
        events.append(event)
        unknown += n
    return events, unknown


def _fill(content: Any, fill: Mapping[str, Any]) -> Any:
    if not isinstance(content, dict) or not isinstance(content.get("features"), dict):
        return content
    return content | {"features": {**fill, **content["features"]}}
