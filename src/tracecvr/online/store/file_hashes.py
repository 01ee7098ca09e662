"""What a store is made of and never changes: its files with their sizes and hashes, in `files.json`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json, sha256, write_json
from tracecvr.learn.checkpoint import digest

NAME = "files.json"
_MADE_OF = ("store.json", "start.safetensors", "base/**/*")


def write(folder: Path) -> None:
    """Record the files of a store as they are now."""
    paths = sorted(path for pattern in _MADE_OF for path in folder.glob(pattern) if path.is_file())
    named = {path.relative_to(folder).as_posix(): path for path in paths if not path.name.startswith(".")}
    files = {name: {"size": path.stat().st_size, "sha256": sha256(path)} for name, path in named.items()}
    write_hashed(folder / NAME, {"files": files})


def read(folder: Path) -> dict[str, dict[str, Any]]:
    files: dict[str, dict[str, Any]] = read_hashed(folder / NAME, "copy it from where the store is whole")["files"]
    return files


def write_hashed(path: Path, content: dict[str, Any]) -> None:
    """A small file with its own hash: another value, or another file's, may be as valid as what was written."""
    write_json(path, content | {"hash": digest([path.name, content])})


def read_hashed(path: Path, otherwise: str) -> dict[str, Any]:
    """What `write_hashed` wrote; `otherwise` is what to do if it is not."""
    if not path.exists():
        raise UserError(f"{path} is missing: {otherwise}")
    content = read_json(path)
    if not isinstance(content, dict) or content.pop("hash", None) != digest([path.name, content]):
        raise UserError(f"{path} is damaged: {otherwise}")
    return content


def problem(folder: Path, name: str, facts: dict[str, Any], whole: bool = True) -> str:
    """What is wrong with a file; nothing, if it is as it was. Large ones are read only if `whole`."""
    path = folder / name
    if not path.is_file():
        return f"{path} is missing"
    if path.stat().st_size != facts["size"]:
        return f"{path} has {path.stat().st_size:,} bytes, and had {facts['size']:,} when the store was created"
    if (whole or path.suffix == ".json") and sha256(path) != facts["sha256"]:
        return f"{path} is not as it was when the store was created"
    return ""


def refuse_if_changed(folder: Path, names: Collection[str] = ()) -> None:
    """Stop if files are not the store's, by default any of them, before anything is served or learnt from them."""
    for name, facts in read(folder).items():
        if (not names or name in names) and (wrong := problem(folder, name, facts, whole=False)):
            raise UserError(f"{wrong}: copy it from where the store is whole (`tracecvr verify {folder}` checks all)")
