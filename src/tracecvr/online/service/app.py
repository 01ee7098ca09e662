"""The routes. Each is a few lines: check, ask the scorer or the committer, answer."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse
from msgspec import json
from starlette.exceptions import HTTPException as AnyHTTPException

from tracecvr.base.errors import UserError
from tracecvr.base.files import NotWrittenError
from tracecvr.data.encoder import click_key
from tracecvr.data.table import NEVER
from tracecvr.forecast.forecast import LEVEL
from tracecvr.online.log.event_log import Accepted
from tracecvr.online.log.events import CLICK
from tracecvr.online.service import bodies
from tracecvr.online.service.auth import Tokens
from tracecvr.online.service.bodies import ERRORS, receipt_facts, score_of
from tracecvr.online.service.front import LOOPBACK, error_response, need, page_policy, page_text
from tracecvr.online.service.gate import FAILED, Gate
from tracecvr.online.service.inference_protocol import inference_routes
from tracecvr.online.service.options import Limits
from tracecvr.online.service.processes import LearnerState
from tracecvr.online.service.scorer import NotReadyError
from tracecvr.online.service.scoring import Scoring, Service, run_by_size
from tracecvr.online.store import choices
from tracecvr.online.store.challenge import promote_challenger, promote_own
from tracecvr.online.store.store import Store
from tracecvr.online.upkeep.verify_log import NewestForecasts

_log = logging.getLogger("tracecvr.service")


def application(
    store: Store,
    tokens: Tokens | None = None,
    limits: Limits | None = None,
    learner: Callable[[], LearnerState] = LearnerState,
    names: Sequence[str] = (),
) -> FastAPI:
    """The service of one store, as an ASGI application. `names` are those that it may be asked by, beside localhost."""
    service = Service(store, tokens or Tokens(), limits or Limits(), learner)
    app = scoring_application(service, names)
    _routes(app, service)
    return app


def scoring_application(service: Scoring, names: Sequence[str]) -> FastAPI:
    """What a request has to pass before it comes to a route, and the routes that need a model and nothing else."""
    names_served = (*LOOPBACK, *names) if names or not service.tokens.required else None
    app = Gate(service, names_served)
    _failures(app)
    _scoring_routes(app, service)
    inference_routes(app, service)
    return app


def _routes(app: FastAPI, service: Service) -> None:
    @app.post("/v1/clicks", responses=ERRORS, dependencies=[need("ingest")], response_model=dict[str, Any])
    async def register(batch: bodies.Clicks) -> Response:
        """Register and score clicks; answered once they are on disk: the receipt, as of `/v1/events`, and the scores,
        each with its version. A click that is sent again gets its first answer again."""
        return _json(await service.register(batch))

    @app.post("/v1/events", responses=ERRORS, dependencies=[need("ingest")])
    async def ingest(batch: bodies.Actions) -> dict[str, Any]:
        """Accept actions; answered once they are on disk, with a receipt. Of the `accepted`, some may be `late`, after
        their interval was closed, or `out_of_window`; of the `duplicates`, `conflicts` contradict the first, which
        counts. What is `set_aside` is dated too far ahead; for what is `not_kept` there was no room."""
        service.refuse_many("events", batch.events)
        if any(action.type == "click" for action in batch.events):
            raise HTTPException(422, "clicks go to /v1/clicks")
        contents = [action.given() for action in batch.events]
        receipt = await service.commit(await run_by_size(service.read, contents))
        return receipt_facts(receipt, service.store.times)

    @app.get("/v1/clicks/{click_id:path}", responses=ERRORS, dependencies=[need("score")])
    async def click(click_id: str, kind: _Kind = None) -> dict[str, Any]:
        """A click as it is known now: what it was answered (`at_click`), the delay in seconds of each action so far,
        what had happened at the end of each window, and what is believed `now`. Digits are the id 777 or, if there is
        none, the text "777"; the answer's `click_id` tells which, and `type` chooses."""
        return await run_in_threadpool(_describe_known, service, click_id, kind)

    newest, turn = NewestForecasts(service.store), asyncio.Lock()

    @app.get("/v1/forecast", responses=ERRORS, dependencies=[need("admin")], response_model=dict[str, Any])
    async def forecast(by: str | None = None, level: _Level = LEVEL, days: _Days = None) -> Response:
        """Final conversions of the last days' clicks, by the values of a feature: so far, expected, and an interval."""
        features = service.store.reader.features
        if by is not None and by not in features:
            raise HTTPException(422, f"by: no such feature; there are: {', '.join(features)}")
        service.scorer.ready()
        async with turn:  # the others wait without a thread
            return _json(json.encode(await run_in_threadpool(newest.rows, by, level, days)))

    @app.post("/v1/promote", responses=ERRORS, dependencies=[need("admin")])
    async def promote(asked: bodies.Promotion) -> dict[str, Any]:
        """Choose the version or the challenger that serves. Training goes on as before."""
        try:
            await run_in_threadpool(_promote, service.store, asked)
        except NotWrittenError as error:
            _log.error("%s", " ".join(str(error).split()))
            raise HTTPException(
                503, "the choice could not be written: the disk is full or read-only", {"Retry-After": "5"}
            ) from None
        except UserError as error:
            raise HTTPException(422, str(error)) from None
        await run_in_threadpool(service.models.refresh)
        serving = service.scorer.model
        named = {"model": serving.name} if serving and serving.name else {}
        return {"serving": serving.version if serving else None} | named

    @app.get("/v1/published", responses=ERRORS, dependencies=[need("replicate")])
    async def offer() -> bodies.Published:
        """The files that a replica needs, in the order in which it has to write them."""
        return bodies.Published(files=await run_in_threadpool(service.models.list_published))

    @app.get(
        "/v1/published/{name:path}", responses=ERRORS, dependencies=[need("replicate")], response_class=FileResponse
    )
    async def fetch(name: str) -> FileResponse:
        """One of them, as it is."""
        if name not in await run_in_threadpool(service.models.list_published):
            raise HTTPException(404, "no such file is published")
        return FileResponse(service.store.folder / name, media_type="application/octet-stream")

    shown = page_text()
    policy = {"Content-Security-Policy": page_policy(shown)}

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(shown, headers=policy)


