"""The telescoped likelihood: what each showing teaches, and that a life adds up to Oracle's gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tracecvr.base.config import DAY, HOUR
from tracecvr.base.metrics import probability
from tracecvr.checks.loss import root
from tracecvr.checks.subject import KnownLaw, Subject
from tracecvr.data.table import NEVER, ClickTable
from tracecvr.families.hazard_chain import hazard_events, log_chain, output_count
from tracecvr.learn.engine import Engine
from tracecvr.methods.telescoped import Telescoped
from tracecvr.methods.trace import Trace
from tracecvr.stream.reveal import LabelledReveals, Reveals
from tracecvr.stream.source import TableSource

ENDS = (HOUR, DAY, 3 * DAY)
CELL = KnownLaw(((HOUR // 2, 100), (6 * HOUR, 60), (2 * DAY, 40)), horizons=ENDS)
"""p = .2, and of the conversions .5, .3 and .2 come in the first, second and third window."""

LAWS: dict[tuple[float, ...], tuple[float, ...]] = {
    (0.5, 0.3, 0.2): (0.2, 0.2, 0.2, 0.2, 0.2, 0.2),
    (0.4, 0.3, 0.3): (0.25, 0.204082, 0.142857, 0.228571, 0.2, 0.217897),
    (0.6, 0.3, 0.1): (0.166667, 0.196078, 0.333333, 0.177778, 0.2, 0.184406),
}
"""Golden roots by the law in use: links 1, 2 and 3, links 1 and 2, all links, and full histories at each age."""


def hazards(law: tuple[float, ...]) -> list[float]:
    left = 1 - np.cumsum([0.0, *law[:-1]])
    return [*(q / share for q, share in zip(law[:-1], left, strict=False)), 0.5]


class HeldLaw(nn.Module):
    """A served net whose law does not learn: its first output is a constant that does."""

    def __init__(self, law: tuple[float, ...]) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(1 + len(law)))  # only the first has an effect
        self.law = torch.logit(torch.tensor(hazards(law), dtype=torch.float64)).float()

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.value[:1], self.law]).expand(len(x), -1)


def engine_with(law: tuple[float, ...], cell: KnownLaw = CELL, **options: Any) -> Engine:
    engine = cell.engine(Subject("telescoped"), ages=ENDS, **{"added_noise": 0.0} | options)
    engine.method.nets["main"] = HeldLaw(law)
    return engine


def links(events: Reveals, *which: int) -> Reveals:
    return events.take(torch.isin(events.trigger, torch.tensor(which)).nonzero()[:, 0])


@pytest.mark.parametrize("law", LAWS)
def test_golden_roots(law: tuple[float, ...]) -> None:
    engine = engine_with(law, merge=False)
    events = CELL.events(engine)
    for which, expected in zip(((0,), (1,), (2,), (0, 1), (0, 1, 2)), LAWS[law], strict=False):
        assert root(engine, links(events, *which)) == pytest.approx(expected, abs=2e-5), which


@pytest.mark.parametrize("law", LAWS)
def test_full_histories_at_each_age_are_not_protected_from_a_wrong_law(law: tuple[float, ...]) -> None:
    """What is shown in full each time: the same nets and windows, but since nothing was known."""
    engine = engine_with(law, merge=False)
    whole = TableSource(CELL.source().table).reveals(engine.schedule, 0, 10 * DAY)
    shown = replace(whole, previous_state=torch.zeros(len(whole), dtype=torch.int64))
    assert root(engine, shown) == pytest.approx(LAWS[law][5], abs=2e-5)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("options", [{"merge": True}, {"merge": False}])
def test_the_root_is_the_rate_in_every_form(law: tuple[float, ...], options: dict[str, Any]) -> None:
    engine = engine_with(law, **options)
    assert root(engine, CELL.events(engine)) == pytest.approx(0.2, abs=2e-5)


@pytest.mark.parametrize("options", [{}, {"merge": False}])
def test_with_both_free_the_root_is_the_true_rate_and_law(options: dict[str, bool]) -> None:
    engine = CELL.engine(Subject("telescoped"), ages=ENDS, added_noise=0.0, **options)
    assert root(engine, CELL.events(engine)) == pytest.approx(0.2, abs=2e-4)
    learnt = torch.sigmoid(next(engine.method.nets["main"].parameters()).detach())[1:3].tolist()
    assert learnt == pytest.approx([0.5, 0.6], abs=2e-3)  # .3 of the .5 that are left after the first window


# A life adds up to y - p.


class PerClick(nn.Module):
    """A logit for each click, by its only feature, and outputs of a law beside it, if they are given."""

    def __init__(self, logits: list[float], law: Tensor | None = None) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits, dtype=torch.float64))
        self.law = torch.zeros(len(logits), 0, dtype=torch.float64) if law is None else law

    def forward(self, x: Tensor) -> Tensor:
        click = x[:, 0].long()
        return torch.cat([self.logits[click][:, None], self.law[click]], dim=1)


class Law(nn.Module):
    """Any outputs of a law of delays and actions."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, x: Tensor) -> Tensor:
        return self.outputs[x[:, 0].long()]


