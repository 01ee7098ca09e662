"""The log, read again: to learn it and compare the result with the versions, as a table, and for forecasts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tracecvr.base.config import DAY
from tracecvr.base.errors import UserError
from tracecvr.base.files import read_json
from tracecvr.base.progress import Progress, no_progress
from tracecvr.data.encoder import value_names
from tracecvr.data.table import NEVER, ClickTable, Ints, atomic_directory
from tracecvr.forecast.cells import KEPT_DAYS, Cells, Tally
from tracecvr.forecast.forecast import forecast
from tracecvr.forecast.of_run import Forecasts
from tracecvr.monitor.monitor import segment_feature
from tracecvr.online.learner.archive import WholeLog
from tracecvr.online.learner.learner import begin, learn, ledger_of, skip
from tracecvr.online.learner.live_forecast import read_counts
from tracecvr.online.learner.live_metrics import Predictions
from tracecvr.online.learner.watching import Watch
from tracecvr.online.ledger.ledger import Ledger
from tracecvr.online.store.store import Store

_ALWAYS = 1 << 60
"""A memory that nothing is dropped from."""


@dataclass
class LogVerification:
    intervals: int = 0
    undone: list[int] = field(default_factory=list)
    identical: list[int] = field(default_factory=list)
    different: list[int] = field(default_factory=list)
    weights: str = ""
    erased_clicks: int = 0
    erased_actions: int = 0

    @property
    def same(self) -> bool:
        return not self.different

    def summary(self) -> str:
        compared = len(self.identical) + len(self.different)
        text = f"{self.intervals} intervals replayed; {len(self.identical)} of {compared} versions are identical"
        if self.different:
            text += f", the first that is not is version {self.different[0]}"
        if self.erased_clicks or self.erased_actions:
            text += (
                f"; {self.erased_clicks} clicks and {self.erased_actions} actions were erased from the log, so that "
                "versions that had learnt from them cannot be made again"
            )
        return text


def verify_log(store: Store, progress: Progress = no_progress) -> LogVerification:
    """Warm up and learn every interval again, from nothing but the log, and compare with the versions that are kept."""
    torch.set_num_threads(store.settings.threads)
    engine = store.engine(None)
    ledger = ledger_of(store, engine)
    log = WholeLog(store)
    versions = {m["intervals"]: m["weights"] for m in store.versions.manifests()}
    last = max(versions, default=log.closed())
    begin(engine, ledger, store, progress)
    watch = Watch(store)
    watch.start()
    facts = log.facts()
    verification = LogVerification(
        erased_clicks=facts.get("erased_clicks", 0), erased_actions=facts.get("erased_actions", 0)
    )
    while (number := ledger.done) <= last:
        if number in versions:
            same = versions[number] == engine.fingerprint()
            (verification.identical if same else verification.different).append(number)
        if number == last:
            break
        if not skip(ledger, min(n for n in (*versions, last) if n > number)):
            ledger.advance()
            start, end = store.grid.bounds(number)
            clicks = ledger.clicks(start, end)
            watch.observe(ledger, start, clicks, engine.score(clicks.x))
            _, undone = learn(engine, ledger, start, end)
            verification.undone += [number] if undone else []
        progress("replay", ledger.done, last)
    verification.intervals, verification.weights = last, engine.fingerprint()
    return verification


def table_of(ledger: Ledger, kept: Ints) -> ClickTable:
    """Clicks of a ledger by their positions, with what is known of them; labels end with its last interval."""
    t, undone = ledger.table, ledger.table.refund_ts
    assert undone is not None
    notes = (*t.schema.notes, "kept live: clicks and actions are known since they came, not since they happened")
    return ClickTable(
        x=t.x[kept],
        click_ts=t.click_ts[kept],
        click_id=t.click_id[kept],
        action_ts=t.action_ts[kept],
        schema=replace(t.schema, observed_until=ledger.grid.bounds(ledger.done)[0], notes=notes),
        counts={"clicks": len(kept), **{k: v for k, v in ledger.counts.items() if v}},
        refund_ts=undone[kept] if (undone[kept] != NEVER).any() else None,
        late_known_ts=t.known_ts[kept],
        late_arrival_ts=t.arrival_ts[kept],
    )


def write_table(store: Store, out: Path) -> ClickTable:
    """The whole log as a prepared table, with what became known when; labels end with the last closed interval."""
    log = WholeLog(store)
    ledger = Ledger(store.base, store.grid, store.reader, log, _ALWAYS)
    ledger.advance_to(log.closed())
    table = table_of(ledger, ledger.known_between(0, _ALWAYS))
    table = replace(table, schema=replace(table.schema, outages=Watch(store).declared))
    with atomic_directory(out) as folder:
        table.write_columns(folder)
        store.reader.encoder.save(folder / "encoder.json")
        described = read_json(store.folder / "base" / "table.json")
        origin = {"origin": described["origin"]} if "origin" in described else {}
        table.describe(folder, {"options": store.content["options"]} | origin)
    return table


def forecasts_of(store: Store) -> Forecasts:
    """As of the last midnight (UTC) that the newest version has learnt. Clicks are read from the log, into memory."""
    newest = newest_version(store)
    with closing(WholeLog(store)) as log:
        ledger = Ledger(store.base, store.grid, store.reader, log, store.schema.d_max + KEPT_DAYS * DAY)
        ledger.rebuild(newest["intervals"], newest["rows"], newest["counts"])
        rows = ledger.known_between(0, store.grid.bounds(ledger.done)[0])
        log_odds = Predictions(log, store.model).of(rows + ledger.first_row)
    table = table_of(ledger, rows)
    return Forecasts(table, store.reader.encoder, log_odds, _midnight(store, newest), store.times.origin)


def newest_version(store: Store) -> dict[str, Any]:
    """What the newest version says of itself."""
    newest = store.versions.latest()
    if newest is None:
        raise UserError(f"{store.folder}: nothing is learnt yet; run `tracecvr tick` or `tracecvr learn`")
    return newest


def _midnight(store: Store, version: dict[str, Any]) -> int:
    """The last midnight (UTC) that a version has learnt, in seconds of the log."""
    end, origin = store.grid.bounds(version["intervals"])[0], store.times.origin or 0
    return (end + origin) // DAY * DAY - origin


class NewestForecasts:
    """Forecasts as of the last midnight (UTC) that is learnt, asked for one at a time. Of all clicks, and by the
    feature that alarms watch, they come from the counts of the learner. By another feature the log is read, once for
    each midnight, and after erasures. What was counted by the last two features is kept."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._key: tuple[Any, int] | None = None
        self._position = segment_feature(store.schema, store.settings.alarms_by)

    def rows(self, by: str | None, level: float, days: int | None) -> dict[str, Any]:
        """As JSON has them; times are in seconds of the log."""
        newest = newest_version(self.store)
        with closing(self.store.log()) as log:
            key = newest["forecast"]["summary"].get("at"), log.facts().get("erasures", 0)
        if key != self._key:
            self._cells, self._from_log, self._key = lru_cache(2)(self._count), cache(forecasts_of), key
        cells, names = self._cells(by)
        rows = forecast(cells, names, level, days=days).rename({"day": "start"}).to_dicts()
        return {"at": cells.at, "by": by, "level": level, "rows": rows}

    def _count(self, by: str | None) -> tuple[Cells, Mapping[int, str]]:
        store, position = self.store, self._position
        if by is not None and (position is None or by != store.schema.features[position].name):
            return self._from_log(store).cells(by)
        newest = newest_version(store)
        with closing(store.log()) as log:
            records = read_counts(log, 0, newest["forecast"]["records"])
        values, series = np.unique(records["segment"] * (by is not None), return_inverse=True)
        tally = Tally(store.schema.d_max, shift=(store.times.origin or 0) % DAY)
        tally.add(series, records)
        known = {} if by is None or position is None else value_names(store.reader.encoder.columns[position])
        names = ["all"] if by is None else [known.get(value, str(value)) for value in values.tolist()]
        return tally.cells(_midnight(store, newest)), dict(enumerate(names))