def _scoring_routes(app: FastAPI, service: Scoring) -> None:
    @app.post("/v1/score", responses=ERRORS, dependencies=[need("score")], response_model=dict[str, Any])
    async def score(batch: bodies.Features) -> Response:
        """Score clicks without registering them. `model` is the challenger that answered, left out if it is the store's
        own; `bad_values` counts values that could not be read, by column: they count as missing."""
        return _json(await service.score(batch))

    @app.get("/v1/model", responses=ERRORS, dependencies=[need("score")])
    async def model() -> dict[str, Any]:
        """The version that serves, and what it expects."""
        return await run_in_threadpool(service.model_facts)

    @app.get("/v1/status", responses=ERRORS, dependencies=[need("admin")])
    async def status() -> dict[str, Any]:
        """What serves, and how it does; of the writer, also events by kind, progress, versions and live metrics."""
        return await run_in_threadpool(service.full_status)

    @app.get("/readyz", response_class=PlainTextResponse, responses={503: {"model": bodies.Failure}})
    async def ready() -> str:
        """Whether there is a version to answer with, and what is wrong beside that: scores go on, and grow old."""
        serving = service.scorer.ready()
        return f"version {serving.version}{f' of {serving.name}' if serving.name else ''}{service.concerns()}"

    @app.get("/healthz", response_class=PlainTextResponse)
    async def healthy() -> str:
        """Whether the process answers."""
        return "ok"

    @app.get("/metrics", response_class=PlainTextResponse, dependencies=[need("admin")])
    async def metrics() -> Response:
        """For Prometheus."""
        text = await run_in_threadpool(service.gauges.text)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


