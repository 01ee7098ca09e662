"""From the directory of a run or of a live store to a model that can be exported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracecvr.base.errors import UserError
from tracecvr.data.encoder import Encoder
from tracecvr.learn.engine import Engine
from tracecvr.runs import run


@dataclass(frozen=True)
class Model:
    """A trained engine, the encoder that its ids come from, and where both were found."""

    engine: Engine
    encoder: Encoder
    source: dict[str, Any]

    def __post_init__(self) -> None:
        if self.encoder.features != self.engine.schema.features:
            raise UserError("the encoder's features are not the model's: the directory holds files of two logs")


def open_model(folder: Path, version: int | None = None) -> Model:
    """The model of a run, or of a store: the version that serves, or another one."""
    if (folder / "store.json").is_file():
        return _of_store(folder, version)
    if version is not None:
        raise UserError(f"{folder} is no store, and a run has one version: leave --version out")
    engine = run.load(folder)
    if not (folder / "encoder.json").exists():
        raise UserError(f"{folder}: the run is not finished; go on with `tracecvr run ... --resume`, then export it")
    return Model(engine, Encoder.load(folder / "encoder.json"), {"kind": "run"})


def _of_store(folder: Path, version: int | None) -> Model:
    try:
        from tracecvr.online.store.store import Store
        from tracecvr.online.store.versions import Versions
    except ImportError:
        raise UserError("the live learner is an extra: pip install 'tracecvr[online]'") from None
    store = Store.open(folder)
    versions = Versions(folder, store.settings.keep)
    number = versions.serving() if version is None else version
    if number is None:
        raise UserError(f"{folder} has no version yet: learn one with `tracecvr tick {folder}`")
    known = {manifest["intervals"]: manifest for manifest in versions.manifests() if manifest["published"]}
    if number not in known:
        raise UserError(f"{folder} has no version {number}: choose one of {', '.join(map(str, known)) or 'none'}")
    if not versions.whole(known[number]):
        raise UserError(f"{folder}: version {number} is damaged; choose another --version")
    engine = store.engine()
    versions.restore(engine, known[number])
    return Model(engine, store.reader.encoder, {"kind": "store", "version": number})
