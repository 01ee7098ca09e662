"""FTP, MISS and DFSN: several windows at once. Fixed points, who trains whom, and what is read when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracecvr.authoring.losses import cross_entropy, mixture
from tracecvr.authoring.method import Method
from tracecvr.base.config import DAY, HOUR, MINUTE
from tracecvr.base.errors import UserError
from tracecvr.checks.stream import scramble
from tracecvr.checks.subject import Constant, KnownLaw, Subject, plan_for, small_log
from tracecvr.data.dataset import Dataset
from tracecvr.data.table import ClickTable, Feature
from tracecvr.datasets.criteo import Criteo
from tracecvr.datasets.synthetic import Synthetic
from tracecvr.datasets.taobao import Taobao
from tracecvr.learn.engine import Engine
from tracecvr.learn.recorded_outputs import RecordedOutputs
from tracecvr.methods.dfsn import DFSN, SatelliteNet
from tracecvr.methods.ftp import FTP, ProphetNet
from tracecvr.methods.miss import MISS, MixedNet
from tracecvr.nets.backbones import MLP
from tracecvr.runs.replay import replay
from tracecvr.stream.reveal import After, LabelledReveals, On, Reveals
from tracecvr.stream.source import TableSource

CELL = KnownLaw()  # p = 0.2, of which 0.12 comes after an hour
WINDOWS = (HOUR, DAY)


def engine_of(name: str, **options: Any) -> Engine:
    """An engine on the cell that has seen the cell's history."""
    engine = Subject(name).engine(CELL.schema, **options)
    engine.method.observe(next(CELL.source().history(1, "mature").batches(CELL.clicks, None)))
    return engine


def descend(engine: Engine, events: Reveals, steps: int = 400, step: float = 4.0) -> None:
    """Follow the whole loss down to where it is flat."""
    weights = [w for w in engine.method.nets["main"].parameters() if w.requires_grad]
    for _ in range(steps):
        engine.forget()
        slopes = torch.autograd.grad(engine.method.loss(events), weights, allow_unused=True)
        with torch.no_grad():
            for weight, slope in zip(weights, slopes, strict=True):
                if slope is not None:
                    weight.sub_(step * slope)
    engine.forget()


def slopes_by_part(loss: Tensor, net: nn.Module) -> dict[str, float]:
    """The largest gradient of a loss in each direct part of a net; 0 where it does not reach."""
    named = list(net.named_parameters())
    slopes = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True, retain_graph=True)
    largest: dict[str, float] = {}
    for (name, _), slope in zip(named, slopes, strict=True):
        part = name.split(".")[0]
        largest[part] = max(largest.get(part, 0.0), 0.0 if slope is None else float(slope.abs().max()))
    return largest


def reaches(loss: Tensor, net: nn.Module) -> set[str]:
    return {part for part, slope in slopes_by_part(loss, net).items() if slope > 1e-12}


def warmed(name: str, publish_lag: int = 0, **options: Any) -> tuple[Engine, TableSource]:
    table = small_log()
    plan = replace(plan_for(table, "mature"), publish_lag=publish_lag)
    return Subject(name).warmed(table, plan, **options)


def spans_on(name: str, dataset: type[Dataset], d_max: int, **options: Any) -> tuple[int, ...]:
    schema = replace(small_log().schema, windows=dataset.windows, horizons=(60,), d_max=d_max)
    method = Subject(name).engine(schema, **options).method
    assert isinstance(method, FTP | MISS | DFSN)
    return method.spans


# What was logged at serving.


def events_of(rows: list[int]) -> Reveals:
    source = TableSource(small_log())
    return replace(source.reveals((After(0),), 0, DAY).take(torch.zeros(len(rows)).long()), row=torch.tensor(rows))


def logged(log: RecordedOutputs, rows: list[int]) -> list[float]:
    outputs = log.with_recorded(events_of(rows)).logged
    assert outputs is not None
    return torch.nan_to_num(outputs[:, 0], nan=-1.0).tolist()


def test_what_was_logged_is_given_back_by_row() -> None:
    log = RecordedOutputs()
    assert log.with_recorded(events_of([3])).logged is None
    log.add(np.arange(5, 8), torch.tensor([[5.0], [6.0], [7.0]]), until=100)
    log.add(np.arange(8, 8), torch.empty(0, 1), until=150)
    log.add(np.arange(8, 10), torch.tensor([[8.0], [9.0]]), until=200)
    log.add(np.arange(12, 13), torch.tensor([[12.0]]), until=300)
    assert logged(log, [7, 5, 4, 9, 5, 10, 11, 12, 13]) == [7, 5, -1, 9, 5, -1, -1, 12, -1]
    assert log.with_recorded(events_of([])).logged.shape == (0, 1)  # type: ignore[union-attr]


def test_what_was_logged_is_dropped_once_labels_are_final() -> None:
    log = RecordedOutputs()
    for first in (0, 2, 4):
        log.add(np.arange(first, first + 2), torch.full((2, 1), float(first)), until=100 + first)
    log.drop(101)
    assert logged(log, [1, 2, 5]) == [-1, 2, 4]
    log.drop(102)
    assert logged(log, [1, 2, 5]) == [-1, -1, 4]


