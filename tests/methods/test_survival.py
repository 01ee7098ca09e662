"""DFM, NoDeF and ESDF: the likelihood they share, and their laws of the delay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise, product
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from simulated import rate_after_sgd
from tracecvr.base.config import DAY, HOUR, MINUTE, configure
from tracecvr.base.errors import UserError
from tracecvr.checks.loss import gradient, root
from tracecvr.checks.subject import Constant, KnownLaw, Subject, plan_for, small_log
from tracecvr.data.table import NEVER, ClickTable
from tracecvr.datasets.taobao import Taobao
from tracecvr.families.survival import Survival
from tracecvr.learn.engine import Engine
from tracecvr.methods.dfm import DFM
from tracecvr.methods.esdf import ESDF
from tracecvr.methods.nodef import NoDeF
from tracecvr.stream.reveal import After, On, Reveals, Schedule
from tracecvr.stream.source import TableSource

METHODS = ("dfm", "nodef", "esdf")
Floats = npt.NDArray[np.float64]


def survival_of(engine: Engine) -> Survival:
    assert isinstance(engine.method, Survival)
    return engine.method


def logit(p: float) -> float:
    return float(np.log(p / (1 - p)))


def sigmoid(s: npt.NDArray[np.generic]) -> Floats:
    return np.asarray(1 / (1 + np.exp(-s.astype(float))))


# Worlds in exact proportions: delays stand at the middle of equal shares of their law.


def exponential(rate: float = 0.3, per_day: float = 1.2, window: int = HOUR) -> KnownLaw:
    """Of all clicks, `rate` convert some day; those that take more than three days do not count."""
    shares = (np.arange(2000) + 0.5) / 2000
    delays = np.round(-np.log(shares) / per_day * DAY).astype(int)
    counted = tuple((int(d), 3) for d in sorted(delays) if d <= 3 * DAY)
    return KnownLaw(counted, horizons=(HOUR, 3 * DAY), window=window, clicks=round(6000 / rate))


SLOTTED = KnownLaw(((0, 20), (10 * MINUTE, 30), (HOUR // 2, 80), (2 * HOUR, 120), (12 * HOUR, 50)))
SLOTTED_TRUTH = torch.tensor([logit(0.3), *np.log([50 / 300, 80 / 300, 120 / 300, 50 / 300])], dtype=torch.float32)
EXPONENTIAL_TRUTH = torch.tensor([logit(0.3), np.log(1.2)], dtype=torch.float32)

TRUTHS = {"dfm": (exponential(), EXPONENTIAL_TRUTH), "esdf": (SLOTTED, SLOTTED_TRUTH)}


def only(events: Reveals, *triggers: int) -> Reveals:
    return events.take(torch.nonzero(torch.isin(events.trigger, torch.tensor(triggers)))[:, 0])


# What they share.


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("looks", [(), (6 * HOUR,)])
def test_the_stream_adds_up_to_the_likelihood_of_the_final_state(method: str, looks: tuple[int, ...]) -> None:
    """At fixed weights, nothing is counted twice."""
    cell = SLOTTED
    engine = cell.engine(Subject(method), looks=looks)
    with torch.no_grad():
        next(engine.method.nets["main"].parameters()).copy_(torch.linspace(-1, 0.7, engine.method.heads()))
    events, (history,) = cell.events(engine), cell.source().history(1, "mature").batches(cell.clicks, None)
    streamed = engine.method.loss(events) * len(events)
    engine.forget()
    torch.testing.assert_close(streamed, engine.method.warm_loss(history) * cell.clicks)


@pytest.mark.parametrize("method", TRUTHS)
def test_each_part_of_the_stream_is_unbiased_but_late_positives_alone_are_not(method: str) -> None:
    cell, truth = TRUTHS[method]
    engine = cell.engine(Subject(method))
    events = cell.events(engine)
    for triggers in ((0,), (1, 2), (0, 1, 2)):
        assert gradient(engine, only(events, *triggers), truth).abs().max() < 3e-4, triggers
    assert gradient(engine, only(events, 1), truth).abs().max() > 0.1


@pytest.mark.parametrize("method", TRUTHS)
def test_looks_balance_the_positives_since_the_one_before(method: str) -> None:
    cell, truth = TRUTHS[method]
    engine = cell.engine(Subject(method), looks=(15 * MINUTE, 6 * HOUR, cell.schema.d_max))  # the first is too early
    events, ages = cell.events(engine), (HOUR, 6 * HOUR, cell.schema.d_max)
    assert survival_of(engine).ages == ages
    later = only(events, 1, 2, 3)
    for last, age in pairwise(ages):
        part = later.take(torch.nonzero((later.elapsed > last) & (later.elapsed <= age))[:, 0])
        assert set(part.trigger.tolist()) == {1, 2 if age == 6 * HOUR else 3}
        assert gradient(engine, part, truth).abs().max() < 3e-4
    assert root(engine, events) == pytest.approx(cell.p, rel=2e-3)


# Where they look by default.


@pytest.mark.parametrize("method", METHODS)
def test_open_clicks_are_looked_at_when_horizons_end(method: str) -> None:
    engine = Subject(method).engine(small_log().schema)
    assert survival_of(engine).ages == (HOUR, 6 * HOUR, DAY, 2 * DAY)
    assert engine.method.resolve_options()["looks"] == [6 * HOUR, DAY]
    assert engine.schedule[2:] == tuple(After(age, seen=False) for age in (6 * HOUR, DAY, 2 * DAY))
    other = Subject(method).engine(small_log().schema, horizons=(DAY,), window=6 * HOUR)
    assert survival_of(other).ages == (6 * HOUR, DAY, 2 * DAY)


def test_looks_are_given_as_text() -> None:
    assert configure(DFM(), {"looks": "[]"}, "--set").looks == ()
    assert configure(DFM(), {"looks": "6h,1d"}, "--set").looks == (6 * HOUR, DAY)


def test_esdf_looks_where_the_slots_of_the_horizons_end() -> None:
    odd = replace(small_log().schema, horizons=(MINUTE, 50 * MINUTE, 2 * HOUR, 5 * HOUR, 23 * HOUR, 25 * HOUR))
    assert survival_of(Subject("esdf").engine(odd)).ages == (HOUR, 6 * HOUR, DAY, 2 * DAY)
    coarse = Subject("esdf").engine(odd, slots=(HOUR, 12 * HOUR))
    assert survival_of(coarse).ages == (HOUR, 12 * HOUR, 2 * DAY)
    assert coarse.method.heads() == 1 + 3


@pytest.mark.parametrize("method", TRUTHS)
def test_default_looks_keep_each_stretch_unbiased(method: str) -> None:
    cell, truth = TRUTHS[method]
    cell = replace(cell, horizons=(HOUR, 6 * HOUR, *cell.horizons[-1:]))
    engine = cell.engine(Subject(method))
    events = cell.events(engine)
    sooner = events.take(torch.nonzero((events.trigger > 0) & (events.elapsed <= 6 * HOUR))[:, 0])
    assert set(sooner.trigger.tolist()) == {1, 2}
    assert gradient(engine, sooner, truth).abs().max() < 3e-4
    assert gradient(engine, events, truth).abs().max() < 3e-4


class Former(Survival):
    """The stream as it was before looks became the default, written out."""

    def schedule(self) -> Schedule:
        return (After(self.wait), On(0, later_than=self.wait), After(self.schema.d_max, seen=False))

    def loss(self, b: Reveals) -> Tensor:
        ages = torch.tensor((self.wait, self.schema.d_max))
        last = ages[(torch.bucketize(b.elapsed, ages) - 1).clamp_min(0)]
        given = (b.trigger > 0) * self.log_open(b.x, last)
        return (self._nll(b.x, b.converted, b.age[:, 0], b.elapsed) + given).mean()


@pytest.mark.parametrize("cls", [DFM, NoDeF, ESDF])
def test_no_looks_give_the_bytes_of_the_former_default(cls: type[Survival]) -> None:
    table = small_log()
    plan, source = plan_for(table), TableSource(table)
    prints = []
    small: dict[str, Any] = {"hidden": (8,), "warm_epochs": 1, "warm_batch_size": 256}
    for method in (cls(looks=(), **small), type("F", (Former, cls), {})(**small)):
        engine = Engine(method, table.schema)
        engine.warm_up(source.history(plan.split, plan.warm_labels))
        for i in range(len(plan)):
            engine.tick(source, *plan.bounds(i))
        prints.append(engine.fingerprint())
    assert prints[0] == prints[1]


# Whatever the looks, and whenever clicks and conversions become known, a life adds up.

AGE = st.integers(1, 2 * DAY)
CLICK = st.tuples(
    st.one_of(st.none(), st.integers(0, DAY + HOUR)),  # delay of the conversion
    st.one_of(st.just(0), AGE),  # how late the conversion became known
    st.one_of(st.just(0), AGE),  # how late the click did
)
Life = tuple[int | None, int, int]


def log_of(lives: list[Life]) -> TableSource:
    """Clicks at time 0, in the order in which they became known."""
    lives = sorted(lives, key=lambda life: life[2])
    came = np.array([late for _, _, late in lives])
    delay = np.array([NEVER if delay is None else delay for delay, _, _ in lives])
    seen = [NEVER if d is None else max(d + unknown, late) for d, unknown, late in lives]
    table = ClickTable(
        x=np.zeros((len(lives), 1), np.int32),
        click_ts=np.zeros(len(lives), np.int64),
        click_id=np.arange(len(lives)),
        action_ts=delay[:, None],
        schema=SLOTTED.schema,
        late_known_ts=np.array(seen)[:, None],
        late_arrival_ts=came,
    )
    return TableSource(table)


def streamed(method: str, window: int, looks: list[int], lives: list[Life]) -> tuple[Engine, TableSource, Reveals]:
    """An engine of arbitrary outputs, and every event that it would learn from."""
    options: dict[str, Any] = {"window": window, "looks": tuple(looks)}
    if method == "esdf":  # it looks where slots end
        options["slots"] = tuple(sorted({age for age in (window, *looks) if age < DAY}))
    engine = SLOTTED.engine(Subject(method), **options)
    with torch.no_grad():
        next(engine.method.nets["main"].parameters()).copy_(torch.linspace(-1, 0.7, engine.method.heads()))
    source = log_of(lives)
    return engine, source, engine.events(source, 0, 10 * DAY)


@pytest.mark.parametrize("method", METHODS)
@given(window=st.integers(0, DAY), looks=st.lists(AGE, max_size=4), lives=st.lists(CLICK, min_size=1, max_size=8))
@example(window=HOUR, looks=[6 * HOUR, 9 * HOUR], lives=[(None, 0, 8 * HOUR), (2 * HOUR, 0, 8 * HOUR)])
@example(window=HOUR, looks=[6 * HOUR], lives=[(7 * HOUR, 0, 3 * HOUR), (None, 0, 2 * DAY), (6 * HOUR, HOUR, 0)])
def test_a_life_adds_up_to_the_likelihood_of_its_end(
    method: str, window: int, looks: list[int], lives: list[Life]
) -> None:
    engine, source, events = streamed(method, window, looks, lives)
    (history,) = source.history(10 * DAY, "mature").batches(len(lives), None)
    for row in range(len(lives)):
        life, end = events.take(torch.nonzero(events.row == row)[:, 0]), history.take(torch.tensor([row]))
        engine.forget()
        total = engine.method.loss(life) * len(life)
        engine.forget()
        torch.testing.assert_close(total, engine.method.warm_loss(end), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_of_a_click_that_came_late_overdue_events_add_nothing(method: str) -> None:
    engine, _, events = streamed(
        method, HOUR, [2 * HOUR, 6 * HOUR, 9 * HOUR], [(None, 0, 8 * HOUR), (2 * HOUR, 0, 8 * HOUR)]
    )
    assert events.lateness.tolist() == [8 * HOUR] * len(events)
    overdue = events.take(torch.nonzero((events.elapsed == 8 * HOUR) & (events.trigger > 0))[:, 0])
    assert sorted(overdue.trigger.tolist()) == [1, 2, 3]
    for i in range(len(overdue)):
        heads = torch.linspace(-1, 0.7, engine.method.heads())
        assert gradient(engine, overdue.take(torch.tensor([i])), heads).abs().max() == 0


@pytest.mark.parametrize("window", [0, HOUR, DAY, 3 * DAY, 4 * DAY])
def test_dfm_finds_the_law_whatever_the_window(window: int) -> None:
    cell = exponential(window=window)
    engine = cell.engine(Subject("dfm"))
    events = cell.events(engine)
    assert root(engine, events) == pytest.approx(cell.p, rel=2e-3)
    assert_recovered(engine, tolerance=0.003)
    assert gradient(engine, only(events, 0), EXPONENTIAL_TRUTH).abs().max() < 3e-4


def assert_recovered(engine: Engine, tolerance: float) -> None:
    s, r = next(engine.method.nets["main"].parameters()).detach().double().numpy()
    assert (1 / (1 + np.exp(-s)), np.exp(r)) == pytest.approx((0.3, 1.2), rel=tolerance)


@pytest.mark.parametrize("method", TRUTHS)
@pytest.mark.parametrize("labels", ["mature", "censored"])
def test_warm_up_is_unbiased_for_clicks_of_all_ages(method: str, labels: str) -> None:
    """The same law at every hour of the history, also of its last days, which are censored."""
    cell, truth = TRUTHS[method]
    one = cell.source().table
    hours = np.arange(0, 4 * cell.schema.d_max, HOUR // 2)[-40:]
    delay = np.tile(one.action_ts, (len(hours), 1))
    start = np.repeat(hours, len(one))
    action_ts = np.where(delay == NEVER, NEVER, delay + start[:, None])
    table = ClickTable(np.zeros((len(start), 1), np.int32), start, np.arange(len(start)), action_ts, one.schema)
    engine = cell.engine(Subject(method))
    end = int(hours[-1]) + 10 * MINUTE  # the last clicks are younger than any slot
    (b,) = TableSource(table).history(end, labels).batches(len(table), None)
    assert (b.elapsed < cell.schema.d_max).any() == (labels == "censored")
    engine.method.loss = engine.method.warm_loss  # type: ignore[method-assign,assignment]
    assert gradient(engine, b, truth).abs().max() < 3e-4


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("signs", list(product((-40.0, 40.0), repeat=2)))
def test_extreme_outputs_are_served_and_learnt_from(method: str, signs: tuple[float, float]) -> None:
    cell = KnownLaw()
    engine = cell.engine(Subject(method))
    heads = torch.tensor([signs[0], *[signs[1]] * (engine.method.heads() - 1)])
    events = cell.events(engine)
    assert torch.isfinite(gradient(engine, events, heads)).all()
    assert torch.isfinite(engine.method.loss(events))
    served = engine.method.log_odds(events.x[:3])
    (slopes,) = torch.autograd.grad(served.sum(), list(engine.method.nets["main"].parameters()))
    assert torch.isfinite(served).all()
    assert torch.isfinite(slopes).all()


@pytest.mark.parametrize("method", METHODS)
def test_loss_equals_a_plain_numpy_form(method: str) -> None:
    engine, source = Subject(method).engine(small_log().schema), TableSource(small_log())
    events = source.reveals(engine.schedule, 4 * DAY, 4 * DAY + 6 * HOUR)
    assert set(events.trigger.tolist()) == {0, 1, 2, 3, 4}
    outputs = engine.method.call("main", events.x).detach().double().numpy()
    expected = np.mean([_event_loss(method, events, i, outputs[i]) for i in range(len(events))])
    assert engine.method.loss(events).item() == pytest.approx(expected, rel=1e-4)


def _event_loss(method: str, events: Reveals, i: int, outputs: Floats) -> float:
    f = sigmoid(outputs[0])
    survives = {"dfm": _exponential_survival, "nodef": _hazard_survival, "esdf": _slot_survival}[method]
    density = {"dfm": _exponential_density, "nodef": _hazard_density, "esdf": _slot_density}[method]
    if events.converted[i]:
        likelihood = f * density(outputs[1:], events.age[i, 0].item())
    else:
        likelihood = 1 - f + f * survives(outputs[1:], events.elapsed[i].item())
    before = [age for age in (HOUR, 6 * HOUR, DAY) if age < events.elapsed[i]]
    open_before = 1 - f + f * survives(outputs[1:], before[-1]) if before else 1.0
    return float(-np.log(likelihood / open_before))


def _exponential_survival(law: Floats, t: float) -> float:
    return float(np.exp(-np.exp(law[0]) * t / 86400))


def _exponential_density(law: Floats, t: float) -> float:
    return float(np.exp(law[0])) * _exponential_survival(law, t)


def _hazard(law: Floats, u: Floats) -> Floats:
    at = np.linspace(0, np.log(1 + 2 * 86400), 32)
    b = 1.5 * (at[1] - at[0])
    return np.array(sigmoid(law) @ np.exp(-((u - at[:, None]) ** 2) / (2 * b * b)))


def _hazard_survival(law: Floats, t: float) -> float:
    u = np.linspace(0, np.log(1 + t), 2001)
    return float(np.exp(-np.trapezoid(_hazard(law, u), u)))


def _hazard_density(law: Floats, t: float) -> float:
    return float(_hazard(law, np.log(1 + np.array([t])))[0]) * _hazard_survival(law, t)


_EDGES = np.array([900, 3600, 21600, 86400, 172800])  # the ladder, cut at the log's two days


def _slot_survival(law: Floats, t: float) -> float:
    share = np.exp(law) / np.exp(law).sum()
    return float(share[t < _EDGES].sum())


def _slot_density(law: Floats, t: float) -> float:
    share = np.exp(law) / np.exp(law).sum()
    return float(share[np.flatnonzero(t <= _EDGES)[0]])


# DFM.


def test_dfm_recovers_rate_and_delay_by_sgd() -> None:
    cell = exponential()
    engine = cell.engine(Subject("dfm"))
    assert rate_after_sgd(engine, cell) == pytest.approx(cell.p, abs=0.005)
    assert_recovered(engine, tolerance=0.02)


def test_dfm_serves_the_share_within_d_max() -> None:
    engine = exponential().engine(Subject("dfm"))
    with torch.no_grad():
        next(engine.method.nets["main"].parameters()).copy_(EXPONENTIAL_TRUTH)
        served = torch.sigmoid(engine.method.log_odds(torch.zeros(1, 1))).item()
    assert served == pytest.approx(0.3 * (1 - np.exp(-1.2 * 3)), rel=1e-5)


def test_dfm_gradient_is_that_of_em() -> None:
    """Fisher's identity: where the outcome is open, the gradient is the complete likelihood's, averaged over it."""
    cell = exponential()
    engine = cell.engine(Subject("dfm"))
    s, r = -0.4, 0.3
    waiting = only(cell.events(engine), 0)
    waiting = waiting.take(torch.nonzero(~waiting.converted)[:, 0])
    f, hazard, elapsed = 1 / (1 + np.exp(-s)), np.exp(r), HOUR / DAY
    to_come = f * np.exp(-hazard * elapsed) / (1 - f + f * np.exp(-hazard * elapsed))
    em = [-(to_come * (1 - f) - (1 - to_come) * f), to_come * hazard * elapsed]
    assert gradient(engine, waiting, torch.tensor([s, r])).tolist() == pytest.approx(em, rel=1e-4)


@dataclass
class Elapsed(DFM):
    """The released port: for a conversion, the age at which it was looked at instead of its delay."""

    def loss(self, b: Reveals) -> Tensor:
        return super().loss(replace(b, age=torch.where(b.converted, b.elapsed, b.age[:, 0])[:, None]))


@pytest.mark.parametrize("window", [6 * HOUR, DAY])
def test_feeding_elapsed_time_for_the_delay_is_caught(window: int) -> None:
    cell = exponential(window=window)
    engine = Engine(Elapsed(), cell.schema)
    engine.method.nets["main"] = Constant([0.0, 0.0])
    root(engine, cell.events(engine))
    with pytest.raises(AssertionError):
        assert_recovered(engine, tolerance=0.02)


# NoDeF.


def nodef(d_max: int = 3 * DAY) -> NoDeF:
    engine = KnownLaw(horizons=(HOUR, d_max)).engine(Subject("nodef"))
    assert isinstance(engine.method, NoDeF)
    return engine.method


def test_nodef_survival_is_the_integral_of_its_hazard() -> None:
    method = nodef()
    law = torch.randn(1, 32, generator=torch.Generator().manual_seed(3)) * 3
    for elapsed in (0, 1, 60, HOUR, DAY, 3 * DAY):
        u = np.linspace(0, np.log1p(elapsed), 4001)
        seconds = torch.from_numpy(np.expm1(u))
        hazard = method.log_hazard(law.expand(len(u), -1), seconds).exp().double().numpy()
        closed = -method.log_survival(law, torch.tensor([elapsed])).item()
        assert closed == pytest.approx(np.trapezoid(hazard, u), rel=1e-4, abs=1e-6)


def test_nodef_recovers_a_delay_with_two_modes() -> None:
    """Half of the conversions after some ten minutes, half after some twenty hours; 30 % convert at all."""
    normal = np.array([NormalDist().inv_cdf((i + 0.5) / 300) for i in range(300)])
    delays = np.sort(np.round(np.concatenate([600 * np.exp(0.8 * normal), 20 * HOUR * np.exp(0.7 * normal)])))
    cell = KnownLaw(tuple((int(d), 1) for d in delays if d <= 3 * DAY), horizons=(HOUR, 3 * DAY), clicks=2000)
    engine = cell.engine(Subject("nodef"))
    weights, events = list(engine.method.nets["main"].parameters()), cell.events(engine)
    optimiser = torch.optim.LBFGS(weights, max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        engine.forget()
        loss = engine.method.loss(events)
        loss.backward()
        return loss

    optimiser.step(closure)
    engine.forget()
    x = events.x[:1]
    with torch.no_grad():
        assert torch.sigmoid(engine.method.log_odds(x)).item() == pytest.approx(cell.p, abs=0.003)
        for t in (200, 600, 1800, 3 * HOUR, 10 * HOUR, 20 * HOUR, 40 * HOUR):
            converted = 1 - survival_of(engine).log_open(x, torch.tensor([t])).exp().item()
            assert converted == pytest.approx((delays <= t).sum() / 2000, abs=0.006), t


# ESDF.


def esdf(**options: Any) -> ESDF:
    engine = SLOTTED.engine(Subject("esdf"), **options)
    assert isinstance(engine.method, ESDF)
    return engine.method


def test_esdf_survival_is_what_is_left_of_the_slots() -> None:
    method = esdf()
    law = torch.tensor([[0.3, -1.0, 0.8, 0.1]])
    by = torch.softmax(law, 1).cumsum(1)[0]
    for end, share in zip(method.edges, by, strict=True):
        survives = method.log_survival(law, torch.tensor([end])).exp().item()
        assert survives == pytest.approx(1 - share.item(), abs=1e-6)
        mass = sum(method.log_density(law, torch.tensor([e])).exp().item() for e in method.edges if e <= end)
        assert mass == pytest.approx(share.item(), abs=1e-6)
    assert method.log_survival(law, torch.tensor([0])).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("window", [15 * MINUTE, HOUR, 6 * HOUR, DAY])
def test_esdf_gradient_vanishes_at_the_truth_for_every_boundary(window: int) -> None:
    cell = replace(SLOTTED, window=window)
    engine = cell.engine(Subject("esdf"))
    events = cell.events(engine)
    for triggers in ((0,), (1, 2, 3)):  # the shortest window leaves a horizon to look at
        assert gradient(engine, only(events, *triggers), SLOTTED_TRUTH).abs().max() < 1e-6
    assert root(engine, events) == pytest.approx(0.3, abs=2e-4)


def test_esdf_slots() -> None:
    assert esdf().edges == (15 * MINUTE, HOUR, 6 * HOUR, DAY)
    assert esdf(slots=(HOUR, 2 * HOUR)).edges == (HOUR, 2 * HOUR, DAY)
    assert esdf(window=5 * MINUTE).edges == (5 * MINUTE, 15 * MINUTE, HOUR, 6 * HOUR, DAY), (
        "a slot ends with the window"
    )
    month = replace(SLOTTED.schema, d_max=30 * DAY)
    of_criteo, of_taobao = ESDF(), ESDF()
    of_criteo.bind(month, 0)
    assert of_criteo.edges == (900, 3600, 21600, *(d * DAY for d in (1, 2, 3, 4, 5, 6, 7, 14, 30)))
    assert of_criteo.heads() == 13
    of_criteo.bind(replace(month, d_max=365 * DAY, horizons=(7 * DAY, 90 * DAY, 365 * DAY)), 0)
    assert of_criteo.edges[-4:] == (14 * DAY, 30 * DAY, 90 * DAY, 365 * DAY), "horizons after the last slot"
    of_taobao.bind(replace(month, windows=Taobao.windows, d_max=3 * DAY, window=12 * HOUR), 0)
    assert of_taobao.edges == (2 * HOUR, 12 * HOUR, DAY, 2 * DAY, 3 * DAY)


def test_esdf_refuses_a_window_inside_a_slot_and_slots_out_of_order() -> None:
    with pytest.raises(UserError, match=r"7200 s.*inside a slot.*900, 3600, 21600, 86400"):
        esdf(window=2 * HOUR, slots=(15 * MINUTE, HOUR, 6 * HOUR))
    with pytest.raises(UserError, match=r"18000 s.*inside a slot"):
        esdf(looks=(5 * HOUR,))
    with pytest.raises(UserError, match="rising order"):
        esdf(slots=(DAY, HOUR))
