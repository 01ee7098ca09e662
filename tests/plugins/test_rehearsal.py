"""Rehearsal repeats events and changes nothing else; Oracle at other methods' moments stays unbiased."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace

import pytest
import torch

from simulated import engine_of
from tracecvr.base import registry
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.seeds import generator
from tracecvr.checks.loss import gradient, root
from tracecvr.checks.subject import KnownLaw, NotApplicable, Subject, small_log
from tracecvr.learn.engine import Engine
from tracecvr.methods.ftp import FTP
from tracecvr.methods.oracle import Oracle
from tracecvr.methods.vanilla_dup import VanillaDup
from tracecvr.plugins.rehearsal import Rehearsal, events_per_idle_click
from tracecvr.stream.reveal import Again, LabelledReveals, Reveals
from tracecvr.stream.source import TableSource

METHODS = list(registry.available("method"))
SMALL = {"hidden": (16, 8), "batch_size": 256, "warm_epochs": 1, "warm_batch_size": 256}


def test_a_repeated_event_is_the_one_that_it_repeats() -> None:
    table = small_log()
    engine = Engine(VanillaDup(window=HOUR, **SMALL), table.schema, plugins=(Rehearsal(after=(DAY,)),))  # type: ignore[arg-type]
    source, start, end = TableSource(table), 2 * DAY, 3 * DAY
    plain = source.reveals(engine.method.schedule(), start, end)
    seen = engine.events(source, start, end)
    before = source.reveals(engine.method.schedule(), start - DAY, end - DAY)
    assert len(plain) > 100
    assert len(seen) == len(plain) + len(before)
    assert _facts(seen) == _facts(plain) + _facts(before)  # payload, age and trigger as they were a day ago
    assert set(seen.trigger.tolist()) == {0, 1}


def _facts(events: Reveals) -> Counter[tuple[object, ...]]:
    columns = [column for f in fields(events) if isinstance(column := getattr(events, f.name), torch.Tensor)]
    return Counter(zip(*(c.tolist() if c.dim() == 1 else map(tuple, c.tolist()) for c in columns), strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_no_fixed_point_is_moved(method: str) -> None:
    """The expected gradient is what it was, wherever it is taken."""
    cell = KnownLaw()
    try:
        engine, again = cell.engine(Subject(method)), cell.engine(Subject(method, "rehearsal"))
    except NotApplicable:
        pytest.skip("its served net is more than a backbone")
    if not engine.schedule:
        pytest.skip("it is never updated")
    once, repeated = cell.events(engine), cell.events(again)
    assert len(repeated) == len(once) * len(again.schedule) // len(engine.schedule)
    for logit in (-2.0, -0.5, 1.0):
        slope = gradient(engine, replace(once, rng=generator(0, "pairs")), logit)
        if method == "tesla_cvr":  # its pairs are drawn among all events: the same law, not the same pairs
            assert gradient(again, repeated, logit).tolist() == pytest.approx(slope.tolist(), abs=0.02)
        else:
            assert gradient(again, repeated, logit).tolist() == pytest.approx(slope.tolist(), abs=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_by_default_an_idle_click_is_shown_about_as_often_as_trace_shows_it(method: str) -> None:
    schema = small_log().schema
    engine = Subject(method, "rehearsal").engine(schema)
    own = events_per_idle_click(engine.method.schedule())
    total = events_per_idle_click(engine.schedule)
    assert total == own * max(round(len(schema.horizons) / own), 1) if own else total == 0
    gaps = sorted({t.seconds for t in engine.schedule if isinstance(t, Again)})
    if own == 1:
        assert gaps == [end - schema.horizons[0] for end in schema.horizons[1:]]


def test_what_was_logged_at_serving_is_kept_for_repeated_events() -> None:
    table = small_log()
    seen = []

    class Watched(FTP):
        def loss(self, b: Reveals) -> torch.Tensor:
            assert b.logged is not None
            seen.append((b.trigger, b.logged.isnan().any(1), b.row))
            return super().loss(b)

    engine = Engine(Watched(**SMALL), table.schema, plugins=(Rehearsal(after=(DAY,)),))  # type: ignore[arg-type]
    source = TableSource(table)
    engine.warm_up(source.history(table.schema.split, "mature"))
    for day in range(3, 7):  # labels of the first day are final on the fifth and repeated on the sixth
        engine.tick(source, day * DAY, (day + 1) * DAY)
    first = torch.cat([row[(trigger == 4) & ~missing] for trigger, missing, row in seen])
    assert max(Counter(first.tolist()).values()) == 2


# Oracle at other methods' moments.


@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("pretrain", "oracle")])
def test_oracle_is_unbiased_whenever_it_is_shown_clicks(method: str) -> None:
    cell = KnownLaw()
    engine = cell.engine(Subject("oracle"), schedule_of=method)
    events = cell.events(engine)
    assert isinstance(engine.method, Oracle)
    assert isinstance(events, LabelledReveals)
    shown = Counter(events.row.tolist())
    assert engine.method.times_shown(events).tolist() == [shown[row] for row in events.row.tolist()]
    assert root(engine, events) == pytest.approx(cell.p, abs=1e-4)


def test_oracle_has_the_schedule_of_the_other() -> None:
    assert engine_of("oracle", schedule_of="trace").schedule == engine_of("trace").schedule
