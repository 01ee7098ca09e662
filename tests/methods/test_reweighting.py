"""ES-DFM and its kin: roots, expected gradients and losses as `methods.md` states them, and the field's known slips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from simulated import CELL, engine_of, rate_after_sgd
from tracecvr.authoring.losses import cross_entropy, log_odds_of_sum
from tracecvr.authoring.method import Method
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.errors import UserError
from tracecvr.checks.loss import gradient, root
from tracecvr.checks.subject import Exact, KnownLaw, Subject, plan_for, small_log
from tracecvr.families.late_conversions import Confirming
from tracecvr.learn.engine import Engine
from tracecvr.methods.ddfm import DDFM
from tracecvr.methods.defer import Defer
from tracecvr.methods.defuse import Defuse
from tracecvr.methods.tesla_cvr import TeslaCVR
from tracecvr.stream.reveal import After, On, Reveals, Schedule

Floats = npt.NDArray[np.float64]

RHO = 0.8 / 0.92
LOGITS = [-1.9, -0.4, 1.1]  # all above logit(pi_dp), below which DEFER and DDFM clip
IMPATIENT = KnownLaw(conversions=((HOUR // 2, 80), (2 * HOUR, 40), (13 * HOUR, 80)))
"""The golden cell, of whose late conversions two thirds come after twelve hours."""


# Variants that others have released.


@dataclass
class ES_DFM10(Confirming):  # noqa: N801  (its authors' name)
    """The run released as DEFER: conversions inside the window come once."""

    def schedule(self) -> Schedule:
        return (After(self.wait), On(0, later_than=self.wait), After(self.patience, seen=False))

    def loss(self, b: Reveals) -> Tensor:
        late, _ = self.estimates(b)
        logit = self.logit(b.x)
        f = torch.sigmoid(logit)
        positive = 2 - f + late
        weight = self.clip(torch.where(b.converted, positive, positive * (1 - f) / (2 * (1 - f) + late)))
        return (weight * cross_entropy(logit, b.label)).mean()


@dataclass
class ConditionalDefer(Defer):
    """g = P(late | converts) where pi_dp = P(late and converts) belongs."""

    def estimates(self, b: Reveals) -> tuple[Tensor, Tensor]:
        late, never = super().estimates(b)
        return late / CELL.p, never


@dataclass
class AbsoluteDefer(ConditionalDefer):
    """And |f - g / 2| against negative weights."""

    def weights(self, f: Tensor, late: Tensor, converted: Tensor) -> Tensor:
        return torch.where(converted, f / (f - late / 2).abs(), (1 - f) / (1 - f + late / 2))


@dataclass
class ReleasedDefer(ConditionalDefer):
    """`delay_defer_loss`: 2 f / f (2 - g) is not 2 f / (f (2 - g))."""

    def weights(self, f: Tensor, late: Tensor, converted: Tensor) -> Tensor:
        return torch.where(converted, 2 * (2 - late), (1 - f) / (1 - f + late / 2))


@dataclass
class MergedDefuse(Defuse):
    """`unbiased_defuse_loss`: every positive is counted as one inside the window and as a late one."""

    def positive_weight(self, b: Reveals, late: Tensor) -> Tensor:
        return 2 + late


# Roots. Those of the methods as they are stand in test_golden_fixed_points.py.

SLIPS: list[tuple[type[Method], KnownLaw, dict[str, Any], float]] = [
    (ES_DFM10, CELL, {}, 0.2),
    (ConditionalDefer, CELL, {}, 0.44),
    (ReleasedDefer, CELL, {}, 0.4070),
    (MergedDefuse, CELL, {}, 0.3285),
    (ES_DFM10, IMPATIENT, {"negative_after": DAY // 2}, 0.1927),
    (DDFM, IMPATIENT, {"negative_after": DAY // 2}, 0.1914),
    (Defer, IMPATIENT, {"negative_after": DAY // 2}, 0.1946),
]
NAMES = [f"{kind.__name__}-{rate}" for kind, _, _, rate in SLIPS]


@pytest.mark.parametrize(("kind", "cell", "options", "rate"), SLIPS, ids=NAMES)
def test_expected_gradient_vanishes_at(
    kind: type[Method], cell: KnownLaw, options: dict[str, Any], rate: float
) -> None:
    engine = engine_of(kind, cell=cell, **options)
    assert root(engine, cell.events(engine)) == pytest.approx(rate, abs=1e-4)


@pytest.mark.parametrize(("kind", "cell", "options", "rate"), SLIPS, ids=NAMES)
def test_sgd_reaches(kind: type[Method], cell: KnownLaw, options: dict[str, Any], rate: float) -> None:
    assert rate_after_sgd(engine_of(kind, 0.5, cell, **options), cell) == pytest.approx(rate, abs=0.005)


def test_absolute_values_give_defer_a_second_root_that_repels() -> None:
    engine = engine_of(AbsoluteDefer)
    events = CELL.events(engine)
    slopes = [gradient(engine, events, _logit(rate)).item() for rate in (0.1046, 0.1056, 0.1066, 0.43, 0.45)]
    assert slopes[1] == pytest.approx(0, abs=1e-4)
    assert slopes[0] > 1e-4 > -1e-4 > slopes[2]
    assert slopes[3] < 0 < slopes[4]


def test_both_heads_of_bi_defuse_find_their_own_rate() -> None:
    engine = engine_of("bi_defuse")
    (value,) = engine.method.nets["main"].parameters()
    root(engine, CELL.events(engine))
    assert torch.sigmoid(value).tolist() == pytest.approx([0.08, 0.12], abs=1e-4)
    engine = engine_of("bi_defuse", logit=0.5)
    (value,) = engine.method.nets["main"].parameters()
    rate_after_sgd(engine)
    assert torch.sigmoid(value).tolist() == pytest.approx([0.08, 0.12], abs=0.005)


@pytest.mark.parametrize(("error", "rate"), [(0.05, 0.1912), (-0.05, 0.2096)])
def test_an_error_in_rho_moves_es_dfm_as_stated(error: float, rate: float) -> None:
    engine = engine_of("es_dfm")
    engine.method.nets["delay"] = Exact([0.12, RHO + error])
    assert root(engine, CELL.events(engine)) == pytest.approx(rate, abs=1e-4)
    assert rate == pytest.approx(0.2 / (0.2 + (RHO + error) * 0.92), abs=1e-4)


def test_an_error_in_pi_dp_does_not_move_es_dfm() -> None:
    engine = engine_of("es_dfm")
    engine.method.nets["delay"] = Exact([0.5, RHO])
    assert root(engine, CELL.events(engine)) == pytest.approx(0.2, abs=1e-4)


def test_defuse_may_take_false_negatives_from_what_it_serves() -> None:
    engine = engine_of("defuse", false_negatives="served")
    assert root(engine, CELL.events(engine)) == pytest.approx(0.2, abs=1e-4)


def test_a_root_is_stated_only_for_negatives_that_are_certain() -> None:
    for kind in (Defer, DDFM):
        assert engine_of(kind).method.fixed_point(0.2, 0.12) == 0.2
        assert engine_of(kind, negative_after=DAY).method.fixed_point(0.2, 0.12) == 0.2
        assert engine_of(kind, negative_after=DAY // 2).method.fixed_point(0.2, 0.12) is None


@pytest.mark.parametrize("seconds", [HOUR - 1, DAY + 1])
def test_negatives_before_the_window_or_after_d_max_are_refused(seconds: int) -> None:
    with pytest.raises(UserError, match=r"'negative_after' is \d+: must be at least the window, 3600, .* 86400"):
        engine_of("defer", negative_after=seconds)


# Expected gradients per click.


def _logit(rate: float) -> float:
    return float(np.log(rate / (1 - rate)))


def per_click(engine: Engine, logit: float, chosen: Callable[[Reveals], Tensor] | None = None) -> list[float]:
    """The gradient that a click gives in all its events, or in those chosen."""
    events = CELL.events(engine)
    if chosen is not None:
        events = events.take(chosen(events).nonzero()[:, 0])
    slopes = gradient(engine, events, logit) * len(events) / CELL.clicks
    return [float(slope) for slope in slopes]


@pytest.mark.parametrize("logit", LOGITS)
def test_gradients_per_click(logit: float) -> None:
    f, p, late = 1 / (1 + np.exp(-logit)), 0.2, 0.12
    assert per_click(engine_of("es_dfm"), logit) == pytest.approx([(1 + late) * (f - p)], abs=1e-5)
    assert per_click(engine_of("defuse"), logit) == pytest.approx([(1 + late) * (f - p)], abs=1e-5)
    assert per_click(engine_of("ddfm"), logit, lambda b: b.trigger == 0) == pytest.approx([f - p], abs=1e-5)
    assert per_click(engine_of("ddfm"), logit, lambda b: b.trigger > 0) == pytest.approx([late * (f - p)], abs=1e-5)
    defer = 2 * f * (1 - f) * (f - p) / ((f - late / 2) * (1 - f + late / 2))
    assert per_click(engine_of("defer"), logit) == pytest.approx([defer], abs=1e-5)
    inside, after = per_click(engine_of("bi_defuse"), logit)
    assert inside / 1.12 == pytest.approx(f - 0.08, abs=1e-5)  # a mean over first copies: one per click
    assert after == pytest.approx((1 - f) * (f - late), abs=1e-5)


@pytest.mark.parametrize("logit", LOGITS)
@pytest.mark.parametrize(
    ("method", "times"), [("es_dfm", 1), ("defer", 2), ("defuse", 1), ("ddfm", 1), ("tesla_cvr", 1)]
)
def test_without_late_conversions_a_click_pulls_as_for_oracle(method: str, times: int, logit: float) -> None:
    prompt = KnownLaw(conversions=((HOUR // 2, 200),))
    engines = [engine_of(name, cell=prompt) for name in (method, "oracle")]
    ours, oracles = (gradient(e, events, logit).item() * len(events) for e in engines for events in [prompt.events(e)])
    assert ours == pytest.approx(times * oracles, abs=0.02)  # of 1,000 clicks; pi_dp is kept off 0
    assert oracles == pytest.approx(1000 / (1 + np.exp(-logit)) - 200, abs=0.01)


@pytest.mark.parametrize("logit", LOGITS)
def test_without_late_conversions_bi_defuse_learns_them_as_oracle_does(logit: float) -> None:
    prompt = KnownLaw(conversions=((HOUR // 2, 200),))
    engine = engine_of("bi_defuse", cell=prompt)
    f = 1 / (1 + np.exp(-logit))
    slopes = gradient(engine, prompt.events(engine), logit).tolist()
    assert slopes == pytest.approx([f - 0.2, (1 - f) * f], abs=1e-5)


def test_defer_shows_every_click_twice_and_never_the_certain_label_first() -> None:
    events = CELL.events(engine_of("defer"))
    assert (torch.bincount(events.row) == 2).all()
    first, second = (events.take((events.trigger > 0).eq(late).nonzero()[:, 0]) for late in (False, True))
    first, second = (copies.take(copies.row.argsort()) for copies in (first, second))
    assert (first.elapsed == HOUR).all()
    assert (second.elapsed >= HOUR).all()
    assert first.label.mean().item() == pytest.approx(0.08)
    assert second.label.mean().item() == pytest.approx(0.2)
    assert not second.open.any()


# One batch against plain NumPy, with other logits and helper outputs for each click.


class Lookup(nn.Module):
    """Outputs by the first feature."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(table)

    def forward(self, x: Tensor) -> Tensor:
        return self.table[x[:, 0].long()]


