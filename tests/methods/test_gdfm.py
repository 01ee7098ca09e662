"""GDFM against its formulas: what every window and action pulls to, the weights, and the anchor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tracecvr.base.config import DAY, HOUR, MINUTE
from tracecvr.checks.loss import gradient, root
from tracecvr.checks.subject import Constant, KnownLaw, Subject, plan_for, small_log
from tracecvr.data.table import ClickTable, Schema
from tracecvr.datasets.criteo import HORIZONS, Criteo
from tracecvr.datasets.criteo_search import CriteoSearch
from tracecvr.families.trajectory import count_action_states, label_entropy, log_likelihood, marginal_nll
from tracecvr.learn.engine import Engine
from tracecvr.methods.gdfm import GDFM
from tracecvr.stream.reveal import After
from tracecvr.stream.source import TableSource

SUBJECT = Subject("gdfm")
CELL = KnownLaw()  # nothing converts in its first window


def gdfm_of(engine: Engine) -> GDFM:
    assert isinstance(engine.method, GDFM)
    return engine.method


def warmed() -> tuple[Engine, TableSource]:
    table = small_log()
    return SUBJECT.warmed(table, plan_for(table, "mature"))


# Windows.


@given(st.floats(0.02, 0.9), st.integers(0, 100))
def test_an_exact_estimator_leaves_no_gradient_at_the_true_rate(p: float, seed: int) -> None:
    """For each horizon and action alone, over both states in their proportions."""
    psi = np.random.default_rng(seed).uniform(0.05, 0.95, (2, 4, 3))  # (y, H, K)
    logits = torch.logit(torch.from_numpy(psi)).expand(2, -1, -1, -1)
    state = torch.tensor([0.0, 1.0], dtype=torch.float64)[:, None, None].expand(2, 4, 3)
    happened = torch.from_numpy((1 - p) * psi[0] + p * psi[1])
    mass = torch.stack([1 - happened, happened])
    for rate, zero in ((p, True), (p + 0.05, False)):
        s = torch.logit(torch.full((2, 4, 3), rate, dtype=torch.float64)).requires_grad_()
        for h, k in np.ndindex(4, 3):
            nll = marginal_nll(s[:, h, k], log_likelihood(logits, state)[:, :, h, k])
            (slope,) = torch.autograd.grad((mass[:, h, k] * nll).sum(), s, retain_graph=True)
            assert (abs(float(slope.sum())) < 1e-12) == zero


@pytest.mark.parametrize("h", [1, 2])
def test_each_window_alone_has_the_true_rate_as_root(h: int) -> None:
    engine = CELL.engine(SUBJECT)
    only = torch.nn.functional.one_hot(torch.tensor(h), 3)[:, None].float()
    gdfm_of(engine).weights = lambda: only  # type: ignore[method-assign]
    assert root(engine, CELL.events(engine)) == pytest.approx(0.2, abs=2e-4)


@pytest.mark.parametrize("logit", [-3.0, 0.0, 2.0])
def test_a_window_that_is_always_the_same_gives_no_gradient(logit: float) -> None:
    engine = CELL.engine(SUBJECT)
    method, events = gdfm_of(engine), CELL.events(engine)
    first = torch.tensor([1.0, 0.0, 0.0])[:, None]
    method.weights = lambda: first  # type: ignore[method-assign]
    assert gradient(engine, events, logit).abs().item() < 1e-7
    method.weights = lambda: 1 - first  # type: ignore[method-assign]
    assert gradient(engine, events, logit).abs().item() > 1e-3


# Weights.


def test_states_of_single_actions_are_counted_with_labels() -> None:
    table = small_log()
    batch = next(TableSource(table).history(3 * DAY, "mature").batches(500, None))
    cells = count_action_states(batch, (HOUR, DAY))
    assert cells.shape == (2, 3, 2, 2)
    rows = np.arange(500)
    for h, end in enumerate((HOUR, DAY)):
        for k, o, y in np.ndindex(3, 2, 2):
            happened = table.action_ts[rows, k] <= table.click_ts[rows] + end
            assert cells[h, k, o, y] == ((happened == o) & (table.label[rows] == y)).sum()
    entropy = label_entropy(cells)
    assert entropy.shape == (2, 3)
    assert (entropy[:, 0] < entropy[:, 2]).all()  # a purchase tells more than a favourite


def test_weights_by_hand() -> None:
    engine = SUBJECT.engine(replace(small_log().schema, horizons=(HOUR, 2 * DAY)))
    silent, telling = [[5.0, 5.0], [0.0, 0.0]], [[5.0, 0.0], [0.0, 5.0]]  # 1 bit and 0 bits of entropy
    engine.method.counts["cells"] = torch.tensor([[silent, silent], [telling, silent]], dtype=torch.float64)
    hour, both = np.exp(-1 / 48), np.exp(-1.0)
    raw = np.array([[np.exp(-2) * hour, np.exp(-2) * hour], [both, np.exp(-2) * both]])
    expected = raw / raw.mean() * np.array([[1 / 2], [1.0]])
    np.testing.assert_allclose(gdfm_of(engine).weights(), expected, rtol=1e-6)


def test_a_window_counts_the_same_however_often_it_is_shown() -> None:
    """Window h is in H - h + 1 copies of a click: per click, each weighs its omega."""
    engine = CELL.engine(SUBJECT)
    visible = CELL.events(engine).trajectory(engine.method.ends)[1].sum(0)
    weight = gdfm_of(engine).weights()[:, 0] * visible / CELL.clicks
    assert weight.mean().item() == pytest.approx(1.0)


# Horizons.


def test_the_first_window_ends_with_the_click_where_the_log_says_so() -> None:
    schema = replace(small_log().schema, horizons=HORIZONS, d_max=30 * DAY, conversions_at_click=True)

    def ends(method: GDFM, schema: Schema) -> tuple[int, ...]:
        method.bind(schema, 0)
        return method.ends

    assert ends(GDFM(), schema) == (0, *HORIZONS)
    assert ends(GDFM(), replace(schema, conversions_at_click=False)) == HORIZONS
    assert ends(GDFM(horizons=(HOUR, DAY)), schema) == (HOUR, DAY)
    assert (Criteo.conversions_at_click, CriteoSearch.conversions_at_click) == (True, True)
    assert SUBJECT.engine(schema).schedule == tuple(After(end) for end in (0, *HORIZONS))


def test_the_window_at_the_click_holds_conversions_that_came_with_it() -> None:
    log = small_log()
    action_ts = np.array(log.action_ts)
    action_ts[:40, 0] = log.click_ts[:40]
    table = ClickTable(log.x, log.click_ts, log.click_id, action_ts, replace(log.schema, conversions_at_click=True))
    engine, source = SUBJECT.warmed(table, plan_for(table))
    state, visible = source.reveals(engine.schedule[:1], 0, DAY).trajectory(engine.method.ends)
    assert visible.sum(0).tolist()[1:] == [0] * 5
    assert visible[:, 0].all()
    assert state[:, 0, 0].sum() == 40
    assert torch.isfinite(engine.method.loss(source.reveals(engine.schedule, 0, DAY)))


# The anchor.


def test_the_anchor_is_the_net_as_warm_up_left_it() -> None:
    engine, source = warmed()
    main, reference = (engine.method.nets[name] for name in ("main", "reference"))
    assert all(torch.equal(v, main.state_dict()[k]) for k, v in reference.state_dict().items())
    assert not any(p.requires_grad or p.grad is not None for p in reference.parameters())
    assert not reference.training
    before = {k: v.clone() for k, v in reference.state_dict().items()}
    engine.tick(source, 3 * DAY, 4 * DAY)
    assert all(torch.equal(v, before[k]) for k, v in reference.state_dict().items())
    assert not all(torch.equal(v, main.state_dict()[k]) for k, v in reference.state_dict().items())


def test_the_anchor_is_restored() -> None:
    engine, source = warmed()
    engine.tick(source, 3 * DAY, 4 * DAY)
    fresh = SUBJECT.engine(small_log().schema)
    fresh.load_state(engine.state())
    reference = fresh.method.nets["reference"]
    assert all(
        torch.equal(v, reference.state_dict()[k]) for k, v in engine.method.nets["reference"].state_dict().items()
    )
    assert not reference.training
    assert not any(p.requires_grad for p in reference.parameters())
    assert fresh.fingerprint() == engine.fingerprint()


def test_the_anchor_has_no_gradient_at_the_reference_and_one_elsewhere() -> None:
    engine, source = warmed()
    method = gdfm_of(engine)
    events = source.reveals(engine.schedule, 4 * DAY, 5 * DAY)
    weights = list(method.nets["main"].parameters())

    def slopes() -> float:
        engine.forget()
        return max(float(g.abs().max()) for g in torch.autograd.grad(method.departure(events), weights))

    assert method.departure(events).item() == pytest.approx(0.0, abs=1e-7)
    assert slopes() < 1e-7
    engine.tick(source, 3 * DAY, 4 * DAY)
    assert slopes() > 1e-4


@pytest.mark.parametrize(("logit", "reference"), [(0.3, -1.0), (-40.0, 40.0), (40.0, -40.0), (40.0, 40.0)])
def test_the_anchor_is_the_divergence_from_the_reference(logit: float, reference: float) -> None:
    engine = CELL.engine(SUBJECT, logit)
    method = gdfm_of(engine)
    method.nets["reference"] = Constant([reference])
    events = CELL.events(engine)
    was = 1 / (1 + np.exp(-reference))
    converts = np.logaddexp(0, -logit) - np.logaddexp(0, -reference)  # log of was / now
    expected = was * converts + (1 - was) * (np.logaddexp(0, logit) - np.logaddexp(0, reference))
    assert method.departure(events).item() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert torch.isfinite(gradient(engine, events, logit)).all()
    whole = method.loss(events).item()
    assert whole == pytest.approx(method.window_loss(events).item() + 0.01 * expected, rel=1e-5)


def test_the_anchor_pulls_the_root_to_the_reference() -> None:
    engine = CELL.engine(SUBJECT, anchor=100.0)
    engine.method.nets["reference"] = Constant([0.0])
    assert root(engine, CELL.events(engine)) == pytest.approx(0.5, abs=0.01)


# The whole loss.


def test_loss_equals_a_plain_numpy_form() -> None:
    engine, source = warmed()
    method = gdfm_of(engine)
    with torch.no_grad():  # the reference is no longer the served net
        method.nets["main"].layers[-1].bias.add_(0.1)  # type: ignore[index,union-attr]
    events = source.reveals(engine.schedule, 4 * DAY, 4 * DAY + 2 * HOUR)
    f = 1 / (1 + np.exp(-method.logit(events.x).detach().numpy().astype(float)))
    was = 1 / (1 + np.exp(-method.call("reference", events.x)[:, 0].numpy().astype(float)))
    psi = torch.sigmoid(method.call("trajectory", events.x)).numpy().astype(float)  # (B, 2, H, K)
    omega, ends = method.weights().numpy().astype(float), (15 * MINUTE, HOUR, 6 * HOUR, DAY, 2 * DAY)
    total = seen = 0.0
    for i in range(len(events)):
        for h, end in enumerate(ends):
            if end > events.elapsed[i].item():
                continue
            seen += 1
            for k in range(3):
                happened = events.age[i, k].item() <= end
                likelihood = [psi[i, y, h, k] if happened else 1 - psi[i, y, h, k] for y in (0, 1)]
                total -= omega[h, k] * np.log((1 - f[i]) * likelihood[0] + f[i] * likelihood[1])
    kl = was * np.log(was / f) + (1 - was) * np.log((1 - was) / (1 - f))
    assert kl.mean() > 1e-5
    assert method.loss(events).item() == pytest.approx(total / seen + 0.01 * kl.mean(), rel=1e-5)
