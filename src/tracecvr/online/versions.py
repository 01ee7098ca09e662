"""Versions: the snapshot at the end of each tick, and which of them serves. What serves never changes what trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracecvr.checkpoint import Checkpoints
from tracecvr.engine import Engine
from tracecvr.errors import UserError
from tracecvr.files import read_json, write_json


class Versions:
    """The versions of a store: N is the state after N intervals."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.checkpoints = Checkpoints(folder / "models", keep)
        self._serving = folder / "serving.json"

    def save(self, engine: Engine, number: int, facts: dict[str, Any]) -> None:
        """Write a version; the oldest beyond those to keep are removed, except one that serves."""
        pinned = self._pinned()
        self.checkpoints.save(engine, number, facts, () if pinned is None else (pinned,))

    def latest(self) -> dict[str, Any] | None:
        """The manifest of the newest version that is whole."""
        return self.checkpoints.latest()

    def listed(self) -> list[dict[str, Any]]:
        """The manifests of all versions, oldest first."""
        return self.checkpoints.manifests()

    def published(self) -> list[int]:
        """Versions that may serve: those that were not undone."""
        return [manifest["intervals"] for manifest in self.listed() if manifest["published"]]

    def serving(self) -> int | None:
        """The version that serves: the one chosen, or the newest published that is whole; None before there is any."""
        known = {manifest["intervals"]: manifest for manifest in self.listed() if manifest["published"]}
        order = [number for number in (self._pinned(), *reversed(known)) if number in known]
        return next((number for number in order if self.checkpoints.whole(known[number])), None)

    def promote(self, number: int | None) -> None:
        """Let a version serve until another is chosen; None for whichever is the newest."""
        if number is not None and number not in self.published():
            known = ", ".join(map(str, self.published())) or "none"
            raise UserError(f"version {number} cannot serve: choose one of those published ({known})")
        write_json(self._serving, {"version": number})

    def rollback(self) -> int:
        """Let the version before the one that serves do so."""
        earlier = [number for number in self.published() if number < (self.serving() or 0)]
        if not earlier:
            raise UserError("there is no earlier version to go back to")
        self.promote(earlier[-1])
        return earlier[-1]

    def load(self, engine: Engine, manifest: dict[str, Any]) -> None:
        """Put an engine where a version was taken."""
        self.checkpoints.restore(engine, manifest)

    def _pinned(self) -> int | None:
        return read_json(self._serving)["version"] if self._serving.exists() else None
