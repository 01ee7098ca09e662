"""What routes share: the scorer, the limits, the metrics; and the path of a click from a request to its answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any, NamedTuple, TypeVar

from fastapi import HTTPException
from fastapi.concurrency import run_in_threadpool
from msgspec import json

from tracecvr.base.errors import UserError
from tracecvr.monitor.monitor import TEXTS
from tracecvr.online.log.committer import Committer
from tracecvr.online.log.event_log import Receipt
from tracecvr.online.log.events import Event
from tracecvr.online.service import bodies
from tracecvr.online.service.auth import ANYBODY, RateLimiter, Token, Tokens
from tracecvr.online.service.bodies import receipt_facts, score_of
from tracecvr.online.service.gauges import Gauges
from tracecvr.online.service.options import Limits
from tracecvr.online.service.processes import LearnerState
from tracecvr.online.service.scorer import FEW, LiveScorer, RoutedScorer, Values
from tracecvr.online.store import choices
from tracecvr.online.store.store import Store
from tracecvr.online.upkeep.status import comparisons, newest_time, status_of, ticks_of, versions_of

_log = logging.getLogger("tracecvr.service")
_LOOK_S = 0.5
"""How often the service looks for another version."""

Item = TypeVar("Item")
Result = TypeVar("Result")


async def run_by_size(work: Callable[[Sequence[Item]], Result], items: Sequence[Item]) -> Result:
    """Work on clicks or events: a few at once, many in a thread, so that others get their turns."""
    return work(items) if len(items) <= FEW else await run_in_threadpool(work, items)


def read_each(what: str, items: Sequence[Item], read: Callable[[Item], Result]) -> list[Result]:
    """What is read of each, or an error that names the wrong one."""
    results = []
    for number, item in enumerate(items):
        try:
            results.append(read(item))
        except UserError as error:
            raise HTTPException(422, f"{what} {number}: {error}") from None
    return results


class Registration(NamedTuple):
    """A click to be registered and scored, by its raw values."""

    click_id: int | str
    ts: int | float | str
    values: Sequence[Any]
    user: str | None


class Scoring:
    """What routes share that score clicks: those of the service, and those of a replica."""

    def __init__(self, store: Store, tokens: Tokens, limits: Limits) -> None:
        self.store, self.tokens, self.limits = store, tokens, limits
        self.models, self.gauges, self.pace = RoutedScorer(store), Gauges(self.status), RateLimiter(limits.rate)

    @property
    def scorer(self) -> LiveScorer:
        """That of the model that serves."""
        return self.models.main

    async def score(self, batch: bodies.Features) -> bytes:
        """The answer to clicks that are not registered."""
        self.refuse_many("clicks", batch.features)
        return await self.score_values(await run_by_size(self.read_values, batch.features))

    async def score_values(self, clicks: Sequence[Values]) -> bytes:
        """The same of clicks by their raw values."""
        log_odds, version, model, unreadable = await self.scorer.answer(clicks)
        self.gauges.scored.inc(len(log_odds))
        content = _by(version, model) | {"scores": [score_of(one) for one in log_odds]}
        return json.encode(content | {"bad_values": unreadable} if unreadable else content)

    def refuse_many(self, what: str, items: Sequence[Any]) -> None:
        if len(items) > self.limits.batch:
            raise HTTPException(413, f"{len(items)} {what} in one request; send at most {self.limits.batch}")

    def read_values(self, clicks: Sequence[dict[str, Any]]) -> list[list[Any]]:
        """The raw values of clicks, or an error that names the wrong one."""
        return read_each("click", clicks, lambda features: self.store.reader.values(self._refuse_long(features)))

    def read(self, contents: Sequence[dict[str, Any]]) -> list[Event]:
        """Actions, or an error that names the one that is wrong."""
        return read_each("event", contents, lambda content: self.store.reader.read(self._refuse_long(content)))

    def _refuse_long(self, content: dict[str, Any]) -> dict[str, Any]:
        most = self.limits.text
        for value in content.values():
            if type(value) is str and len(value) > most:
                raise UserError(f"a text is longer than {most} characters")
        return content

    def admit(self, headers: dict[bytes, bytes]) -> Token:
        """The client of a request, if it may ask now."""
        token: Token | None = ANYBODY
        if self.tokens.required:
            kind, _, given = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
            token = self.tokens.find(given) if kind.lower() == "bearer" and given else None
        if token is None:
            raise HTTPException(401, "a bearer token is needed", {"WWW-Authenticate": "Bearer"})
        if not self.pace.allow(token.name):
            raise HTTPException(429, "too many requests: slow down", {"Retry-After": "1"})
        return token

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """As long as requests come."""
        await run_in_threadpool(self.look)
        watching = asyncio.create_task(self._watch())
        yield
        watching.cancel()

    async def _watch(self) -> None:
        """Swap in new versions. Errors are logged, each once, and it tries again."""
        logged = ""
        while True:
            try:
                await run_in_threadpool(self.look)
                logged = ""
            except Exception as error:
                if (problem := f"{type(error).__name__}: {error}") != logged:
                    known = isinstance(error, UserError | OSError)  # says itself what is wrong with which file
                    _log.error("could not look for another version: %s", error, exc_info=not known)
                logged = problem
            await asyncio.sleep(_LOOK_S)

    def model_facts(self) -> dict[str, Any]:
        serving, schema = self.scorer.ready(), self.store.schema
        return {
            "version": serving.version,
            "model": serving.name,
            "weights": serving.manifest["weights"],
            "method": serving.manifest["store"]["method"],
            "plugins": serving.manifest["store"]["plugins"],
            "features": list(self.store.reader.features),
            "actions": list(schema.actions),
            "horizons": list(schema.horizons),
            "d_max": schema.d_max,
            "scores_by": "torch" if serving.fast is None else "numpy",
            "time": self.store.times.facts(self.newest_time()),
        }

    def newest_time(self) -> int:
        """The newest time that is known here: that until which the serving version has learnt."""
        return self.store.grid.bounds(self.scorer.ready().version)[0]

    def status(self) -> dict[str, Any]:
        serving = self.scorer.model
        return {
            "serving": serving.version if serving else None,
            "serving_model": serving.name if serving else None,
        }

    def full_status(self) -> dict[str, Any]:
        """The status, and what only the page shows."""
        return self.status()

    def concerns(self) -> str:
        """What is wrong although scores go on. It needs no token, so it has no values."""
        return ""

    def look(self) -> None:
        self.models.refresh()


class Service(Scoring):
    """Everything that routes share."""

    def __init__(self, store: Store, tokens: Tokens, limits: Limits, learner: Callable[[], LearnerState]) -> None:
        super().__init__(store, tokens, limits)
        self.models = RoutedScorer(store, Store.refuse_lost_log)  # a replica has no log
        self.learner = learner
        self.committer = Committer(store.log)
        self.log = store.log()

    def look(self) -> None:
        try:
            choices.mend(self.log, self.store.folder)
        finally:
            super().look()

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        with self.committer:
            async with super().run():
                yield

    def newest_time(self) -> int:
        return newest_time(self.store, self.log.facts())

    async def register(self, batch: bodies.Clicks) -> bytes:
        """The answer to clicks that are on disk when this returns."""
        self.refuse_many("clicks", batch.clicks)
        return await self.register_values(await run_by_size(self._read_clicks, batch.clicks))

    def _read_clicks(self, clicks: Sequence[bodies.Click]) -> list[Registration]:
        read_each("click", clicks, lambda click: self._refuse_long(vars(click)))
        pairs = zip(clicks, self.read_values([click.features for click in clicks]), strict=True)
        return [Registration(click.click_id, click.ts, values, click.user) for click, values in pairs]

    async def register_values(self, clicks: Sequence[Registration]) -> bytes:
        """The same of clicks by their raw values."""
        events = await run_by_size(self._events, clicks)
        log_odds, version, model, unreadable = await self.scorer.answer([click.values for click in clicks])
        scored = list(zip(events, log_odds, strict=True))
        receipt = await self.commit([e._replace(score=score, version=version, model=model) for e, score in scored])
        self.gauges.scored.inc(len(scored))
        known = [receipt.answers.get(event.event, (score, version, model)) for event, score in scored]
        scores = [score_of(score) | _by(version, model) for score, version, model in known]
        content = {"scores": scores, **receipt_facts(receipt, self.store.times)}
        return json.encode(content | {"bad_values": unreadable} if unreadable else content)

    def _events(self, clicks: Sequence[Registration]) -> list[Event]:
        return read_each("click", clicks, lambda click: self.store.reader.make_click(*click))

    async def commit(self, events: list[Event]) -> Receipt:
        """On disk when this returns."""
        receipt = await asyncio.wrap_future(self.committer.submit(events))
        counts = {"accepted": receipt.accepted, "duplicate": receipt.duplicates, "future": receipt.counts["future"]}
        for kind, count in counts.items():
            self.gauges.events.labels(kind).inc(count)
        return receipt

    def status(self) -> dict[str, Any]:
        learner = {"learner": asdict(self.learner())}
        return status_of(self.store, self.models.own.versions) | learner | super().status()

    def full_status(self) -> dict[str, Any]:
        facts = self.status()
        for name, challenger in facts.get("challengers", {}).items():
            challenger["history"] = comparisons(self.store, self.log, name, 200)
        return facts | {
            "interval_s": self.store.grid.interval,
            "ticks": ticks_of(self.store, self.log, 200),
            "all_versions": versions_of(self.store, self.models.own.versions),
        }

    def concerns(self) -> str:
        failed = "; the learner fails: see /v1/status" if self.learner().problem else ""
        newest = self.models.own.versions.manifests()[-1:]
        kinds = {TEXTS[alarm["kind"]] for manifest in newest for alarm in manifest["alarms"] if alarm["on"]}
        return failed + (f"; alarm: {', '.join(sorted(kinds))}: see /v1/status" if kinds else "")


def _by(version: int, model: str | None) -> dict[str, Any]:
    """Which version of which model has answered; the store's own has no name."""
    return {"version": version} if model is None else {"version": version, "model": model}
