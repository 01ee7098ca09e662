"""TRACE against its formulas: tests (a) to (i) of the method's specification, and what its parts learn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tracecvr.authoring.losses import cross_entropy
from tracecvr.base.config import DAY, HOUR, MINUTE
from tracecvr.base.errors import UserError
from tracecvr.base.metrics import probability
from tracecvr.checks.loss import root
from tracecvr.checks.subject import KnownLaw, Subject, plan_for, small_log
from tracecvr.data.table import NEVER
from tracecvr.families.trajectory import marginal_nll, window_log_likelihood, window_weights
from tracecvr.learn.engine import Engine
from tracecvr.methods.trace import Trace
from tracecvr.plugins.completer import Completer, reliability
from tracecvr.stream.reveal import After, Reveals
from tracecvr.stream.source import TableSource
from truth import Truth

TRACE = Subject("trace")

# p = 0.2 and P(d <= horizon | y = 1) = (.18, .30, .45, .68, .88, 1): the law of the specification's bias facts.
ENDS = (6 * MINUTE, 15 * MINUTE, HOUR, DAY, 7 * DAY, 30 * DAY)
LAW = KnownLaw(conversions=tuple(zip(ENDS, (36, 24, 30, 46, 40, 24), strict=True)), horizons=ENDS)


def trace_of(engine: Engine) -> Trace:
    assert isinstance(engine.method, Trace)
    return engine.method


def with_loss(engine: Engine, loss: str) -> Engine:
    """The engine with one of the method's losses in place of their sum, and no completer."""
    engine.plugins = ()
    if loss != "loss":
        engine.method.loss = getattr(engine.method, loss)  # type: ignore[method-assign]
    return engine


def warmed(**options: Any) -> tuple[Engine, TableSource]:
    table = small_log()
    return TRACE.warmed(table, plan_for(table, "mature"), **options)


# (a) no visible window


def test_without_visible_window_the_posterior_is_the_prior_exactly() -> None:
    engine, source = warmed()
    fresh = source.known_at(2 * DAY, 2 * DAY - 14 * MINUTE, 2 * DAY)
    assert len(fresh) > 0
    assert torch.equal(engine.method.posterior(fresh), engine.method.log_odds(fresh.x))


# (b) hidden states


def test_what_happens_inside_a_window_that_has_not_ended_changes_nothing() -> None:
    engine, source = warmed()
    events = source.known_at(2 * DAY, 2 * DAY - 50 * MINUTE, 2 * DAY - 20 * MINUTE)  # 15 min visible, 1 h not yet
    assert len(events) > 3
    cart_at = torch.full_like(events.age, NEVER)
    cart_at[:, 1] = 16 * MINUTE
    hidden = replace(events, age=cart_at)
    nothing = replace(events, age=torch.full_like(events.age, NEVER))
    assert torch.equal(engine.method.posterior(hidden), engine.method.posterior(nothing))
    assert torch.equal(engine.method.loss(hidden), engine.method.loss(nothing))


# (c) one window that ends with d_max


@given(st.floats(-6, 6), st.booleans())
def test_one_final_window_gives_the_gradient_of_cross_entropy(logit: float, converted: bool) -> None:
    s = torch.tensor([logit], dtype=torch.float64, requires_grad=True)
    certain = 60.0  # logits of a deterministic estimator: o = y
    logits = torch.tensor([-certain, certain], dtype=torch.float64).view(1, 2, 1, 1)
    state = torch.full((1, 1, 1), float(converted), dtype=torch.float64)
    (ours,) = torch.autograd.grad(marginal_nll(s, window_log_likelihood(logits, state)).sum(), s)
    (theirs,) = torch.autograd.grad(cross_entropy(s, state[:, 0, 0]).sum(), s)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


# (d), (e) roots


