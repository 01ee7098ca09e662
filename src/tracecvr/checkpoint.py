"""Checkpoints: safetensors, with a manifest that names their hash and its own. The newest whole one counts, half of one
never."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tracecvr.engine import Engine
from tracecvr.errors import UserError
from tracecvr.files import read_json, sha256, write_json


class Checkpoints:
    """The checkpoints of one run: `N.safetensors` (state) and `N.json` (manifest, written last). The newest `keep` of
    them are kept."""

    def __init__(self, folder: Path, keep: int = 1) -> None:
        self.folder, self.keep = folder, keep

    def save(self, engine: Engine, number: int, facts: dict[str, Any], pinned: Collection[int] = ()) -> None:
        """Write the state after `number` intervals, then remove older checkpoints that are neither new nor pinned."""
        self.folder.mkdir(exist_ok=True)
        weights, manifest = self._paths(number)
        manifest.unlink(missing_ok=True)
        engine.snapshot(weights)
        content = {"format": 1, "intervals": number, "sha256": sha256(weights)} | facts
        write_json(manifest, content | {"manifest": _digest(content)})
        newest = sorted({path.stem for path in self.folder.glob("*.json")}, reverse=True)[: self.keep]
        kept = {weights.stem, *newest, *(self._paths(n)[0].stem for n in pinned)}
        for path in self.folder.iterdir():
            if path.stem not in kept and path.suffix in (".json", ".safetensors"):
                path.unlink()

    def latest(self) -> dict[str, Any] | None:
        """The manifest of the newest checkpoint that is whole."""
        return next((manifest for manifest in reversed(self.manifests()) if self.whole(manifest)), None)

    def manifests(self) -> list[dict[str, Any]]:
        """The whole manifests, oldest first; whether the states are whole, too, is another question."""
        found = []
        for path in sorted(self.folder.glob("*.json")):
            try:
                manifest: dict[str, Any] = read_json(path)
                if manifest.pop("manifest") == _digest(manifest) and self._paths(manifest["intervals"])[0].exists():
                    found.append(manifest)
            except (UserError, KeyError):
                continue
        return found

    def whole(self, manifest: dict[str, Any]) -> bool:
        """Whether the state is what the manifest says."""
        return sha256(self._paths(manifest["intervals"])[0]) == manifest.get("sha256")

    def restore(self, engine: Engine, manifest: dict[str, Any]) -> None:
        """Put an engine of the same configuration where the checkpoint was taken."""
        engine.restore(self._paths(manifest["intervals"])[0])

    def _paths(self, number: int) -> tuple[Path, Path]:
        return self.folder / f"{number:09d}.safetensors", self.folder / f"{number:09d}.json"


def _digest(content: dict[str, Any]) -> str:
    """A hash of a manifest's content: a flipped bit in it may well leave it readable."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
