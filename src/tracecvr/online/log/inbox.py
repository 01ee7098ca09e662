"""How far brokers were read, kept beside what was read from them: in the same log, in the same transaction.

A message is dealt with once: its position is written with its events, and what comes again at or before that position
is dropped. So the store's position rules, whatever a broker remembers; an acknowledgement may be lost.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tracecvr.base.errors import UserError
from tracecvr.online.log.event_log import EventLog, Receipt
from tracecvr.online.log.events import Event

_KNOWN = "INSERT INTO positions(partition, position) VALUES(?, ?) ON CONFLICT DO NOTHING"
_MOVED = """UPDATE positions SET position = max(position, ?2), newest = max(coalesce(newest, ?3), coalesce(?3, newest)),
  messages = messages + ?4, repeated = repeated + ?5, set_aside = set_aside + ?6,
  unknown_columns = unknown_columns + ?7 WHERE partition = ?1"""
MOST_ASIDE = 100_000
"""Messages that are kept because they could not be read: a producer gone wrong must not fill the disk."""
_COUNTED = ("messages", "repeated", "set_aside", "unknown_columns", "lost")


class Message(NamedTuple):
    """One message of a broker. Partitions are named `SOURCE/N`, positions grow within each."""

    partition: str
    position: int
    payload: bytes


@dataclass(frozen=True)
class Parsed:
    """A message and what is in it: events, or else the reason why it is set aside."""

    message: Message
    events: Sequence[Event] = ()
    unknown_columns: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Taken:
    """What became of messages. All of it is on disk."""

    receipt: Receipt
    repeated: int
    set_aside: Sequence[Message]


def source_of(partition: str) -> str:
    return partition.rpartition("/")[0]


class Inbox(EventLog):
    """An event log and the positions up to which sources were read into it."""

    def begin(self, identities: Mapping[str, str], following: Mapping[str, int], lost: Mapping[str, int]) -> None:
        """Fix where partitions start that are new, so that a start at *now* is the same after a crash; and refuse
        another stream or topic that only has the name of one that was read."""
        with self._transaction():
            known = dict(self._rows("SELECT source, identity FROM sources"))
            for source, identity in identities.items():
                if known.get(source) not in (None, "", identity):  # empty: forgotten, or never reached
                    raise UserError(
                        f"{source} is not the one that this store has read (that was {known[source]}, this is "
                        f"{identity}): positions mean nothing in it; `tracecvr sources forget STORE {source}` lets it "
                        "be read from --from on"
                    )
                self._db.execute("INSERT OR REPLACE INTO sources VALUES(?, ?, NULL)", (source, identity))
            self._db.executemany(_KNOWN, [(partition, first - 1) for partition, first in following.items()])
            gaps = [(n, partition) for partition, n in lost.items()]
            self._db.executemany("UPDATE positions SET lost = lost + ? WHERE partition = ?", gaps)

    def take(self, parsed: Sequence[Parsed], lag: Mapping[str, int]) -> Taken:
        """Accept the events of messages, set aside those that cannot be read, and move the positions: all or nothing.

        `lag` is how many messages are left in each partition. Partitions are not read in step: as long as one has
        messages left, time goes no further than its newest event, or the others would make it late.
        """
        with self._transaction():
            fresh, repeated = _sort_out(parsed, self.positions())
            *_, (receipt, _) = self._put([[event for p in fresh for event in p.events]])
            for partition in {p.message.partition for p in parsed}:
                self._move(partition, _of(partition, fresh), len(_of(partition, repeated)), receipt.limit)
            aside = [p for p in fresh if p.reason]
            self._refuse_a_flood(len(aside))
            rows = [(*p.message, p.reason, int(self.clock())) for p in aside]
            self._db.executemany("INSERT OR REPLACE INTO unread VALUES(?, ?, ?, ?, ?)", rows)
            self._db.executemany("UPDATE positions SET lag = ?2 WHERE partition = ?1", list(lag.items()))
            until = self._time_of_all(lag)
            if until is not None:
                self._close(until - self.grid.lateness)
        return Taken(receipt, len(repeated), [p.message for p in aside])

    def _refuse_a_flood(self, more: int) -> None:
        """Nothing is thrown away: the messages stay at the broker, and reading stops until somebody has looked."""
        ((waiting,),) = self._rows("SELECT count(*) FROM unread") if more else [(0,)]
        if waiting + more > MOST_ASIDE:
            raise UserError(
                f"{waiting:,} messages that could not be read are set aside, and there are more: reading has stopped; "
                "see `tracecvr sources aside`; when the cause is mended, `sources replay` or `sources drop` makes room"
            )

    def _move(self, partition: str, fresh: Sequence[Parsed], repeated: int, limit: int) -> None:
        values = (
            max((p.message.position for p in fresh), default=-1),
            max((event.ts for p in fresh for event in p.events if event.ts <= limit), default=None),
            len(fresh),
            repeated,
            sum(bool(p.reason) for p in fresh),
            sum(p.unknown_columns for p in fresh),
        )
        self._db.execute(_MOVED, (partition, *values))

    def _time_of_all(self, lag: Mapping[str, int]) -> int | None:
        """How far time has come in the partitions that are read together; None if one is behind and has told none."""
        newest = {p: n for p, n in self._rows("SELECT partition, newest FROM positions") if p in lag}
        behind = [newest.get(partition) for partition, left in lag.items() if left]
        times: list[int] = [time for time in behind or newest.values() if time is not None]
        if not times or len(times) < len(behind):
            return None
        return min(times) if behind else max(times)

    def reader(self) -> int:
        """A number that tells this store from others that read the same source."""
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO facts VALUES('reader', ?)", (secrets.randbits(32),))
        return self.facts()["reader"]

    def trouble(self, sources: Sequence[str], problem: str | None) -> None:
        """Note why sources cannot be read at present; None when they can again."""
        with self._transaction():
            self._db.executemany(
                "INSERT INTO sources VALUES(?1, '', ?2) ON CONFLICT DO UPDATE SET problem = ?2",
                [(source, problem) for source in sources],
            )

    def positions(self) -> dict[str, int]:
        """Of each partition: the position of the last message that was dealt with."""
        return dict(self._rows("SELECT partition, position FROM positions"))

    def sources(self) -> dict[str, dict[str, Any]]:
        """The status of each source."""
        by_source: dict[str, dict[str, Any]] = {}
        for source, problem in self._rows("SELECT source, problem FROM sources"):
            by_source[source] = {
                "problem": problem,
                "lag": 0,
                **dict.fromkeys(_COUNTED, 0),
                "waiting": 0,
                "positions": {},
            }
        columns = ("lag", *_COUNTED)
        for partition, position, *counts in self._rows(
            f"SELECT partition, position, {','.join(columns)} FROM positions"
        ):
            facts = by_source[source_of(partition)]
            facts["positions"][partition] = position
            for name, n in zip(columns, counts, strict=True):
                facts[name] += n
        for partition, n in self._rows("SELECT partition, count(*) FROM unread GROUP BY partition"):
            by_source[source_of(partition)]["waiting"] += n
        return by_source

    def forget(self, source: str) -> None:
        """Forget how far a source was read. What was read from it stays, and what was set aside, too."""
        with self._transaction():
            if source not in dict(self._rows("SELECT source, 1 FROM sources")):
                raise UserError(f"{source!r} was never read; see `tracecvr sources list`")
            ours = [p for p in self.positions() if source_of(p) == source]
            self._db.executemany("DELETE FROM positions WHERE partition = ?", [(p,) for p in ours])
            self._db.execute("UPDATE sources SET identity = '', problem = NULL WHERE source = ?", (source,))

    # Messages that were set aside.

    def aside(self) -> list[tuple[Message, str, int]]:
        """Messages that could not be read: each with the reason, and when that was."""
        rows = self._rows("SELECT partition, position, payload, reason, at FROM unread ORDER BY partition, position")
        return [(Message(*row[:3]), row[3], row[4]) for row in rows]

    def mend(self, parsed: Sequence[Parsed]) -> Receipt:
        """Accept the events of messages that were set aside, which are so no longer."""
        with self._transaction():
            (receipt,) = self._append([[event for p in parsed for event in p.events]])
            self._drop(p.message for p in parsed)
        return receipt

    def drop(self, messages: Sequence[Message]) -> None:
        """Delete messages that were set aside."""
        with self._transaction():
            self._drop(messages)
        self._truncate()

    def _drop(self, messages: Iterable[Message]) -> None:
        keys = [(m.partition, m.position) for m in messages]
        self._db.executemany("DELETE FROM unread WHERE partition = ? AND position = ?", keys)

    # Announcements.

    def announced(self) -> int:
        """The newest version that was announced; -1 if none was."""
        return self.facts().get("announced", -1)

    def announce(self, version: int) -> None:
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO facts VALUES('announced', ?)", (version,))


def _sort_out(parsed: Sequence[Parsed], known: Mapping[str, int]) -> tuple[list[Parsed], list[Parsed]]:
    """Those beyond the positions that are known, each once; and the others, which were dealt with before."""
    reached, fresh, repeated = dict(known), [], []
    for p in parsed:
        if p.message.position > reached[p.message.partition]:
            reached[p.message.partition] = p.message.position
            fresh.append(p)
        else:
            repeated.append(p)
    return fresh, repeated


def _of(partition: str, parsed: Sequence[Parsed]) -> list[Parsed]:
    return [p for p in parsed if p.message.partition == partition]
