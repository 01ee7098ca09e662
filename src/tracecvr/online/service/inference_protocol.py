"""The Open Inference Protocol, version 2 (KServe, Triton), so that its clients and gateways can ask for scores.

A raw column is an input of its own: `{"name": "device", "shape": [2], "datatype": "BYTES", "data": ["phone", null]}`.
All inputs have as many values as there are clicks; null is a missing value. The outputs are `probability` and
`log_odds`.
"""

from __future__ import annotations

import math
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from tracecvr.data.encoder import TextColumn
from tracecvr.online.service import bodies
from tracecvr.online.service.bodies import ERRORS
from tracecvr.online.service.limits import need
from tracecvr.online.service.scoring import Scoring, run_by_size

NAME = "tracecvr"
"""What the model is called. Which of the store's models answers is decided as for `/v1/score`."""
_TEXT, _NUMBERS = "BYTES", "FP64"
_OUTPUTS = ("probability", "log_odds")


class Input(BaseModel):
    """The values of one raw column."""

    name: str
    shape: list[int]
    datatype: str = Field(description="BYTES, BOOL, or a type of numbers")
    data: list[Any]
    parameters: dict[str, Any] | None = None


class Inference(BaseModel):
    id: str | None = None
    inputs: list[Input]
    outputs: list[dict[str, Any]] | None = Field(None, description="which are wanted, by name; all by default")
    parameters: dict[str, Any] | None = None


def inference_routes(app: FastAPI, service: Scoring) -> None:
    """Routes of the protocol."""

    @app.get("/v2")
    async def server() -> dict[str, Any]:
        """What answers."""
        return {"name": NAME, "version": app.version, "extensions": []}

    @app.get("/v2/health/live")
    async def live() -> dict[str, bool]:
        """Whether the process answers."""
        return {"live": True}

    @app.get("/v2/health/ready", responses={503: {"model": bodies.Failure}})
    async def ready() -> dict[str, bool]:
        """Whether there is a version to answer with."""
        service.scorer.ready()
        return {"ready": True}

    @app.get("/v2/models/{name}", responses=ERRORS, dependencies=[need("score")])
    async def model(name: str) -> dict[str, Any]:
        """What the model takes and gives."""
        _refuse_other(name)
        columns = {
            c.raw: _TEXT if isinstance(c, TextColumn) else _NUMBERS for c in service.store.reader.encoder.columns
        }
        return {
            "name": NAME,
            "versions": [str(service.scorer.ready().version)],
            "platform": "tracecvr",
            "inputs": [
                {"name": name, "datatype": columns[name], "shape": [-1]} for name in service.store.reader.features
            ],
            "outputs": [{"name": name, "datatype": _NUMBERS, "shape": [-1]} for name in _OUTPUTS],
        }

    @app.get("/v2/models/{name}/ready", responses=ERRORS, dependencies=[need("score")])
    async def model_ready(name: str) -> dict[str, Any]:
        """Whether it can answer."""
        _refuse_other(name)
        service.scorer.ready()
        return {"name": NAME, "ready": True}

    @app.post("/v2/models/{name}/infer", responses=ERRORS, dependencies=[need("score")])
    async def infer(name: str, asked: Inference) -> dict[str, Any]:
        """Score clicks without registering them."""
        _refuse_other(name)
        clicks = _clicks(asked.inputs)
        service.refuse_many("clicks", clicks)
        answers = await service.scorer.answer(await run_by_size(service.read_values, clicks))
        service.gauges.scored.inc(len(answers.log_odds))
        scores = [bodies.score_of(log_odds) for log_odds in answers.log_odds]
        wanted = [str(output.get("name")) for output in asked.outputs] if asked.outputs else _OUTPUTS
        if unknown := [name for name in wanted if name not in _OUTPUTS]:
            raise HTTPException(422, f"there is no output {unknown[0][:40]!r}: there are {', '.join(_OUTPUTS)}")
        count = len(scores)
        outputs = [
            {"name": name, "shape": [count], "datatype": _NUMBERS, "data": [score[name] for score in scores]}
            for name in wanted
        ]
        inferred = {"model_name": NAME, "model_version": str(answers.version), "outputs": outputs}
        return inferred if asked.id is None else inferred | {"id": asked.id}


def _refuse_other(name: str) -> None:
    if name != NAME:
        raise HTTPException(404, f"there is one model, {NAME!r}")


def _clicks(inputs: list[Input]) -> list[dict[str, Any]]:
    """Inputs as clicks, or an error that says which is wrong."""
    columns: dict[str, list[Any]] = {}
    for number, one in enumerate(inputs):
        values = [value for part in one.data for value in (part if isinstance(part, list) else [part])]
        if one.name in columns:
            raise HTTPException(422, f"input {number}: the column was given before")
        if not one.shape or math.prod(one.shape) != len(values) or one.shape[0] != len(values):
            raise HTTPException(422, f"input {number}: expected one value for each click, in the shape [clicks]")
        columns[one.name] = values
    counts = {len(values) for values in columns.values()}
    if len(counts) != 1 or not min(counts):
        raise HTTPException(422, "inputs: expected one for each column, all with as many values as there are clicks")
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
