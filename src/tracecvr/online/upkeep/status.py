"""The status of a store and of its challengers, for people and for the page."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from tracecvr.base.errors import UserError
from tracecvr.online.ledger.ledger import BAD_VALUES
from tracecvr.online.log.event_log import EventLog
from tracecvr.online.store import choices
from tracecvr.online.store.challenge import Challenger, find_challenger, list_names
from tracecvr.online.store.store import Store
from tracecvr.online.store.versions import Versions

_NO_COUNTS = ("watermark", "newest", "newest_at", "reader")


def newest_time(store: Store, facts: dict[str, int]) -> int:
    """The newest time in a store's log, or the start of its stream."""
    return max(facts.get("newest", 0), store.grid.split)


def status_of(store: Store, versions: Versions | None = None) -> dict[str, Any]:
    """Events, progress, versions and live metrics. Give the same `versions` each time: they remember what they read."""
    with closing(store.log()) as log:
        facts, closed, sources = log.facts(), log.closed(), log.sources()
        challengers = challengers_of(store, log)
    versions = versions or store.versions
    listed = versions.manifests()
    newest = listed[-1] if listed else None
    status: dict[str, Any] = {
        "method": "+".join([store.content["method"], *store.content["plugins"]]),
        "events": {name: n for name, n in facts.items() if name not in _NO_COUNTS},
        "watermark": facts.get("watermark"),
        "time": store.times.facts(newest_time(store, facts)),
        "intervals": {"closed": closed, "learnt": newest["intervals"] if newest else 0},
        "versions": {"kept": len(listed), "serving": versions.serving()},
    }
    if sources:
        status["sources"] = sources
    if challengers:
        status["serving_model"] = choices.read(store.folder).model
        status["challengers"] = challengers
    if newest is not None:
        counts, bad = newest["counts"], BAD_VALUES
        status["joined"] = {name: n for name, n in counts.items() if not name.startswith(bad)}
        status["bad_values"] = {name.removeprefix(bad): n for name, n in counts.items() if name.startswith(bad)}
        status |= {name: newest[name] for name in ("mature", "window", "recent", "alarms")}
        status["forecast"] = newest["forecast"]["summary"]
    return status


def ticks_of(store: Store, log: EventLog, last: int) -> list[dict[str, Any]]:
    """What came of the last ticks, oldest first; `end` is the second of the log at which the interval was over."""
    return [{"interval": number, "end": store.grid.bounds(number)[1], **tick} for number, tick in log.ticks(last)]


def versions_of(store: Store, versions: Versions) -> list[dict[str, Any]]:
    """Each version: up to when it has learnt, and figures when it was made (`window`)."""
    return [
        {
            "version": manifest["intervals"],
            "end": store.grid.bounds(manifest["intervals"])[0],
            **{name: manifest["tick"][name] for name in ("clicks", "events")},
            **{name: manifest[name] for name in ("published", "undone", "window")},
        }
        for manifest in versions.manifests()
    ]


def challengers_of(store: Store, log: EventLog) -> dict[str, Any]:
    """Of each challenger: progress, and both models on the same mature and the same recent clicks."""
    serving = choices.read(store.folder).model
    facts = {}
    for name in list_names(store):
        try:
            facts[name] = _describe_challenger(find_challenger(store, name), log) | {"serves": serving == name}
        except UserError as error:
            facts[name] = {"problem": str(error)}
    return facts


def _describe_challenger(challenger: Challenger, log: EventLog) -> dict[str, Any]:
    newest = challenger.versions.newest()
    facts: dict[str, Any] = {
        "method": "+".join([challenger.content["method"], *challenger.content["plugins"]]),
        "compared_since": challenger.since,
        "learnt": newest["intervals"] if newest else 0,
        "problem": challenger.problem,
    }
    if newest is not None:
        same_moment = log.tick(newest["intervals"] - 1)
        champion = {"clicks": 0} if same_moment is None else same_moment["recent"]["prequential"]
        facts["comparison"] = newest["comparison"]
        facts["recent"] = {"challenger": newest["recent"]["prequential"], "champion": champion}
    return facts


def comparisons(store: Store, log: EventLog, name: str, last: int) -> list[dict[str, Any]]:
    """The difference of NLL per click after each of a challenger's last ticks, oldest first."""
    return [
        {"interval": number, "end": store.grid.bounds(number)[1], **tick["comparison"]["nll_difference"]}
        for number, tick in log.ticks(last, name)
    ]
