"""Checkpoints: safetensors, with a manifest that names their hash and its own. The newest whole one counts, half of one
never."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json, refuse_other_format, sha256, write_text
from tracecvr.learn.engine import Engine

FORMAT = 1


class Checkpoints:
    """The checkpoints of one run: `N.safetensors` (state) and `N.json` (manifest, written last). The newest `keep` of
    them are kept, and others that are pinned."""

    def __init__(self, folder: Path, keep: int = 1) -> None:
        self.folder, self.keep = folder, keep
        self._known: dict[Path, tuple[tuple[int, ...], dict[str, Any] | None]] = {}

    def save(self, engine: Engine, number: int, facts: dict[str, Any], pinned: Collection[int] = ()) -> None:
        """Write the state after `number` intervals, then remove older checkpoints that are neither new nor pinned."""
        self.folder.mkdir(exist_ok=True)
        weights, manifest = self._paths(number)
        manifest.unlink(missing_ok=True)
        engine.snapshot(weights)
        content = {"format": FORMAT, "intervals": number, "sha256": sha256(weights)} | facts
        # Without indents, which the encoder in C does not know: of a live model, that was a fifth of a tick.
        write_text(manifest, json.dumps(content | {"manifest": digest(content)}, allow_nan=False))
        newest = sorted({path.stem for path in self.folder.glob("[0-9]*.json")}, reverse=True)[: self.keep]
        kept = {weights.stem, *newest, *(self._paths(n)[0].stem for n in pinned)}
        for path in self.folder.glob("[0-9]*"):  # others are not ours: the folder may be a link to anything
            if path.stem not in kept and path.suffix in (".json", ".safetensors"):
                path.unlink()

    def newest(self) -> dict[str, Any] | None:
        """The newest manifest that is whole, without a look at the others."""
        manifests = (self._manifest(path)[1] for path in sorted(self.folder.glob("*.json"), reverse=True))
        return next((manifest for manifest in manifests if manifest is not None), None)

    def latest(self) -> dict[str, Any] | None:
        return next((manifest for manifest in reversed(self.manifests()) if self.whole(manifest)), None)

    def manifests(self) -> list[dict[str, Any]]:
        """The whole manifests, oldest first; whether the states are whole, too, is another question."""
        self._known = {path: self._manifest(path) for path in sorted(self.folder.glob("*.json"))}
        whole = (manifest for _, manifest in self._known.values() if manifest is not None)
        return [manifest for manifest in whole if self.state(manifest).exists()]

    def _manifest(self, path: Path) -> tuple[tuple[int, ...], dict[str, Any] | None]:
        """A manifest, if it is whole, and when it was written: to read and to hash it again takes milliseconds each."""
        try:
            facts = path.stat()
            written = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
            if path in self._known and self._known[path][0] == written:
                return self._known[path]
            manifest: dict[str, Any] = read_json(path)
            whole = manifest.pop("manifest") == digest(manifest) and path == self._paths(manifest["intervals"])[1]
        except (OSError, UserError, KeyError, TypeError, AttributeError):
            return (), None
        return written, manifest if whole and self._is_ours(manifest) else None

    def _is_ours(self, manifest: dict[str, Any]) -> bool:
        """Whether a whole manifest is of what these are the checkpoints of."""
        return True

    def whole(self, manifest: dict[str, Any]) -> bool:
        """Whether the state is what the manifest says."""
        with suppress(OSError):  # there is a folder in its place, or it is not readable
            return sha256(self.state(manifest)) == manifest.get("sha256")
        return False

    def state(self, manifest: dict[str, Any]) -> Path:
        return self._paths(manifest["intervals"])[0]

    def restore(self, engine: Engine, manifest: dict[str, Any]) -> None:
        """Put an engine of the same configuration where the checkpoint was taken."""
        refuse_other_format(manifest, FORMAT, self._paths(manifest["intervals"])[1])
        state, whole = self.state(manifest), False
        with suppress(SafetensorError, KeyError):
            engine.restore(state)
            whole = manifest.get("weights") in (None, engine.fingerprint())
        if not whole:  # it was written wrongly
            raise UserError(f"{state} is not what was learnt: remove it, and it is learnt again")

    def _paths(self, number: int) -> tuple[Path, Path]:
        return self.folder / f"{number:09d}.safetensors", self.folder / f"{number:09d}.json"


def digest(content: Any) -> str:
    """A hash of a manifest's content: a flipped bit in it may well leave it readable."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