_Level = Annotated[float, Query(gt=0, lt=1, description="share of intervals that are to hold the final number")]
_Days = Annotated[int | None, Query(ge=1, le=1000, description="of the last days; all that are open without")]
_Kind = Annotated[Literal["number", "text"] | None, Query(alias="type", description="what kind of id it is")]


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def _promote(store: Store, asked: bodies.Promotion) -> None:
    if asked.model is not None:
        promote_challenger(store, asked.model)
    elif "version" in asked.model_fields_set:
        promote_own(store, asked.version)
    else:
        choices.change(store.folder, lambda now: replace(now, model=None))


def _describe_known(service: Service, given: str, kind: str | None) -> dict[str, Any]:
    key, (click, *actions) = _read_logged(service, given, kind)
    store, scorer = service.store, service.scorer
    clock = max(service.log.facts().get("watermark", 0) + store.grid.lateness, click.ts)
    now, known = scorer.posterior(click, actions, clock)
    names = store.schema.actions
    ages = dict(zip(names, known.age[0].tolist(), strict=True))
    state, visible = (t[0].tolist() for t in known.trajectory(store.schema.horizons))
    windows = [
        {"end": end, "over": bool(over), "happened": [n for n, s in zip(names, happened, strict=True) if s]}
        for end, over, happened in zip(store.schema.horizons, visible, state, strict=True)
    ]
    serving = scorer.ready()
    return {
        "click_id": key,
        "ts": store.times.show(click.ts),
        "time": store.times.iso(click.ts),
        "at_click": None if click.score is None else score_of(click.score),
        "version_at_click": click.version,
        "model_at_click": click.model,
        "now": score_of(now),
        "version": serving.version,
        "model": serving.name,
        "elapsed": int(known.elapsed[0]),
        "converted": bool(known.converted[0]),
        "final": bool(known.mature[0]),
        "actions": {name: age for name, age in ages.items() if age != NEVER},
        "windows": windows,
    }


def _read_logged(service: Service, given: str, kind: str | None) -> tuple[int | str, list[Accepted]]:
    """The id that was meant, and what is in the log of it: the click, then its actions."""
    ids: list[int | str] = []
    if kind != "text" and _WHOLE.fullmatch(given) and abs(int(given)) < 1 << 63:
        ids.append(int(given))
    if kind != "number" and given:
        ids.append(given)
    for key in ids:
        rows = service.log.events_of_click(click_key(key))
        if rows and rows[0].kind == CLICK and rows[0].body is not None:
            return key, rows
    raise HTTPException(
        404, "no such click in the log: it has not come, is archived, was erased, or is older than the store"
    )


_WHOLE = re.compile("0|-?[1-9][0-9]{0,18}")
"""A whole number as it is written in JSON: what is written otherwise, such as 007, is text."""


def _failures(app: FastAPI) -> None:
    @app.exception_handler(AnyHTTPException)
    async def failed(_: Request, error: AnyHTTPException) -> JSONResponse:
        return error_response(error)

    @app.exception_handler(Exception)
    async def broken(*_: object) -> JSONResponse:
        return JSONResponse({"error": FAILED}, 500)  # the gate says in the log where

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return JSONResponse({"error": f"{where}: {first['msg']}" if where else first["msg"]}, 422)

    @app.exception_handler(UserError)
    async def mistaken(_: Request, error: UserError) -> JSONResponse:
        _log.error("%s", " ".join(str(error).split()))
        return JSONResponse(
            {"error": "the log cannot be written or read now: try again later"}, 503, {"Retry-After": "5"}
        )

    @app.exception_handler(NotReadyError)
    async def early(*_: object) -> JSONResponse:
        why = "there is no version yet: the learner is warming up"
        return JSONResponse({"error": why}, 503, {"Retry-After": "5"})