def test_what_was_logged_survives_a_restart() -> None:
    log, twin = RecordedOutputs(), RecordedOutputs()
    twin.load_state(log.state())
    assert twin.with_recorded(events_of([0])).logged is None
    for first in (0, 2):
        log.add(np.arange(first, first + 2), torch.tensor([[first], [first + 1.0]]), until=100 + first)
    twin.load_state(log.state())
    assert logged(twin, [3, 0, 4]) == [3, 0, -1]
    twin.drop(100)
    assert logged(twin, [3, 0]) == [3, -1]


@pytest.mark.parametrize("lag", [0, 2])
def test_what_is_logged_is_what_the_serving_model_said(lag: int) -> None:
    engine, source = warmed("ftp", publish_lag=lag)
    plan = plan_for(small_log())
    said: dict[int, Tensor] = {}
    for number in range(6):
        start, end = plan.bounds(number)
        clicks = source.clicks(start, end)
        with engine.serving(), torch.no_grad():
            tasks = torch.sigmoid(engine.method.nets["main"](clicks.x).chunk(2, dim=1)[0])
        said |= dict(zip(clicks.row.tolist(), tasks, strict=True))
        engine.tick(source, start, end)
    kept = engine._logs.with_recorded(source.reveals((After(0),), plan.split, plan.bounds(5)[1]))
    assert kept.logged is not None
    torch.testing.assert_close(kept.logged, torch.stack([said[row] for row in kept.row.tolist()]))


# FTP.


def constant_ftp(rates: list[float], prophet: float, **options: Any) -> tuple[Engine, FTP]:
    """Tasks, policy and prophet whose answers are the same for all clicks."""
    engine = engine_of("ftp", windows=WINDOWS, **options)
    net = ProphetNet(Constant([0.0]), Constant([np.log(prophet / (1 - prophet))]), 1, len(rates))
    net.tasks = nn.ModuleList(Constant([np.log(r / (1 - r))]) for r in rates)
    net.policy = Constant([0.0] * len(rates))  # type: ignore[assignment]
    engine.method.nets["main"] = net
    assert isinstance(engine.method, FTP)
    return engine, engine.method


def net_of(method: FTP) -> ProphetNet:
    net = method.nets["main"]
    assert isinstance(net, ProphetNet)
    return net


def with_logged(events: Reveals, rates: list[float]) -> Reveals:
    return replace(events, logged=torch.tensor(rates).expand(len(events), -1))


def test_each_task_goes_to_the_rate_of_its_window_and_the_prophet_to_the_final_one() -> None:
    engine, method = constant_ftp([0.5, 0.5], 0.5)
    events = CELL.events(engine)
    descend(engine, events)
    rates = method.record(events.x[:1])[0]
    assert rates.tolist() == pytest.approx([0.08, 0.2], abs=1e-4)
    foretold = net_of(method).foretold(events.x[:1])
    assert torch.sigmoid(foretold).item() == pytest.approx(0.2, abs=1e-4)


@pytest.mark.parametrize(("prophet", "follows"), [(0.05, 0), (0.11, 0), (0.13, 1), (0.9, 1)])
def test_the_policy_follows_the_task_that_was_nearest_to_the_prophet(prophet: float, follows: int) -> None:
    engine, method = constant_ftp([0.5, 0.5], prophet)
    net_of(method).prophet.requires_grad_(False)
    events = with_logged(CELL.events(engine), [0.08, 0.16])
    descend(engine, events, steps=200)
    policy = F.softmax(method.call("main", events.x[:1])[0, 2:], dim=0)
    assert policy[follows] > 0.99
    served = torch.sigmoid(method.log_odds(events.x[:1])).item()
    assert served == pytest.approx((0.08, 0.2)[follows], abs=2e-3)


def test_only_mature_clicks_with_logged_rates_teach_the_policy() -> None:
    engine, method = constant_ftp([0.5, 0.5], 0.15)
    events = with_logged(CELL.events(engine), [0.08, 0.16])
    assert events.logged is not None
    mature = events.trigger == 1
    unknown = torch.arange(len(events)) % 3 == 0
    partly = replace(events, logged=torch.where(unknown[:, None], torch.nan, events.logged))
    taught, target = method.followed(partly, mature)
    assert torch.equal(taught, mature & ~unknown)
    assert (target[taught] == 1).all()
    assert not method.followed(replace(events, logged=None), mature)[0].any()
    for nothing in (replace(events, logged=None), replace(events, logged=events.logged * torch.nan)):
        assert "policy" not in reaches(method.loss(nothing), method.nets["main"])
        engine.forget()
    assert "policy" in reaches(method.loss(partly), method.nets["main"])


