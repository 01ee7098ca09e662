"""The status of a store's challengers: their progress, and how they compare with the store's own model."""

from __future__ import annotations

from typing import Any

from tracecvr.base.errors import UserError
from tracecvr.online.log.event_log import EventLog
from tracecvr.online.store import traffic
from tracecvr.online.store.challenge import Challenger, find_challenger, list_names
from tracecvr.online.store.store import Store


def challengers_of(store: Store, log: EventLog) -> dict[str, Any]:
    """Of each challenger: progress, share, and both models on the same mature and the same recent clicks."""
    now = traffic.current(store.folder)
    facts = {}
    for name in list_names(store):
        try:
            facts[name] = _facts(find_challenger(store, name), log) | {
                "serves": now.model == name,
                "share": now.shares.get(name, 0.0),
            }
        except UserError as error:
            facts[name] = {"problem": str(error)}
    return facts


def _facts(challenger: Challenger, log: EventLog) -> dict[str, Any]:
    newest, taken = challenger.versions.newest(), challenger.taken_over
    facts: dict[str, Any] = {
        "method": "+".join([challenger.content["method"], *challenger.content["plugins"]]),
        "warm": "history" if taken is None else f"champion, version {taken.intervals}",
        "compared_since": challenger.since,
        "learnt": newest["intervals"] if newest else 0,
        "problem": challenger.problem,
    }
    if newest is None:
        return facts
    same_moment = log.tick(newest["intervals"] - 1)
    return facts | {
        "comparison": newest["comparison"],
        "recent": {
            "challenger": newest["recent"]["prequential"],
            "champion": {"clicks": 0} if same_moment is None else same_moment["recent"]["prequential"],
        },
    }


def comparisons(store: Store, log: EventLog, name: str, last: int) -> list[dict[str, Any]]:
    """The difference of NLL per click after each of the last ticks, oldest first; `end` is the second of the log at
    which the interval was over."""
    return [
        {"interval": number, "end": store.grid.bounds(number)[1], **tick["comparison"]["nll_difference"]}
        for number, tick in log.ticks(last, name)
    ]
