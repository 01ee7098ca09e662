"""What routes share: the scorer, the limits, the metrics; and the path of a click from a request to its answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from fastapi import HTTPException
from fastapi.concurrency import run_in_threadpool
from pydantic_core import to_json

from tracecvr.base.errors import UserError
from tracecvr.base.metrics import probability
from tracecvr.online.challengers.status import challengers_of
from tracecvr.online.log.committer import Committer
from tracecvr.online.log.event_log import Receipt
from tracecvr.online.log.events import Event
from tracecvr.online.service import bodies
from tracecvr.online.service.auth import ANYBODY, Token, Tokens
from tracecvr.online.service.gauges import Gauges
from tracecvr.online.service.latency import Latency
from tracecvr.online.service.learner_process import LearnerState
from tracecvr.online.service.limits import Limits, Load, RateLimiter
from tracecvr.online.service.routing import Answers, Asked, RoutedScorer
from tracecvr.online.store.store import Store
from tracecvr.online.upkeep.status import bad_values, figures_of, newest_time

_log = logging.getLogger("tracecvr.service")
_LOOK_S = 0.5
"""How often the service looks for another version."""
FEW = 16
"""Clicks that are answered at once, without a thread: one or two milliseconds."""


class Scoring:
    """What routes share that score clicks: those of the service, and those of a replica."""

    def __init__(self, store: Store, tokens: Tokens, limits: Limits) -> None:
        self.store, self.tokens, self.limits = store, tokens, limits
        self.scorer, self.gauges, self.pace = RoutedScorer(store), Gauges(), RateLimiter(limits.rate)
        self.latency, self.load = Latency(self.gauges.seconds), Load(limits.requests)

    async def score(self, batch: bodies.Features) -> bytes:
        """The answer to clicks that are not registered."""
        few = len(batch.features) <= FEW
        return self._score(batch) if few else await run_in_threadpool(self._score, batch)

    def answer(self, clicks: list[dict[str, Any]]) -> tuple[Answers, int]:
        """Scores of clicks by their features, and the version that serves; or an error that names the wrong one."""
        asked = []
        for number, features in enumerate(clicks):
            try:
                self._refuse_long(features)
                asked.append(Asked(self.store.reader.values(features)))
            except UserError as error:
                raise HTTPException(422, f"click {number}: {error}") from None
        version = self.scorer.ready().version
        answers = self.scorer.score(asked)
        self.gauges.scored.inc(len(clicks))
        return answers, version

    def _score(self, batch: bodies.Features) -> bytes:
        serving = self.scorer.ready()
        (answers, unreadable), _ = self.answer(batch.features)
        content = {"version": serving.version} | ({} if serving.name is None else {"model": serving.name})
        scores = _scores([answer.log_odds for answer in answers])
        for score, answer in zip(scores, answers, strict=True):
            if answer[1:] != (serving.version, serving.name):
                score |= _by(*answer[1:])
        return to_json(content | {"scores": scores} | ({"bad_values": unreadable} if unreadable else {}))

    async def read(self, contents: Iterable[dict[str, Any]], count: int) -> list[Event]:
        """Actions, or an error that names the one that is wrong. Of many, in a thread: others get their turns."""
        return self._read(contents) if count <= FEW else await run_in_threadpool(self._read, contents)

    def _read(self, contents: Iterable[dict[str, Any]]) -> list[Event]:
        events = []
        for number, content in enumerate(contents):
            try:
                self._refuse_long(content)
                events.append(self.store.reader.read(content))
            except UserError as error:
                raise HTTPException(422, f"event {number}: {error}") from None
        return events

    def _refuse_long(self, content: dict[str, Any]) -> None:
        most = self.limits.text
        for value in content.values():
            if type(value) is str and len(value) > most:
                raise UserError(f"a text is longer than {most} characters")

    def known(self, headers: dict[bytes, bytes]) -> Token | None:
        """The client of a request."""
        if not self.tokens.required:
            return ANYBODY
        kind, _, given = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        return self.tokens.known(given) if kind.lower() == "bearer" and given else None

    def admit(self, headers: dict[bytes, bytes]) -> Token:
        """The client of a request, if it may ask now."""
        token = self.known(headers)
        if token is None:
            raise HTTPException(401, "a bearer token is needed", {"WWW-Authenticate": "Bearer"})
        if not self.pace.allowed(token.name):
            raise HTTPException(429, "too many requests: slow down", {"Retry-After": "1"})
        return token

    async def watch(self) -> None:
        """Swap in new versions, and tell how far the learner is. Errors are logged, each once, and it tries again."""
        logged = ""
        while True:
            try:
                await run_in_threadpool(self.look)
                logged = ""
            except Exception as error:
                if (problem := f"{type(error).__name__}: {error}") != logged:
                    _log.exception("could not look for another version")
                logged = problem
            await asyncio.sleep(_LOOK_S)

    def model_facts(self) -> dict[str, Any]:
        """The version that serves, and what it expects."""
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

    def look(self) -> None:
        """Swap in what serves now."""
        self.latency.note()
        self.scorer.refresh()
        if self.scorer.model is not None:
            self.gauges.version.set(self.scorer.model.version)


class Service(Scoring):
    """Everything that routes share."""

    def __init__(self, store: Store, tokens: Tokens, limits: Limits, learner: Callable[[], LearnerState]) -> None:
        super().__init__(store, tokens, limits)
        self.learner = learner
        self.committer = Committer(store.log)
        self.log = store.inbox()

    def newest_time(self) -> int:
        return newest_time(self.store, self.log.facts())

    async def register(self, batch: bodies.Clicks) -> bytes:
        """The answer to clicks that are on disk when this returns."""
        few = len(batch.clicks) <= FEW
        events, answers = self._scored(batch) if few else await run_in_threadpool(self._scored, batch)
        receipt = await self.commit(events)
        self.gauges.scored.inc(len(events))
        known = [receipt.answers.get(e.event, a) for e, a in zip(events, answers.answers, strict=True)]
        scores = [s | _by(*a[1:]) for s, a in zip(_scores([log_odds for log_odds, *_ in known]), known, strict=True)]
        content = {"scores": scores, **bodies.Receipt.facts(receipt, self.store.times)}
        return to_json(content | ({"bad_values": answers.unreadable} if answers.unreadable else {}))

    def _scored(self, batch: bodies.Clicks) -> tuple[list[Event], Answers]:
        """Clicks as the log keeps them, with what they are answered."""
        events: list[Event] = []
        clicks: list[Asked] = []
        reader = self.store.reader
        for number, click in enumerate(batch.clicks):
            try:
                self._refuse_long(vars(click))
                self._refuse_long(click.features)
                event, values = reader.read_click(click.click_id, click.ts, click.features, click.user)
            except UserError as error:
                raise HTTPException(422, f"click {number}: {error}") from None
            events.append(event)
            clicks.append(Asked(values, event.click, click.user))
        answers = self.scorer.score(clicks)
        pairs = zip(events, answers.answers, strict=True)
        return [event._replace(score=a[0], version=a[1], model=a[2]) for event, a in pairs], answers

    async def commit(self, events: list[Event]) -> Receipt:
        """On disk when this returns."""
        receipt = await asyncio.wrap_future(self.committer.submit(events))
        counts = {"accepted": receipt.accepted, "duplicate": receipt.duplicates, "future": receipt.counts["future"]}
        for kind, n in counts.items():
            self.gauges.events.labels(kind).inc(n)
        return receipt

    def look(self) -> None:
        super().look()
        learner, model = self.learner(), self.scorer.model
        self.gauges.learner.set(bool(learner.running))
        self.gauges.restarts.set(learner.restarts)
        self.gauges.tell(self.log.sources())
        if model is not None:
            for newest in self.scorer.versions.listed()[-1:]:
                self.gauges.lag.set(self.log.closed() - newest["intervals"])
                self.gauges.judge(figures_of(newest, model.version, model.manifest if model.name else None))
                self.gauges.warn(newest["alarms"])
                for column, count in bad_values(newest["counts"]).items():
                    self.gauges.bad_values.labels(column).set(count)
        self.gauges.compare(challengers_of(self.store, self.log))


def _scores(log_odds: list[float]) -> list[dict[str, Any]]:
    pairs = zip(probability(np.array(log_odds)).tolist(), log_odds, strict=True)
    return [{"probability": rate, "log_odds": score} for rate, score in pairs]


def _by(version: int, model: str | None) -> dict[str, Any]:
    """Which version of which model has answered; the store's own has no name."""
    return {"version": version} if model is None else {"version": version, "model": model}
