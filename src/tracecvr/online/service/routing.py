"""Which model answers which click: the one that was promoted, and challengers that have a share of the clicks."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

from tracecvr.base.errors import UserError, explain
from tracecvr.online.service.scorer import Answer, Answers, LiveScorer, ServingModel
from tracecvr.online.store import traffic
from tracecvr.online.store.challenge import find_challenger
from tracecvr.online.store.store import Store
from tracecvr.online.store.traffic import CLICK_ID, USER, Traffic

_log = logging.getLogger("tracecvr.serve")


class Asked(NamedTuple):
    """A click to be answered: raw values in the order of columns, and its id and user if it is registered."""

    values: Sequence[Any]
    click: int | None = None
    user: str | None = None


class RoutedScorer:
    """The scorer of the store's own model, and those of the challengers that answer anything."""

    def __init__(self, store: Store) -> None:
        self.store, self.own = store, LiveScorer(store)
        self.versions = self.own.versions
        self._traffic, self._scorers = Traffic(), dict[str, LiveScorer]()
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
                problems.add(f"challenger {name} cannot answer, and the store's own model does: {explain(error)}")
        for problem in problems - self._told:  # once
            _log.error("%s", problem)
        self._traffic, self._scorers, self._told = now, scorers, problems

    def _choice(self, problems: set[str]) -> Traffic:
        """What was chosen last that can be understood."""
        try:
            now = traffic.current(self.store.folder)
            if now.column not in (CLICK_ID, USER, *self.store.reader.features):
                path = self.store.folder / traffic.NAME
                raise UserError(f"{path} chooses by {now.column!r}, which is no column of a click")
        except UserError as error:
            problems.add(str(error))
            return self._traffic
        return now

    def _scorer(self, name: str) -> LiveScorer:
        """The scorer of a challenger; another one if it was dropped and made anew."""
        challenger, known = find_challenger(self.store, name), self._scorers.get(name)
        return known if known is not None and known.store.content == challenger.content else LiveScorer(challenger)

    def answering(self) -> list[LiveScorer]:
        """The scorers that answer anything: the store's own first."""
        return [self.own, *self._scorers.values()]

    @property
    def main(self) -> LiveScorer:
        """The scorer of the model that was promoted."""
        return self._find_scorer(self._traffic.model)

    def _find_scorer(self, model: str | None) -> LiveScorer:
        """The scorer of a model; the store's own, if a challenger cannot answer."""
        scorer = self.own if model is None else self._scorers.get(model)
        return self.own if scorer is None or scorer.model is None else scorer

    @property
    def model(self) -> ServingModel | None:
        """What serves, once there is something."""
        return self.main.model

    def ready(self) -> ServingModel:
        """The same, or an error that there is nothing yet."""
        return self.main.ready()

    def answer(self, clicks: Sequence[Asked]) -> Coroutine[Any, Any, Answers]:
        """Answer clicks. Those that are not registered have neither an id nor a user to choose a model by."""
        if not self._traffic.shares:
            return self.main.answer([click.values for click in clicks])
        return self._answer_by_shares(clicks)

    async def _answer_by_shares(self, clicks: Sequence[Asked]) -> Answers:
        parts: dict[LiveScorer, list[int]] = {}
        for index, click in enumerate(clicks):
            model = self._traffic.choose(self._find_value(click, self._traffic.column))
            parts.setdefault(self._find_scorer(model), []).append(index)
        answers, unreadable = dict[int, Answer](), Counter[str]()
        for scorer, indices in parts.items():
            scored = await scorer.answer([clicks[index].values for index in indices])
            unreadable.update(scored.unreadable)
            answers.update(zip(indices, scored.answers, strict=True))
        return Answers([answers[index] for index in range(len(clicks))], dict(unreadable))

    def _find_value(self, click: Asked, column: str) -> object:
        if column in (CLICK_ID, USER):
            return click.click if column == CLICK_ID else click.user
        return click.values[self.store.reader.features.index(column)]