D_MAX = 100
delays = st.one_of(st.just(NEVER), st.integers(0, D_MAX + 20))
late = st.sampled_from([0, 0, 0, 1, 7, 40, 120])


@st.composite
def lives(draw: st.DrawFn) -> tuple[ClickTable, dict[str, Any], int]:
    """Clicks with any actions, refunds and late knowledge, options, and a seed for the law."""
    actions, clicks = draw(st.sampled_from([1, 3])), draw(st.integers(1, 5))
    ages = tuple(sorted(draw(st.sets(st.integers(0, D_MAX - 1), min_size=0, max_size=4))))
    horizons = draw(st.sampled_from([(D_MAX,), (7, 50, D_MAX), (10,)]))  # the law may have more windows than looks
    schema = replace(CELL.schema, actions=("conversion", "cart", "like")[:actions], horizons=horizons, d_max=D_MAX)
    schema = replace(schema, features=(replace(schema.features[0], size=clicks),))
    click_ts = np.sort(np.array(draw(st.lists(st.integers(0, 50), min_size=clicks, max_size=clicks))))
    shape = {"min_size": actions, "max_size": actions}
    delay = np.array([draw(st.lists(delays, **shape)) for _ in range(clicks)])  # type: ignore[arg-type]
    action_ts = np.where(delay == NEVER, NEVER, click_ts[:, None] + delay)
    came = click_ts + np.array([draw(late) for _ in range(clicks)])
    extra = np.zeros_like(delay)
    extra[:, 0] = [draw(late) for _ in range(clicks)]  # actions other than the conversion are known as they happen
    seen = np.where(action_ts == NEVER, NEVER, np.maximum(action_ts + extra, 0))
    refund = np.array([draw(st.sampled_from([NEVER, 5, 30, 90, 130])) for _ in range(clicks)])
    undone = np.where((refund == NEVER) | (action_ts[:, 0] == NEVER), NEVER, seen[:, 0] + 1 + refund % NEVER)
    order = np.lexsort((np.arange(clicks), click_ts, came))
    table = ClickTable(
        x=np.arange(clicks, dtype=np.int32)[:, None],
        click_ts=click_ts[order],
        click_id=np.arange(clicks),
        action_ts=action_ts[order],
        schema=schema,
        refund_ts=undone[order, None],
        late_known_ts=seen[order],
        late_arrival_ts=came[order],
    )
    options = {"ages": ages, "added_noise": 0.0, "merge": draw(st.booleans())}
    return table, options, draw(st.integers(0, 2**31))


def per_click(table: ClickTable, options: dict[str, Any], seed: int) -> tuple[Engine, Telescoped, PerClick]:
    """A method with any law of delays and a logit for each click."""
    method = Telescoped(hidden=(2,), **options)
    engine = Engine(method, table.schema)
    rng = np.random.default_rng(seed)
    outputs = rng.normal(0, 2, (len(table), output_count(len(method.windows), len(table.schema.actions))))
    served = PerClick(rng.normal(0, 1, len(table)).tolist(), torch.from_numpy(outputs))
    method.nets["main"] = served
    return engine, method, served


