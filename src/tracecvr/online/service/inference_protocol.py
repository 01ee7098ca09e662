"""The Open Inference Protocol, version 2 (KServe, Triton), so that its clients and gateways can ask for scores.

A raw column is an input of its own: `{"name": "device", "shape": [2], "datatype": "BYTES", "data": ["phone", null]}`.
All inputs have as many values as there are clicks; null is a missing value. Values may also follow the JSON as bytes
(the binary tensor data extension), as clients send NumPy arrays by default. The outputs are `probability` and
`log_odds`, as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.routing import APIRoute
from msgspec import json
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
_BINARY = "binary_tensor_data"
_TYPES = {"BOOL": "?", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8"} | {
    f"{kind}{8 * size}": f"<{letter}{size}" for kind, letter in (("INT", "i"), ("UINT", "u")) for size in (1, 2, 4, 8)
}
"""Types of numbers as NumPy writes them."""


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
    routes = APIRouter(route_class=_Route)

    @routes.get("/v2")
    async def server() -> dict[str, Any]:
        """What answers."""
        return {"name": NAME, "version": app.version, "extensions": [_BINARY]}

    @routes.get("/v2/health/live")
    async def live() -> dict[str, bool]:
        """Whether the process answers."""
        return {"live": True}

    @routes.get("/v2/health/ready", responses={503: {"model": bodies.Failure}})
    async def ready() -> dict[str, bool]:
        """Whether there is a version to answer with."""
        service.scorer.ready()
        return {"ready": True}

    @routes.get("/v2/models/{name}", responses=ERRORS, dependencies=[need("score")])
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

    @routes.get("/v2/models/{name}/ready", responses=ERRORS, dependencies=[need("score")])
    async def model_ready(name: str) -> dict[str, Any]:
        """Whether it can answer."""
        _refuse_other(name)
        service.scorer.ready()
        return {"name": NAME, "ready": True}

    @routes.post("/v2/models/{name}/infer", responses=ERRORS, dependencies=[need("score")])
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

    app.include_router(routes)


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


class _Route(APIRoute):
    """A route whose bodies may hold bytes after their JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_all(request: Request) -> Response:
            return await handle(_BinaryRequest(request.scope, request.receive))

        return handle_all


class _BinaryRequest(Request):
    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            self._body = await super().body()
            if (length := self.headers.get("inference-header-content-length")) is not None:
                self._body = _all_json(self._body, length)
        return self._body


def _all_json(body: bytes, length: str) -> bytes:
    """A body with all values in its JSON, which is the first `length` bytes of it."""
    try:
        size = int(length)
        content, rest = json.decode(body[:size]), memoryview(body)[size:]
        for one in content["inputs"]:
            if (size := one.get("parameters", {}).pop("binary_data_size", None)) is not None:
                one["data"], rest = _values(rest[:size], one["datatype"]), rest[size:]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise HTTPException(422, "values as bytes: they do not fit what the JSON before them says") from error
    return json.encode(content)


def _values(content: memoryview, datatype: str) -> list[Any]:
    """The values of one input. Of a text, its length comes first, as four bytes."""
    if datatype != _TEXT:
        values: list[Any] = np.frombuffer(content, _TYPES[datatype]).tolist()
        return values
    texts, place = [], 0
    while place < len(content):
        size = int.from_bytes(content[place : place + 4], "little")
        place += 4 + size
        texts.append(str(content[place - size : place], "utf-8"))
    if place != len(content):
        raise ValueError("a text is cut off")
    return texts
