"""The version that serves, held in memory and swapped when another one does; and which model answers: the store's own,
or the challenger that was promoted."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from fastapi.concurrency import run_in_threadpool

from tracecvr.base.errors import UserError, explain
from tracecvr.base.files import sha256
from tracecvr.data.table import NEVER, TURNS
from tracecvr.learn.engine import Engine
from tracecvr.learn.fast_scores import Score, fast_score
from tracecvr.online.ledger.payments import Payment, find_turns
from tracecvr.online.log.event_log import Accepted
from tracecvr.online.log.events import amount_of
from tracecvr.online.service.bodies import PublishedFile
from tracecvr.online.store import choices
from tracecvr.online.store.challenge import find_challenger
from tracecvr.online.store.store import Store
from tracecvr.online.store.versions import Versions
from tracecvr.stream.reveal import Reveals, reveal

_log = logging.getLogger("tracecvr.serve")
FEW = 16
"""Clicks that are answered at once, without a thread: one or two milliseconds."""
DESCRIPTION = ("store.json", "files.json", "base/table.json", "base/encoder.json")
"""Files that never change: another content is another store."""
ALLOWED = re.compile(
    r"(files|store|serving)\.json|base/(table|encoder)\.json"
    r"|(challengers/[a-z][a-z0-9_-]*/)?(models/[0-9]{9}\.(json|safetensors)|challenger\.json)"
)
"""What published files may be called: a replica writes no other file, whatever it is offered."""


@dataclass(frozen=True, eq=False)
class ServingModel:
    """One version, ready to answer."""

    version: int
    name: str | None
    """The challenger whose version it is; None is the store's own model."""
    engine: Engine
    manifest: dict[str, Any]
    fast: Score | None = None
    """The engine's scores by NumPy calls, where these agree with torch."""


class Answers(NamedTuple):
    """The log-odds of clicks, by which version of which model (None is the store's own), and of each column how many
    values could not be read and counted as missing."""

    log_odds: list[float]
    version: int
    model: str | None
    unreadable: dict[str, int]


Values = Sequence[Any]
"""Raw values of a click, in the order of columns."""


@dataclass(eq=False)
class _Batch:
    """Clicks that are scored together, and their answers once they were."""

    clicks: list[Values] = field(default_factory=list)
    answers: Answers | None = None


class MicroBatch:
    """Clicks of requests that come together are scored together: what a call of NumPy costs is shared, and weights are
    read once. Those are the requests of one turn of the event loop, so no request waits for later ones."""

    def __init__(self, score: Callable[[Sequence[Values]], Answers]) -> None:
        self._score, self._open = score, _Batch()

    async def score(self, clicks: Sequence[Values]) -> Answers:
        """The answers to one request."""
        batch = self._open
        start = len(batch.clicks)
        batch.clicks.extend(clicks)
        await asyncio.sleep(0)  # whose requests are here, too, add their clicks meanwhile
        if batch is self._open:  # the first of them scores for all
            self._open = _Batch()
            if start + len(clicks) < len(batch.clicks):
                with suppress(Exception):  # each finds its own error
                    answers = self._score(batch.clicks)
                    batch.answers = None if answers.unreadable else answers  # whose they are is not known
        if batch.answers is None:
            return self._score(clicks)
        return batch.answers._replace(log_odds=batch.answers.log_odds[start : start + len(clicks)])