def stream_gradient(engine: Engine, table: ClickTable, served: PerClick, first: int, interval: int) -> Tensor:
    """The gradients of all events from a time on, added up: of each click's logit."""
    source, total = TableSource(table), torch.zeros(len(table), dtype=torch.float64)
    for start in range(first, 500, interval):
        events = engine.events(source, start, start + interval)
        if len(events):
            (slope,) = torch.autograd.grad(engine.method.loss(events) * len(events), served.logits)
            total += slope
            engine.forget()
    return total


def oracle_gradient(table: ClickTable, served: PerClick) -> Tensor:
    return torch.sigmoid(served.logits) - torch.from_numpy(table.label.astype(np.float64))


@settings(deadline=None, max_examples=60)
@given(lives(), st.integers(1, 60))
def test_the_gradients_of_a_life_add_up_to_oracles(life: tuple[ClickTable, dict[str, Any], int], interval: int) -> None:
    """Whatever the law says, however intervals cut it, with refunds, late clicks and late conversions."""
    table, options, seed = life
    engine, _, served = per_click(table, options, seed)
    total = stream_gradient(engine, table, served, 0, interval)
    assert torch.allclose(total, oracle_gradient(table, served), atol=1e-9)


@settings(deadline=None, max_examples=60)
@given(lives(), st.integers(1, 60))
def test_the_losses_of_a_life_add_up_to_the_likelihood_of_its_end(
    life: tuple[ClickTable, dict[str, Any], int], interval: int
) -> None:
    """Of the rate and of the law, for one action and for three: written down here once more, click by click."""
    table, options, seed = life
    engine, method, served = per_click(table, options, seed)
    total = 0.0
    for start in range(0, 500, interval):
        events = engine.events(TableSource(table), start, start + interval)
        if len(events):
            total += float(method.loss(events).detach()) * len(events)
            engine.forget()
    expected = sum(-log_likelihood_of_end(table, row, method.windows, served) for row in range(len(table)))
    assert total == pytest.approx(expected, rel=1e-6, abs=1e-6)


def log_likelihood_of_end(table: ClickTable, row: int, ages: tuple[int, ...], served: PerClick) -> float:
    """log P(all that happened to a click), window by window."""
    click, actions = int(table.x[row, 0]), len(table.schema.actions)
    delay = [int(at) - int(table.click_ts[row]) if at != NEVER else NEVER for at in table.action_ts[row]]
    rate = float(torch.sigmoid(served.logits[click]).detach())
    converted = delay[0] <= D_MAX
    if converted and not table.label[row]:
        return float(np.log1p(-rate))  # refunded: as if nothing had been seen
    known = int(table.known_ts[row, 0]) - int(table.click_ts[row])
    law = served.law[click]
    cells = len(ages) * actions * actions
    logits = law[:cells].reshape(len(ages), actions, actions)
    if not converted and actions > 1:
        logits = law[cells:].reshape(len(ages), actions - 1, actions)
    total = float(np.log(rate)) if converted else float(np.log1p(-rate))
    for window, end in enumerate(ages):
        start = ages[window - 1] if window else -1
        seen = torch.tensor([1.0, *(float(d <= start) for d in delay[1:])], dtype=torch.float64)
        hazard = torch.sigmoid(logits[window] @ seen)
        if converted:
            last = window == len(ages) - 1
            here = last or known <= end  # one that is known after d_max counts in the last window
            total += 0.0 if last else float(torch.log(hazard[0] if here else 1 - hazard[0]))
            if here:
                break
        for k in range(1, actions):
            if delay[k] > start:
                chance = hazard[k] if converted else hazard[k - 1]
                total += float(torch.log(chance if delay[k] <= end else 1 - chance))
    return total


def refunded_before_the_split() -> tuple[ClickTable, dict[str, Any], int]:
    """A click that converts at once and is refunded after 6 s, between two looks."""
    schema = replace(CELL.schema, horizons=(D_MAX,), d_max=D_MAX)
    zero, options = np.zeros(1, np.int64), {"ages": (), "added_noise": 0.0, "merge": False}
    click = ClickTable(zero[:, None].astype(np.int32), zero, zero, zero[:, None], schema, refund_ts=zero[:, None] + 6)
    return click, options, 0