@dataclass(frozen=True)
class Case:
    """A method, a batch of its events, and what its nets say of them."""

    engine: Engine
    b: Reveals
    logits: Floats  # (B, J)
    late: Floats
    never: Floats

    @property
    def loss(self) -> float:
        return float(self.engine.method.loss(self.b).detach())

    @property
    def rate(self) -> Floats:
        rate: Floats = _sigmoid(self.logits[:, 0])
        return rate

    @property
    def known(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        return self.b.converted.numpy(), self.b.trigger.numpy()


def _sigmoid(value: Floats) -> Floats:
    return 1 / (1 + np.exp(-value))


def _as_positive(logit: Floats) -> Floats:
    return np.logaddexp(0, -logit)


def _as_negative(logit: Floats) -> Floats:
    return np.logaddexp(0, logit)


def case(method: str, **options: Any) -> Case:
    cell = KnownLaw(conversions=((600, 30), (HOUR // 2, 20), (2 * HOUR, 40), (9 * HOUR, 20)), clicks=300)
    engine, rng = engine_of(method, cell=cell, **options), torch.Generator().manual_seed(3)
    events = cell.events(engine)
    b = replace(events, x=events.row[:, None].int()).take(torch.randperm(len(events), generator=rng))
    main = 3 * torch.randn(cell.clicks, engine.method.heads(), generator=rng)
    delay = 2 * torch.randn(cell.clicks, 2, generator=rng)
    engine.method.nets["main"] = Lookup(main)
    if "delay" in engine.method.helpers():
        engine.method.nets["delay"] = Lookup(delay)
    late, never = _sigmoid(delay[b.row].double().numpy()).T
    return Case(engine, b, main[b.row].double().numpy(), late, never)


def test_loss_of_es_dfm_in_numpy() -> None:
    it = case("es_dfm")
    (converted, _), s = it.known, it.logits[:, 0]
    losses = np.where(converted, _as_positive(s), it.never * _as_negative(s)) * (1 + it.late)
    assert it.loss == pytest.approx(losses.mean(), rel=1e-5)
    assert it.engine.clipped == 0


def test_loss_of_defer_in_numpy() -> None:
    it = case("defer")
    (converted, _), s, f, half = it.known, it.logits[:, 0], it.rate, it.late / 2
    positive = f / np.maximum(f - half, 0.1 * f) * _as_positive(s)
    negative = (1 - f) / (1 - f + half) * _as_negative(s)
    assert it.loss == pytest.approx(np.where(converted, positive, negative).mean(), rel=1e-5)
    assert it.engine.clipped == (converted & (f - half < 0.1 * f)).sum() > 20


@pytest.mark.parametrize("source", ["helper", "served"])
def test_loss_of_defuse_in_numpy(source: str) -> None:
    it = case("defuse", false_negatives=source)
    (converted, trigger), s, late = it.known, it.logits[:, 0], it.late
    z = 1 - it.never if source == "helper" else late / (1 - it.rate + late)
    losses = z * late * _as_positive(s) + (1 - z) * (1 + late) * _as_negative(s)
    losses[converted] = ((1 + late) * _as_positive(s))[converted]
    losses[trigger == 1] = _as_positive(s)[trigger == 1]
    assert it.loss == pytest.approx(losses.mean(), rel=1e-5)


def test_loss_of_bi_defuse_in_numpy() -> None:
    it = case("bi_defuse")
    (converted, trigger), (a, s) = it.known, it.logits.T
    first, k = trigger == 0, _sigmoid(s)
    inside = np.where(converted, _as_positive(a), _as_negative(a))[first].mean()
    after = np.where(first, k * k * _as_positive(s) + (1 - k) * (1 + k) * _as_negative(s), _as_positive(s)).mean()
    assert it.loss == pytest.approx(inside + after, rel=1e-5)


def test_loss_of_ddfm_in_numpy() -> None:
    it = case("ddfm")
    (converted, trigger), s = it.known, it.logits[:, 0]
    z = np.where(trigger == 2, np.clip(1 - it.rate + it.late, 0, 1), it.never)
    losses = np.where(converted, _as_positive(s), (1 - z) * _as_positive(s) + z * _as_negative(s))
    assert it.loss == pytest.approx(losses.mean(), rel=1e-5)
    assert it.engine.clipped == ((trigger == 2) & (it.late > it.rate)).sum() > 20


def test_loss_of_tesla_cvr_in_numpy() -> None:
    it = case("tesla_cvr", ranking=0.7, negatives=5, base_weight=0.5, promptness=2.0)
    (converted, _), s, hours = it.known, it.logits[:, 0], it.b.age[:, 0].numpy() / HOUR
    es_dfm = (np.where(converted, _as_positive(s), it.never * _as_negative(s)) * (1 + it.late)).mean()
    up, share = hours[converted], 1 - it.rate[~converted]
    weight = 0.5 + 2 * _sigmoid((np.median(up) - up) / max(up.std(), 1))
    chosen = np.random.default_rng(0).choice(len(share), (len(up), 5), p=share / share.sum())
    pairs = _as_positive(s[converted][:, None] - s[~converted][chosen]).mean(1)
    assert up.std() > 1
    assert it.loss == pytest.approx(es_dfm + 0.7 * (weight * pairs).sum() / weight.sum(), rel=1e-5)


# Bi-DEFUSE's sum and warm-up.


def test_the_sum_of_two_rates_by_their_logits() -> None:
    a, b = 4 * np.random.default_rng(1).standard_normal((2, 5000))
    total = np.minimum(_sigmoid(a) + _sigmoid(b), 1 - 1e-6)
    log_odds = log_odds_of_sum(torch.tensor(a), torch.tensor(b)).numpy()
    assert log_odds == pytest.approx(np.log(total) - np.log1p(-total), rel=1e-6, abs=1e-6)
    assert 0.3 < (total == 1 - 1e-6).mean() < 0.7


@pytest.mark.parametrize("logits", [(-40.0, -40.0), (40.0, 40.0), (-40.0, 40.0), (40.0, -40.0), (0.0, 0.0)])
def test_the_sum_of_extreme_rates_is_finite_and_so_is_its_gradient(logits: tuple[float, float]) -> None:
    heads = torch.tensor(logits, requires_grad=True)
    served = log_odds_of_sum(heads[:1], heads[1:])
    (slopes,) = torch.autograd.grad(served.sum(), heads)
    assert torch.isfinite(served).all()
    assert torch.isfinite(slopes).all()


def test_the_sum_has_the_gradient_of_differences() -> None:
    a, b = torch.randn(2, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) - 2
    assert torch.autograd.gradcheck(log_odds_of_sum, (a.requires_grad_(), b.requires_grad_()))


def test_warm_up_of_bi_defuse_splits_mature_labels_at_the_window() -> None:
    engine = engine_of("bi_defuse")
    (value,) = engine.method.nets["main"].parameters()
    with torch.no_grad():
        value.copy_(torch.logit(torch.tensor([0.08, 0.12])))
    history = next(CELL.source().history(1, "mature").batches(CELL.clicks, None))
    (slopes,) = torch.autograd.grad(engine.method.warm_loss(history), [value])
    assert slopes.tolist() == pytest.approx([0, 0], abs=1e-6)


# TESLA's ranking term.


def test_without_ranking_tesla_is_es_dfm() -> None:
    table = small_log()
    prints = []
    for subject, options in (
        (Subject("es_dfm"), {}),
        (Subject("tesla_cvr"), {"ranking": 0.0}),
        (Subject("tesla_cvr"), {}),
    ):
        engine, source = subject.warmed(table, plan_for(table), **options)
        engine.tick(source, table.schema.split, table.schema.split + DAY)
        prints.append(engine.fingerprint())
    assert prints[0] == prints[1] != prints[2]


def test_negatives_are_drawn_in_proportion_to_one_minus_their_rate() -> None:
    it = case("tesla_cvr", negatives=2000)
    method = it.engine.method
    assert isinstance(method, TeslaCVR)
    b = replace(it.b, rng=np.random.default_rng(8))
    rates = np.array([0.1, 0.5, 0.9])
    drawn = method._draw(b, torch.logit(torch.tensor(rates)), 100)
    assert np.bincount(drawn.numpy().ravel()) / 200_000 == pytest.approx((1 - rates) / (1 - rates).sum(), abs=0.01)


def test_a_batch_of_one_kind_has_nothing_to_rank() -> None:
    engine = engine_of("tesla_cvr")
    method, events = engine.method, CELL.events(engine)
    assert isinstance(method, TeslaCVR)
    for kind in (events.converted, ~events.converted):
        assert method.ranking_loss(events.take(kind.nonzero()[:, 0])) == 0


def test_ranking_is_not_neutral_and_states_no_root() -> None:
    """Two kinds of clicks, each served at its own rate: ES-DFM rests there, ranking drives them apart."""
    prompt = KnownLaw(conversions=((HOUR // 2, 200),))
    rates = torch.tensor([[0.3], [0.1]])
    slopes = []
    for ranking in (0.0, 1.0):
        engine = engine_of("tesla_cvr", cell=prompt, ranking=ranking)
        engine.method.nets["main"] = Lookup(torch.zeros(2, 1))
        events = prompt.events(engine)
        second = ((events.row >= 150) & (events.row < 200)) | (events.row >= 550)
        slopes.append(gradient(engine, replace(events, x=second[:, None].int()), torch.logit(rates)))
    assert slopes[0].flatten().tolist() == pytest.approx([0, 0], abs=1e-5)
    assert slopes[1][0] < -0.01 < 0.01 < slopes[1][1]
    assert TeslaCVR().fixed_point(0.2, 0.12) is None


# Weights outside their range.


def test_weights_are_kept_inside_their_range_and_counted() -> None:
    method = engine_of("es_dfm").method
    weight = torch.tensor([-3.0, -1e-6, 0.0, 0.5, 10.0, 10.5], requires_grad=True)
    kept = method.clip(weight)
    assert kept.tolist() == [0, 0, 0, 0.5, 10, 10]
    assert not kept.requires_grad
    assert method.counts["clipped"] == 3
    assert method.clip(weight, high=0.25).tolist() == [0, 0, 0, 0.25, 0.25, 0.25]
    assert method.counts["clipped"] == 8
