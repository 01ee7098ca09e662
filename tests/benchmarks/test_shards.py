"""Sharded live learning as docs/scale.md lays it out: shards and one learner give what one table gives, to the byte."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from livestore import SMALL, the_events
from scale import Costs, Machine, Traffic, demand
from shards import Shards, shard_of
from tracecvr.base import registry
from tracecvr.base.config import DAY, HOUR
from tracecvr.data import prepared
from tracecvr.learn.engine import Engine
from tracecvr.online.ledger.ledger import memory_of
from tracecvr.online.log.times import Grid
from tracecvr.stream.source import TableSource


@pytest.mark.parametrize(("method", "shards"), [("trace", 3), ("defer", 2)])
def test_shards_learn_what_one_table_does(base: Path, tmp_path: Path, method: str, shards: int) -> None:
    log = prepared.load(base)
    s = log.table.schema
    grid = Grid(s.split, s.interval, HOUR, s.d_max)
    ours, whole = (Engine(registry.get("method", method)(**SMALL), s) for _ in range(2))
    source = Shards(tmp_path, log.table, log.encoder, grid, memory_of(grid, ours.memory), shards)
    table = TableSource(log.table)
    for engine, warm in ((ours, source), (whole, table)):
        engine.warm_up(warm.history(s.split, "censored"))
    events = list(the_events())
    # One shard is sent everything before the others hear of anything: the learner waits for the slowest.
    slow = [event for event in events if shard_of(event["click_id"], shards) == 0]
    quick = [event for event in events if shard_of(event["click_id"], shards) != 0]
    late = random.Random(1)
    for group in (quick, slow):
        if group is slow:
            assert source.closed() == 0
        group.sort(key=lambda event: event["ts"] + late.randrange(HOUR // 2))
        for first in range(0, len(group), 100):
            source.send(group[first : first + 100])
    until = min(source.closed(), (int(log.table.click_ts[-1]) - s.split) // s.interval)
    assert until > 20
    for number in range(until):
        source.advance()
        start, end = grid.bounds(number)
        assert (ours.score(source.clicks(start, end).x) == whole.score(table.clicks(start, end).x)).all()
        assert ours.tick(source, start, end) == whole.tick(table, start, end)
    assert ours.fingerprint() == whole.fingerprint()


COSTS = Costs(145, 32, 319, 3.7e-5, 1.8e-5, 8e-10)


def test_demand_grows_with_traffic_and_names_what_is_short() -> None:
    one, ten = (demand(scale, Traffic(), COSTS, Machine()) for scale in (1, 10))
    assert ten.open_clicks == pytest.approx(10 * one.open_clicks)
    assert ten.learn_cores == pytest.approx(10 * 100 * 6 * 1.8e-5)
    assert one.open_clicks == 100 * (30 * DAY + 25 * HOUR)
    assert one.short == "disk"  # open clicks are in files
    assert demand(1, Traffic(d_max=HOUR), COSTS, Machine(cores=1)).short == "cores that score"
