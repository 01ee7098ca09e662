"""The Open Inference Protocol, version 2 (KServe, Triton), so that its clients and gateways can ask for scores.

A raw column is an input of its own: `{"name": "device", "shape": [2], "datatype": "BYTES", "data": ["phone", null]}`.
All inputs have as many values as there are clicks; null is a missing value. Values may also follow the JSON as bytes,
as clients send NumPy arrays by default (the binary tensor data extension). Outputs are JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.routing import APIRoute
from msgspec import json
from pydantic import BaseModel, Field

from tracecvr.data.encoder import TextColumn
from tracecvr.online.service import bodies
from tracecvr.online.service.bodies import ERRORS
from tracecvr.online.service.front import need
from tracecvr.online.service.scoring import Scoring

NAME = "tracecvr"
"""What the model is called. Which of the store's models answers is decided as for `/v1/score`."""
_TEXT, _NUMBERS = "BYTES", "FP64"
_OUTPUTS = ("probability", "log_odds")
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


def inference_routes(app: FastAPI, service: Scoring) -> None:
    @app.get("/v2")
    async def server() -> dict[str, Any]:
        """What answers."""
        return {"name": NAME, "version": app.version, "extensions": ["binary_tensor_data"]}

    @app.get("/v2/health/live")
    async def live() -> dict[str, bool]:
        """Whether the process answers."""
        return {"live": True}

    @app.get("/v2/health/ready", responses={503: {"model": bodies.Failure}})
    async def ready() -> dict[str, bool]:
        """Whether there is a version to answer with."""
        service.scorer.ready()
        return {"ready": True}

    guards = [need("score"), Depends(_refuse_other)]
    routes = APIRouter(prefix="/v2/models/{name}", responses=ERRORS, dependencies=guards, route_class=_Route)

    @routes.get("")
    async def model() -> dict[str, Any]:
        """What the model takes and gives."""
        reader = service.store.reader
        texts = {column.raw for column in reader.encoder.columns if isinstance(column, TextColumn)}
        inputs = {name: _TEXT if name in texts else _NUMBERS for name in reader.features}
        return {
            "name": NAME,
            "versions": [str(service.scorer.ready().version)],
            "platform": NAME,
            "inputs": [{"name": name, "datatype": kind, "shape": [-1]} for name, kind in inputs.items()],
            "outputs": [{"name": name, "datatype": _NUMBERS, "shape": [-1]} for name in _OUTPUTS],
        }

    @routes.get("/ready")
    async def model_ready() -> dict[str, Any]:
        """Whether it can answer."""
        return {"name": NAME, **await ready()}

    @routes.post("/infer")
    async def infer(asked: Inference) -> dict[str, Any]:
        """Score clicks without registering them."""
        wanted = _OUTPUTS if not asked.outputs else [str(output.get("name")) for output in asked.outputs]
        if unknown := [name for name in wanted if name not in _OUTPUTS]:
            raise HTTPException(422, f"there is no output {unknown[0][:40]!r}: there are {', '.join(_OUTPUTS)}")
        clicks = _clicks(asked.inputs)
        answer = json.decode(await service.score(bodies.Features.model_construct(features=clicks)))
        outputs = [
            {
                "name": name,
                "shape": [len(clicks)],
                "datatype": _NUMBERS,
                "data": [one[name] for one in answer["scores"]],
            }
            for name in wanted
        ]
        inferred = {"model_name": NAME, "model_version": str(answer["version"]), "outputs": outputs}
        return inferred if asked.id is None else inferred | {"id": asked.id}

    app.include_router(routes)


async def _refuse_other(name: str) -> None:
    if name != NAME:
        raise HTTPException(404, f"there is one model, {NAME!r}")


class _Route(APIRoute):
    """A route whose bodies may hold bytes after their JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_all(request: Request) -> Response:
            if (length := request.headers.get("inference-header-content-length")) is not None:
                request._body = _all_json(await request.body(), length)
            return await handle(request)

        return handle_all


def _all_json(body: bytes, length: str) -> bytes:
    """A body with all values in its JSON, which is the first `length` bytes of it."""
    try:
        content, values = json.decode(body[: int(length)]), memoryview(body)[int(length) :]
        for one in content["inputs"]:
            if (size := one.get("parameters", {}).pop("binary_data_size", None)) is not None:
                one["data"], values = _values(values[:size], one["datatype"]), values[size:]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise HTTPException(422, "values as bytes: they do not fit what the JSON before them says") from error
    return json.encode(content)


def _values(content: memoryview, datatype: str) -> list[Any]:
    """The values of one input. Of a text, its length comes first, as four bytes."""
    if datatype != _TEXT:
        return list(np.frombuffer(content, _TYPES[datatype]).tolist())
    texts, place = [], 0
    while place < len(content):
        size = int.from_bytes(content[place : place + 4], "little")
        place += 4 + size
        texts.append(str(content[place - size : place], "utf-8"))
    if place != len(content):
        raise ValueError("a text is cut off")
    return texts


def _clicks(inputs: list[Input]) -> list[dict[str, Any]]:
    """Inputs as clicks, or an error that says which is wrong."""
    columns: dict[str, list[Any]] = {}
    for number, one in enumerate(inputs):
        values = [value for part in one.data for value in (part if isinstance(part, list) else [part])]
        if one.name in columns:
            raise HTTPException(422, f"input {number}: the column was given before")
        if one.shape != [len(values)] + [1] * (len(one.shape) - 1):
            raise HTTPException(422, f"input {number}: expected one value for each click, in the shape [clicks]")
        columns[one.name] = values
    counts = {len(values) for values in columns.values()}
    if len(counts) != 1 or 0 in counts:
        raise HTTPException(422, "inputs: expected one for each column, all with as many values as there are clicks")
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