@pytest.mark.parametrize(
    ("loss", "options", "clip", "expected"),
    [
        ("trajectory_loss", {}, 1e-2, 0.1900),
        ("trajectory_loss", {}, 1e-3, 0.1990),
        ("trajectory_loss", {}, 1e-5, 0.2000),
        ("supervised_loss", {}, 1e-2, 0.3002),
        ("supervised_loss", {}, 1e-3, 0.2781),
        ("supervised_loss", {}, 1e-5, 0.2535),
        ("supervised_loss", {"reading": "paper"}, 1e-2, 0.5435),
        ("supervised_loss", {"reading": "paper"}, 1e-3, 0.5463),
        ("supervised_loss", {"reading": "paper"}, 1e-5, 0.5884),
        ("loss", {}, 1e-2, 0.2085),
        ("loss", {}, 1e-3, 0.2027),
        ("loss", {}, 1e-5, 0.2002),
        ("loss", {"reading": "paper"}, 1e-2, 0.2757),
        ("loss", {"reading": "paper"}, 1e-3, 0.2309),
        ("loss", {"reading": "paper"}, 1e-5, 0.2041),
    ],
)
def test_roots_of_the_losses(loss: str, options: dict[str, Any], clip: float, expected: float) -> None:
    engine = with_loss(LAW.engine(TRACE, clip=clip, **options), loss)
    assert root(engine, LAW.events(engine)) == pytest.approx(expected, abs=6e-5)


@pytest.mark.parametrize(("clip", "expected"), [(1e-2, 0.1992), (1e-3, 0.1999), (1e-5, 0.2000)])
def test_tempering_is_what_biases_the_supervised_loss(clip: float, expected: float) -> None:
    engine = LAW.engine(TRACE, clip=clip)
    method = trace_of(engine)

    def on_last_visible_window(b: Reveals) -> Tensor:
        last = b.trajectory(method.ends)[1].sum(1).long() - 1
        log_psi = method.log_likelihood(b)
        ratio = (log_psi[:, 1] - log_psi[:, 0]).gather(1, last[:, None])[:, 0]
        return method.logit(b.x) + ratio

    method.posterior = on_last_visible_window  # type: ignore[method-assign]
    assert root(with_loss(engine, "loss"), LAW.events(engine)) == pytest.approx(expected, abs=6e-5)


# (f) frozen helpers: also a check that every method goes through


def test_estimator_and_completer_do_not_change_while_streaming() -> None:
    engine, source = warmed()
    nets = [engine.method.nets["trajectory"], engine.plugins[0].nets["completer"]]
    before = [{k: v.clone() for k, v in net.state_dict().items()} for net in nets]
    main = {k: v.clone() for k, v in engine.method.nets["main"].state_dict().items()}
    engine.tick(source, 3 * DAY, 4 * DAY)
    for net, old in zip(nets, before, strict=True):
        assert all(torch.equal(value, old[name]) for name, value in net.state_dict().items())
    assert not all(torch.equal(v, main[k]) for k, v in engine.method.nets["main"].state_dict().items())


# (g) the gate


@given(st.floats(-40, 40), st.floats(-40, 40), st.floats(0, 1))
def test_gate_bounds(posterior: float, target: float, visible: float) -> None:
    gate = reliability(torch.tensor([posterior]), torch.tensor([target]), torch.tensor([visible])).item()
    half, most = 0.5**3, (1 / (1 + np.exp(-1))) ** 3
    assert half - 1e-6 <= gate <= most + 1e-6


def test_gate_is_the_product_of_three_sigmoids() -> None:
    def bits(p: float) -> float:
        return float(-p * np.log2(p) - (1 - p) * np.log2(1 - p))

    def sigmoid(z: float) -> float:
        return float(1 / (1 + np.exp(-z)))

    gate = reliability(torch.logit(torch.tensor([0.3])), torch.logit(torch.tensor([0.9])), torch.tensor([0.25])).item()
    assert gate == pytest.approx(sigmoid(bits(0.3)) * sigmoid(1 - bits(0.9)) * sigmoid(0.75), rel=1e-5)


# (h) the scale of eta


