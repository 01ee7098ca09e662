"""Which model answers: the store's own, or the challenger that was promoted."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tracecvr.base.errors import UserError, explain
from tracecvr.online.service.scorer import LiveScorer
from tracecvr.online.store import choices
from tracecvr.online.store.challenge import find_challenger
from tracecvr.online.store.store import Store

_log = logging.getLogger("tracecvr.serve")


class RoutedScorer:
    """The scorer of the store's own model, and that of the challenger that was promoted."""

    def __init__(self, store: Store, check: Callable[[Store], None] = lambda _: None) -> None:
        self.store, self.own, self._check = store, LiveScorer(store), check
        self._promoted: LiveScorer | None = None
        self._problem = ""

    def refresh(self) -> None:
        """Swap in whatever serves now. A challenger that cannot be read is passed over: the store's own answers."""
        self.own.refresh()
        name, problem = choices.read(self.store.folder).model, ""
        try:
            self._promoted = None if name is None else self._open(name)
        except (OSError, UserError) as error:
            self._promoted = None
            problem = f"challenger {name} cannot answer, and the store's own model does: {explain(error)}"
        if problem not in ("", self._problem):  # once
            _log.error("%s", problem)
        self._problem = problem

    def _open(self, name: str) -> LiveScorer:
        """The scorer of a challenger; a new one if it was dropped and made again."""
        challenger, scorer = find_challenger(self.store, name), self._promoted
        if scorer is None or scorer.store.model != name or scorer.store.content != challenger.content:
            self._check(challenger)
            scorer = LiveScorer(challenger)
        scorer.refresh()
        return scorer

    def answering(self) -> list[LiveScorer]:
        """The store's own scorer, then that of the challenger that was promoted, if there is one."""
        return [self.own] if self._promoted is None else [self.own, self._promoted]

    @property
    def main(self) -> LiveScorer:
        """The scorer that answers; the store's own, if a challenger cannot."""
        promoted = self._promoted
        return self.own if promoted is None or promoted.model is None else promoted