class LiveScorer:
    """Answers with one version from start to end of a request; `refresh` swaps in whichever serves now."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.versions = Versions(store.home, store.settings.keep, store.content)
        self.model: ServingModel | None = None
        self._seen: tuple[int, ...] = ()
        self._batch = MicroBatch(self.score)
        self._asking = threading.Lock()  # a net remembers its last answers while it works: one question at a time

    def refresh(self) -> None:
        """Look whether another version serves, and load it. Requests are answered meanwhile."""
        folders = (self.store.home, self.store.home / "models")
        state = tuple(folder.stat().st_mtime_ns for folder in folders if folder.exists())
        if state == self._seen:
            return
        number = self.versions.serving()
        if number is not None and (self.model is None or number != self.model.version):
            try:
                self.model = self._load(number)
            except (OSError, UserError):
                return  # removed while it was read: the next look finds its successor
        self._seen = state

    def answer(self, clicks: Sequence[Values]) -> Coroutine[Any, Any, Answers]:
        """Answers to clicks: to a few at once, to many in a thread, so that others get their turns."""
        return self._batch.score(clicks) if len(clicks) <= FEW else run_in_threadpool(self.score, clicks)

    def score(self, clicks: Sequence[Values]) -> Answers:
        """Answers to clicks, of which raw values are given."""
        model, (x, unreadable) = self.ready(), self.store.reader.encode_clicks(clicks)
        if model.fast is None or not math.isfinite(sum(log_odds := model.fast(x).tolist())):
            with self._asking:
                log_odds = model.engine.score(torch.from_numpy(x)).tolist()
        return Answers(log_odds, model.version, model.name, unreadable)

    def posterior(self, click: Accepted, actions: Sequence[Accepted], clock: int) -> tuple[float, Reveals]:
        """Log-odds of a click given what is known of it at a clock, and what that is."""
        model, kinds = self.ready(), len(self.store.schema.actions)
        happened, undone, paid = np.full((1, kinds), NEVER), np.full((1, len(TURNS)), NEVER), list[Payment]()
        for action in actions:
            refund = action.kind > kinds
            if not refund and not 0 <= action.ts - click.ts <= self.store.schema.d_max:
                continue
            if refund or action.kind == 1:
                paid.append(Payment(action.seen, action.ts, refund, amount_of(action.body)))
            if not refund:
                happened[0, action.kind - 1] = min(happened[0, action.kind - 1], action.ts)
        turns = find_turns(paid)
        undone[0, : len(turns)] = turns
        assert click.body is not None
        known = reveal(
            x=self.store.reader.encode_and_count([click.body])[0],
            click_ts=np.array([click.ts]),
            action_ts=happened,
            known_ts=happened,
            clock=np.array([max(clock, click.ts)]),
            d_max=self.store.schema.d_max,
            row=np.zeros(1, np.int64),
            refund_ts=undone,
        )
        with self._asking:
            return float(model.engine.posterior(known)[0]), known

    def ready(self) -> ServingModel:
        """The version that serves, or an error that there is nothing yet."""
        if self.model is None:
            raise NotReadyError
        return self.model

    def _load(self, number: int) -> ServingModel:
        manifest = next((m for m in self.versions.manifests() if m["intervals"] == number), None)
        if manifest is None:
            raise UserError(f"version {number} was removed")
        engine, reader = self.store.engine(), self.store.reader
        self.versions.restore(engine, manifest)
        reader.encode_clicks([[None] * len(reader.features)])  # columns are compiled by now, not by the first request
        return ServingModel(number, self.store.model, engine, manifest, fast_score(engine))


class RoutedScorer:
    """The scorers of a store: of its own model and of the challenger that was promoted."""

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

    @property
    def main(self) -> LiveScorer:
        """The scorer that answers; the store's own, if a challenger cannot."""
        promoted = self._promoted
        return self.own if promoted is None or promoted.model is None else promoted

    def list_published(self) -> dict[str, PublishedFile]:
        """What a replica needs, in the order in which it has to write it. Nothing of it is an event."""
        folder, states = self.store.folder, dict[str, str]()
        names = [*DESCRIPTION]
        for one in (self.own, self._promoted):
            if one is not None and one.store.model is not None:
                names.append((one.store.home.relative_to(folder) / "challenger.json").as_posix())
            if one is not None and one.model is not None:
                state = one.versions.state(one.model.manifest).relative_to(folder)
                names += [state.as_posix(), state.with_suffix(".json").as_posix()]
                states[state.as_posix()] = one.model.manifest["sha256"]
        paths = {name: folder / name for name in (*names, choices.NAME)}
        return {
            name: PublishedFile(size=path.stat().st_size, sha256=states.get(name) or sha256(path))
            for name, path in paths.items()
            if path.is_file()
        }


class NotReadyError(Exception):
    """There is no version yet: the learner is warming up."""
