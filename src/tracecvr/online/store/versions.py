"""Versions: the snapshot at the end of each tick, and which of them serves. What serves never changes what trains."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from tracecvr.base.errors import UserError
from tracecvr.learn.checkpoint import Checkpoints, digest
from tracecvr.learn.engine import Engine
from tracecvr.online.store import choices

_log = logging.getLogger("tracecvr.store")


class Versions(Checkpoints):
    """The versions of a store: N is the state after N intervals. Those of another `content` are passed over."""

    def __init__(self, folder: Path, keep: int, content: dict[str, Any] | None = None) -> None:
        super().__init__(folder / "models", keep)
        self._home = folder
        self._lost: set[int] = set()
        self._content = None if content is None else digest(content)

    def _is_ours(self, manifest: dict[str, Any]) -> bool:
        return self._content in (None, digest(manifest.get("store")))

    def save(self, engine: Engine, number: int, facts: dict[str, Any], pinned: Collection[int] = ()) -> None:
        """Write a version; the oldest beyond those to keep are removed, except those that are needed."""
        published = self.published()  # however old, the newest two and the one chosen are kept
        chosen = [number for number in published if number == self.chosen()]
        super().save(engine, number, facts, {*pinned, *published[-2:], *chosen})

    def published(self) -> list[int]:
        """Versions that may serve: those that were not undone."""
        return [manifest["intervals"] for manifest in self.manifests() if manifest["published"]]

    def serving(self) -> int | None:
        """The version that serves: the one chosen, or the newest published that is whole; None before there is any.
        If none is left, one whose tick was undone does: its weights are those of the last good one."""
        listed, chosen = [int(path.stem) for path in self.folder.glob("*.json") if path.stem.isdecimal()], self.chosen()
        known = {manifest["intervals"]: manifest for manifest in self.manifests()}
        published = [number for number, manifest in known.items() if manifest["published"]]
        order = [number for number in (chosen, *reversed(published)) if number in published]
        order += [number for number in reversed(known) if number not in published]
        serving = next((number for number in order if self.whole(known[number])), None)
        newer = {number for number in listed if serving is None or number > serving} - (set(known) - set(published))
        lost = newer if chosen is None else {chosen} - {serving}
        for number in lost - self._lost:  # once
            _log.warning("%s: version %d is lost or damaged: version %s serves", self.folder, number, serving)
        self._lost = lost
        return serving

    def promote(self, number: int | None) -> None:
        """Let a version serve until another is chosen; None for whichever is the newest."""
        if number is not None and number not in self.published():
            known = ", ".join(map(str, self.published())) or "none"
            raise UserError(f"version {number} cannot serve: choose one of those published ({known})")
        choices.change(self._home, lambda now: replace(now, version=number))

    def chosen(self) -> int | None:
        return choices.read(self._home).version