class Asked(nn.Module):
    """A prophet that remembers which clicks it was asked about, and in which mode."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.questions: list[tuple[bool, Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.questions.append((self.training, x))
        out: Tensor = self.net(x)
        return out


def day_of_ftp() -> tuple[Engine, FTP, Reveals]:
    """A stream of several days, and the events of its last, with logged rates."""
    engine, source = warmed("ftp")
    for day in (3, 4):
        engine.tick(source, day * DAY, (day + 1) * DAY)
    events = engine._logs.with_recorded(source.reveals(engine.schedule, 5 * DAY, 6 * DAY))
    engine.method.nets["main"].train()
    assert isinstance(engine.method, FTP)
    return engine, engine.method, events


def test_the_prophet_is_asked_about_mature_clicks_alone_and_before_it_learns_from_them() -> None:
    _, method, events = day_of_ftp()
    net = net_of(method)
    asked = net.prophet = Asked(net.prophet)
    mature = events.trigger == 4
    assert mature.any()
    assert torch.equal(mature, events.elapsed == small_log().schema.d_max)
    method.loss(events)
    (foretelling, about), (training, on) = asked.questions
    assert not foretelling  # as it would serve, and without a trace in its statistics
    assert training
    assert torch.equal(about, events.x[mature])
    assert torch.equal(on, events.x[mature])
    assert net.prophet.training


def test_labels_that_are_not_final_change_neither_policy_target_nor_prophet() -> None:
    engine, method, events = day_of_ftp()
    mature = events.trigger == 4
    flipped = replace(events, converted=torch.where(mature, events.converted, ~events.converted))
    prophet = list(net_of(method).prophet.parameters())
    policies = [method.followed(b, mature) for b in (events, flipped)]  # first: a loss moves the prophet's statistics
    gradients = []
    for b in (events, flipped):
        gradients.append(torch.autograd.grad(method.loss(b), prophet))
        engine.forget()
    taught = policies[0][0]
    assert taught.any()
    assert not taught[~mature].any()
    for results in (policies, gradients):
        assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    assert method.loss(events) != method.loss(flipped)


def test_nothing_after_a_moment_matters_once_the_policy_learns() -> None:
    """The no-future check, on a stream that is longer than d_max."""
    table = small_log()
    plan = replace(plan_for(table), until=5 * DAY + 12 * HOUR)
    prints = []
    for log in (table, scramble(table, plan.until)):
        engine, source = Subject("ftp").warmed(log, plan)
        before = engine.method.counts["average_loss"].clone()
        scores = [done.log_odds.tobytes() for done in replay(engine, source, plan)]
        assert engine.method.counts["average_loss"][-1] != before[-1]  # the policy has learnt from the stream
        prints.append((engine.fingerprint(), b"".join(scores)))
    assert prints[0] == prints[1]


def test_the_policy_trains_the_shared_layers_but_neither_tasks_nor_prophet() -> None:
    _, method, events = day_of_ftp()
    net = method.nets["main"]
    tasks, policy = method.call("main", events.x).chunk(2, dim=1)
    assert reaches(policy.sum(), net) == {"bottom", "policy"}
    assert reaches(tasks.sum(), net) == {"bottom", "tasks"}
    assert reaches(method.loss(events), net) == {"bottom", "tasks", "policy", "prophet"}


def test_the_policys_loss_is_scaled_by_moving_averages() -> None:
    _, method = constant_ftp([0.5, 0.5], 0.5)
    method.counts.clear()
    first, second = torch.tensor([0.4, 0.2, 1.5]), torch.tensor([0.3, 9.0, 1.0])
    everything = torch.ones(3, dtype=torch.bool)
    assert method._sum(first, everything).item() == pytest.approx(0.6 + 0.3 / 1.5 * 1.5)
    part = method._sum(second, torch.tensor([True, False, True])).item()  # the second task was not in this batch
    average = [0.9 * 0.4 + 0.1 * 0.3, 0.2, 0.9 * 1.5 + 0.1 * 1.0]
    assert method.counts["average_loss"].tolist() == pytest.approx(average)
    assert part == pytest.approx(9.3 + (average[0] + average[1]) / 2 / average[2] * 1.0)
    assert method._sum(second, torch.tensor([True, True, False])).item() == pytest.approx(9.3)


def test_ftp_loss_equals_a_plain_form() -> None:
    _, method, events = day_of_ftp()
    method.nets["main"].eval()
    before = method.counts["average_loss"].numpy().astype(float)
    with torch.no_grad():
        out = method.call("main", events.x).numpy().astype(float)
        prophet = torch.sigmoid(net_of(method).foretold(events.x)).numpy().astype(float)
    f = 1 / (1 + np.exp(-out[:, :5]))
    choice = np.exp(out[:, 5:]) / np.exp(out[:, 5:]).sum(1, keepdims=True)
    parts: list[list[float]] = [[] for _ in range(7)]
    assert events.logged is not None
    for i in range(len(events)):
        task, y = int(events.trigger[i]), bool(events.converted[i])
        parts[task].append(-np.log(f[i, task] if y else 1 - f[i, task]))
        if task == 4:
            parts[6].append(-np.log(prophet[i] if y else 1 - prophet[i]))
            served = events.logged[i].numpy().astype(float)
            if not np.isnan(served).any():
                parts[5].append(-np.log(choice[i, np.abs(served - prophet[i]).argmin()]))
    means = np.array([np.mean(part) for part in parts])
    average = 0.9 * before + 0.1 * means[:6]
    expected = means[:5].sum() + average[:5].mean() / average[5] * means[5] + means[6]
    assert method.loss(events).item() == pytest.approx(expected, rel=1e-4)


# Mixtures, which FTP and MISS serve.


@pytest.mark.parametrize("logits", [[-2.0, 0.5, 1.0], [-40.0, -40.0, -40.0], [40.0, 40.0, 40.0], [-40.0, 0.0, 40.0]])
def test_a_mixture_has_the_log_odds_of_the_mean_rate(logits: list[float]) -> None:
    weight = np.array([0.2, 0.5, 0.3])
    s = torch.tensor([logits], requires_grad=True)
    log_odds = mixture(torch.from_numpy(np.log(weight)).float()[None], s)
    converts, stays = (weight @ (1 / (1 + np.exp(sign * np.array(logits)))) for sign in (-1, 1))
    assert log_odds.item() == pytest.approx(np.log(converts) - np.log(stays), rel=1e-5)
    assert torch.isfinite(torch.autograd.grad(log_odds.sum(), s)[0]).all()


class Fixed(nn.Module):
    """Outputs that are trainable numbers, one row per event of a batch."""

    def __init__(self, rows: int, columns: int, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.full((rows, columns), value))

    def forward(self, x: Tensor) -> Tensor:
        return self.value[: len(x)]


@pytest.mark.parametrize("logit", [-40.0, 40.0])
@pytest.mark.parametrize("name", ["ftp", "miss", "dfsn"])
def test_extreme_logits_stay_finite(name: str, logit: float) -> None:
    options = {} if name == "dfsn" else {"windows": WINDOWS}
    engine = engine_of(name, **options)
    method, events = engine.method, CELL.events(engine)
    events = with_logged(events, [0.0, 1.0])
    rows = len(events)
    if name == "ftp":
        net: nn.Module = ProphetNet(Constant([0.0]), Constant([logit]), 1, 2)
        net.tasks = nn.ModuleList(Fixed(rows, 1, logit) for _ in range(2))
        net.policy = Constant([logit, -logit])
    elif name == "miss":
        net = MixedNet(Fixed(rows, 2, logit), 2)
        with torch.no_grad():
            net.synthesizer[-1].bias.copy_(torch.tensor([logit, -logit]))  # type: ignore[operator]
    else:
        net = Fixed(rows, 3, logit)
    method.nets["main"] = net
    history = next(CELL.source().history(1, "mature").batches(CELL.clicks, None))
    for b in (events, history):
        engine.forget()
        loss = method.warm_loss(b) if isinstance(b, LabelledReveals) else method.loss(b)
        value = loss + method.log_odds(b.x).mean()
        assert torch.isfinite(value)
        slopes = torch.autograd.grad(value, list(net.parameters()), allow_unused=True)
        assert all(slope is None or torch.isfinite(slope).all() for slope in slopes)


@pytest.mark.parametrize("name", ["ftp", "miss", "dfsn"])
def test_autograd_agrees_with_differences_when_what_is_stopped_is_held(name: str) -> None:
    """The gradient check for nets that are more than a backbone: only `stop_gradient` stops anything."""
    engine, source = warmed(name)
    for day in (3, 4):
        engine.tick(source, day * DAY, (day + 1) * DAY)
    method = engine.method
    b = engine._logs.with_recorded(source.reveals(engine.schedule, 5 * DAY, 6 * DAY))
    b.__dict__["label"] = b.label.double()  # else losses are rounded to single precision
    weights = list(method.nets["main"].double().parameters())
    rng = torch.Generator().manual_seed(0)
    steps = [1e-6 * torch.randn(w.shape, generator=rng, dtype=w.dtype) for w in weights]
    starts = [weight.detach().clone() for weight in weights]
    counts = {key: value.clone() for key, value in method.counts.items()}
    held: list[Tensor] = []

    def hold(value: Tensor) -> Tensor:
        held.append(value.detach())
        return held[-1]

    def loss_at(sign: int, stop: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.no_grad():
            for weight, start, step in zip(weights, starts, steps, strict=True):
                weight.copy_(start + sign * step)
        method.stop_gradient = stop  # type: ignore[method-assign,assignment]
        method.counts = dict(counts)
        engine.forget()
        return method.loss(b) + method.log_odds(b.x).mean()

    slopes = torch.autograd.grad(loss_at(0, hold), weights)
    slope = sum(float((g * s).sum()) for g, s in zip(slopes, steps, strict=True))
    assert held
    losses = []
    for sign in (1, -1):
        turn = iter(list(held))
        losses.append(loss_at(sign, lambda _, turn=turn: next(turn)).item())  # type: ignore[misc]
    assert slope == pytest.approx((losses[0] - losses[1]) / 2, rel=1e-3)


@pytest.mark.parametrize("name", ["ftp", "miss"])
def test_windows_of_logs(name: str) -> None:
    assert spans_on(name, Criteo, 30 * DAY) == tuple(n * DAY for n in (1, 7, 14, 21, 30))
    assert spans_on(name, Taobao, 3 * DAY) == (2 * HOUR, 12 * HOUR, DAY, 2 * DAY, 3 * DAY)
    assert spans_on(name, Synthetic, 15 * DAY) == tuple(n * DAY // 2 for n in (1, 7, 14, 21, 30))
    assert spans_on(name, Criteo, 30 * DAY, windows=(60, 30 * DAY)) == (60, 30 * DAY)
    assert engine_of(name, windows=WINDOWS).method.resolve_options()["windows"] == list(WINDOWS)
    for wrong in ((60, 29 * DAY), (30 * DAY, 60), (60, 60, 30 * DAY), ()):
        with pytest.raises(UserError, match="windows"):
            spans_on(name, Criteo, 30 * DAY, windows=wrong)


def test_events_per_click() -> None:
    def per_click(name: str, **options: Any) -> float:
        return len(CELL.events(engine_of(name, **options))) / CELL.clicks

    assert per_click("ftp", windows=WINDOWS) == 2
    assert per_click("miss", windows=WINDOWS) == 2.2
    assert per_click("dfsn") == 3.2


# MISS.


def miss(**options: Any) -> tuple[Engine, MISS]:
    engine = engine_of("miss", windows=WINDOWS, **options)
    assert isinstance(engine.method, MISS)
    return engine, engine.method


@pytest.mark.parametrize("alpha", [0.2, None, 0.0, 1.0])
def test_heads_go_to_their_fixed_points(alpha: float | None) -> None:
    engine, method = miss(alpha=alpha)
    method.nets["main"] = MixedNet(Constant([0.0, 0.0]), 2)
    descend(engine, CELL.events(engine))
    weight = 1 + 0.6 * (0.2 if alpha is None else alpha)  # without alpha, the history's rate: 0.2
    expected = 0.2 * weight / (0.2 * weight + 0.8 + 0.12)
    if alpha in (0.2, None):
        assert expected == pytest.approx(0.1958, abs=5e-5)
    rates = torch.sigmoid(method.call("main", torch.zeros(1, 1)))[0].tolist()
    assert rates == pytest.approx([expected, 0.2], abs=1e-4)


def test_heads_are_warmed_up_to_the_same_fixed_points() -> None:
    engine, method = miss(alpha=0.2)
    method.nets["main"] = MixedNet(Constant([0.0, 0.0]), 2)
    method.loss = method.warm_loss  # type: ignore[method-assign,assignment]
    descend(engine, next(CELL.source().history(1, "mature").batches(CELL.clicks, None)))
    assert torch.sigmoid(method.call("main", torch.zeros(1, 1)))[0].tolist() == pytest.approx([0.1958, 0.2], abs=1e-4)


@pytest.mark.parametrize("rates", [(0.05, 0.6), (0.4, 0.1)])
def test_the_assembled_stream_leads_to_the_true_rate(rates: tuple[float, float]) -> None:
    torch.manual_seed(0)
    engine, method = miss()
    heads = Constant([float(np.log(r / (1 - r))) for r in rates]).requires_grad_(False)
    method.nets["main"] = MixedNet(heads, 2)
    events = CELL.events(engine)
    descend(engine, events, steps=600, step=1.0)
    assert torch.sigmoid(method.log_odds(events.x[:1])).item() == pytest.approx(0.2, abs=1e-4)


def test_the_synthesizer_does_not_train_heads_but_what_is_served_can() -> None:
    engine, source = warmed("miss")
    method, net = engine.method, engine.method.nets["main"]
    assert isinstance(method, MISS)
    events = source.reveals(engine.schedule, 4 * DAY, 5 * DAY)
    heads, everything = method.call("main", events.x), torch.ones(len(events), dtype=torch.bool)
    assert reaches(method.mix_loss(heads, events.label, everything), net) == {"synthesizer"}
    own = everything[:, None].expand_as(heads)
    assert reaches(method.head_loss(heads, events.label[:, None].expand_as(heads), own), net) == {"heads"}
    assert reaches(method.log_odds(events.x).sum(), net) == {"synthesizer", "heads"}


def test_what_is_served_trains_heads_as_if_their_weights_were_given() -> None:
    """A plugin pulls what is served: the heads must not be moved so that the synthesizer weighs them otherwise."""
    engine, source = warmed("miss")
    method, net = engine.method, engine.method.nets["main"]
    assert isinstance(method, MISS)
    assert isinstance(net, MixedNet)
    x = source.clicks(4 * DAY, 4 * DAY + 6 * HOUR).x
    heads = net(x).detach()
    served = heads.clone().requires_grad_()
    method.caller = lambda *_: served
    (ours,) = torch.autograd.grad(method.log_odds(x).sum(), served)
    given = net.log_weights(F.logsigmoid(heads)).detach()
    (held,) = torch.autograd.grad(mixture(given, served).sum(), served)
    torch.testing.assert_close(ours, held)
    free = mixture(net.log_weights(F.logsigmoid(served)), served).sum()
    assert not torch.allclose(torch.autograd.grad(free, served)[0], held, rtol=1e-3)


def test_the_synthesizer_is_given_rates_and_their_shares() -> None:
    net = MixedNet(nn.Identity(), 3).double()
    rates = np.array([[0.1, 0.6, 0.02], [0.9, 0.9, 0.9]])
    layers = [layer for layer in net.synthesizer if isinstance(layer, nn.Linear)]
    value = np.concatenate([rates, rates / rates.sum(1, keepdims=True)], axis=1)
    for number, layer in enumerate(layers):
        value = value @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
        value = value if number == 2 else np.maximum(value, 0)
    assert [layer.out_features for layer in layers] == [16, 16, 3]
    expected = np.exp(value) / np.exp(value).sum(1, keepdims=True)
    np.testing.assert_allclose(net.log_weights(torch.from_numpy(np.log(rates))).exp().detach(), expected, rtol=1e-9)


def test_the_share_of_late_conversions_is_counted_and_fades() -> None:
    engine, method = miss(recent=100.0, alpha=0.5)
    assert method.counts["history"].tolist() == [1000, 200]
    assert method.counts["conversions"].tolist() == [120, 0, 200]
    late = On(0, later_than=HOUR)
    prompt = CELL.events(engine)
    prompt = prompt.take(torch.nonzero((prompt.trigger == 2) & (prompt.elapsed <= HOUR))[:, 0])
    assert len(prompt) == 80
    method.observe(prompt)
    kept = np.exp(-0.8)
    assert method.counts["conversions"].tolist() == pytest.approx([120 * kept, 0, 200 * kept + 80])
    assert method.positive_weight().tolist() == pytest.approx([1 + 0.5 * 120 * kept / (200 * kept + 80), 1.0])
    before = method.counts["conversions"].clone()
    waiting = CELL.source().reveals((After(HOUR), After(DAY)), 0, 2 * DAY)
    method.observe(waiting)  # windows that end are no conversions
    assert torch.equal(method.counts["conversions"], before)
    assert len(CELL.source().reveals((late,), 0, 2 * DAY)) == 120


def test_permuted_heads_with_permuted_weights_serve_the_same() -> None:
    engine, source = warmed("miss", backbone="mlp")  # a linear part is of the first head alone
    net = engine.method.nets["main"]
    assert isinstance(net, MixedNet)
    assert isinstance(net.heads, MLP)
    x = source.clicks(4 * DAY, 5 * DAY).x
    order = torch.tensor([3, 0, 4, 1, 2])
    first, last, heads = net.synthesizer[0], net.synthesizer[-1], net.heads.layers[-1]
    with torch.no_grad():
        torch.manual_seed(0)
        for layer in (first, last, heads):  # a short warm-up leaves heads and their weights nearly equal
            layer.weight.normal_()  # type: ignore[operator]
        before = engine.score(x)
        for layer in (last, heads):
            layer.weight.copy_(layer.weight[order])  # type: ignore[operator,index]
            layer.bias.copy_(layer.bias[order])  # type: ignore[operator,index]
        np.testing.assert_raises(AssertionError, np.testing.assert_allclose, engine.score(x), before, rtol=1e-4)
        first.weight.copy_(first.weight[:, torch.cat([order, 5 + order])])  # type: ignore[operator,index]
    np.testing.assert_allclose(engine.score(x), before, rtol=1e-4, atol=1e-5)


def test_miss_loss_is_the_sum_of_its_streams_written_out() -> None:
    """obs(d_i) and pos(d_i) of each head, and the assembled stream, each drawn from the log on its own."""
    engine, source = warmed("miss", alpha=0.7)
    method = engine.method
    assert isinstance(method, MISS)
    start, end, d_max = 4 * DAY, 5 * DAY, 2 * DAY

    def rates(b: Reveals) -> Any:
        with torch.no_grad():
            return torch.sigmoid(method.nets["main"](b.x)).numpy().astype(float)

    expected = 0.0
    *late, conversions = method.counts["conversions"].tolist()
    for i, window in enumerate((5760, 40320, 80640, 120960, d_max)):
        b = source.reveals((After(window), On(0, later_than=window)), start, end)
        f, y = rates(b)[:, i], b.converted.numpy()
        assert y[b.trigger.numpy() == 1].all()
        weight = np.where(y, 1 + 0.7 * late[i] / conversions, 1.0)
        expected += (weight * -np.log(np.where(y, f, 1 - f))).mean()
    b = source.reveals((On(0), After(d_max, seen=False)), start, end)
    f, y = rates(b), b.trigger.numpy() == 0
    net = method.nets["main"]
    assert isinstance(net, MixedNet)
    with torch.no_grad():
        given = torch.from_numpy(np.concatenate([f, f / f.sum(1, keepdims=True)], axis=1)).float()
        u = F.softmax(net.synthesizer(given), dim=1).numpy().astype(float)
    served = (u * f).sum(1)
    expected += -np.log(np.where(y, served, 1 - served)).mean()
    assert method.loss(source.reveals(engine.schedule, start, end)).item() == pytest.approx(expected, rel=1e-4)


# DFSN.


def dfsn(**options: Any) -> tuple[Engine, DFSN]:
    engine = engine_of("dfsn", window=HOUR, satellite_window=40 * MINUTE, **options)
    assert isinstance(engine.method, DFSN)
    return engine, engine.method


def test_each_model_goes_to_its_own_fixed_point() -> None:
    engine, method = dfsn()
    method.nets["main"] = Constant([0.0, 0.0, 0.0])
    events = CELL.events(engine)
    descend(engine, events, steps=1500)
    feature, unbiased = torch.sigmoid(method.call("main", events.x[:1]))[0, 1:].tolist()
    assert feature == pytest.approx(0.08, abs=1e-4)  # by 40 minutes
    assert unbiased == pytest.approx(0.2, abs=1e-3)  # FNW's
    main = torch.sigmoid(method.main_logit(events.x[:1])).item()
    assert main == pytest.approx(0.2 / 1.12, abs=1e-4)  # vanilla_dup's
    assert torch.sigmoid(method.log_odds(events.x[:1])).item() == pytest.approx(main)


def test_a_conversion_that_came_with_the_click_has_a_negative_copy_too() -> None:
    """FNW's stream: else a cell that converts at once would go to 1, not to its rate."""
    at_once = KnownLaw(conversions=((0, 200),))
    engine, method = dfsn()
    method.nets["main"] = Constant([0.0, 0.0, 0.0])
    events = at_once.events(engine)
    assert events.converted[events.trigger == 0].any()
    descend(engine, events, steps=1500)
    assert torch.sigmoid(method.call("main", events.x[:1]))[0, 2].item() == pytest.approx(0.2, abs=1e-3)


