"""What a replica needs of a store: its description, and the versions that serve. Nothing of it is an event."""

from __future__ import annotations

import re

from tracecvr.base.files import sha256
from tracecvr.online.service.bodies import PublishedFile
from tracecvr.online.service.routing import RoutedScorer
from tracecvr.online.store.choices import NAME as SERVING

DESCRIPTION = ("store.json", "files.json", "base/table.json", "base/encoder.json")
"""Files that never change: another content is another store."""
ALLOWED = re.compile(
    r"(files|store|serving)\.json|base/(table|encoder)\.json"
    r"|(challengers/[a-z][a-z0-9_-]*/)?(models/[0-9]{9}\.(json|safetensors)|challenger\.json)"
)
"""What such files may be called: a replica writes no other file, whatever it is offered."""


def list_published(models: RoutedScorer) -> dict[str, PublishedFile]:
    """The files by name, in the order in which a replica has to write them: a version's state before its manifest, what
    chooses between versions last."""
    folder = models.store.folder
    names = [*DESCRIPTION]
    states: dict[str, str] = {}
    for one in models.answering():
        home, model = one.store.home.relative_to(folder), one.model
        if one.store.model is not None:
            names.append((home / "challenger.json").as_posix())
        if model is not None:
            stem = (home / "models" / f"{model.version:09d}").as_posix()
            names += [f"{stem}.safetensors", f"{stem}.json"]
            states[f"{stem}.safetensors"] = model.manifest["sha256"]
    files = {}
    for name in (*names, SERVING):
        path = folder / name
        if path.is_file():
            facts = path.stat()
            digest = states.get(name) or sha256(path)
            files[name] = PublishedFile(size=facts.st_size, sha256=digest, written=facts.st_mtime)
    return files
