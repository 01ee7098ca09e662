"""The monitor: what arrives in each interval beside what was expected, overall and by segment, and alarms.

An alarm says what has happened, where, since when and by how much. There are four kinds:

- `stopped`: conversions of young and old clicks have stopped arriving: a pixel or a feed is broken.
- `rates`: clicks since then convert more or less often than they were served.
- `delays`: they convert as often, but later or sooner.
- `traffic`: far more or far fewer clicks come than at this hour of other days, of all segments together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tracecvr.base.config import DAY, HOUR, refuse_unknown
from tracecvr.base.durations import log_day
from tracecvr.base.metrics import Floats, probability
from tracecvr.data.outages import Outages
from tracecvr.data.table import Ints, Schema
from tracecvr.monitor.detectors import FAMILIES, PACES, Detectors, log_age_ratio
from tracecvr.monitor.expected import Expectations, covered
from tracecvr.stream.reveal import LabelledReveals
from tracecvr.stream.source import TableSource

_MOST = 24
"""Segments that are watched: those with the most conversions in warm-up. More would make each alarm later."""
_VALUES = 4096
"""A feature with more values is no segment."""
_FEWEST = 50
"""Conversions in warm-up below which a segment is not watched."""
_BURN_IN = 7 * DAY
"""The end of warm-up, in which misses are measured and no alarm goes off."""
_BLOCK = 65536
_PACES = (0.5, 2 / 3, 0.8, 1.25, 1.5, 2.0, 4.0)
"""Changes of delays that are compared with a change of rates."""
_SURE = 2.0
"""Nats by which one explanation must be better than another."""
_APART = 7 * DAY
"""Stops that come back within this time are no outages."""
_FADE_CLICKS = 3 * DAY
"""In this time the weight of past traffic halves."""

_DOUBT = 0.005
"""Intervals of any hour that count when those of the same hour are averaged."""

TEXTS = {
    "stopped": "conversions stopped arriving",
    "rates": "rates changed",
    "delays": "delays changed",
    "rates or delays": "rates or delays changed",
    "traffic": "traffic changed",
}


@dataclass
class Alarm:
    """Something that is not as expected. Times are seconds of the log."""

    kind: str
    segment: str | None
    """`feature=value`; None for all clicks."""
    since: int
    """When it began, as far as is known."""
    raised: int
    """The end of the interval after which it was raised."""
    ended: int | None
    arrived: float
    """Conversions (for traffic: clicks) since it began, up to now or the end."""
    expected: float

    def text(self, time: Callable[[int], str] = log_day) -> str:
        where = "" if self.segment is None else f" in {self.segment}"
        until = "" if self.ended is None else f" until {time(self.ended)}"
        what = "clicks" if self.kind == "traffic" else "conversions"
        return (
            f"{TEXTS[self.kind]}{where} since {time(self.since)}{until}: {self.arrived:,.0f} {what} where "
            f"{self.expected:,.0f} were expected; raised {time(self.raised)}"
        )


def segment_feature(schema: Schema, name: str | None = None) -> int | None:
    """The position of the feature whose values are segments: the one of that name, or the first that has few values."""
    if name is not None:
        refuse_unknown([name], [feature.name for feature in schema.features], "alarms_by", "feature")
    for position, feature in enumerate(schema.features):
        few = 1 < feature.size <= _VALUES
        if feature.name == name or (name is None and few and not feature.one_hot):
            return position
    return None


class Monitor:
    """Follows a stream interval by interval. Series 0 is all clicks that belong to no segment with an alarm, the others
    are segments."""

    def __init__(
        self,
        schema: Schema,
        interval: int,
        by: str | None = None,
        names: Mapping[int, str] = MappingProxyType({}),
        declared: Outages = (),
    ) -> None:
        self.schema, self.interval, self.position = schema, interval, segment_feature(schema, by)
        self.names, self.declared = names, declared
        self.alarms: list[Alarm] = []
        self._begin(np.zeros(0, np.int64))

    def _begin(self, values: Ints) -> None:
        """Watch these values of the feature."""
        self.values = values
        columns = len(values) + 1  # the last is for all other clicks
        self.expectations = Expectations(columns, self.interval, self.schema.d_max)
        self.detectors = Detectors(columns, self.interval)
        self.traffic = np.zeros((2, columns, 24))  # clicks and intervals, by hour of the day
        self.young = np.zeros((columns, 0))
        """Bins of age that are young, of each column: those in which half of its conversions come; as 0 or 1."""
        self.on: dict[tuple[int, int], int] = {}
        """Alarms that are on, by family and series: their place in `alarms`."""

    # Start.

    def start(self, source: TableSource, split: int) -> None:
        """Learn rates, delays and the size of misses from warm-up, as known at the split."""
        batches = [self._tally(b) for b in source.history(split, "censored").batches(_BLOCK, None)]
        if not batches:
            return
        size = 1 if self.position is None else self.schema.features[self.position].size
        clicks, arrived = (np.sum([b[i] for b in batches], axis=0).reshape(size, -1) for i in (0, 1))
        often = np.flatnonzero(arrived.sum(1) >= _FEWEST)
        largest = often[np.argsort(-arrived[often].sum(1), kind="stable")][:_MOST]
        self._begin(np.sort(largest) if size > 1 else largest[:0])
        others = np.setdiff1d(np.arange(size), self.values)
        clicks, arrived = (
            np.concatenate([one[self.values], one[others].sum(0, keepdims=True)]) for one in (clicks, arrived)
        )
        rate = self._take_over(clicks, arrived)
        back = max(split - _BURN_IN, 0)
        intervals = (split - max(back - self.schema.d_max, 0)) // self.interval
        for begin in range(split - intervals * self.interval, split, self.interval):
            column = self._column(source.clicks(begin, begin + self.interval).x.numpy())
            self.expectations.add_clicks(begin, column, rate[column])
            if begin >= back:
                self._look(source, begin, column, watch=False)
        self.detectors.forget(but_stop=False)

    def _tally(self, b: LabelledReveals) -> tuple[Floats, Floats]:
        """Of a batch of history, by value and bin of age: clicks that have passed it, and conversions in it."""
        edges = self.expectations.edges
        bins, value = len(edges) - 1, np.zeros(len(b), np.int64)
        size = 1
        if self.position is not None:
            value, size = b.x[:, self.position].numpy().astype(np.int64), self.schema.features[self.position].size
        passed = covered(edges, b.elapsed.numpy().astype(np.float64))
        clicks: Floats = np.stack([np.bincount(value, one, size) for one in passed.T], 1)
        converted = b.converted.numpy()
        where = np.clip(np.searchsorted(edges, b.age[:, 0].numpy()[converted]) - 1, 0, bins - 1)
        arrived = np.bincount(value[converted] * bins + where, minlength=size * bins)
        return clicks, arrived.reshape(size, bins).astype(np.float64)

    def _take_over(self, clicks: Floats, arrived: Floats) -> Floats:
        """Start the sums from what warm-up has by column and age; returns the rate of each column."""
        sums = self.expectations.sums
        share = arrived.sum(0) / np.maximum(clicks.sum(0), 1.0)
        of_column = (arrived.sum(1) + 20) / ((clicks * share).sum(1) + 20)
        rate: Floats = share.sum() * of_column
        exposed = clicks * rate[:, None]
        sums.law = np.stack([arrived.sum(0), exposed.sum(0)])
        sums.columns = np.stack([arrived, exposed * sums.share()])
        own = sums.share() * sums.factor()
        before = np.cumsum(own, 1) - own
        self.young = (before < 0.5 * own.sum(1, keepdims=True)).astype(np.float64)
        return rate

    # The stream.

    def observe(self, source: TableSource, start: int, x: npt.NDArray[Any], log_odds: npt.NDArray[Any]) -> list[Alarm]:
        """Compare an interval with what was expected of it, by what is known at its end; alarms that were raised.
        `x` and `log_odds` are of its clicks, as they were served."""
        column = self._column(x)
        self.expectations.add_clicks(start, column, probability(log_odds))
        if any(begin < start + self.interval and start < end for begin, end in self.declared):
            return []  # that nothing arrives is known
        return self._look(source, start, column, watch=True)

    def to_come(self, x: npt.NDArray[Any], age: Ints, rate: Floats) -> Floats:
        """What clicks of these ages that were served these rates should still bring."""
        ours = self.expectations
        shares = (ours.sums.share() * ours.sums.factor())[self._column(x)]
        left: Floats = ((1 - covered(ours.edges, age.astype(np.float64))) * shares).sum(1)
        return rate * left

    def outages(self, now: int) -> Outages:
        """When all conversions had stopped arriving; up to now, if they still have. The third stop within a week and
        those that follow it are none: so the feed delivers, and whoever waited for it would never learn."""
        stops = [a for a in self.alarms if a.kind == "stopped" and a.segment is None]
        times = [(a.since, now if a.ended is None else a.ended) for a in stops]
        often = [n >= 2 and since - times[n - 2][1] < _APART for n, (since, _) in enumerate(times)]
        return tuple(time for time, one in zip(times, often, strict=True) if not one)

    def _column(self, x: npt.NDArray[Any]) -> Ints:
        if self.position is None or not len(self.values):
            return np.zeros(len(x), np.int64)
        value = x[:, self.position]
        place = np.searchsorted(self.values, value)
        return np.where(self.values[place % len(self.values)] == value, place, len(self.values)).astype(np.int64)

    def _look(self, source: TableSource, start: int, column: Ints, watch: bool) -> list[Alarm]:
        ours, end = self.expectations, start + self.interval
        events = source.arrivals(start, end)
        arrived = ours.count(self._column(events.x.numpy()), events.elapsed.numpy())
        exposed, shares = ours.expect(start)
        expected = exposed * shares
        clicks, usual = np.bincount(column, minlength=ours.columns).astype(np.float64), self._usual_clicks(start)
        count = np.stack([arrived.sum(1), clicks, (arrived * self.young).sum(1)])
        hour = ours.of_hour(start)
        mean = np.stack([hour * expected.sum(1), usual, hour * (expected * self.young).sum(1)])
        count, mean = self._by_series(count), self._by_series(mean)
        raised: list[Alarm] = []
        self.detectors.step(start, count, mean, self._weigh_ages(arrived, exposed, shares))
        if watch:
            raised = self._sound(source, end, count, mean)
        if (0, 0) in self.on:
            self.detectors.forget()
        used = np.array([(0, s) not in self.on for s in range(ours.columns)], np.float64)
        trusted = np.append(used[1:], 1.0) * used[0]  # columns are series 1, 2, ... and others
        self.detectors.learn(start, count, mean, used * used[0])
        ours.learn(start, exposed, expected, arrived, trusted)
        self.traffic *= 0.5 ** (self.interval / _FADE_CLICKS)
        self.traffic[:, :, start % DAY // HOUR] += clicks, np.ones_like(clicks)
        return raised

    def _weigh_ages(self, arrived: Floats, exposed: Floats, shares: Floats) -> list[Floats]:
        """Evidence that delays are longer or shorter, by the ages of what has arrived."""
        slowed = (self.expectations.slow_down(shares, pace) for pace in PACES)
        means = (exposed * one for one in (shares, *slowed))
        count, usual, *changed = (self._by_series(one.T).T for one in (arrived, *means))
        return [log_age_ratio(count, usual, one) for one in changed]

    def _by_series(self, columns: Floats) -> Floats:
        """Sums by column (n, columns) as series: all clicks without those of segments with an alarm, then segments."""
        alarmed = [s - 1 for family, s in self.on if s and family != FAMILIES.index("traffic")]
        rest = columns.sum(1) - columns[:, alarmed].sum(1)
        return np.concatenate([rest[:, None], columns[:, :-1]], 1)

    def _usual_clicks(self, start: int) -> Floats:
        """Clicks of each column at this hour of other days; at any hour, where that is not known yet."""
        clicks, intervals = self.traffic[:, :, start % DAY // HOUR]
        of_any = self.traffic[0].sum(1) / np.maximum(self.traffic[1].sum(1), 1e-9)
        usual: Floats = (clicks + _DOUBT * of_any) / (intervals + _DOUBT)
        return usual

    # Alarms.

    def _sound(self, source: TableSource, end: int, count: Floats, mean: Floats) -> list[Alarm]:
        sound, silent = self.detectors.sound(), self.detectors.silent()
        for (family, series), place in list(self.on.items()):
            alarm, counted = self.alarms[place], int(family == 2)
            alarm.arrived += float(count[counted, series])
            alarm.expected += float(mean[counted, series])
            intervals = (end - alarm.since) // self.interval
            if family == 1 and intervals & (intervals - 1) == 0:  # at first, rates and delays look alike
                kind, alarm.arrived, alarm.expected = self._explain(source, family, series, alarm.since, end)
                alarm.kind = alarm.kind if kind == "rates or delays" else kind
            if silent[family, series]:
                alarm.ended = self.detectors.since(family, series)[1]
                del self.on[family, series]
        raised = []
        for family, series in np.argwhere(sound):
            key = int(family), int(series)
            hidden = any((f, s) in self.on for f in range(family) for s in {0, series}) if family != 2 else False
            hidden |= (family, 0) in self.on  # a stop explains more than a level, all clicks more than a segment
            if key not in self.on and not hidden:
                since, _ = self.detectors.since(*key)
                kind, arrived, expected = self._explain(source, *key, since, end)
                raised.append(Alarm(kind, self.name(key[1]), since, end, None, arrived, expected))
                self.on[key] = len(self.alarms)
                self.alarms.append(raised[-1])
        return raised

    def _explain(self, source: TableSource, family: int, series: int, since: int, end: int) -> tuple[str, float, float]:
        """What has happened, by the likelihood of what clicks since then have brought by age; and how much."""
        columns = list(range(len(self.values) + 1)) if series == 0 else [series - 1]
        if family == FAMILIES.index("traffic"):
            return "traffic", 0.0, 0.0
        ours = self.expectations
        events = source.arrivals(since, end)
        new = (events.arrival >= since).numpy()
        column, age = self._column(events.x.numpy()), events.elapsed.numpy()
        arrived = ours.count(column[new], age[new])[columns].sum(0)
        expected = ours.since(since, end)[columns].sum(0)
        total = float(arrived.sum()), float(expected.sum())
        if family == FAMILIES.index("stop"):
            return "stopped", *total
        level = max(total[0], 0.5) / max(total[1], 1e-9)
        rates = _log_likelihood(arrived, level * expected)
        delays = max(_log_likelihood(arrived, ours.since(since, end, pace)[columns].sum(0)) for pace in _PACES)
        if abs(rates - delays) < _SURE:
            return "rates or delays", *total
        return "rates" if rates > delays else "delays", *total

    def name(self, series: int) -> str | None:
        """A segment as alarms name it; None for all clicks."""
        if series == 0 or self.position is None:
            return None
        value = int(self.values[series - 1])
        return f"{self.schema.features[self.position].name}={self.names.get(value, value)}"

    # State.

    def state(self) -> dict[str, Any]:
        return {
            "values": self.values.tolist(),
            "young": self.young.tolist(),
            "expectations": self.expectations.state(),
            "detectors": self.detectors.state(),
            "traffic": self.traffic.tolist(),
            "on": [[*key, place] for key, place in self.on.items()],
            "alarms": [asdict(alarm) for alarm in self.alarms],
        }

    def load(self, state: dict[str, Any]) -> None:
        self._begin(np.array(state["values"], np.int64))
        self.young, self.traffic = (np.array(state[name], np.float64) for name in ("young", "traffic"))
        self.expectations.load(state["expectations"])
        self.detectors.load(state["detectors"])
        self.on = {(family, series): place for family, series, place in state["on"]}
        self.alarms = [Alarm(**alarm) for alarm in state["alarms"]]


def _log_likelihood(count: Floats, mean: Floats) -> float:
    mean = np.maximum(mean, 1e-9)
    return float((count * np.log(mean) - mean).sum())
