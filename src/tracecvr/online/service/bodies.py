"""What requests and answers look like; FastAPI makes the OpenAPI description of it.

Of a request with many mistakes, the first is reported. Listing half a million others would take seconds, in which
nobody else is answered.
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

from tracecvr.online.log.event_log import Receipt as Committed
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


class Score(BaseModel):
    probability: float
    log_odds: float


class Scored(Score):
    """A score, and by which version of which model."""

    version: int
    model: str | None = Field(default=None, description="the challenger that answered; left out: the store's own model")


class Scores(BaseModel):
    version: int
    model: str | None = Field(default=None, description="the challenger that answered; left out: the store's own model")
    scores: list[Score]
    bad_values: dict[str, int] | None = Field(
        default=None, description="of each column, how many values could not be read: they count as missing"
    )


class Receipt(BaseModel):
    """What became of a batch. All of it is on disk, but for what `not_kept` counts."""

    accepted: int
    duplicates: int = Field(description="were there before")
    late: int = Field(description="of the accepted: their interval was closed")
    out_of_window: int = Field(description="of the accepted: clicks that came more than d_max too late")
    conflicts: int = Field(description="of the duplicates: they contradict the first one, which counts")
    set_aside: int = Field(description="dated too far ahead: not accepted until `tracecvr aside accept`")
    not_kept: int = Field(description="of `set_aside` and `conflicts`: there were too many already")
    note: str | None = Field(None, description="if some are set aside: why")

    @classmethod
    def facts(cls, receipt: Committed, times: Times) -> dict[str, Any]:
        ahead, latest = receipt.counts["future"], times.iso(receipt.limit) or f"second {receipt.limit}"
        note = f"dated later than {latest}, which is not believed; /v1/model says how ts is read" if ahead else None
        names = ("late", "out_of_window", "conflicts", "not_kept")
        counts = {name: receipt.counts[name] for name in names}
        return {"accepted": receipt.accepted, "duplicates": receipt.duplicates, **counts} | {
            "set_aside": ahead,
            "note": note,
        }


class Registered(Receipt):
    scores: list[Scored] = Field(description="of a click that was there before: what it was answered then")
    bad_values: dict[str, int] | None = Field(default=None, description="as of `/v1/score`")


class Known(BaseModel):
    """A click as it is known now."""

    click_id: ClickId
    ts: int | str
    time: str | None = Field(description="the same as ISO 8601 text, if the log's origin is known")
    at_click: Score | None = Field(description="what it was answered with, if it was")
    version_at_click: int | None
    model_at_click: str | None = Field(description="the challenger whose version that was; null: the store's own model")
    now: Score = Field(description="given what has happened since")
    version: int
    model: str | None
    elapsed: int
    converted: bool
    final: bool
    actions: dict[str, int] = Field(description="delay in seconds of each action so far")
    windows: list[dict[str, Any]] = Field(
        description="of each window: its end, whether it is over, what had happened by then"
    )


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
