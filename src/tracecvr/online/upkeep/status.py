"""The status of a store, for people and for the page."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from tracecvr.online.challengers.status import challengers_of
from tracecvr.online.learner.live_metrics import LiveMetrics
from tracecvr.online.ledger.ledger import BAD_VALUES
from tracecvr.online.log.event_log import EventLog
from tracecvr.online.store import traffic
from tracecvr.online.store.challenge import find_challenger
from tracecvr.online.store.store import Store
from tracecvr.online.store.versions import Versions

_NO_COUNTS = ("watermark", "newest", "newest_at", "reader")


def newest_time(store: Store, facts: dict[str, int]) -> int:
    """The newest time in a store's log, or the start of its stream."""
    return max(facts.get("newest", 0), store.grid.split)


def status_of(store: Store, versions: Versions | None = None) -> dict[str, Any]:
    """Events by kind, progress and lag, versions, and live metrics as of the newest version. Give the same
    `versions` each time: they remember what they have read."""
    with closing(store.inbox()) as log:
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
        status["serving_model"] = traffic.current(store.folder).model
        status["challengers"] = challengers
    if newest is not None:
        counts = newest["counts"]
        status["joined"] = {name: n for name, n in counts.items() if not name.startswith(BAD_VALUES)}
        status["bad_values"] = {
            name.removeprefix(BAD_VALUES): n for name, n in counts.items() if name.startswith(BAD_VALUES)
        }
        status["mature"] = _describe_mature(store, newest, versions)
        status["recent"] = newest["recent"]
        status["alarms"] = newest["alarms"]
        status["forecast"] = newest["forecast"]["summary"]
        status["window"] = newest["window"]
        status["delay_curve"] = LiveMetrics.of(newest["vitals"]).curve()
    return status


def _describe_mature(store: Store, newest: dict[str, Any], versions: Versions) -> dict[str, Any]:
    """Figures of mature clicks: as served by whichever version, prequential, and of the version that serves now: as
    served in the last intervals, so that after a roll back they are those of the version that was gone back to. If a
    challenger serves, its newest manifest has the latter."""
    by_version = newest["by_version"]
    if (name := traffic.current(store.folder).model) is not None:
        versions = find_challenger(store, name).versions
        by_version = (versions.newest() or newest)["by_version"]
    serving = versions.serving()
    return {**newest["mature"], "serving": {"version": serving, **by_version.get(str(serving), {"clicks": 0})}}


def ticks_of(store: Store, log: EventLog, last: int) -> list[dict[str, Any]]:
    """What came of the last ticks, oldest first; `end` is the second of the log at which the interval was over."""
    return [{"interval": number, "end": store.grid.bounds(number)[1], **tick} for number, tick in log.ticks(last)]


def versions_of(store: Store, versions: Versions) -> list[dict[str, Any]]:
    """Each version with the second of the log up to which it has learnt, and with figures: of the newest mature clicks
    when it was made (`window`), and as served by it, as far as is known by now."""
    listed = versions.manifests()
    served = listed[-1]["by_version"] if listed else {}
    return [
        {
            "version": manifest["intervals"],
            "published": manifest["published"],
            "undone": manifest["undone"],
            "end": store.grid.bounds(manifest["intervals"])[0],
            "window": manifest["window"],
            "as_served": served.get(str(manifest["intervals"]), {"clicks": 0}),
        }
        for manifest in listed
    ]
