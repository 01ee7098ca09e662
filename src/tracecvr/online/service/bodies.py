"""What requests look like, of which FastAPI makes the OpenAPI description; and parts of answers.

Of a request with many mistakes, only the first is reported: to list half a million would keep others waiting.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    TypeAdapter,
    WithJsonSchema,
    model_validator,
)

from tracecvr.online.log.event_log import Receipt
from tracecvr.online.log.times import Times

_SHOWN = 40


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _of_known_keys(cls, content: Any) -> Any:
        if isinstance(content, dict) and not content.keys() <= cls.model_fields.keys():
            name = repr(min(map(str, content.keys() - cls.model_fields.keys())))
            name = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..."
            raise ValueError(f"unknown key {name}; expected {', '.join(cls.model_fields)}")
        return content

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


_PLAIN = {str, int, float, bool, type(None)}


def _plain(features: Any) -> Any:
    if isinstance(features, dict) and not set(map(type, features.values())) <= _PLAIN:
        raise ValueError("a feature is neither text nor a number nor null")
    return features


Item = TypeVar("Item")
Many = Annotated[list[Item], FailFast()]
ClickId = int | str
Feature = str | int | float | bool | None
Raw = Annotated[dict[str, Any], BeforeValidator(_plain), WithJsonSchema(TypeAdapter(dict[str, Feature]).json_schema())]
"""Raw values by name, looked at once: to try each type for each of them takes longer than to parse them."""


Time = int | float | str
_TIME = "when it happened: a number as `/v1/model` says, or ISO 8601 text with a zone"


class Click(_Strict):
    """A click to be registered and scored."""

    click_id: ClickId
    ts: Time = Field(description=_TIME)
    features: Raw = Field(description="raw values, exactly the model's columns")
    user: str | None = None


class Clicks(_Strict):
    clicks: Many[Click] = Field(min_length=1)


class Action(_Strict):
    """What followed a click: an action of the log, or a refund."""

    type: str
    click_id: ClickId
    ts: Time = Field(description=_TIME)
    event_id: str | None = None
    user: str | None = None
    amount: float | None = Field(None, description="of a conversion or a refund, in money or pieces; 1 by default")


class Actions(_Strict):
    events: Many[Action] = Field(min_length=1)


class Features(_Strict):
    features: Many[Raw] = Field(min_length=1)


class Promotion(_Strict):
    """Either a version of the store's own model, or a challenger."""

    version: int | None = Field(default=None, description="a published version; null for always the newest")
    model: str | None = Field(
        default=None, description="the name of a challenger; null for the store's own model, as it served before"
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Promotion:
        if len(self.model_fields_set) != 1:
            raise ValueError("give either version or model")
        return self


def score_of(log_odds: float) -> dict[str, float]:
    """The probability of a conversion, and its log-odds."""
    small = math.exp(-abs(log_odds))
    return {"probability": (1.0 if log_odds >= 0 else small) / (1.0 + small), "log_odds": log_odds}


def receipt_facts(receipt: Receipt, times: Times) -> dict[str, Any]:
    """What became of a batch. All of it is on disk, but for what `not_kept` counts."""
    counts = {name: receipt.counts[name] for name in ("late", "out_of_window", "conflicts", "not_kept")}
    ahead, latest = receipt.counts["future"], times.iso(receipt.limit) or f"second {receipt.limit}"
    note = f"dated later than {latest}, which is not believed; /v1/model says how ts is read" if ahead else None
    facts = {"accepted": receipt.accepted, "duplicates": receipt.duplicates, "set_aside": ahead, "note": note}
    return facts | counts


class PublishedFile(BaseModel):
    """A file that a replica needs."""

    size: int
    sha256: str


class Published(BaseModel):
    files: dict[str, PublishedFile]


class Failure(BaseModel):
    error: str


ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": Failure} for code in (400, 401, 403, 404, 408, 413, 421, 422, 429, 503)
}
"""What routes may answer with, beside what they are for."""