@pytest.mark.parametrize(("main", "feature", "expected"), [(-1.0, 0.5, 0.5), (1.0, 0.5, 2.0)])
def test_the_greater_rate_is_served(main: float, feature: float, expected: float) -> None:
    _, method = dfsn()
    method.nets["main"] = Constant([main, feature, 1.0])
    assert method.log_odds(torch.zeros(1, 1)).item() == expected


def test_the_main_model_without_satellites_trains_as_vanilla_dup() -> None:
    window = 6 * HOUR
    ours, source = warmed("dfsn", window=window)
    theirs, _ = warmed("vanilla_dup", window=window, backbone="wide_deep")
    for engine in (ours, theirs):
        engine.method.nets.double()  # the two forms round differently, which Adam magnifies
        engine._optimisers = engine._stream_optimisers()
    net = ours.method.nets["main"]
    assert isinstance(net, SatelliteNet)
    assert isinstance(ours.method, DFSN)
    net.main.load_state_dict(theirs.method.nets["main"].state_dict())
    with torch.no_grad():
        for weight in (*net.feature.parameters(), *net.unbiased.parameters()):
            weight.zero_()
        net.mixing.copy_(torch.tensor([1.0, 0.0, 0.0])[:, None])
    for part in (net.feature, net.unbiased):
        part.requires_grad_(False)
    net.mixing.requires_grad_(False)
    events = theirs_events = source.reveals(theirs.schedule, 4 * DAY, 6 * DAY)
    assert (events.trigger == 1).any()
    # The same copies by the names that they have in DFSN's schedule.
    events = replace(theirs_events, trigger=torch.where(theirs_events.trigger == 0, 3, 1))
    for engine in (ours, theirs):
        engine.method.nets["main"].train()
    for index in torch.arange(len(events)).split(256)[:6]:
        ours._learn(events.take(index), 0)
        theirs._learn(theirs_events.take(index), 0)
    for engine in (ours, theirs):
        engine.method.nets["main"].eval()
    x = source.clicks(5 * DAY, 6 * DAY).x
    torch.testing.assert_close(ours.method.main_logit(x), theirs.method.logit(x), rtol=1e-4, atol=1e-5)
    assert not torch.equal(theirs.method.logit(x), warmed("vanilla_dup", window=window)[0].method.logit(x))


