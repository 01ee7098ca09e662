"""The learner of a challenger, and all learners of a store in one process, the store's own first."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tracecvr.base.errors import HeldError, UserError, explain
from tracecvr.base.files import locked
from tracecvr.base.json_state import JsonState
from tracecvr.base.metrics import Labels, nll
from tracecvr.base.progress import Progress, no_progress
from tracecvr.data.table import Ints
from tracecvr.online.challengers.confidence import HOUR, PairedDifferences
from tracecvr.online.learner.guard import LogOdds
from tracecvr.online.learner.learner import Learner, Tick, open_learner
from tracecvr.online.learner.live_metrics import Predictions, ScoreSums
from tracecvr.online.store.challenge import TICK_LOCK, Challenger, find_challenger, list_lost, list_names
from tracecvr.online.store.store import Store
from tracecvr.online.store.versions import Versions

_log = logging.getLogger("tracecvr.learner")
_AGAIN_S = 30.0


@dataclass
class Comparison(JsonState):
    """Two models on the same clicks with final labels: by scores that each gave them before it learnt them."""

    differences: PairedDifferences = field(default_factory=PairedDifferences)
    """The challenger's NLL less the champion's."""
    challenger: ScoreSums = field(default_factory=ScoreSums)
    champion: ScoreSums = field(default_factory=ScoreSums)

    def add(self, unit: int, challenger: LogOdds, champion: LogOdds, label: Labels) -> None:
        """Clicks whose labels have become final; those that one of the two has not scored are left out."""
        both = ~np.isnan(challenger) & ~np.isnan(champion)
        ours, theirs, label = challenger[both], champion[both], label[both]
        self.challenger.add(ours, label)
        self.champion.add(theirs, label)
        difference = nll(ours.astype(np.float64), label) - nll(theirs.astype(np.float64), label)
        if len(difference):
            self.differences.add(unit, difference)

    def summary(self) -> dict[str, Any]:
        """What is shown of it. Differences are of NLL per click: below 0 the challenger is better."""
        d = self.differences.difference()
        return {
            "verdict": d.verdict,
            "nll_difference": asdict(d),
            "challenger": self.challenger.summary(),
            "champion": self.champion.summary(),
        }


class ChallengerLearner(Learner):
    """Follows the same log, never ahead of the store's own learner: what it is compared with is on disk by then."""

    store: Challenger

    def __init__(self, store: Challenger, progress: Progress = no_progress) -> None:
        self.comparison = Comparison()
        super().__init__(store, progress)
        self._champion = Versions(store.folder, store.settings.keep)
        self._champion_predictions = Predictions(self.log, None)

    def closed(self) -> int:
        newest = self._champion.newest()
        return min(super().closed(), newest["intervals"] if newest else 0)

    def _compare(self, row: Ints, label: Labels, start: int) -> None:
        """Clicks that came before the challenger was made do not count: it may have been chosen by them."""
        known = self.ledger.table.arrival_ts[row - self.ledger.first_row]
        counts = known >= self.store.grid.bounds(self.store.since)[0]
        if counts.any():
            row, label = row[counts], label[counts]
            interval = self.store.grid.interval
            unit = self.store.grid.number(start) // -(-HOUR // interval)
            self.comparison.add(unit, self.predictions.of(row), self._champion_predictions.of(row), label)

    def _more_facts(self) -> dict[str, Any]:
        return {"pairs": self.comparison.state(), "comparison": self.comparison.summary()}

    def _record(self, number: int, content: dict[str, Any]) -> None:
        super()._record(number, content | {"comparison": self.comparison.summary()})

    def _restore(self, manifest: dict[str, Any]) -> None:
        self.comparison = Comparison.of(manifest["pairs"])
        super()._restore(manifest)


class Learners:
    """The store's own learner, and those of its challengers as they come and go: these learn one interval at a time,
    when nothing is left to learn for the store's own. One that fails is noted, and the others go on."""

    def __init__(self, store: Store, progress: Progress = no_progress) -> None:
        self.store, self._progress = store, progress
        self._own = ExitStack()
        self._running: dict[str, _Running] = {}
        self._paused_until: dict[str, float] = {}

    def __enter__(self) -> Learners:
        with suppress(UserError):  # a damaged choice is passed over
            for name in list_lost(self.store):
                _log.error("challenger %s is missing and learns nothing: `tracecvr verify` says what to do", name)
        self.own = self._own.enter_context(open_learner(self.store, self._progress))
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._running):
            self._stop(name)
        self._own.close()

    def follow(self, poll: float = 1.0) -> Iterator[Tick]:
        while True:
            yield from self.all()
            time.sleep(poll)

    def all(self) -> Iterator[Tick]:
        while ticks := list(self._round()):
            yield from ticks

    def _round(self) -> Iterator[Tick]:
        """What the store's own learner has to learn; else one interval for each challenger."""
        if (tick := self.own.tick()) is not None:
            yield tick
            return
        names = list_names(self.store)
        for name in set(self._running) - set(names):
            self._stop(name)
        for name in names:
            if (done := self._tick(name)) is not None:
                yield done

    def _tick(self, name: str) -> Tick | None:
        """Learn an interval for a challenger. If that fails, it is tried again later, from the newest whole version."""
        if time.monotonic() < self._paused_until.get(name, 0.0):
            return None
        challenger = None
        try:
            challenger = find_challenger(self.store, name)
            with locked(challenger.home, "another process learns it", TICK_LOCK):
                tick = self._learner(challenger).tick()
            challenger.note_problem(None)
            return tick
        except HeldError:  # it is being made, or dropped, or learnt elsewhere
            return None
        except Exception as error:
            self._stop(name)
            self._paused_until[name] = time.monotonic() + _AGAIN_S
            known = isinstance(error, UserError | OSError)
            text = explain(error) if known else f"{type(error).__name__}: {error}"
            problem = " ".join(text.split())
            _log.error("challenger %s cannot learn: %s", name, problem)
            if challenger is not None and challenger.home.exists():  # else it is damaged, or was dropped
                with suppress(OSError, UserError):
                    challenger.note_problem(problem)
            return None

    def _learner(self, challenger: Challenger) -> Learner:
        """Its learner; a new one if it was dropped and made again meanwhile."""
        facts = (challenger.home / "challenger.json").stat()
        made = facts.st_ino, facts.st_mtime_ns
        running = self._running.get(challenger.name)
        if running is None or running.made != made:
            self._stop(challenger.name)
            holds = ExitStack()
            learner = holds.enter_context(open_learner(challenger, self._progress, ChallengerLearner))
            running = self._running[challenger.name] = _Running(made, learner, holds)
        return running.learner

    def _stop(self, name: str) -> None:
        if (running := self._running.pop(name, None)) is not None:
            running.holds.close()


class _Running(NamedTuple):
    made: tuple[int, int]
    learner: Learner
    holds: ExitStack
