"""What requests and answers look like; FastAPI makes the OpenAPI description of it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tracecvr.metrics import probability


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


ClickId = int | str
Feature = str | int | float | bool | None


class Click(_Strict):
    """A click to be registered and scored."""

    click_id: ClickId
    ts: int = Field(ge=0, description="whole seconds since the log's origin")
    features: dict[str, Feature] = Field(description="raw values, exactly the model's columns")
    user: str | None = None


class Clicks(_Strict):
    clicks: list[Click] = Field(min_length=1)


class Action(_Strict):
    """What followed a click: an action of the log, or a refund."""

    type: str
    click_id: ClickId
    ts: int = Field(ge=0)
    event_id: str | None = None
    user: str | None = None


class Actions(_Strict):
    events: list[Action] = Field(min_length=1)


class Features(_Strict):
    features: list[dict[str, Feature]] = Field(min_length=1)


class Promotion(_Strict):
    version: int | None = Field(description="a published version; null for always the newest")


class Score(BaseModel):
    probability: float
    log_odds: float

    @classmethod
    def of(cls, log_odds: float) -> Score:
        return cls(probability=float(probability(log_odds)), log_odds=float(log_odds))  # type: ignore[arg-type]


class Scores(BaseModel):
    version: int
    scores: list[Score]


class Receipt(BaseModel):
    accepted: int
    duplicates: int


class Answered(Score):
    version: int

    @classmethod
    def by(cls, version: int, log_odds: float) -> Answered:
        return cls(**dict(Score.of(log_odds)), version=version)


class Registered(Receipt):
    scores: list[Answered] = Field(description="of a click that was there before: what it was answered then")


class Known(BaseModel):
    """A click as it is known now."""

    click_id: ClickId
    ts: int
    at_click: Score | None = Field(description="what it was answered with, if it was")
    version_at_click: int | None
    now: Score = Field(description="given what has happened since")
    version: int
    elapsed: int
    converted: bool
    final: bool
    actions: dict[str, int] = Field(description="delay in seconds of each action so far")
    windows: list[dict[str, Any]] = Field(
        description="of each window: its end, whether it is over, what had happened by then"
    )


class Failure(BaseModel):
    error: str