def test_no_model_trains_another() -> None:
    engine, source = warmed("dfsn")
    method, net = engine.method, engine.method.nets["main"]
    assert isinstance(method, DFSN)
    engine.tick(source, 3 * DAY, 4 * DAY)
    assert net.mixing.detach()[1:].abs().min() > 0  # type: ignore[operator]
    b = source.reveals(engine.schedule, 4 * DAY, 5 * DAY)
    assert reaches(method.main_logit(b.x).sum(), net) == {"main", "mixing"}
    only = [b.take(torch.nonzero(b.trigger == trigger)[:, 0]) for trigger in range(4)]
    assert reaches(method.loss(only[0]), net) == {"unbiased"}
    assert reaches(method.loss(only[2]), net) == {"feature"}
    assert reaches(method.loss(only[3]), net) == {"main", "mixing"}
    late = only[1].elapsed > method.spans[1]
    assert late.any()
    assert reaches(method.loss(only[1].take(torch.nonzero(late)[:, 0])), net) == {"main", "mixing", "unbiased"}
    assert reaches(method.loss(only[1].take(torch.nonzero(~late)[:, 0])), net) == {"unbiased"}


def test_embeddings_are_mixed_feature_by_feature() -> None:
    features = (Feature("a", 3, "t"), Feature("b", 4, "c", one_hot=True), Feature("c", 2, "d"))
    schema = replace(small_log().schema, features=features)
    net = Subject("dfsn").engine(schema, embedding_dim=5).method.nets["main"]
    assert isinstance(net, SatelliteNet)
    x = torch.tensor([[2, 3, 1], [0, 1, 0]], dtype=torch.int32)
    own, feature, unbiased = (part.embedding(x) for part in (net.main, net.feature, net.unbiased))
    assert torch.equal(net._join(own, feature, unbiased), own)  # at first, the main model's alone
    with torch.no_grad():
        net.mixing.copy_(torch.tensor([[1.0, 0.5], [2.0, 0.0], [0.0, -3.0]]))
    joined = net._join(own, feature, unbiased)
    torch.testing.assert_close(joined[:, :5], own[:, :5] + 2 * feature[:, :5])
    torch.testing.assert_close(joined[:, 5:10], 0.5 * own[:, 5:10] - 3 * unbiased[:, 5:10])
    assert torch.equal(joined[:, 10:], own[:, 10:])


