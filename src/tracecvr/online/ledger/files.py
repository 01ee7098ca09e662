"""The files of a ledger: three tables and three indexes, whole as of an interval that `ledger.json` names.

What became known at a time says so: a click by its arrival, an action by when it was seen. So the ledger as of an
earlier interval is the one without what became known since, and to take back an interval needs no copy of what was.

`actions` is a table of its own, in the order in which they became known, and is on disk before the clicks are changed.
Killed in between, whatever the clicks have of an interval that is not in `ledger.json` is found there and taken back;
what they may lack of an older one, because their pages had not been written when the power went, is found there, too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tracecvr.base.errors import UserError
from tracecvr.base.files import make_private, read_json, write_json
from tracecvr.data.table import NEVER, TURNS, Ints
from tracecvr.learn.checkpoint import digest
from tracecvr.online.ledger.segments import SegmentedTable
from tracecvr.online.ledger.sorted_runs import SortedRuns

LEDGER, MANIFEST = "ledger", "ledger.json"
"""The folder of a store, or of a challenger, with the files of its ledger; and what is committed of them."""
_FORMAT = 1
_SYNCED = 24
"""Intervals after which changes of older clicks are on disk. Until then `actions` has them."""


class LedgerFiles:
    """What a ledger is made of. Without a folder, all of it is in memory. If it is temporary, nobody opens it again:
    files are there to save memory, and nothing waits for the disk."""

    def __init__(self, folder: Path | None, features: int, actions: int, temporary: bool = False) -> None:
        self.folder, self._shape, self._temporary = folder, (features, actions), temporary
        if folder is not None:
            folder.mkdir(mode=0o700, exist_ok=True)
            make_private(folder)
        self._reset()

    def _reset(self) -> None:
        folder, (features, actions) = self.folder, self._shape
        self.clicks = SegmentedTable(
            folder,
            "clicks",
            {
                "arrival_ts": ("i8", 0),
                "click_ts": ("i8", 0),
                "click_id": ("i8", 0),
                "refund_ts": ("i8", len(TURNS)),
                "version": ("i8", 0),
                "action_ts": ("i8", actions),
                "known_ts": ("i8", actions),
                "x": ("i4", features),
                "score": ("f4", 0),
                "erased": ("?", 0),
            },
        )
        self.actions = SegmentedTable(
            folder, "actions", {"seen": ("i8", 0), "ts": ("i8", 0), "row": ("i8", 0), "kind": ("i8", 0)}
        )
        """Actions that changed a click, from kind 1 on, and refunds; ordered by (seen, row, kind)."""
        self.waiting = SegmentedTable(
            folder,
            "waiting",
            {"seen": ("i8", 0), "ts": ("i8", 0), "click": ("i8", 0), "joined": ("i8", 0), "kind": ("i8", 0)},
        )
        """Actions that came without their click, ordered by seen; and the start of the interval in which it came."""
        self.by_id, self.late = SortedRuns(folder, "by_id"), SortedRuns(folder, "late")
        self.by_click = SortedRuns(folder, "waiting_by_click")

    @property
    def _tables(self) -> dict[str, SegmentedTable]:
        return {"clicks": self.clicks, "actions": self.actions, "waiting": self.waiting}

    @property
    def _indexes(self) -> dict[str, SortedRuns]:
        return {"by_id": self.by_id, "late": self.late, "by_click": self.by_click}

    @property
    def _parts(self) -> list[SegmentedTable | SortedRuns]:
        return [*self._tables.values(), *self._indexes.values()]

    # On disk.

    def clear(self) -> None:
        """Begin anew."""
        self._reset()
        if self.folder is not None:
            (self.folder / MANIFEST).unlink(missing_ok=True)
            self._remove_unnamed(set())

    def commit(self, done: int, facts: dict[str, Any]) -> None:
        """Let the ledger after so many intervals be the one that is opened next."""
        if self.folder is None:
            return
        if self._temporary:
            self._remove_unnamed(set(self._files()))
            return
        self.actions.sync()
        self.waiting.sync()
        self.clicks.sync_due(done, _SYNCED)
        for index in self._indexes.values():
            index.sync()
        content: dict[str, Any] = facts | {
            "format": _FORMAT,
            "done": done,
            "synced": self.clicks.changed_since(done),
            "place": _place(self.folder),
        }
        content |= {name: table.state() for name, table in self._tables.items()}
        content |= {name: index.state() for name, index in self._indexes.items()}
        write_json(self.folder / MANIFEST, content | {"manifest": digest(content)})
        make_private(self.folder / MANIFEST)
        self._remove_unnamed({*self._files(), self.folder / MANIFEST})

    def sync_actions(self) -> None:
        """Let actions be on disk that were noted, before clicks are changed by them."""
        if not self._temporary:
            self.actions.sync()

    def read(self) -> dict[str, Any] | None:
        """What was committed last; None if there is nothing that could be read."""
        if self.folder is None or not (self.folder / MANIFEST).is_file():
            return None
        try:
            content: dict[str, Any] = read_json(self.folder / MANIFEST)
            whole = content.pop("manifest") == digest(content) and content["format"] == _FORMAT
        except (UserError, KeyError, AttributeError):
            return None
        return content if whole else None

    def load(self, content: dict[str, Any], committed: int, synced: int) -> None:
        """Open what was committed when the time was `committed`; changes of clicks are on disk up to `synced`."""
        assert self.folder is not None
        self._reset()
        for name, table in self._tables.items():
            table.load(content[name])
        for name, index in self._indexes.items():
            index.load(content[name])
        self.actions.adopt("kind")
        self._redo(synced, committed, content["synced"])
        self._take_back(committed, content["synced"], counted=False)
        self.clicks.blank("arrival_ts")
        self.waiting.blank("kind")
        self._remove_unnamed({*self._files(), self.folder / MANIFEST})
        if content["place"] != _place(self.folder) and (damaged := self.wrong()):
            raise UserError(f"{damaged[0]} is damaged")

    def roll_back(self, time: int, interval: int) -> None:
        """Become what it was when nothing was known from a time on, at which an interval starts."""
        self.clicks.truncate(self.clicks.first + self.clicks.search("arrival_ts", time))
        self._take_back(time, interval, counted=True)
        self.waiting.truncate(self.waiting.first + self.waiting.search("seen", time))
        self.by_id.truncate(self.clicks.end)
        self.late.truncate(self.clicks.end)
        self.by_click.truncate(self.waiting.end)

    def wrong(self) -> list[Path | None]:
        """Files that are not what was written. Reads everything."""
        return [path for part in self._parts for path in part.wrong()]

    def _files(self) -> Iterator[Path]:
        for part in self._parts:
            yield from part.files()

    def _remove_unnamed(self, kept: set[Path]) -> None:
        """Remove what was replaced or dropped, or was being written by somebody who was killed."""
        assert self.folder is not None
        for path in self.folder.iterdir():
            if path not in kept:
                path.unlink() if path.is_file() else shutil.rmtree(path)

    # What became known since a time.

    def _since(self, time: int) -> Ints:
        """Clicks of actions that became known since a time, each once."""
        rows = self.actions.column("row")[self.actions.search("seen", time) :]
        return np.unique(rows[(rows >= self.clicks.first) & (rows < self.clicks.end)])

    def _take_back(self, time: int, interval: int, counted: bool) -> None:
        """Forget actions that became known since a time; `counted`, if the sums have them. Clicks may lack on disk what
        was changed since an interval."""
        rows = self._since(time)
        known, happened, undone = (self.clicks.gather(name, rows) for name in ("known_ts", "action_ts", "refund_ts"))
        later = (known >= time) & (known != NEVER)
        values = {
            "action_ts": np.where(later, NEVER, happened),
            "known_ts": np.where(later, NEVER, known),
            "refund_ts": np.where(undone >= time, NEVER, undone),
        }
        self.actions.truncate(self.actions.first + self.actions.search("seen", time))
        joined = self.waiting.column("joined")[:]
        again = self.waiting.first + np.flatnonzero((joined >= time) & (joined != NEVER))
        blank = {"joined": np.full(len(again), NEVER)}
        if counted:
            self.clicks.write(rows, values, interval)
            self.waiting.write(again, blank, interval)
        else:
            self.clicks.put(rows, values, interval)
            self.waiting.put(again, blank, interval)

    def _redo(self, start: int, end: int, interval: int) -> None:
        """Write actions of a range of time into their clicks once more."""
        first, last = self.actions.search("seen", start), self.actions.search("seen", end)
        seen, ts, row, kind = (self.actions.column(name)[first:last] for name in ("seen", "ts", "row", "kind"))
        ours = (row >= self.clicks.first) & (row < self.clicks.end)
        seen, ts, row, kind = seen[ours], ts[ours], row[ours], kind[ours]
        rows, which = np.unique(row, return_inverse=True)
        known, happened, undone = (self.clicks.gather(name, rows) for name in ("known_ts", "action_ts", "refund_ts"))
        taken_back = kind > known.shape[1]
        happened[which[~taken_back], kind[~taken_back] - 1] = ts[~taken_back]
        known[which[~taken_back], kind[~taken_back] - 1] = seen[~taken_back]
        for at, when in zip(which[taken_back].tolist(), seen[taken_back].tolist(), strict=True):
            undone[at, int((undone[at] < when).sum())] = when
        self.clicks.put(rows, {"known_ts": known, "action_ts": happened, "refund_ts": undone}, interval)


def _place(folder: Path) -> list[Any]:
    """Where a folder is, and since when the machine runs: in another place, or after a loss of power, the files are
    read before they are believed."""
    facts, boot = folder.stat(), Path("/proc/sys/kernel/random/boot_id")
    return [os.uname().nodename, facts.st_dev, facts.st_ino, boot.read_text().strip() if boot.is_file() else ""]
