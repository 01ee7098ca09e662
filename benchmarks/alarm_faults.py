"""How soon alarms go off after a fault, and how often without one.

    python benchmarks/alarm_faults.py TABLE RUN [--moments 8]

TABLE is a prepared log and RUN a finished replay of it (`tracecvr run`). Faults are put into the log at moments spread
over the stream: all conversions stop for a day, those of one segment stop, delays of clicks from then on are 1.5 times
as long, rates of one segment are 1.3 times as high. The scores are those of the clean replay: the model does not learn
the fault, which matters little before it is detected.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from tracecvr.base.config import DAY
from tracecvr.base.metrics import Floats
from tracecvr.base.seeds import generator
from tracecvr.data.table import NEVER, ClickTable, Ints
from tracecvr.monitor.monitor import Alarm, Monitor, segment_feature
from tracecvr.stream.source import TableSource

FAULTS = ("all stop", "segment stops", "delays x 1.5", "rate x 1.3 in segment", "rate x 2 in segment")
EXPECTED = {
    "all stop": ("stopped",),
    "segment stops": ("stopped",),
    "delays x 1.5": ("delays", "rates or delays"),
    "rate x 1.3 in segment": ("rates", "rates or delays"),
    "rate x 2 in segment": ("rates", "rates or delays"),
}
"""What each should be called."""
_PATIENCE = 7 * DAY
"""After this time a fault counts as not detected."""


def inject(table: ClickTable, fault: str, at: int, segment: int) -> ClickTable:
    """The log with a fault from a moment on. Of times in which conversions stop, a day."""
    position = segment_feature(table.schema)
    assert position is not None
    ours = np.asarray(table.x[:, position]) == segment
    times, clicked = np.array(table.action_ts), np.asarray(table.click_ts)
    conversion = times[:, 0]
    happened, later = conversion != NEVER, clicked >= at
    if fault in ("all stop", "segment stops"):
        lost = (conversion >= at) & (conversion < at + (DAY if fault == "all stop" else _PATIENCE))
        conversion[lost & (ours | (fault == "all stop"))] = NEVER
    elif fault.startswith("delays"):
        slow = happened & later
        conversion[slow] = clicked[slow] + ((conversion - clicked)[slow] * 1.5).astype(np.int64)
    else:
        _raise_rate(table, conversion, ours & later, float(fault.split()[2]))
    return replace(table, action_ts=times)


def _raise_rate(table: ClickTable, conversion: Ints, chosen: npt.NDArray[np.bool_], factor: float) -> None:
    """Give clicks without a conversion one, with a delay of another click of the segment."""
    rng = generator(0, "faults", int(chosen.sum()))
    clicked = np.asarray(table.click_ts)
    converts = chosen & (conversion != NEVER)
    without = np.flatnonzero(chosen & (conversion == NEVER))
    more = min(round((factor - 1) * int(converts.sum())), len(without))
    delays = (conversion - clicked)[converts]
    picked = rng.choice(without, more, replace=False)
    conversion[picked] = clicked[picked] + rng.choice(delays, more)


@dataclass(frozen=True)
class Watched:
    """A log with scores of its stream, and a monitor's state at any interval of the clean stream."""

    table: ClickTable
    log_odds: Floats

    def watch(self, table: ClickTable, monitor: Monitor, start: int, until: int) -> Iterator[Alarm]:
        """Alarms of a log with a fault, from an interval on."""
        source, interval = TableSource(table), table.schema.interval
        first, _ = table.rows_between(table.schema.split, table.schema.split)
        for begin in range(start, until, interval):
            a, b = table.rows_between(begin, begin + interval)
            if b - first > len(self.log_odds):
                return
            yield from monitor.observe(source, begin, np.asarray(table.x[a:b]), self.log_odds[a - first : b - first])

    def monitor(self) -> Monitor:
        """At the start of the stream."""
        monitor = Monitor(self.table.schema, self.table.schema.interval)
        monitor.start(TableSource(self.table), self.table.schema.split)
        return monitor


def measure(watched: Watched, moments: int) -> pl.DataFrame:
    """One row for each fault and moment: intervals until an alarm that names it, and what it was called."""
    schema, table = watched.table.schema, watched.table
    first, _ = table.rows_between(schema.split, schema.split)
    end = int(table.click_ts[min(first + len(watched.log_odds), len(table)) - 1])
    days = np.linspace(schema.split + 2 * DAY, end - 3 * DAY, moments)
    starts = [schema.split + int((day - schema.split) // schema.interval) * schema.interval for day in days]
    monitor, position, rows = watched.monitor(), schema.split, []
    assert len(monitor.values)
    for number, at in enumerate(starts):
        list(watched.watch(table, monitor, position, at))
        position, state = at, monitor.state()
        segment = int(monitor.values[number % len(monitor.values)])
        a_day = _conversions_a_day(table, at, segment)
        for fault in FAULTS:
            rows.append(_detect(watched, fault, at, segment, state) | {"a day": a_day})
    list(watched.watch(table, monitor, position, end))
    print(f"clean: {(end - schema.split) / DAY:.0f} days, alarms:")  # noqa: T201
    for alarm in monitor.alarms:
        print(f"  {alarm.text()}")  # noqa: T201
    return pl.DataFrame(rows)


def _conversions_a_day(table: ClickTable, at: int, segment: int) -> float:
    """Of a segment, in the week before a moment."""
    ours = np.asarray(table.x[:, segment_feature(table.schema) or 0]) == segment
    when = np.asarray(table.action_ts)[ours, 0]
    return float(((when >= at - 7 * DAY) & (when < at)).sum() / 7)


def _detect(watched: Watched, fault: str, at: int, segment: int, state: dict[str, object]) -> dict[str, object]:
    faulty, schema = inject(watched.table, fault, at, segment), watched.table.schema
    monitor = Monitor(schema, schema.interval)
    monitor.load(state)
    ours = f"{schema.features[segment_feature(schema) or 0].name}={segment}"
    wanted = None if fault in ("all stop", "delays x 1.5") else ours
    for alarm in watched.watch(faulty, monitor, at, at + _PATIENCE):
        if alarm.segment in (wanted, None) and alarm.kind != "traffic":
            waited = (alarm.raised - at) / schema.interval
            right = alarm.kind in EXPECTED[fault] and alarm.segment == wanted
            return {"fault": fault, "at": at / DAY, "intervals": waited, "kind": alarm.kind, "right": right}
    return {"fault": fault, "at": at / DAY, "intervals": None, "kind": None, "right": False}


def summarise(rows: pl.DataFrame) -> pl.DataFrame:
    """By fault: how many were detected, the median of intervals until then (not detected: infinite), right names."""
    waited = pl.col("intervals").fill_null(np.inf)
    return rows.group_by("fault", maintain_order=True).agg(
        pl.len().alias("moments"),
        pl.col("intervals").is_not_null().sum().alias("detected"),
        waited.median().alias("median intervals"),
        waited.max().alias("longest"),
        pl.col("right").sum().alias("named right"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--moments", type=int, default=8)
    asked = parser.parse_args()
    files = [asked.run / name for name in ("not_judged.parquet", "scores.parquet")]
    scores = [pl.read_parquet(file)["log_odds"].to_numpy() for file in files if file.is_file()]
    rows = measure(Watched(ClickTable.load(asked.table), np.concatenate(scores)), asked.moments)
    with pl.Config(tbl_rows=-1, tbl_width_chars=160):
        print(rows)  # noqa: T201
        print(summarise(rows))  # noqa: T201


if __name__ == "__main__":
    main()
