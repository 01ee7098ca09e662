"""Events as they come in, JSON objects, checked and turned into rows of the event log.

A click: `{"type": "click", "click_id": ..., "ts": ..., "features": {...}}`, and an action:
`{"type": "conversion", "click_id": ..., "ts": ...}`, its type one of the log's actions, or `refund`, which takes the
conversion back. `user` may be given, for erasure; `event_id` of an action tells it from others of the same second;
`amount` of a conversion or a refund is what was bought or taken back, 1 by default.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from tracecvr.base.config import nearest
from tracecvr.base.errors import UserError
from tracecvr.data.encoder import Encoder, RowEncoder, TextColumn, click_key
from tracecvr.data.scorer import to_float
from tracecvr.data.table import Ids, Schema
from tracecvr.online.log.times import Times, quote

CLICK = 0
"""The kind of a click; action k is k + 1, and a refund one more than the last of them."""

_KEYS = {"type", "click_id", "ts", "features", "user", "event_id", "amount"}
_MOST_AMOUNT = 1e15
_VALUES = (str, int, float, type(None))
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class Event(NamedTuple):
    event: str  # what makes it the same event if it comes again
    kind: int
    click: int
    ts: int
    user: str | None
    body: str | None  # of a click: its raw features, as a JSON list; of an action: its amount, if one was given
    score: float | None = None  # of a click: the log-odds that it was answered with, if it was,
    version: int | None = None  # and by which version
    model: str | None = None  # of which challenger; None: of the store's own model


@dataclass(frozen=True)
class Reader:
    schema: Schema
    encoder: Encoder
    times: Times = Times()

    @cached_property
    def kinds(self) -> dict[str, int]:
        names = ("click", *self.schema.actions, "refund")
        return {name: kind for kind, name in enumerate(names)}

    @cached_property
    def features(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(column.raw for column in self.encoder.columns))

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.features)

    @cached_property
    def _numeric(self) -> frozenset[str]:
        """Raw columns of which only numbers are read."""
        return self._names - {column.raw for column in self.encoder.columns if isinstance(column, TextColumn)}

    def read(self, content: object) -> Event:
        """A row, or an error that says what is wrong with the event."""
        try:
            event = self._row(content)
            "".join((event.event, event.user or "", event.body or "")).encode()
        except UnicodeEncodeError:  # JSON can spell half a character, which no database takes
            raise UserError("a text is not valid Unicode") from None
        return event

    def _row(self, content: object) -> Event:
        if not isinstance(content, Mapping):
            raise UserError(f"expected a JSON object, found {type(content).__name__}")
        if unknown := set(content) - _KEYS:
            name = min(unknown)
            raise UserError(f"unknown key {name!r}{nearest(name, _KEYS)}; known: {', '.join(sorted(_KEYS))}")
        kind, ts = self._kind(content.get("type")), content.get("ts")
        user = content.get("user")
        if user is not None and not isinstance(user, str):
            raise UserError(f"user is {user!r}: expected text")
        if kind == CLICK:
            return self.make_click(content.get("click_id"), ts, self.values(content.get("features")), user)
        click, ts = _key_of(content.get("click_id")), self.times.read(ts)
        if "features" in content:
            raise UserError(f"a {content['type']} has no features: they belong to its click")
        given = content.get("event_id")
        if given is not None and not isinstance(given, str):
            raise UserError(f"event_id is {given!r}: expected text")
        amount = self._read_amount(kind, content.get("amount"))
        name = f"a{kind}:{click}:{ts}" + ("" if amount is None else f":{amount}")
        return Event(name if given is None else f"e{given}", kind, click, ts, user, amount)

    def _read_amount(self, kind: int, amount: object) -> str | None:
        """As the log keeps it. Refunds may be written as negative numbers."""
        if amount is None:
            return None
        if kind not in (1, len(self.schema.actions) + 1):
            raise UserError("amount: only a conversion or a refund has one")
        if type(amount) not in (int, float) or not abs(amount) < _MOST_AMOUNT:  # type: ignore[arg-type]
            raise UserError(f"amount is {quote(amount)}: expected a number")
        return repr(abs(float(amount)))  # type: ignore[arg-type]

    def make_click(self, click_id: object, ts: object, values: Sequence[Any], user: str | None) -> Event:
        """A click as the log keeps it, of its raw values in the order of columns."""
        key = _key_of(click_id)
        return Event(f"c{key}", CLICK, key, self.times.read(ts), user, _encoder.encode(values))

    def read_tolerantly(self, content: object) -> tuple[Event, int]:
        """The same of an event that was not made for us: columns that are unknown here are left out, and counted."""
        if not isinstance(content, Mapping):
            return self.read(content), 0
        known = {name: value for name, value in content.items() if name in _KEYS}
        if known.get("type") != "click":
            known.pop("features", None)
        unknown = len(content) - len(known)
        features = known.get("features")
        if isinstance(features, Mapping):
            known["features"] = {name: value for name, value in features.items() if name in self._names}
            unknown += len(features) - len(known["features"])
        return self.read(known), unknown

    def encode_and_count(self, bodies: Sequence[str]) -> tuple[Ids, Counter[str]]:
        """(N, F) ids of clicks' features, as `prepare` makes them, and of each column how many values are wrong."""
        try:
            clicks = json.loads(f"[{','.join(bodies)}]")  # one text: a parser for each takes longer
        except ValueError:
            clicks = [None]
        if not all(isinstance(click, list) and len(click) == len(self.features) for click in clicks):
            raise UserError("features in the log are not as they were written: restore the store from a copy")
        return self._rows.encode(clicks)

    def encode_clicks(self, clicks: Sequence[Sequence[Any]]) -> tuple[Ids, Counter[str]]:
        """The same of the values of clicks."""
        return self._rows.encode(clicks)

    @cached_property
    def _rows(self) -> RowEncoder:
        return RowEncoder(self.encoder, self.features)

    def _kind(self, name: object) -> int:
        if not isinstance(name, str) or name not in self.kinds:
            raise UserError(f"type is {name!r}: expected one of {', '.join(self.kinds)}")
        return self.kinds[name]

    def values(self, features: object) -> list[Any]:
        """A click's raw values in the order of columns, as the log can keep them, or an error."""
        if not isinstance(features, Mapping):
            raise UserError("a click needs its features: a JSON object of raw values")
        if features.keys() != self._names:
            missing, extra = sorted(set(self.features) - set(features)), sorted(set(features) - set(self.features))
            wrong = f"feature {missing[0]!r} is missing" if missing else f"there is no feature {extra[0]!r}"
            raise UserError(f"{wrong}; expected {', '.join(self.features)}")
        return [v if type(v := features[name]) is str else self._keep(name, v) for name in self.features]

    def _keep(self, name: str, value: object) -> str | float | None:
        """A value as the log can keep it. Where only numbers are read, others become texts, which are counted later."""
        if not isinstance(value, _VALUES):
            wrong, text = ("a list", "[]") if isinstance(value, list) else ("an object", "{}")
        elif isinstance(value, int) and abs(value) >> 63:
            wrong, text = "a whole number beyond 64 bits", str(to_float(value))
        elif isinstance(value, float) and not math.isfinite(value):
            wrong, text = "not a finite number", str(value)
        else:
            return value
        if name not in self._numeric:
            raise UserError(f"feature {name!r} is {wrong}: expected text, a finite number or null")
        return text


def amount_of(body: str | None) -> float:
    return 1.0 if body is None else float(body)


def _key_of(click_id: object) -> int:
    """The key of a click. Its id must be one that people and addresses can have."""
    key = click_key(click_id)
    if isinstance(click_id, str) and not click_id.isprintable():
        raise UserError(f"click_id is {click_id!r}: it has a character that cannot be printed")
    return key