@settings(deadline=None, max_examples=60)
@given(lives(), st.integers(1, 60), st.integers(1, 200), st.sampled_from(["censored", "mature"]))
@example(refunded_before_the_split(), 1, 107, "censored")
def test_warm_up_and_stream_together_teach_each_click_once(
    life: tuple[ClickTable, dict[str, Any], int], interval: int, split: int, labels: str
) -> None:
    """Whether warm-up has final labels or those known at the split, if a click of it has been seen up to d_max."""
    table, options, seed = life
    assume(labels == "mature" or table.click_ts.min() + D_MAX < split)
    seen, mature = table.known_ts[:, 0], table.click_ts + D_MAX
    assume(not ((seen > mature) & (seen != NEVER)).any())  # known after the label was final: history leaves it out
    arrival = table.arrival_ts
    assume(not ((seen < split) & (arrival >= split)).any())  # known before its click: the stream would miss that event
    engine, method, served = per_click(table, options, seed)
    total = torch.zeros(len(table), dtype=torch.float64)
    for b in TableSource(table).history(split, labels).batches(1, None):
        method.observe(b)
        total += torch.autograd.grad(method.warm_loss(b) * len(b), served.logits)[0]
        engine.forget()
    total += stream_gradient(engine, table, served, split, interval)
    assert torch.allclose(total, oracle_gradient(table, served), atol=1e-6)


# Merging and sampling.


def test_merged_events_have_the_gradient_of_the_single_ones() -> None:
    law = (0.4, 0.3, 0.3)
    single, merged = engine_with(law, merge=False), engine_with(law)
    slopes = []
    for engine in (single, merged):
        weights = next(engine.method.nets["main"].parameters())
        total = torch.zeros_like(weights)
        for start in range(0, 4 * DAY, 6 * HOUR):
            events = engine.events(CELL.source(), start, start + 6 * HOUR)
            if len(events):
                total += torch.autograd.grad(engine.method.loss(events) * len(events), weights)[0]
                engine.forget()
        slopes.append(float(total[0]))
    assert slopes[0] == pytest.approx(slopes[1], rel=1e-5)


def test_merging_shows_a_click_once_per_interval() -> None:
    engine = engine_with((0.5, 0.3, 0.2))
    events = engine.events(CELL.source(), 0, 10 * DAY)
    assert len(events) == CELL.clicks
    assert events.previous_state is not None
    assert events.previous_state.tolist() == [0] * CELL.clicks


def sampling_engine(law: tuple[float, ...], cell: KnownLaw, share: float, **options: Any) -> Engine:
    """An engine that shows such a share of the clicks to which nothing has happened, at each look after the first."""
    engine = engine_with(law, cell, added_noise=0.1, **options)
    shown = torch.full((3,), 1_000_000)
    engine.method.counts["looks"] = torch.stack([(0.1 * share * shown).long(), shown])
    return engine


def test_sampled_late_looks_count_for_those_left_out() -> None:
    """Fewer events, the same gradient up to sampling noise, and the same draw whenever it is made."""
    law = (0.4, 0.3, 0.3)
    big = replace(CELL, clicks=100_000, conversions=tuple((d, 100 * n) for d, n in CELL.conversions))
    slopes, counts = [], []
    for share in (1.0, 0.25):
        engine = sampling_engine(law, big, share, merge=False)
        events, again = big.events(engine), big.events(engine)
        assert torch.equal(events.row, again.row)
        open_late = links(events, 1, 2)
        open_late = open_late.take((~open_late.converted).nonzero()[:, 0])
        weights = next(engine.method.nets["main"].parameters())
        loss = engine.method.loss(open_late) * len(open_late)
        slopes.append(float(torch.autograd.grad(loss, weights)[0][0]))
        counts.append(len(open_late))
    assert counts[1] / counts[0] == pytest.approx(0.25, abs=0.01)
    assert slopes[1] == pytest.approx(slopes[0], rel=0.02)


