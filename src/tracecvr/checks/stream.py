"""Promises about the stream: no future, the same bytes however it is cut, and pure scoring."""

from __future__ import annotations

import tempfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor

from tracecvr.base.config import DAY
from tracecvr.checks.reference import EventByEvent
from tracecvr.checks.subject import NotApplicable, Subject, plan_for, small_log
from tracecvr.data.table import NEVER, ClickTable
from tracecvr.forecast.cells import count, outcomes_of
from tracecvr.forecast.forecast import forecast
from tracecvr.learn.engine import Engine
from tracecvr.runs.replay import FullPlan, Scored, replay
from tracecvr.stream.source import TableSource


def check_no_future(subject: Subject) -> None:
    """With warm-up labels as known at the split, altering all that comes from T on changes nothing up to T."""
    table = small_log()
    for until in (table.schema.split, table.schema.split + DAY):
        plan = replace(plan_for(table), until=until)
        first, its_scores = _run(subject, table, plan)
        second, other_scores = _run(subject, scramble(table, until), plan)
        assert _scores(its_scores) == _scores(other_scores), "scores up to T depend on what happens after T"
        assert first.fingerprint() == second.fingerprint(), "weights at T depend on what happens after T"
        ours, theirs = _forecast(table, its_scores, until), _forecast(scramble(table, until), other_scores, until)
        assert ours.equals(theirs), "forecasts at T depend on what happens after T"


def check_resume(subject: Subject) -> None:
    """Stopped after any tick and restored from a snapshot, the rest of the run is the same to the byte."""
    table = small_log()
    plan = plan_for(table)
    whole, scores = _run(subject, table, plan)
    for stop in (0, 1, len(plan) // 2, len(plan) - 1):
        engine, source = subject.warmed(table, plan)
        for _ in replay(engine, source, replace(plan, until=plan.split + stop * plan.interval)):
            pass
        restored = subject.engine(table.schema)
        with tempfile.TemporaryDirectory() as folder:
            engine.snapshot(Path(folder) / "state.safetensors")
            restored.restore(Path(folder) / "state.safetensors")
        later = list(replay(restored, TableSource(table), plan, first=stop))
        assert restored.fingerprint() == whole.fingerprint(), f"weights differ when resumed after tick {stop}"
        assert _scores(later) == _scores(scores[stop:]), f"scores differ when resumed after tick {stop}"


def check_deterministic(subject: Subject) -> None:
    """The same seed and thread count give the same bytes twice."""
    table = small_log()
    first, second = (_run(subject, table, plan_for(table))[0] for _ in range(2))
    assert first.fingerprint() == second.fingerprint(), "two equal runs end with different weights"


def check_scoring_is_pure(subject: Subject) -> None:
    """Scores and posteriors change no state."""
    table = small_log()
    engine, source = subject.warmed(table, plan_for(table))
    engine.tick(source, table.schema.split, table.schema.split + DAY)
    before = engine.fingerprint()
    engine.score(source.clicks(0, DAY).x)
    engine.posterior(source.known_at(2 * DAY, 0, 2 * DAY))
    assert engine.fingerprint() == before, "scoring changed the state"


def check_replay_equals_live(subject: Subject) -> None:
    """Slices of the table give the reveals, in the order, that events arriving one by one give."""
    table = small_log(clicks=400)
    schedule = subject.engine(table.schema).schedule
    source, live = TableSource(table), EventByEvent(table.schema)
    for start, end in _intervals(table):
        live.receive(table, start, end)
        ours, theirs = source.reveals(schedule, start, end), live.reveals(schedule, start, end)
        for column in fields(ours):
            a, b = getattr(ours, column.name), getattr(theirs, column.name)
            same = torch.equal(a, b) if isinstance(a, Tensor) else a == b
            assert same, f"{column.name} differs in [{start}, {end})"


def check_every_event_once(subject: Subject) -> None:
    """Over all intervals, no event comes twice and none is lost; no click is shown before it happened."""
    table = small_log()
    schedule, source = subject.engine(table.schema).schedule, TableSource(table)
    intervals = _intervals(table)
    parts = [source.reveals(schedule, start, end) for start, end in intervals]
    keys = [(int(r), int(t)) for part in parts for r, t in zip(part.row, part.trigger, strict=True)]
    whole = source.reveals(schedule, 0, intervals[-1][1])
    assert len(set(keys)) == len(keys), "an event came twice"
    assert keys == list(zip(whole.row.tolist(), whole.trigger.tolist(), strict=True)), "an event was lost"
    assert (whole.elapsed >= 0).all(), "a click was shown before it happened"


def check_helpers_stay_frozen(subject: Subject) -> None:
    """No helper net is changed by the stream, nor given a gradient."""
    table = small_log()
    engine, source = subject.warmed(table, plan_for(table))
    helpers = {(p.name, n): p.nets[n] for p in (engine.method, *engine.plugins) for n in p.helpers()}
    if not helpers:
        raise NotApplicable("it has no helper nets")
    before = {key: _bytes(net) for key, net in helpers.items()}
    engine.tick(source, table.schema.split, table.schema.split + DAY)
    for key, net in helpers.items():
        assert _bytes(net) == before[key], f"helper {key[1]!r} changed while streaming"
        assert all(p.grad is None for p in net.parameters()), f"helper {key[1]!r} was given a gradient"


def scramble(table: ClickTable, after: int) -> ClickTable:
    """The same log up to a moment, another one from then on: other features, times, labels and actions."""
    rng = np.random.default_rng(7)
    action_ts = np.array(table.action_ts)
    late = action_ts >= after  # includes what never happened: it may happen now
    earliest = np.maximum(table.click_ts[:, None], after)
    another = earliest + rng.integers(0, table.schema.d_max, action_ts.shape)
    chance = rng.random(action_ts.shape)
    action_ts[late] = np.where(chance < 0.4, another, np.where(chance < 0.5, earliest, NEVER))[late]
    x, click_ts = np.array(table.x), np.array(table.click_ts)
    new = click_ts >= after
    x[new] = rng.permutation(x[new])
    click_ts[new] = np.sort(rng.integers(after, after + 3 * DAY, int(new.sum())))
    action_ts[new] = np.where(action_ts[new] == NEVER, NEVER, click_ts[new][:, None] + 60)
    return ClickTable(x, click_ts, table.click_id, action_ts, table.schema)


def _run(subject: Subject, table: ClickTable, plan: FullPlan) -> tuple[Engine, list[Scored]]:
    engine, source = subject.warmed(table, plan)
    return engine, list(replay(engine, source, plan))


def _forecast(table: ClickTable, scored: list[Scored], at: int) -> pl.DataFrame:
    served = np.full(len(table), np.nan, np.float32)
    for interval in scored:
        served[interval.row] = interval.log_odds
    segment = np.asarray(table.x[:, 0]).astype(np.int64)
    return forecast(count(outcomes_of(table, segment, served), table.schema.features[0].size, at), {})


def _scores(scored: list[Scored]) -> bytes:
    return b"".join(s.log_odds.tobytes() for s in scored)


def _bytes(net: torch.nn.Module) -> bytes:
    return b"".join(v.numpy().tobytes() for v in net.state_dict().values())


def _intervals(table: ClickTable) -> list[tuple[int, int]]:
    step, end = table.schema.interval, int(table.click_ts[-1]) + table.schema.d_max
    return [(start, start + step) for start in range(0, end + step, step)]
