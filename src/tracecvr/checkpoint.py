"""Checkpoints: safetensors, with a manifest that names their hash. The newest whole one counts, half of one never."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracecvr.engine import Engine
from tracecvr.errors import UserError
from tracecvr.files import read_json, sha256, write_json


class Checkpoints:
    """The checkpoints of one run: `N.safetensors` (state) and `N.json` (manifest, written last)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, engine: Engine, number: int, facts: dict[str, Any]) -> None:
        """Write the state after `number` intervals, then remove older checkpoints."""
        self.folder.mkdir(exist_ok=True)
        weights, manifest = self._paths(number)
        manifest.unlink(missing_ok=True)
        engine.snapshot(weights)
        write_json(manifest, {"format": 1, "intervals": number, "sha256": sha256(weights)} | facts)
        for path in self.folder.iterdir():
            if path not in (weights, manifest):
                path.unlink()

    def latest(self) -> dict[str, Any] | None:
        """The manifest of the newest checkpoint that is whole."""
        for path in sorted(self.folder.glob("*.json"), reverse=True):
            try:
                manifest: dict[str, Any] = read_json(path)
                weights, _ = self._paths(manifest["intervals"])
                if weights.exists() and sha256(weights) == manifest["sha256"]:
                    return manifest
            except (UserError, KeyError):
                continue
        return None

    def restore(self, engine: Engine, manifest: dict[str, Any]) -> None:
        """Put an engine of the same configuration where the checkpoint was taken."""
        engine.restore(self._paths(manifest["intervals"])[0])

    def _paths(self, number: int) -> tuple[Path, Path]:
        return self.folder / f"{number:09d}.safetensors", self.folder / f"{number:09d}.json"