def test_of_any_four_clicks_in_a_row_one_is_shown_late_and_another_at_each_look() -> None:
    big = replace(CELL, clicks=4_000, conversions=((HOUR // 2, 40),))
    engine = sampling_engine((0.5, 0.3, 0.2), big, 0.25, merge=False)
    rows = [links(big.events(engine), look).row for look in (1, 2)]
    blocks = [row.unique() // 4 for row in rows]
    for each in blocks:
        assert each.bincount().max() == 1
        assert len(each) > 900
    assert not torch.equal(rows[0] % 4, rows[1] % 4)


def test_shares_follow_the_conversions_of_warm_up() -> None:
    """Of 1,000 clicks, 60 convert between the first and the second look, 40 after that."""
    engine = CELL.engine(Subject("telescoped"), ages=ENDS, added_noise=0.08)
    method = engine.method
    assert isinstance(method, Telescoped)
    method.counts.clear()
    assert method.shares.tolist() == [1, 1, 1]  # before warm-up
    method.observe(next(CELL.source().history(10 * DAY, "mature").batches(1000, None)))
    assert method.shares.tolist() == pytest.approx([1, 0.75, 0.5])
    assert method.resolve_options()["shares"] == pytest.approx([1, 0.75, 0.5])
    method.added_noise = 0.001
    assert method.shares.tolist() == [1, 1, 1]
    method.added_noise = 10.0
    assert method.shares.tolist() == pytest.approx([1, 0.01, 0.01])  # not fewer


def test_late_looks_are_sampled_by_default_only_if_warm_up_is_large() -> None:
    engine = CELL.engine(Subject("telescoped"), ages=ENDS)
    method = engine.method
    assert isinstance(method, Telescoped)
    method.counts["looks"] = torch.tensor([[12_000, 6_000, 3_000], [120_000, 110_000, 100_000]])
    assert method.shares.tolist() == [1, 1, 1]
    method.counts["looks"][1, 0] += 1
    assert method.shares.tolist() == pytest.approx([1, 4 / 11, 0.2])


def test_a_look_that_nobody_reached_in_warm_up_shows_as_many_as_the_last_that_somebody_reached() -> None:
    engine = CELL.engine(Subject("telescoped"), ages=ENDS, added_noise=0.1)
    method = engine.method
    assert isinstance(method, Telescoped)
    method.counts["looks"] = torch.tensor([[100, 10, 0], [1_000, 1_000, 0]])
    assert method.shares.tolist() == pytest.approx([1, 0.1, 0.1])
    method.counts["looks"] = torch.tensor([[100, 0, 0], [1_000, 0, 0]])
    assert method.shares.tolist() == [1, 1, 1]


def test_clicks_with_another_action_are_all_shown() -> None:
    """Something has happened, so the posterior has changed more than that of others."""
    table = KnownLaw(((2 * DAY, 4),), horizons=ENDS, clicks=400).source().table
    acts_at = np.where(np.arange(400) % 4 == 0, 6 * HOUR, NEVER)  # between the first and the second look
    action_ts = np.stack([table.action_ts[:, 0], np.where(acts_at < NEVER, table.click_ts + acts_at, NEVER)], axis=1)
    table = replace(table, action_ts=action_ts, schema=replace(table.schema, actions=("purchase", "cart")))
    method = Telescoped(hidden=(2,), ages=ENDS, added_noise=0.1, merge=False)
    engine = Engine(method, table.schema)
    method.counts["looks"] = torch.tensor([[100, 10, 10], [1_000, 1_000, 1_000]])
    events = engine.events(TableSource(table), 0, 10 * DAY)
    second, third = links(events, 1), links(events, 2)
    acted = torch.from_numpy(acts_at[second.row] < NEVER)
    assert int(acted.sum()) == 100
    assert torch.equal(method.weight(second), torch.where(acted, 1.0, 10.0))
    assert len(second) - 100 == pytest.approx(30, abs=8)
    still_open = ~third.converted
    assert torch.equal(method.weight(third), torch.where(still_open, 10.0, 1.0))


@pytest.mark.parametrize("interval", [6 * HOUR, DAY, 10 * DAY])
def test_merging_keeps_apart_what_counts_differently(interval: int) -> None:
    """Long intervals hold looks that are sampled and looks that are not: each keeps its weight."""
    big = replace(CELL, clicks=100_000, conversions=tuple((d, 100 * n) for d, n in CELL.conversions))
    slopes = []
    for share in (1.0, 0.25):
        engine = sampling_engine((0.4, 0.3, 0.3), big, share, merge=share < 1)
        weights, total = next(engine.method.nets["main"].parameters()), 0.0
        for start in range(0, 4 * DAY, interval):
            events = engine.events(big.source(), start, start + interval)
            if len(events):
                loss = engine.method.loss(events) * len(events)
                total += float(torch.autograd.grad(loss, weights)[0][0])
                engine.forget()
        slopes.append(total / big.clicks)
    assert slopes[1] == pytest.approx(slopes[0], abs=0.003)


# The law of delays and actions.


@pytest.mark.parametrize("labels", ["mature", "censored"])
def test_rate_and_law_of_a_cell_are_learnt_from_its_history(labels: str) -> None:
    """Also where the history is censored: clicks that are still open tell how much is still to come."""
    rng = np.random.default_rng(0)
    count, end = 20_000, 4 * DAY
    delay = rng.choice([HOUR // 2, 6 * HOUR, 2 * DAY], count, p=[0.5, 0.3, 0.2])
    click_ts = np.sort(rng.integers(0, end, count))
    action_ts = np.where(rng.random(count) < 0.4, click_ts + delay, NEVER)[:, None]
    table = ClickTable(np.zeros((count, 1), np.int32), click_ts, np.arange(count), action_ts, CELL.schema)
    engine = CELL.engine(Subject("telescoped"), ages=ENDS)
    outputs = next(engine.method.nets["main"].parameters())
    (history,) = TableSource(table).history(end, labels).batches(count, None)
    engine.method.observe(history)
    optimiser = torch.optim.LBFGS([outputs], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimiser.zero_grad()
        engine.forget()
        loss = engine.method.warm_loss(history)
        loss.backward()
        assert outputs.grad is not None
        outputs.grad[1:] *= 10  # the law's gradient is a tenth: LBFGS wants that of one function
        return float(loss.detach())

    optimiser.step(closure)
    assert torch.sigmoid(outputs.detach())[:3].tolist() == pytest.approx([0.4, 0.5, 0.6], abs=0.02)


@pytest.mark.parametrize("length", [2 * HOUR, 2 * DAY])
def test_a_history_shorter_than_d_max_leaves_no_room_for_conversions_that_nobody_has_seen(length: int) -> None:
    """The actions of open clicks would be explained by them: so the oldest open clicks count as negatives, and other
    actions do not count."""
    schema = replace(CELL.schema, actions=("conversion", "cart"))
    action_ts = np.array([[NEVER, 60], [NEVER, NEVER], [60, NEVER], [NEVER, 60]])
    table = ClickTable(np.zeros((4, 1), np.int32), np.zeros(4, np.int64), np.arange(4), action_ts, schema)
    method = Telescoped(hidden=(2,), ages=ENDS)
    engine = Engine(method, schema)

    def history(end: int) -> LabelledReveals:
        (b,) = TableSource(table).history(end, "censored").batches(4, None)
        method.counts.clear()
        method.observe(b)
        engine.forget()
        return b

    assert bool((method.log_chain(history(3 * DAY + 1))[0] != 0).any())
    short = history(length)
    assert not bool((method.log_chain(short)[0] != 0).any())
    still_open = short.take(torch.tensor([0, 1, 3]))
    with torch.no_grad():
        negatives = F.softplus(method.logit(still_open.x)).mean()
        assert method.warm_loss(still_open).item() == pytest.approx(negatives.item())


def test_ages_by_default_are_halves_of_d_max_down_to_a_quarter_of_an_interval() -> None:
    method = Telescoped(hidden=(2,))
    Engine(method, replace(CELL.schema, d_max=8 * HOUR, interval=4 * HOUR, horizons=(8 * HOUR,)))
    assert method.looks == (HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR)


def test_the_events_that_hazards_start_at() -> None:
    """Of two windows and two actions: the conversion, the other action of clicks that convert, that of clicks that do
    not. Each counts where it could still happen: not after it has happened, nor before a window is over."""
    ends, day = (HOUR, DAY), DAY
    schema = replace(CELL.schema, actions=("conversion", "cart"), horizons=ends, d_max=day)
    never = np.int64(NEVER)
    delays = np.array([[2 * HOUR, 60], [60, never], [never, 3 * HOUR], [never, 60], [never, never]])
    click_ts = np.array([0, 0, 0, 0, 2 * day - HOUR])  # the last is open: it has seen the first window
    action_ts = np.where(delays == NEVER, NEVER, click_ts[:, None] + delays)
    table = ClickTable(np.zeros((5, 1), np.int32), click_ts, np.arange(5), action_ts, schema)
    (history,) = TableSource(table).history(2 * day, "censored").batches(5, None)
    events = hazard_events(history, ends)[:, ::2]  # what one action adds to another's hazard has no rate
    conversion, cart_if_so, cart_if_not = events[:, [0, 2]], events[:, [1, 3]], events[:, [4, 5]]
    nan = float("nan")
    for values, expected in (
        (conversion, [[0, 1], [1, nan], [nan, nan], [nan, nan], [nan, nan]]),
        (cart_if_so, [[1, nan], [nan, nan], [nan, nan], [nan, nan], [nan, nan]]),
        (cart_if_not, [[nan, nan], [nan, nan], [0, 1], [1, nan], [nan, nan]]),
    ):
        torch.testing.assert_close(values, torch.tensor(expected), equal_nan=True)


def test_a_conversion_at_the_end_of_a_window_belongs_to_it() -> None:
    engine = engine_with((0.5, 0.3, 0.2))
    delay = np.array([[HOUR], [HOUR + 1], [DAY]])
    table = ClickTable(np.zeros((3, 1), np.int32), np.zeros(3, np.int64), np.arange(3), delay, CELL.schema)
    assert isinstance(engine.method, Telescoped)
    with torch.no_grad():
        likelihood = engine.method.log_likelihood(TableSource(table).known_at(3 * DAY, 0, 1), final=len(ENDS))
    share = (likelihood[:, len(ENDS) + 1] - F.logsigmoid(torch.tensor(0.0))).exp()
    assert share.tolist() == pytest.approx([0.5, 0.3, 0.3], rel=1e-5)


def test_the_level_is_fitted_to_clicks_that_are_old_enough() -> None:
    engine = engine_with((0.5, 0.3, 0.2))
    click_ts = np.array([0, 2 * DAY, 2 * DAY + 9 * HOUR, 3 * DAY])
    never = np.full((4, 1), NEVER)
    table = ClickTable(np.zeros((4, 1), np.int32), click_ts, np.arange(4), never, CELL.schema)
    (history,) = TableSource(table).history(4 * DAY, "censored").batches(4, None)
    fitted = engine.method.level("main", history)
    assert fitted is not None
    assert len(fitted[0]) == 3  # the first three have been watched for half of d_max or longer


def test_the_law_is_a_probability_for_several_actions() -> None:
    """Over all that can happen to a click, conversions included, the probabilities add up to 1 under each outcome."""
    torch.manual_seed(0)
    horizons, actions = 2, 3
    outputs = torch.randn(1, output_count(horizons, actions)).double()
    cells = [[False, False], [True, False], [False, True], [True, True]]
    open_ends = torch.zeros(2, dtype=torch.float64)
    for first in cells:
        for second in cells:
            later = [a or b for a, b in zip(first, second, strict=True)]
            state = torch.tensor([[[False, *first], [False, *later]]]).double()
            if all(a <= b for a, b in zip(first, later, strict=True)) and second == later:
                no, still_open, _ = log_chain(outputs, state)
                open_ends += torch.stack([no[0, -1], still_open[0, -1]]).exp()
    assert open_ends[0] == pytest.approx(1.0)  # who does not convert stays open
    assert open_ends[1] == pytest.approx(0.0, abs=1e-12)  # who does has converted by d_max


def test_a_converting_click_converts_in_one_of_the_windows() -> None:
    """With the conversion alone, the windows share a probability of 1."""
    torch.manual_seed(0)
    converts = log_chain(torch.randn(3, 5).double(), torch.zeros(3, 5, 1).double())[2]
    assert converts.exp().sum(1).tolist() == pytest.approx([1.0] * 3)


def test_the_posterior_of_an_open_click_is_bayes_rule() -> None:
    engine = engine_with((0.5, 0.3, 0.2))
    with torch.no_grad():
        next(engine.method.nets["main"].parameters()).fill_(float(np.log(0.2 / 0.8)))
    for elapsed, expected in ((HOUR - 1, 0.2), (HOUR, 0.1 / 0.9), (DAY, 0.04 / 0.84), (2 * DAY - 1, 0.04 / 0.84)):
        events = CELL.source().known_at(elapsed, 0, 1)
        posterior = probability(engine.posterior(events))
        assert posterior[-1] == pytest.approx(expected, rel=1e-4)
    mature = probability(engine.posterior(CELL.source().known_at(3 * DAY, 0, 1)))
    assert mature[0] > 1 - 1e-6
    assert mature[-1] < 1e-6


@settings(deadline=None, max_examples=50)
@given(lives())
def test_the_posterior_is_the_rate_and_the_slope_of_the_likelihood(
    life: tuple[ClickTable, dict[str, Any], int],
) -> None:
    """Of open clicks with any actions, by Bayes' rule: d log P(all that was seen) / d logit = posterior - rate."""
    table = replace(life[0], late_known_ts=None, late_arrival_ts=None, refund_ts=None)
    table = replace(table, click_ts=np.zeros_like(table.click_ts), action_ts=table.action_ts - table.click_ts[:, None])
    _, method, served = per_click(table, life[1], life[2])
    for number, look in enumerate(method.looks[:-1], start=1):
        events = TableSource(table).known_at(look, 0, 1)
        events = events.take((~events.converted).nonzero()[:, 0])
        if len(events):
            seen = method.log_likelihood(events, final=len(method.looks))[:, number].sum()
            (slope,) = torch.autograd.grad(seen, served.logits)
            rows = events.row
            posterior = torch.sigmoid(method.posterior(events))
            torch.testing.assert_close(posterior, (torch.sigmoid(served.logits) + slope)[rows], atol=1e-6, rtol=1e-5)


# TRACE with the same idea.


@settings(deadline=None, max_examples=50)
@given(lives())
def test_telescoped_trace_adds_up_to_oracles_gradient(life: tuple[ClickTable, dict[str, Any], int]) -> None:
    table = replace(life[0], late_known_ts=None, late_arrival_ts=None, refund_ts=None)
    order = np.lexsort((table.click_id, table.click_ts))
    table = replace(table, x=table.x[order], click_ts=table.click_ts[order], action_ts=table.action_ts[order])
    ends = life[1]["ages"] or (10,)
    method = Trace(telescoped=True, lam=0, horizons=(*ends, D_MAX) if len(ends) % 2 else ends, hidden=(2,))
    engine = Engine(method, table.schema)
    rng = np.random.default_rng(life[2])
    served = PerClick(rng.normal(0, 1, len(table)).tolist())
    shape = (len(table), 2, len(method.ends), len(table.schema.actions))
    method.nets["main"], method.nets["trajectory"] = served, Law(torch.from_numpy(rng.normal(0, 1, shape)))
    method.counts["cells"] = torch.from_numpy(rng.uniform(1, 9, (len(method.ends), 2, 2)))
    events = engine.events(TableSource(table), 0, 10 * D_MAX)
    (slope,) = torch.autograd.grad(method.loss(events) * len(events), served.logits)
    truth = torch.from_numpy(table.label.astype(np.float64))
    ids = torch.from_numpy(table.x[:, 0].astype(np.int64))
    assert torch.allclose(slope[ids], torch.sigmoid(served.logits)[ids] - truth, atol=1e-6)
