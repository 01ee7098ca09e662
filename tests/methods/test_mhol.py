"""MHOL: a head for each bucket of delays. Fixed points, what warm-up may use, the sum that is served, the posterior."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from simulated import engine_of, rate_after_sgd
from tracecvr.base.config import DAY, HOUR
from tracecvr.checks.loss import gradient, root
from tracecvr.checks.subject import Constant, KnownLaw, Subject, plan_for, small_log
from tracecvr.data.table import NEVER, ClickTable
from tracecvr.datasets.taobao import Taobao
from tracecvr.learn.engine import Engine
from tracecvr.methods.mhol import MHOL
from tracecvr.stream.reveal import LabelledReveals
from tracecvr.stream.source import TableSource

ENDS = (HOUR, 6 * HOUR, DAY)
MASSES = (0.1, 0.06, 0.04)
CELL = KnownLaw(conversions=((HOUR // 2, 100), (2 * HOUR, 60), (12 * HOUR, 40)))
LOGITS = torch.logit(torch.tensor(MASSES))


def mhol(logit: float = 0.0, cell: KnownLaw = CELL) -> Engine:
    return engine_of("mhol", logit, cell, windows=ENDS)


def method_of(engine: Engine, logits: Tensor | None = None) -> MHOL:
    """The method, with these logits of the heads for all clicks."""
    if logits is not None:
        engine.method.nets["main"] = Constant(logits.tolist())
        engine.forget()
    assert isinstance(engine.method, MHOL)
    return engine.method


def rates(engine: Engine) -> list[float]:
    (value,) = engine.method.nets["main"].parameters()
    numbers: list[float] = torch.sigmoid(value).tolist()
    return numbers


def clicks(
    delays: list[int], known: list[int] | None = None, refunds: list[int] | None = None, at: list[int] | None = None
) -> TableSource:
    """Clicks with these delays, of when the conversion became known, and of a refund; all from time 0 by default."""
    click_ts = np.array(at or [0] * len(delays))
    table = ClickTable(
        x=np.zeros((len(delays), 1), np.int32),
        click_ts=click_ts,
        click_id=np.arange(len(delays)),
        action_ts=_after(click_ts, delays)[:, None],
        schema=CELL.schema,
        late_known_ts=None if known is None else _after(click_ts, known)[:, None],
        refund_ts=None if refunds is None else _after(click_ts, refunds)[:, None],
    )
    return TableSource(table)


def _after(click_ts: Any, seconds: list[int]) -> Any:
    return np.where(np.array(seconds) == NEVER, NEVER, click_ts + np.array(seconds))


# Fixed points.


def test_each_head_goes_to_the_mass_of_its_bucket_and_the_sum_to_the_rate() -> None:
    engine = mhol()
    assert root(engine, CELL.events(engine)) == pytest.approx(0.2, abs=1e-4)
    assert rates(engine) == pytest.approx(MASSES, abs=1e-4)


def test_sgd_leads_every_head_to_its_mass() -> None:
    engine = mhol(logit=0.5)
    assert rate_after_sgd(engine, CELL) == pytest.approx(0.2, abs=0.005)
    assert rates(engine) == pytest.approx(MASSES, abs=0.005)


@pytest.mark.parametrize("logit", [-2.0, -0.3, 1.1])
def test_the_gradient_of_a_click_is_that_of_exact_labels(logit: float) -> None:
    """From the masses of events: each click has one event for each head, and the loss is a mean over events."""
    engine = mhol()
    events = CELL.events(engine)
    assert len(events) == 3 * CELL.clicks
    slopes = gradient(engine, events, logit) * len(events) / CELL.clicks
    f = 1 / (1 + np.exp(-logit))
    assert slopes.tolist() == pytest.approx([f - mass for mass in MASSES], abs=1e-5)


def test_an_event_trains_the_head_of_its_bucket_alone() -> None:
    engine = mhol()
    events = CELL.events(engine)
    for head in range(3):
        own = events.take((events.trigger == head).nonzero()[:, 0])
        assert (own.elapsed == ENDS[head]).all()
        slopes = gradient(engine, own, 0.3)
        assert slopes[head] > 0.1
        assert slopes.count_nonzero() == 1


def test_the_loss_in_numpy() -> None:
    engine, source = Subject("mhol").warmed(small_log(), plan_for(small_log()))
    method = method_of(engine)
    b = source.reveals(engine.schedule, 4 * DAY, 5 * DAY)
    with torch.no_grad():
        heads = method.call("main", b.x).numpy().astype(float)
    edges, delay, losses = (-1, *method.spans), b.age[:, 0].numpy(), []
    for i, j in enumerate(b.trigger.tolist()):
        label = edges[j] < delay[i] <= edges[j + 1]
        losses.append(np.logaddexp(0, -heads[i, j] if label else heads[i, j]))
    assert len(set(b.trigger.tolist())) == 4
    assert method.loss(b).item() == pytest.approx(np.mean(losses), rel=1e-5)


# Which bucket a conversion is in.


def test_a_conversion_is_in_one_bucket_which_contains_its_end() -> None:
    source = clicks([0, HOUR, HOUR + 1, 6 * HOUR, 6 * HOUR + 1, DAY, DAY + 1, NEVER])
    engine = mhol()
    labels = method_of(engine).labels(source.known_at(2 * DAY, 0, 1))
    one, two, three, none = [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]
    assert labels.tolist() == [one, one, two, two, three, three, none, none]
    events = source.reveals(engine.schedule, 0, 2 * DAY)
    shown = method_of(engine).labels(events).gather(1, events.trigger[:, None])
    assert shown.sum() == 6  # each conversion is a positive once


def test_a_conversion_that_is_reported_late_counts_once_in_the_bucket_of_the_report() -> None:
    engine, source = mhol(), clicks([60, 60, 60], known=[60, 2 * HOUR, 12 * HOUR])
    events = source.reveals(engine.schedule, 0, 2 * DAY)
    shown = method_of(engine).labels(events).gather(1, events.trigger[:, None])[:, 0]
    assert events.trigger[shown == 1].tolist() == [0, 1, 2]


def test_a_refund_counts_if_it_comes_before_the_bucket_is_over() -> None:
    engine, source = mhol(), clicks([60, 60, 2 * HOUR], refunds=[HOUR - 1, HOUR + 1, NEVER])
    events = source.reveals(engine.schedule, 0, 2 * DAY)
    shown = method_of(engine).labels(events).gather(1, events.trigger[:, None])[:, 0]
    assert events.row[shown == 1].tolist() == [1, 2]
    history = next(source.history(1, "mature").batches(3, None))
    assert method_of(engine).labels(history).tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0]]  # final labels


# Warm-up.


def cohorts(ages: list[int]) -> LabelledReveals:
    """As many cells of clicks as there are ages, as they are known when the clicks are that old."""
    delays = np.repeat([d for d, _ in CELL.conversions], [n for _, n in CELL.conversions]).tolist()
    delays += [NEVER] * (CELL.clicks - len(delays))
    end = 2 * DAY
    at = [end - 1 - age for age in ages]  # what comes at the end itself is not known yet
    source = clicks(delays * len(ages), at=np.repeat(at, len(delays)).tolist())
    return next(source.history(end, "censored").batches(CELL.clicks * len(ages), None))


@pytest.mark.parametrize("ages", [[DAY], [DAY, 8 * HOUR], [DAY, 6 * HOUR, 3 * HOUR, HOUR // 2]])
def test_warm_up_is_unbiased_whatever_the_ages_of_clicks(ages: list[int]) -> None:
    engine = mhol()
    method = method_of(engine, LOGITS)
    (value,) = method.nets["main"].parameters()
    history = cohorts(ages)
    (slopes,) = torch.autograd.grad(method.warm_loss(history), [value])
    assert slopes.tolist() == pytest.approx([0, 0, 0], abs=1e-6)
    over = sum(end <= age for age in ages for end in ENDS) * CELL.clicks
    assert int(method.over(history).sum()) == over


def test_warm_up_and_stream_together_teach_each_bucket_of_a_click_once() -> None:
    engine, end = mhol(), 2 * DAY
    source = clicks([60] * 4, at=[end - 1 - DAY, end - DAY, end - HOUR, end - 1])
    history = next(source.history(end, "censored").batches(4, None))
    learnt = method_of(engine).over(history).sum(1)
    later = torch.bincount(source.reveals(engine.schedule, end, 5 * DAY).row)
    assert (learnt + later).tolist() == [3, 3, 3, 3]
    assert learnt.tolist() == [3, 2, 0, 0]


def test_a_head_whose_bucket_is_over_for_no_click_starts_at_what_is_known() -> None:
    """Without a start it would be at one half, and so would what is served."""
    log = small_log()
    engine, source = Subject("mhol").engine(log.schema, windows=(HOUR, 2 * DAY)), TableSource(log)
    history = source.history(DAY, "censored")
    whole = next(history.batches(len(history), None))
    assert not method_of(engine).over(whole)[:, 1].any()
    engine.warm_up(history)
    heads = torch.sigmoid(engine.method.call("main", whole.x)).mean(0)
    late = (whole.label.bool() & (whole.known > HOUR)).float().mean()
    assert heads[1].item() == pytest.approx(late.item(), rel=0.5)
    assert torch.sigmoid(torch.from_numpy(engine.score(whole.x))).mean() < 2 * log.label.mean()


# What is served.


def test_the_sum_of_the_heads_is_served_and_stays_below_one() -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(-2, 2.5, (4000, 3))
    method = method_of(mhol())
    method.caller = lambda *_: torch.from_numpy(logits)
    total = np.minimum((1 / (1 + np.exp(-logits))).sum(1), 1 - 1e-6)
    assert 0.05 < (total == 1 - 1e-6).mean() < 0.5
    served = method.log_odds(torch.zeros(4000, 1)).numpy()
    assert served == pytest.approx(np.log(total) - np.log1p(-total), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("logits", [(-40.0,) * 3, (40.0,) * 3, (40.0, -40.0, 0.0), (-40.0, -40.0, 40.0)])
def test_extreme_logits(logits: tuple[float, ...]) -> None:
    engine = mhol()
    method = method_of(engine, torch.tensor(logits))
    (value,) = method.nets["main"].parameters()
    b = CELL.source().known_at(2 * HOUR, 0, 1)
    for answer in (method.log_odds(b.x), method.posterior(b)):
        assert torch.isfinite(answer).all()
        (slopes,) = torch.autograd.grad(answer.sum(), [value], retain_graph=True)
        assert torch.isfinite(slopes).all()
    assert (torch.sigmoid(method.log_odds(b.x).double()) < 1).all()


# The posterior.


def posterior(age: int, source: TableSource | None = None) -> list[float]:
    b = (source or clicks([NEVER])).known_at(age, 0, 1)
    numbers: list[float] = torch.sigmoid(method_of(mhol(), LOGITS).posterior(b).double()).tolist()
    return numbers


def test_an_open_click_converts_in_a_bucket_that_is_not_over() -> None:
    assert posterior(0) == posterior(HOUR - 1) == pytest.approx([0.2])
    assert posterior(HOUR) == posterior(6 * HOUR - 1) == pytest.approx([0.1 / 0.9])
    assert posterior(6 * HOUR) == posterior(DAY - 1) == pytest.approx([0.04 / 0.84])
    assert posterior(DAY) == pytest.approx([0.0], abs=1e-12)


def test_the_posterior_of_a_known_outcome_is_certain() -> None:
    converted, later = posterior(2 * HOUR, clicks([HOUR, 3 * HOUR]))
    assert converted == pytest.approx(1.0, abs=1e-12)
    assert later == pytest.approx(0.1 / 0.9)


# Buckets.


def test_buckets_of_logs() -> None:
    def ends(d_max: int, windows: tuple[int, ...] | None = None) -> tuple[int, ...]:
        schema = replace(CELL.schema, windows=windows, horizons=(60,), d_max=d_max)
        return method_of(Subject("mhol").engine(schema)).spans

    assert ends(30 * DAY) == (DAY, 2 * DAY, 7 * DAY, 30 * DAY)
    assert ends(15 * DAY) == (DAY // 2, DAY, 7 * DAY // 2, 15 * DAY)
    assert method_of(mhol()).spans == ENDS
    assert ends(3 * DAY, Taobao.windows) == (2 * HOUR, 12 * HOUR, DAY, 2 * DAY, 3 * DAY)
