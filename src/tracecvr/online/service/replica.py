"""`tracecvr serve --replica`: scores from the versions that a writer has published, and accepts nothing.

A replica reads the directory of the writer's store, or asks it over HTTP and keeps a copy. If the writer is gone, it
goes on with what it has, and says how old that is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from http.client import HTTPException as BrokenAnswer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from fastapi import FastAPI, HTTPException

from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json, sha256, write_atomically
from tracecvr.online.service import bodies
from tracecvr.online.service.app import scoring_application
from tracecvr.online.service.auth import Tokens
from tracecvr.online.service.bodies import ERRORS, Published, PublishedFile
from tracecvr.online.service.front import need
from tracecvr.online.service.options import Limits
from tracecvr.online.service.scorer import ALLOWED, DESCRIPTION
from tracecvr.online.service.scoring import Scoring
from tracecvr.online.store.file_hashes import refuse_if_changed
from tracecvr.online.store.store import Store

_SECONDS = 10.0
"""How long the writer may take to answer."""
_BLOCK = 1 << 20
_LARGEST, _MOST = 1 << 32, 1 << 33
"""Bytes that a writer may offer: of a file, and of all together."""


class _NoRedirects(HTTPRedirectHandler):
    """A token is sent to the writer only."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Mirror:
    """A copy of what a writer has published, in a directory of its own."""

    def __init__(self, url: str, folder: Path, token: str | None = None) -> None:
        where = urlsplit(url)
        if where.scheme not in ("http", "https") or not where.hostname or where.username or where.password:
            raise UserError(
                f"--replica {where.scheme}://{where.hostname or ''}: give http://HOST:PORT or https://HOST:PORT"
            )
        self.url, self.folder, self._token = url.rstrip("/"), folder, token
        self.problem: str | None = None
        self._opener = build_opener(_NoRedirects)
        self._hashes: dict[Path, str] = {}

    def pull(self) -> bool:
        """Fetch what has changed; whether the writer could be asked. What is there stays until it is replaced."""
        try:
            self._pull()
        except (OSError, ValueError, BrokenAnswer, UserError) as error:
            self.problem = _reason(error)
            return False
        self.problem = None
        return True

    def _pull(self) -> None:
        with self._ask("/v1/published") as answer:
            files = Published.model_validate_json(answer.read(_BLOCK)).files
        _refuse_strange(files)
        if (self.folder / "store.json").is_file():
            for name in DESCRIPTION:
                if sha256(self.folder / name) != files[name].sha256:
                    raise UserError(f"the writer has another store than the copy in {self.folder}: remove the copy")
        else:
            self._fetch_description(files)
        for name, facts in files.items():
            if name not in DESCRIPTION:
                self._fetch(self.folder, name, facts)
        if any(name.startswith("models/") for name in files):  # else it has just started
            self._remove(files)

    def _fetch_description(self, files: dict[str, PublishedFile]) -> None:
        """What never changes, once it was seen to be a store."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with TemporaryDirectory(dir=self.folder, prefix=".incoming.") as room:
            for name in DESCRIPTION:
                self._fetch(Path(room), name, files[name])
            try:
                store = Store.open(Path(room), check=False)
                store.engine()
                _ = store.reader
            except Exception as error:  # whatever is in these files, written by whoever answers there
                raise UserError(f"the writer offers no store that can be read ({_reason(error)})") from error
            (self.folder / "base").mkdir(exist_ok=True)
            for name in reversed(DESCRIPTION):  # whoever finds the first finds all
                (Path(room) / name).rename(self.folder / name)

    def _fetch(self, folder: Path, name: str, facts: PublishedFile) -> None:
        path = folder / name
        if not path.is_file() or (self._hashes.get(path) or sha256(path)) != facts.sha256:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, lambda temporary: self._download(name, facts, temporary))
        self._hashes[path] = facts.sha256

    def _download(self, name: str, facts: PublishedFile, to: Path) -> None:
        left = facts.size
        with self._ask(f"/v1/published/{quote(name)}") as answer, to.open("wb") as file:
            while left > 0 and (block := answer.read(min(_BLOCK, left))):
                left -= file.write(block)
        if sha256(to) != facts.sha256:
            raise UserError(f"{name} was replaced while it was fetched")
        if name.endswith(".json") and not isinstance(read_json(to), dict):
            raise UserError(f"the writer offers a {name} that cannot be read")

    def _remove(self, files: dict[str, PublishedFile]) -> None:
        """Versions that serve no longer, and choices that were taken back."""
        for path in sorted(self.folder.rglob("*"), reverse=True):
            name = path.relative_to(self.folder).as_posix()
            if path.is_file() and name not in files and ALLOWED.fullmatch(name):
                path.unlink()
                self._hashes.pop(path, None)

    def _ask(self, path: str) -> Any:
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        return self._opener.open(Request(self.url + path, headers=headers), timeout=_SECONDS)


def _refuse_strange(files: dict[str, PublishedFile]) -> None:
    if strange := [name for name in files if not ALLOWED.fullmatch(name)]:
        raise UserError(f"the writer offers {strange[0]!r}, which is no file of a store")
    if missing := [name for name in DESCRIPTION if name not in files]:
        raise UserError(f"the writer offers no {missing[0]}, so it has no store")
    sizes = [facts.size for facts in files.values()]
    if min(sizes) < 0 or max(sizes) > _LARGEST or sum(sizes) > _MOST:
        raise UserError(f"the writer offers files of {sum(sizes):,} bytes: more than a model has")


def _reason(error: Exception) -> str:
    """On one line, and nothing of a token."""
    if isinstance(error, HTTPError):
        return f"the writer answers {error.code}"
    if isinstance(error, URLError | ConnectionError | TimeoutError):  # the last two: while it answers
        return f"the writer cannot be reached ({error.reason if isinstance(error, URLError) else error})"
    return " ".join(str(error).split()) if isinstance(error, UserError) else f"{type(error).__name__}"


class Replica(Scoring):
    def __init__(self, store: Store, tokens: Tokens, limits: Limits, mirror: Mirror | None = None) -> None:
        super().__init__(store, tokens, limits)
        self.mirror = mirror

    def look(self) -> None:
        if self.mirror is not None:
            self.mirror.pull()
        try:
            super().look()
        except Exception as error:
            if self.mirror is not None:
                self.mirror.problem = f"what the writer offers cannot be served ({_reason(error)})"
            raise

    def status(self) -> dict[str, Any]:
        """What serves, how old it is, and whether the writer is heard."""
        mirror, model = self.mirror, self.scorer.model
        age = None if model is None else max(0.0, time.time() - model.manifest["written"])
        writer = None if mirror is None else {"heard": mirror.problem is None, "problem": mirror.problem}
        return super().status() | {"replica": True, "age_s": age, "writer": writer}


def replica(
    store: Store,
    tokens: Tokens | None = None,
    limits: Limits | None = None,
    mirror: Mirror | None = None,
    names: Sequence[str] = (),
) -> FastAPI:
    service = Replica(store, tokens or Tokens(), limits or Limits(), mirror)
    app = scoring_application(service, names)
    refused = ERRORS | {405: {"model": bodies.Failure}}
    for path, scope in (("/v1/clicks", "ingest"), ("/v1/events", "ingest"), ("/v1/promote", "admin")):
        app.post(path, responses=refused, dependencies=[need(scope)])(_refuse)
    return app


async def _refuse() -> None:
    """There is one writer, and this is not it."""
    raise HTTPException(405, "this is a replica, which scores only: ask the writer", {"Allow": ""})


def open_published(
    source: str, folder: Path, token: Path | None, say: Callable[[str], None]
) -> tuple[Store, Mirror | None]:
    """The store that a replica reads: a directory as it is, or the copy of what a writer has published."""
    mirror = None
    if "://" in source:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mirror = Mirror(source, folder, None if token is None else token.read_text(encoding="utf-8").strip())
        if not mirror.pull():
            if not (folder / "store.json").is_file():
                raise UserError(
                    f"--replica: {mirror.problem}, and there is no copy in {folder}: start the writer first"
                )
            say(f"{mirror.problem}; going on with the copy in {folder}")
    store = Store.open(Path(source) if mirror is None else folder, check=False)
    refuse_if_changed(store.folder, DESCRIPTION)
    return store, mirror