def test_dfsn_loss_equals_a_plain_form() -> None:
    engine, source = warmed("dfsn")
    method = engine.method
    b = source.reveals(engine.schedule, 4 * DAY, 5 * DAY)
    assert len(b) > 500
    with torch.no_grad():
        o = method.call("main", b.x).numpy().astype(float)
    main, feature, unbiased = (1 / (1 + np.exp(-v)) for v in (o[:, 0] + o[:, 2], o[:, 1], o[:, 2]))
    parts: tuple[list[float], ...] = ([], [], [])
    for i in range(len(b)):
        trigger, y, u = int(b.trigger[i]), bool(b.converted[i]), unbiased[i]
        if trigger == 0:
            parts[2].append(-(1 - u) * (1 + u) * np.log(1 - u))
        if trigger == 1:
            parts[2].append(-(1 + u) * np.log(u))
        if trigger == 2:
            parts[1].append(-np.log(feature[i] if y else 1 - feature[i]))
        if trigger == 3 or (trigger == 1 and b.elapsed[i] > 7 * DAY * 2 / 30):
            parts[0].append(-np.log(main[i] if y else 1 - main[i]))
    assert method.loss(b).item() == pytest.approx(sum(np.mean(part) for part in parts), rel=1e-4)


def test_windows_of_satellites() -> None:
    assert spans_on("dfsn", Criteo, 30 * DAY) == (HOUR, 7 * DAY)
    assert spans_on("dfsn", Taobao, 3 * DAY) == (2 * HOUR, DAY)
    assert spans_on("dfsn", Synthetic, 6 * HOUR) == (MINUTE, 5040)
    assert spans_on("dfsn", Criteo, 30 * DAY, window=5 * DAY) == (HOUR, 5 * DAY)
    resolved_options = dfsn()[1].resolve_options()
    assert (resolved_options["satellite_window"], resolved_options["window"]) == (40 * MINUTE, HOUR)
    for wrong in ({"window": 60}, {"window": 31 * DAY}, {"satellite_window": 7 * DAY}):
        with pytest.raises(UserError, match="satellite_window"):
            spans_on("dfsn", Criteo, 30 * DAY, **wrong)


@pytest.mark.parametrize("name", ["gdfm", "miss"])
def test_weights_that_history_gives_need_history(name: str) -> None:
    engine = Subject(name).engine(CELL.schema)
    with pytest.raises(UserError, match="warm_up first"):
        engine.method.loss(CELL.events(engine))


def test_a_backbone_without_an_embedding_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Method, "net", lambda *_: nn.Linear(1, 1))
    with pytest.raises(UserError, match=r"`embedding` and `top`; 'blend'"):
        Subject("dfsn").engine(small_log().schema)


def test_a_first_copy_is_negative_whatever_the_label_will_be() -> None:
    _, method = dfsn()
    method.nets["main"] = Constant([0.0, 0.0, 0.3])
    table = ClickTable(
        np.zeros((1, 1), np.int32),
        np.zeros(1, np.int64),
        np.zeros(1, np.int64),
        np.zeros((1, 1), np.int64),
        CELL.schema,
    )
    first = TableSource(table).reveals((After(0),), 0, 1)
    assert first.converted.all()
    rate = torch.sigmoid(torch.tensor(0.3))
    expected = (1 - rate**2) * cross_entropy(torch.tensor(0.3), torch.tensor(0.0))
    torch.testing.assert_close(method.loss(first), expected)
