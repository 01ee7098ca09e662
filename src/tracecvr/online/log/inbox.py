"""How far brokers were read, kept beside what was read from them: in the same log, in the same transaction.

A message is dealt with once: what comes again at or before the store's position is dropped, whatever the broker says.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tracecvr.base.errors import UserError
from tracecvr.online.log import event_log
from tracecvr.online.log.event_log import UNREAD, EventLog, Receipt
from tracecvr.online.log.events import Event, Reader

_KNOWN = "INSERT INTO positions(partition, source, position) VALUES(?, ?, ?) ON CONFLICT DO NOTHING"
_MOVE = """UPDATE positions SET position = ?2, messages = messages + 1, set_aside = set_aside + ?3,
  unknown_columns = unknown_columns + ?4 WHERE partition = ?1 AND position < ?2 RETURNING 1"""
_REPEATED = "UPDATE positions SET repeated = repeated + 1 WHERE partition = ?"
_NEWEST = "UPDATE positions SET newest = max(coalesce(newest, ?2), ?2) WHERE partition = ?1"
_WAITING = "SELECT count(*) FROM aside WHERE reason = ? AND substr(name, 1, length(source) + 1) = source || '/'"
_BYTES = 1 << 20
"""A message that is larger is set aside: to parse it would keep everything waiting."""
_REASON = 500
"""Characters of a reason: it may quote what was sent."""
_COUNTED = ("lag", "messages", "repeated", "set_aside", "unknown_columns", "lost")


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


def source_of(partition: str) -> str:
    return partition.rpartition("/")[0]


def parse(reader: Reader, message: Message) -> Parsed:
    """A message and its events: one JSON object, or a list of them. If one of them cannot be read, why not."""
    try:
        events, unknown = _read_events(reader, message.payload)
    except (UserError, ValueError, RecursionError) as error:
        where = f"{message.partition} at {message.position}"
        return Parsed(message, reason=f"{where}: {error or type(error).__name__}"[:_REASON])
    return Parsed(message, events, unknown)


def _read_events(reader: Reader, payload: bytes) -> tuple[list[Event], int]:
    if len(payload) > _BYTES:
        raise UserError(f"a message of {len(payload):,} bytes: at most {_BYTES:,} are read")
    content = json.loads(payload)
    contents = content if isinstance(content, list) else [content]
    events, unknown = [], 0
    for number, one in enumerate(contents):
        try:
            event, n = reader.read_tolerantly(one)
        except UserError as error:
            raise UserError(f"event {number}: {error}" if contents is content else str(error)) from None
        events.append(event)
        unknown += n
    return events, unknown


class Inbox(EventLog):
    """An event log and the positions up to which sources were read into it."""

    def begin(self, identities: Mapping[str, str], following: Mapping[str, int], lost: Mapping[str, int]) -> None:
        """Fix where new partitions start, for good; and refuse another stream of the name of one that was read."""
        with self._transaction():
            self._change("sources", "positions")
            known = dict(self._rows("SELECT source, identity FROM sources"))
            for source, identity in identities.items():
                if known.get(source) not in (None, "", identity):  # empty: forgotten, or never reached
                    raise UserError(
                        f"{source} is not the one that this store has read (that was {known[source]}, this is "
                        f"{identity}): positions mean nothing in it; `tracecvr pull --again` reads it from --from on"
                    )
                self._db.execute("INSERT OR REPLACE INTO sources VALUES(?, ?, NULL)", (source, identity))
            self._db.executemany(_KNOWN, [(name, source_of(name), first - 1) for name, first in following.items()])
            gaps = [(n, partition) for partition, n in lost.items()]
            self._db.executemany("UPDATE positions SET lost = lost + ? WHERE partition = ?", gaps)

    def take(self, parsed: Sequence[Parsed], lag: Mapping[str, int]) -> tuple[Receipt, list[Message]]:
        """Accept the events of messages, set aside those that cannot be read, and move the positions: all or nothing.

        `lag` is how many messages are left in each partition: as long as one has messages left, time goes no further
        than its newest event, or the others would make it late. Returns also the messages that were set aside.
        """
        with self._transaction():
            self._change("positions")
            fresh = [p for p in parsed if self._is_new(p)]
            *_, (receipt, _) = self._enter([[event for p in fresh for event in p.events]])
            believed = [(p.message.partition, e.ts) for p in fresh for e in p.events if e.ts <= receipt.limit]
            self._db.executemany(_NEWEST, believed)
            aside = [p for p in fresh if p.reason]
            self._refuse_a_flood(len(aside))
            for p in aside:
                name = f"{p.message.partition}:{p.message.position}"
                self._set_aside((UNREAD, name, None, None, None, p.reason, p.message.payload))
            self._db.executemany("UPDATE positions SET lag = ?2 WHERE partition = ?1", list(lag.items()))
            until = self._find_time(lag)
            if until is not None:
                self._close(until - self.grid.lateness)
        return receipt, [p.message for p in aside]

    def _is_new(self, parsed: Parsed) -> bool:
        """Whether a message was not dealt with before. Count it, and move the position of its partition."""
        partition, position, _ = parsed.message
        moved = self._db.execute(_MOVE, (partition, position, bool(parsed.reason), parsed.unknown_columns)).get
        if moved is None:
            self._db.execute(_REPEATED, (partition,))
        return moved is not None

    def _refuse_a_flood(self, more: int) -> None:
        """Nothing is lost: the messages stay at the broker, and reading stops until the problem is solved."""
        if more and (waiting := self.count_aside(UNREAD)) + more > event_log.MOST_ASIDE:
            raise UserError(
                f"{waiting:,} messages that could not be read are set aside, and there are more: reading has stopped; "
                "see `tracecvr aside list --payload`; when they are mended and ingested, `aside drop` makes room"
            )

    def _find_time(self, lag: Mapping[str, int]) -> int | None:
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
            self._change("facts")
            self._db.execute("INSERT OR IGNORE INTO facts VALUES('reader', ?)", (secrets.randbits(32),))
        return self.facts()["reader"]

    def note_problem(self, sources: Sequence[str], problem: str | None) -> None:
        """Note why sources cannot be read at present; None when they can again."""
        with self._transaction():
            self._change("sources")
            self._db.executemany(
                "INSERT INTO sources VALUES(?1, '', ?2) ON CONFLICT DO UPDATE SET problem = ?2",
                [(source, problem) for source in sources],
            )

    def positions(self) -> dict[str, int]:
        """Of each partition: the position of the last message that was dealt with."""
        return dict(self._rows("SELECT partition, position FROM positions"))

    def sources(self) -> dict[str, dict[str, Any]]:
        counts = ", ".join(f"coalesce(sum({name}), 0)" for name in _COUNTED)
        tables = "sources LEFT JOIN positions USING(source) GROUP BY source"
        rows = self._rows(f"SELECT source, problem, {counts}, ({_WAITING}) FROM {tables}", (UNREAD,))
        names = ("problem", *_COUNTED, "waiting")
        facts = {source: dict(zip(names, values, strict=True)) | {"positions": {}} for source, *values in rows}
        for source, partition, position in self._rows("SELECT source, partition, position FROM positions"):
            facts[source]["positions"][partition] = position
        return facts

    def forget(self, sources: Sequence[str]) -> None:
        """Forget how far sources were read. What was read from them stays, and what was set aside, too."""
        names = [(source,) for source in sources]
        with self._transaction():
            self._change("sources", "positions")
            self._db.executemany("DELETE FROM positions WHERE source = ?", names)
            self._db.executemany("UPDATE sources SET identity = '', problem = NULL WHERE source = ?", names)