def test_the_scale_of_the_window_weights_cancels() -> None:
    engine, source = warmed()
    events = source.reveals(engine.schedule, 4 * DAY, 5 * DAY)
    method, eta = trace_of(engine), trace_of(engine).eta()
    posterior, loss = method.posterior(events), method.loss(events)
    method.eta = lambda: 7.0 * eta  # type: ignore[method-assign]
    torch.testing.assert_close(method.posterior(events), posterior, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(method.loss(events), loss, rtol=1e-5, atol=1e-6)


def test_window_weights_by_hand() -> None:
    # Window 1 tells nothing (entropy of the label: 1 bit), window 2 everything (0 bits).
    cells = torch.tensor([[[5.0, 5.0], [0.0, 0.0]], [[5.0, 0.0], [0.0, 5.0]]], dtype=torch.float64)
    expected = torch.tensor([np.exp(-0.5 - 2.0) / 2, np.exp(-1.0)], dtype=torch.float64)
    torch.testing.assert_close(window_weights(cells, beta=2.0), expected)


# (i) several actions


def test_log_likelihood_of_three_actions_is_the_sum_of_three() -> None:
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(5, 2, 4, 3)))
    state = torch.from_numpy(rng.integers(0, 2, (5, 4, 3)).astype(float))
    single = [window_log_likelihood(logits[..., k : k + 1], state[..., k : k + 1]) for k in range(3)]
    torch.testing.assert_close(window_log_likelihood(logits, state), sum(single))
    s = torch.zeros(5, dtype=torch.float64)
    joint, apart = marginal_nll(s, sum(single)), sum(marginal_nll(s, one) for one in single)  # type: ignore[arg-type]
    assert not torch.allclose(joint, torch.as_tensor(apart))


# Against NumPy, and the readings and ablations.


def test_loss_equals_a_plain_numpy_form() -> None:
    engine, source = warmed(lam=0.0)
    method = trace_of(engine)
    events = source.reveals(engine.schedule, 4 * DAY, 4 * DAY + 2 * HOUR)
    prior = 1 / (1 + np.exp(-method.logit(events.x).detach().numpy().astype(float)))
    psi = torch.sigmoid(method.call("trajectory", events.x)).numpy().astype(float)  # (B, 2, H, K)
    ends, eta = np.array(method.ends), method.eta().numpy().astype(float)
    total_weight = total_loss = 0.0
    supervised = []
    for i in range(len(events)):
        elapsed, age = events.elapsed[i].item(), events.age[i].numpy()
        log_g, weights = np.zeros(2), []
        for h in range(len(ends)):
            if ends[h] > elapsed:
                continue
            state = (age <= ends[h]).astype(float)
            likelihood = [np.prod(np.where(state == 1, psi[i, y, h], 1 - psi[i, y, h])) for y in (0, 1)]
            total_loss += eta[h] * -np.log((1 - prior[i]) * likelihood[0] + prior[i] * likelihood[1])
            total_weight += eta[h]
            log_g += eta[h] * np.log(likelihood)
            weights.append(eta[h])
        if elapsed >= 2 * DAY:
            log_g /= sum(weights)
            odds = prior[i] / (1 - prior[i]) * np.exp(log_g[1] - log_g[0])
            supervised.append(-np.log(odds / (1 + odds) if age[0] <= 2 * DAY else 1 / (1 + odds)))
    expected = total_loss / total_weight + np.mean(supervised)
    assert method.loss(events).item() == pytest.approx(expected, rel=1e-4)


