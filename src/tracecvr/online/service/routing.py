"""Which model answers which click: the one that was promoted, and challengers that have a share of the clicks."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from tracecvr.base.errors import UserError
from tracecvr.online.log.event_log import Accepted
from tracecvr.online.service.scorer import Answer, Answers, LiveScorer, ServingModel
from tracecvr.online.store import traffic
from tracecvr.online.store.challenge import find_challenger
from tracecvr.online.store.store import Store
from tracecvr.online.store.traffic import CLICK_ID, USER, Traffic
from tracecvr.stream.reveal import Reveals

_log = logging.getLogger("tracecvr.serve")


class Asked(NamedTuple):
    """A click to be answered: raw values in the order of columns, and its id and user if it is registered."""

    values: Sequence[Any]
    click: int | None = None
    user: str | None = None


class _Routes(NamedTuple):
    """The choice as it was read last, and the scorers of the challengers that it names and that can answer."""

    traffic: Traffic
    scorers: dict[str, LiveScorer]

    def by(self, model: str | None, own: LiveScorer) -> LiveScorer:
        """The scorer of a model; the store's own, if a challenger cannot answer."""
        scorer = own if model is None else self.scorers.get(model)
        return own if scorer is None or scorer.model is None else scorer


class RoutedScorer:
    """The scorer of the store's own model, and those of the challengers that answer anything."""

    def __init__(self, store: Store) -> None:
        self.store, self.own = store, LiveScorer(store)
        self.versions = self.own.versions
        self._routes = _Routes(Traffic(), {})
        self._told: set[str] = set()

    def refresh(self) -> None:
        """Swap in whatever serves now. A challenger that cannot be read is passed over: the store's own answers."""
        self.own.refresh()
        problems = set[str]()
        now, scorers = self._choice(problems), {}
        for name in {*now.shares, *(() if now.model is None else (now.model,))}:
            try:
                scorers[name] = self._scorer(name)
                scorers[name].refresh()
            except (OSError, UserError) as error:
                scorers.pop(name, None)
                problems.add(f"challenger {name} cannot answer, and the store's own model does: {error}")
        for problem in problems - self._told:  # once
            _log.error("%s", problem)
        self._routes, self._told = _Routes(now, scorers), problems

    def _choice(self, problems: set[str]) -> Traffic:
        """What was chosen last that can be understood."""
        try:
            now = traffic.current(self.store.folder)
            if now.column not in (CLICK_ID, USER, *self.store.reader.features):
                path = self.store.folder / traffic.NAME
                raise UserError(f"{path} chooses by {now.column!r}, which is no column of a click")
        except UserError as error:
            problems.add(str(error))
            return self._routes.traffic
        return now

    def _scorer(self, name: str) -> LiveScorer:
        """The scorer of a challenger; another one if it was dropped and made anew."""
        challenger, known = find_challenger(self.store, name), self._routes.scorers.get(name)
        return known if known is not None and known.store.content == challenger.content else LiveScorer(challenger)

    def answering(self) -> list[LiveScorer]:
        """The scorers that answer anything: the store's own first."""
        return [self.own, *self._routes.scorers.values()]

    @property
    def main(self) -> LiveScorer:
        """The scorer of the model that was promoted."""
        return self._routes.by(self._routes.traffic.model, self.own)

    @property
    def model(self) -> ServingModel | None:
        """What serves, once there is something."""
        return self.main.model

    def ready(self) -> ServingModel:
        """The same, or an error that there is nothing yet."""
        return self.main.ready()

    def posterior(self, click: Accepted, actions: Sequence[Accepted], clock: int) -> tuple[float, Reveals]:
        """Log-odds of a click given what is known of it at a clock, and what that is."""
        return self.main.posterior(click, actions, clock)

    def score(self, clicks: Sequence[Asked]) -> Answers:
        """Answer clicks. Those that are not registered have neither an id nor a user to choose a model by."""
        routes = self._routes
        if not routes.traffic.shares:
            return routes.by(routes.traffic.model, self.own).score([click.values for click in clicks])
        parts: dict[LiveScorer, list[int]] = {}
        for index, model in enumerate(routes.traffic.models(self._values(clicks, routes.traffic.column))):
            parts.setdefault(routes.by(model, self.own), []).append(index)
        answers: dict[int, Answer] = {}
        unreadable: Counter[str] = Counter()
        for scorer, indices in parts.items():
            scored = scorer.score([clicks[index].values for index in indices])
            unreadable.update(scored.unreadable)
            answers.update(zip(indices, scored.answers, strict=True))
        return Answers([answers[index] for index in range(len(clicks))], dict(unreadable))

    def _values(self, clicks: Sequence[Asked], column: str) -> list[str | None]:
        """The values that models are chosen by."""
        if column in (CLICK_ID, USER):
            chosen: list[Any] = [click.click if column == CLICK_ID else click.user for click in clicks]
        else:
            place = self.store.reader.features.index(column)
            chosen = [click.values[place] for click in clicks]
        return [None if value is None else str(value) for value in chosen]


class _Batch:
    """Clicks that are scored together, and their answers once they were."""

    def __init__(self) -> None:
        self.clicks: list[Asked] = []
        self.answers: list[Answer] | None = None


class MicroBatch:
    """Clicks of requests that come together are scored together: what a call of NumPy costs is shared, and weights are
    read once. Those are the requests of one turn of the event loop, so nobody waits for others to come."""

    def __init__(self, score: Callable[[Sequence[Asked]], Answers]) -> None:
        self._score, self._open = score, _Batch()

    async def score(self, clicks: Sequence[Asked]) -> Answers:
        """The answers to one request."""
        batch = self._open
        start = len(batch.clicks)
        batch.clicks.extend(clicks)
        await asyncio.sleep(0)  # whose requests are here, too, add their clicks meanwhile
        if batch is self._open:  # the first of them scores for all
            self._open = _Batch()
            if start + len(clicks) < len(batch.clicks):
                with suppress(Exception):  # each finds its own error
                    answers, unreadable = self._score(batch.clicks)
                    batch.answers = None if unreadable else answers  # whose they are is not known
        if batch.answers is None:
            return self._score(clicks)
        return Answers(batch.answers[start : start + len(clicks)], {})
