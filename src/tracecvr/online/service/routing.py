"""Which model answers: the store's own, or the challenger that was promoted; and what a replica needs to do so."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from tracecvr.base.errors import UserError, explain
from tracecvr.base.files import sha256
from tracecvr.online.service.bodies import PublishedFile
from tracecvr.online.service.scorer import LiveScorer
from tracecvr.online.store import choices
from tracecvr.online.store.challenge import find_challenger
from tracecvr.online.store.store import Store

_log = logging.getLogger("tracecvr.serve")
DESCRIPTION = ("store.json", "files.json", "base/table.json", "base/encoder.json")
"""Files that never change: another content is another store."""
ALLOWED = re.compile(
    r"(files|store|serving)\.json|base/(table|encoder)\.json"
    r"|(challengers/[a-z][a-z0-9_-]*/)?(models/[0-9]{9}\.(json|safetensors)|challenger\.json)"
)
"""What published files may be called: a replica writes no other file, whatever it is offered."""


class RoutedScorer:
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