def test_paper_reading_switches_revealed_set_entropy_and_completer() -> None:
    table = small_log()
    default, paper = (TRACE.engine(table.schema, reading=r) for r in ("default", "paper"))
    history = next(TableSource(table).history(3 * DAY, "mature").batches(3000, None))
    for engine in (default, paper):
        engine.method.observe(history)
    assert trace_of(default).counts["cells"].shape == (5, 2, 2)
    assert trace_of(paper).counts["cells"].shape == (5, 8, 2)
    events = TableSource(table).reveals(default.schedule, 3 * DAY, 4 * DAY)
    converted_early = events.converted & ~events.mature
    assert converted_early.any()
    assert default.method.uncertain(events)[converted_early].all()
    assert not paper.method.uncertain(events)[converted_early].any()
    completers = [engine.plugins[0] for engine in (default, paper)]
    assert [c.hidden for c in completers if isinstance(c, Completer)] == [(128, 128), (16, 8)]


def test_ablations() -> None:
    table = small_log()
    without_trajectory = TRACE.engine(table.schema, trajectory=False)
    assert without_trajectory.method.helpers() == {}
    events = TableSource(table).reveals(without_trajectory.schedule, 4 * DAY, 5 * DAY)
    method = without_trajectory.method
    assert torch.equal(method.posterior(events), method.logit(events.x))
    expected = cross_entropy(method.logit(events.x), events.label)[events.mature].mean()
    torch.testing.assert_close(method.loss(events), expected)
    assert TRACE.engine(table.schema, lam=0.0).plugins == ()
    ungated = TRACE.engine(table.schema, gate=False).plugins[0]
    assert isinstance(ungated, Completer)
    assert not ungated.gate


def test_adding_the_completer_again_is_an_error() -> None:
    for lam in (0.1, 0.0):
        with pytest.raises(UserError, match="'completer' is part of method 'trace'"):
            Engine(Trace(lam=lam), small_log().schema, plugins=(Completer(),))


@pytest.mark.parametrize("horizons", [(2 * DAY,), (HOUR, DAY), (60, HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR, 5 * HOUR, DAY)])
def test_any_number_of_horizons(horizons: tuple[int, ...]) -> None:
    engine, source = warmed(horizons=horizons)
    assert engine.schedule == tuple(After(h) for h in dict.fromkeys((*horizons, 2 * DAY)))
    assert engine.tick(source, 4 * DAY, 4 * DAY + HOUR) > 0


def test_horizons_that_end_early_still_leave_a_supervised_event() -> None:
    engine, source = warmed(horizons=(HOUR, DAY))
    events = source.reveals(engine.schedule, 4 * DAY, 5 * DAY)
    assert events.mature.any()
    assert trace_of(engine).supervised_loss(events) > 0


def test_before_warm_up_there_are_no_window_weights() -> None:
    table = small_log()
    with pytest.raises(UserError, match="warm_up first"):
        TRACE.engine(table.schema).posterior(TableSource(table).known_at(DAY, 0, DAY))


# What the parts learn on a log whose truth is known.


def test_estimator_learns_the_state_probabilities() -> None:
    table = small_log(clicks=100_000)
    truth = Truth(table)
    engine, source = TRACE.warmed(table, plan_for(table, "mature"), warm_epochs=0, lam=0.0)
    clicks = source.clicks(3 * DAY, 4 * DAY)
    learned = torch.sigmoid(engine.method.call("trajectory", clicks.x)).numpy().mean(0)
    exact = truth.states(table.schema.horizons)[clicks.row].mean(0)
    assert np.abs(learned - exact).max() < 0.08


def test_posterior_of_open_clicks_beats_the_prior() -> None:
    """Among clicks of one day that are open at an age of six hours, evidence improves on the static estimate."""
    table = small_log(clicks=20_000)
    engine, source = TRACE.warmed(table, plan_for(table, "mature"), warm_epochs=4, learning_rate=5e-3)
    seen = source.known_at(4 * DAY, 3 * DAY, 4 * DAY - 6 * HOUR)
    still_open = torch.nonzero(seen.open)[:, 0]
    events = seen.take(still_open)
    label = table.label[events.row.numpy()]
    prior, posterior = probability(engine.score(events.x)), probability(engine.posterior(events))
    briers = [float(((p - label) ** 2).mean()) for p in (posterior, prior)]
    assert briers[0] < briers[1] - 0.002
