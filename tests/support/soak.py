"""Rounds of bad luck on one store: killed at some line of learning, compaction or erasure, or a file damaged. In the
end its weights are those of a store that nothing happened to, or the damage was refused in one line."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import polars as pl

from crashing import process
from livestore import SMALL, learnt, send, the_events
from tracecvr.base import registry
from tracecvr.base.config import HOUR
from tracecvr.base.errors import UserError
from tracecvr.online.learner.archive import compact, erase
from tracecvr.online.service.scorer import RoutedScorer
from tracecvr.online.store.store import Settings, Store
from tracecvr.online.store.versions import Versions
from tracecvr.online.upkeep.store_check import verify
from tracecvr.online.upkeep.verify_log import verify_log

USER, HALF, END = "u3", 900, 1150
_TRACED = ("/ledger/", "/learner/", "/log/event_log.py", "/log/event_database.py")
_PAGE = 4096


@cache
def events() -> list[dict[str, Any]]:
    """Users have some clicks each; ids are large, so that they are not found by chance in a file."""
    return [
        e | {"click_id": random.Random(e["click_id"]).getrandbits(62), "user": f"u{e['click_id'] % 7}"}
        for e in the_events()[:END]
    ]


# What is done to a file.


def _flip(content: bytearray, dice: random.Random) -> None:
    content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)


def _zero(content: bytearray, dice: random.Random) -> None:
    start = dice.randrange(len(content)) // _PAGE * _PAGE
    content[start : start + _PAGE] = bytes(len(content[start : start + _PAGE]))


def _scramble(content: bytearray, dice: random.Random) -> None:
    start = dice.randrange(len(content))
    content[start : start + 300] = dice.randbytes(len(content[start : start + 300]))


def _cut(content: bytearray, dice: random.Random) -> None:
    del content[dice.randrange(len(content)) :]


def _empty(content: bytearray, dice: random.Random) -> None:
    content.clear()


def _swap(content: bytearray, dice: random.Random) -> None:
    pages = len(content) // _PAGE
    if pages < 2:
        _flip(content, dice)
        return
    one, other = (_PAGE * number for number in dice.sample(range(pages), 2))
    held = content[one : one + _PAGE]
    content[one : one + _PAGE] = content[other : other + _PAGE]
    content[other : other + _PAGE] = held


DAMAGES = (_flip, _zero, _scramble, _cut, _empty, _swap)


def damage(path: Path, dice: random.Random) -> str:
    """Damage a file where it is, or remove it; what was done."""
    how = dice.choice((*DAMAGES, None))
    if how is None:
        path.unlink()
        return "remove"
    content = bytearray(path.read_bytes())
    if content:
        how(content, dice)
    else:
        content += dice.randbytes(300)
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()
    return how.__name__.strip("_")


# Killed at a line.


def run_until_killed(folder: Path, operation: str, lines: int) -> None:
    """Do something to a store, in a process of its own, and be killed after so many lines of ours."""
    left = lines

    def local(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        left -= event == "line"
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return local

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        return local if "/online/" in name and any(part in name for part in _TRACED) else None

    os.environ["POLARS_MAX_THREADS"] = "1"
    store = Store.open(folder)
    sys.settrace(trace)
    OPERATIONS[operation](store)
    sys.settrace(None)
    (folder.parent / "lines").write_text(str(lines - left))


OPERATIONS: dict[str, Callable[[Store], object]] = {
    "learn": learnt,
    "compact": compact,
    "erase": lambda store: erase(store, USER),
}


@dataclass
class Soak:
    """Rounds on copies of one store."""

    room: Path
    base: Path
    seed: int = 0
    rounds: Counter[str] = field(default_factory=Counter)
    """How they ended, by what happened."""
    silent: list[str] = field(default_factory=list)
    """Rounds after which something else was learnt or served, or that ended in a traceback."""

    def __post_init__(self) -> None:
        method = registry.get("method", "trace")(**SMALL)
        self.store = Store.create(self.room / "whole", self.base, method, (), Settings(lateness=HOUR, keep=3))
        send(self.store, events()[:HALF])
        learnt(self.store)
        OPERATIONS["compact"](self.store)
        send(self.store, events()[HALF:])
        self.expected = {}
        for operation in OPERATIONS:
            copy = self._copy()
            OPERATIONS[operation](copy)
            learnt(copy)
            self.expected[operation] = self._outcome(copy)
        assert not ids_left(copy), "erasure is the last of them"
        assert len({str(value) for value in self.expected.values()}) == 2, "erasure changes what is learnt"
        self.lines = {operation: self._lines(operation) for operation in OPERATIONS}

    def run(self, rounds: int) -> None:
        for number in range(rounds):
            dice = random.Random(f"{self.seed}:{number}")
            try:
                what = self._killed(dice) if number % 4 == 0 else self._damaged(dice)
            except Exception as error:
                what = "a traceback"
                self.silent.append(f"round {number}: {''.join(traceback.format_exception(error)[-3:])}")
            self.rounds[what] += 1
            sys.stderr.write(f"round {number}: {what}; {len(self.silent)} silent so far\n")

    def _copy(self) -> Store:
        shutil.rmtree(self.room / "copy", ignore_errors=True)
        return Store.open(shutil.copytree(self.store.folder, self.room / "copy"))

    def _lines(self, operation: str) -> int:
        """How many lines of ours an operation takes."""
        with process(run_until_killed, self._copy().folder, operation, 1 << 60) as child:
            child.join(300)
        return int((self.room / "lines").read_text())

    def _outcome(self, store: Store) -> tuple[Any, ...]:
        """What was learnt, and what is served."""
        versions = Versions(store.home, store.settings.keep).manifests()
        scorer = RoutedScorer(store)
        scorer.refresh()
        clicks = [store.reader.values(e["features"]) for e in events()[:40] if e["type"] == "click"]
        answers = asyncio.run(scorer.main.answer(clicks))
        return [(m["intervals"], m["weights"], m["counts"], m["rows"]) for m in versions][-1:], answers

    def _killed(self, dice: random.Random) -> str:
        """Killed somewhere in an operation, which is then repeated."""
        store, operation = self._copy(), dice.choice(list(OPERATIONS))
        line = dice.randrange(1, self.lines[operation])
        with process(run_until_killed, store.folder, operation, line) as child:
            child.join(300)
            assert child.exitcode == -signal.SIGKILL, (operation, line, child.exitcode)
        OPERATIONS[operation](store)
        learnt(store)
        self._compare(store, operation, f"{operation} killed at line {line}")
        wrong = [finding.text for finding in verify(store) if not finding.fine]
        if wrong:
            self.silent.append(f"{operation} killed at line {line}: verify says {wrong}")
        if operation != "erase" and not verify_log(store).same:
            self.silent.append(f"{operation} killed at line {line}: a replay of the log has other weights")
        if operation == "erase" and (left := ids_left(store)):
            self.silent.append(f"erase killed at line {line}: {left} ids are left")
        return f"{operation} killed"

    def _damaged(self, dice: random.Random) -> str:
        """A file is damaged: what comes of it is as if it had not been, or it is refused."""
        store = self._copy()
        kinds: dict[str, list[Path]] = {}
        for path in sorted(store.folder.rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                kinds.setdefault(_kind(path.relative_to(store.folder)), []).append(path)
        kind = dice.choice(sorted(kinds))
        path = dice.choice(kinds[kind])
        name = path.relative_to(store.folder)
        how = damage(path, dice)
        try:
            store = Store.open(store.folder)
            learnt(store)
            outcome = self._outcome(store)
        except UserError as error:
            if "\n" in str(error):
                self.silent.append(f"{name}, {how}: refused in several lines: {error}")
            return f"{kind}: refused"
        if outcome != self.expected["learn"]:
            self.silent.append(f"{name}, {how}: something else was learnt or served")
        return f"{kind}: as if nothing had happened"

    def _compare(self, store: Store, operation: str, what: str) -> None:
        if self._outcome(store) != self.expected[operation]:
            self.silent.append(f"{what}: something else was learnt or served")


def _kind(name: Path) -> str:
    if name.parts[0] in ("models", "archive"):
        return f"{name.parts[0]}/*{name.suffix}"
    return name.as_posix()


def ids_left(store: Store) -> int:
    """How many clicks of the erased user are in any file of the log or the archive, by their ids."""
    theirs = {event["click_id"] for event in events() if event["user"] == USER}
    files = [store.folder / "events.db", store.folder / "events.db-wal"]
    held = b"".join(path.read_bytes() for path in files if path.is_file())

    ids = {i for path in (store.folder / "archive").glob("*") for i in pl.read_parquet(path)["click"].to_list()}
    return sum(
        click.to_bytes(8, "little") in held or click.to_bytes(8, "big") in held or click in ids for click in theirs
    )
