"""Helpers: on a law that is known, each learns what it claims to estimate, and from the clicks that it should."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from knownlaw import D_MAX, HORIZONS, KINDS, SCHEMA, SIZE, WINDOW, Tabular, delays_of, minimise, source_of
from tracecvr.authoring.method import Method
from tracecvr.base import registry
from tracecvr.base.config import DAY, HOUR
from tracecvr.checks.subject import small_log
from tracecvr.data.table import NEVER
from tracecvr.families.counterfactual_deadline import CounterfactualDeadline
from tracecvr.families.hazard_chain import output_count
from tracecvr.families.late_conversions import DelayAware
from tracecvr.families.trajectory import TrajectoryAware, TrajectoryNet, count_action_states, count_states
from tracecvr.learn.engine import Engine
from tracecvr.methods import telescoped
from tracecvr.methods.es_dfm import ESDFM
from tracecvr.methods.telescoped import Telescoped
from tracecvr.methods.vanilla import Vanilla
from tracecvr.plugins.completer import Completer, reliability
from tracecvr.stream.reveal import After, LabelledReveals, Reveals
from tracecvr.stream.source import TableSource
from truth import Truth

Floats = npt.NDArray[np.float64]

END, DEADLINE = 4 * DAY, 3 * DAY
AGES = (0, HOUR, 3 * HOUR, DAY)
"""Ages of clicks at the deadline: on boundaries of the law, and between them."""

HERE = {"delay", "observed", "negative", "later", "trajectory", "completer"}
ELSEWHERE: set[str] = set()
"""Helpers whose calibration is tested in this file, and in others."""


@cache
def helpers() -> dict[str, tuple[str, ...]]:
    """The names of the helpers of every method that is found."""
    return {name: tuple(Engine(kind(hidden=(4,)), SCHEMA).method.helpers()) for name, kind in _methods().items()}


def _methods() -> dict[str, type]:
    return {
        name: kind for name, kind in registry.available("method").items() if kind.__module__.startswith("tracecvr.")
    }


def methods_with(helper: str) -> list[str]:
    return [name for name, names in helpers().items() if helper in names]


def method_of(name: str, **options: Any) -> Method:
    """A method with nets but without an engine, so that nothing that it computes is remembered."""
    method: Method = registry.get("method", name)(hidden=(8,), **options)
    method.bind(SCHEMA, 0)
    return method


def history_of(source: TableSource, labels: str = "mature", rng: np.random.Generator | None = None) -> LabelledReveals:
    """All clicks before the end, as one batch."""
    history = source.history(END, labels)
    (b,) = history.batches(len(history), rng)
    return b


def one_of_each(age: int) -> Reveals:
    """A click of each kind at an age."""
    events = source_of([0]).reveals((After(age),), 0, END)
    return events.take(torch.arange(KINDS) * SIZE)


def rates(values: Tensor) -> list[float]:
    numbers: list[float] = values.detach().double().tolist()
    return numbers


def test_the_calibration_of_every_helper_is_tested() -> None:
    names = {helper for mine in helpers().values() for helper in mine}
    names |= {helper for kind in registry.available("plugin").values() for helper in _helpers_of_plugin(kind)}
    unknown = names - HERE - ELSEWHERE
    assert not unknown, f"test that {sorted(unknown)} learn what they claim, here or elsewhere, and list them above"
    assert {"es_dfm", "defer", "defuse", "ddfm", "tesla_cvr"} <= set(methods_with("delay"))


def _helpers_of_plugin(kind: type) -> set[str]:
    return set(Engine(_methods()["vanilla"](hidden=(4,)), SCHEMA, plugins=(kind(),)).plugins[0].helpers())


# pi_dp and rho.


@pytest.mark.parametrize("method", methods_with("delay"))
def test_delay_learns_pi_dp_of_all_clicks_and_rho_of_those_that_wait(method: str) -> None:
    part = method_of(method)
    assert isinstance(part, DelayAware)
    net = part.nets["delay"] = Tabular(2)
    b = history_of(source_of([0]))
    minimise(lambda: part.helper_loss("delay", b), net)
    late, never = part.estimates(one_of_each(WINDOW))
    # The first kind: 30 of 100 convert in time but after the window, 85 wait at its end, 55 never convert in time.
    assert rates(late) == pytest.approx([30 / 100, 20 / 100], abs=1e-3)
    assert rates(never) == pytest.approx([55 / 85, 70 / 90], abs=1e-3)


def test_delay_loss_is_the_sum_of_two_means() -> None:
    """A batch by hand: delays at the window's end, one second later, at d_max, too late, and none."""
    part = method_of("es_dfm")
    delay = np.array([0, WINDOW, WINDOW + 1, D_MAX, D_MAX + 1, NEVER])
    logits = np.random.default_rng(3).normal(size=(len(delay), 2))
    part.nets["delay"] = Rows(torch.from_numpy(logits))
    late = _cross_entropy(logits[:, 0], np.array([0, 0, 1, 1, 0, 0]))
    never = _cross_entropy(logits[:, 1], np.array([0, 0, 0, 0, 1, 1]))
    loss = part.helper_loss("delay", past(delay)).item()
    assert loss == pytest.approx(late.mean() + never[2:].mean(), rel=1e-6)


class Rows(nn.Module):
    """Returns given outputs, row by row, and records its inputs."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self.outputs = outputs
        self.asked: list[tuple[Tensor, ...]] = []

    def forward(self, *inputs: Tensor) -> Tensor:
        self.asked.append(inputs)
        return self.outputs[: len(inputs[0])]


def past(
    delay: npt.NDArray[np.int64], end: int = END, click_ts: npt.NDArray[np.int64] | None = None
) -> LabelledReveals:
    """Clicks of history with given delays of their conversion, in this order."""
    at = np.zeros(len(delay), np.int64) if click_ts is None else click_ts
    table = source_of([0]).table
    action_ts = np.full((len(delay), 2), NEVER)
    action_ts[:, 0] = np.where(delay == NEVER, NEVER, np.where(delay == NEVER, 0, delay) + at)
    columns = {"x": np.arange(len(delay), dtype=np.int32)[:, None], "click_ts": at, "click_id": np.arange(len(delay))}
    mine = TableSource(replace(table, **columns, action_ts=action_ts))  # type: ignore[arg-type]
    (b,) = mine.history(end, "mature").batches(len(delay), None)
    return b


def _cross_entropy(logit: Floats, label: npt.NDArray[Any]) -> Floats:
    return np.logaddexp(0, np.where(label, -logit, logit))


# FSIW's a1 and a0, ULC's b.


@pytest.mark.parametrize(
    ("method", "name"), [(m, n) for n in ("observed", "negative", "later") for m in methods_with(n)]
)
@pytest.mark.parametrize("as_of", ["deadline", "window"])
def test_helpers_with_a_deadline_learn_the_law_at_every_age(method: str, name: str, as_of: str) -> None:
    part = method_of(method, as_of=as_of)
    assert isinstance(part, CounterfactualDeadline)
    assert part.before_end == END - DEADLINE
    net = part.nets[name] = TabularLogit()
    b = history_of(source_of([*(DEADLINE - age for age in AGES[::-1]), DEADLINE + HOUR]))
    minimise(lambda: part.helper_loss(name, b), net)
    for age in AGES if as_of == "deadline" else (WINDOW,):
        expected = [_claim(name, kind, age) for kind in range(KINDS)]
        assert rates(part.estimate(name, one_of_each(age))) == pytest.approx(expected, abs=2e-3), age


class TabularLogit(Tabular):
    def __init__(self) -> None:
        super().__init__(1)

    def forward(self, x: Tensor, *beside: Tensor) -> Tensor:
        return super().forward(x, *beside)[:, 0]


def _claim(name: str, kind: int, age: int) -> float:
    delay, _ = delays_of(kind)
    converts, seen = delay <= D_MAX, delay <= age
    if name == "observed":
        return float(seen[converts].mean())
    return float(converts[~seen].mean() if name == "later" else (~converts)[~seen].mean())


def test_a1_a0_and_b_by_hand() -> None:
    """The first kind at an hour: 15 of 45 conversions are seen; of 85 clicks without one, 30 convert in time."""
    claims = [_claim(name, 0, HOUR) for name in ("observed", "negative", "later")]
    assert claims == pytest.approx([15 / 45, 55 / 85, 30 / 85])


# Age at the deadline, delay, and what is learnt of it at that age: seen by then, seen later, or (None) not asked.
EDGES: dict[str, list[tuple[int, int, str | None]]] = {
    "deadline": [
        (0, 0, "before"),
        (0, 1, "after"),
        (0, D_MAX, "after"),
        (HOUR, HOUR, "before"),
        (HOUR, HOUR + 1, "after"),
        (HOUR, D_MAX, "after"),
        (HOUR, D_MAX + 1, "never"),
        (D_MAX, D_MAX, "before"),
        (D_MAX, NEVER, "never"),
        (-1, 0, None),
        (-1, 10, None),
    ],
    "window": [
        (WINDOW, WINDOW, "before"),
        (WINDOW, WINDOW + 1, "after"),
        (WINDOW, D_MAX, "after"),
        (WINDOW, D_MAX + 1, "never"),
        (WINDOW + 7, WINDOW + 1, "after"),
        (WINDOW - 1, 0, None),
        (0, 10, None),
        (-1, 10, None),
    ],
}


@pytest.mark.parametrize("as_of", list(EDGES))
@pytest.mark.parametrize("name", ["observed", "negative", "later"])
def test_which_clicks_a_deadline_asks_about(name: str, as_of: str) -> None:
    method = "ulc" if name == "later" else "fsiw"
    part = method_of(method, as_of=as_of)
    assert isinstance(part, CounterfactualDeadline)
    edges = EDGES[as_of]
    click_ts = DEADLINE - np.array([age for age, _, _ in edges])
    order = np.argsort(click_ts, kind="stable")
    b = past(np.array([delay for _, delay, _ in edges])[order], click_ts=click_ts[order])
    age, before, after = part.known_and_later(b)
    for flag, what in ((before, "before"), (after, "after")):
        assert flag[age >= 0].tolist() == [edges[e][2] == what for e in order if edges[e][2] is not None]
    asked = {"observed": ("before", "after"), "negative": ("after", "never"), "later": ("after", "never")}[name]
    label = {"observed": "before", "negative": "never", "later": "after"}[name]
    chosen = [(i, edges[e]) for i, e in enumerate(order) if edges[e][2] in asked]
    logits = np.random.default_rng(5).normal(size=len(edges))
    net = part.nets[name] = Rows(torch.from_numpy(logits).float())
    loss = part.helper_loss(name, b).item()
    ((x, elapsed),) = net.asked
    assert x[:, 0].tolist() == [i for i, _ in chosen]
    assert elapsed.tolist() == [WINDOW if as_of == "window" else age for _, (age, _, _) in chosen]
    expected = _cross_entropy(logits[: len(chosen)], np.array([what == label for _, (_, _, what) in chosen]))
    assert loss == pytest.approx(expected.mean(), rel=1e-5)


def test_two_clicks_are_enough_to_learn_from_and_one_is_not() -> None:
    part = method_of("ulc", as_of="deadline")
    net = part.nets["later"] = nn.Module()
    net.weight = nn.Parameter(torch.ones(3))
    one = past(np.array([NEVER]), click_ts=np.array([DEADLINE]))
    loss = part.helper_loss("later", one)
    assert loss.item() == 0
    assert torch.autograd.grad(loss, net.weight)[0].tolist() == [0, 0, 0]
    rows = part.nets["later"] = Rows(torch.tensor([1.0, -2.0]))
    two = past(np.array([NEVER, 10]), click_ts=np.array([DEADLINE, DEADLINE]))
    expected = (np.log1p(np.exp(1)) + np.log1p(np.exp(2))) / 2
    assert part.helper_loss("later", two).item() == pytest.approx(expected)
    assert len(rows.asked) == 1


# psi, the estimator of trajectories.


class TabularTrajectory(TrajectoryNet):
    """Free logits for each kind and outcome."""

    def __init__(self, horizons: int, actions: int) -> None:
        super().__init__(nn.Identity(), 1, (), horizons, actions)
        self.table = nn.Parameter(torch.zeros(KINDS, 2, horizons, actions))
        del self.head

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        both = self.table[x[:, 0].long()]
        return both if y is None else both[torch.arange(len(x)), y]


@pytest.mark.parametrize("method", methods_with("trajectory"))
def test_trajectory_learns_the_states_given_kind_and_outcome(method: str) -> None:
    part = method_of(method)
    assert isinstance(part, TrajectoryAware)
    net = part.nets["trajectory"] = TabularTrajectory(len(HORIZONS), 2)
    b = history_of(source_of([0]))
    minimise(lambda: part.helper_loss("trajectory", b), net)
    psi = torch.sigmoid(part.call("trajectory", one_of_each(0).x)).detach().numpy()  # (kinds, 2, H, K)
    for kind in range(KINDS):
        actions = delays_of(kind)
        converts = actions[0] <= D_MAX
        for y, mine in ((0, ~converts), (1, converts)):
            exact = [[(delay[mine] <= end).mean() for delay in actions] for end in HORIZONS]
            assert psi[kind, y] == pytest.approx(np.array(exact), abs=2e-3), (kind, y)


def cut_off() -> LabelledReveals:
    """History as known at its end, of which many windows are still hidden."""
    source = source_of([END - age for age in (2 * DAY, DAY, 7 * HOUR, 6 * HOUR + 1, HOUR + 1, HOUR)])
    b = history_of(source, "censored", np.random.default_rng(2))
    visible = b.trajectory(HORIZONS)[1]
    assert set(visible.sum(1).tolist()) == {0, 1, 2, 3}
    return b


def test_trajectory_loss_counts_windows_that_have_ended() -> None:
    part, b = method_of("trace"), cut_off()
    net = part.nets["trajectory"].eval()
    assert isinstance(net, TrajectoryNet)
    with torch.no_grad():
        logits = net(b.x, b.truth.long()).double().numpy()
        loss = part.helper_loss("trajectory", b).item()
    total = count = 0.0
    for i, (age, elapsed) in enumerate(zip(b.age.tolist(), b.elapsed.tolist(), strict=True)):
        for h, end in enumerate(HORIZONS):
            if end <= elapsed:
                happened = np.array([delay <= end for delay in age])
                total += _cross_entropy(logits[i, h], happened).sum()
                count += len(happened)
    assert loss == pytest.approx(total / count, rel=1e-5)


@pytest.mark.parametrize("actions", [1, 2, 3])
def test_each_joint_state_has_its_own_cell(actions: int) -> None:
    """Every set of actions that have happened by a horizon has a cell of its own; hidden windows are in none."""
    rng, ends = np.random.default_rng(1), (10, 20)
    age = torch.from_numpy(rng.choice([5, 10, 15, 20, 25, NEVER], (300, 3)))
    elapsed = torch.from_numpy(rng.choice([9, 10, 19, 20, 100], 300))
    truth = torch.from_numpy(rng.integers(0, 2, 300)).float()
    b = replace(cut_off().take(torch.zeros(300).long()), age=age, elapsed=elapsed, truth=truth)
    joint: list[Counter[tuple[tuple[bool, ...], int]]] = [Counter(), Counter()]
    single: Counter[tuple[int, int, bool, int]] = Counter()
    for delays, by, y in zip(age.tolist(), elapsed.tolist(), truth.int().tolist(), strict=True):
        for h, end in enumerate(ends):
            if end <= by:
                state = tuple(delay <= end for delay in delays)
                joint[h][state[:actions], y] += 1
                single.update((h, k, happened, y) for k, happened in enumerate(state))
    cells = count_states(b, ends, actions)
    assert cells.shape == (2, 2**actions, 2)
    for h in range(2):
        for (state, y), count in joint[h].items():
            assert cells[h, sum(2**k for k, happened in enumerate(state) if happened), y] == count
        assert cells[h].sum() == joint[h].total()
    apart = count_action_states(b, ends)
    assert apart.sum() == single.total()
    assert all(apart[h, k, int(happened), y] == count for (h, k, happened, y), count in single.items())


# The law of the telescoped likelihood.


def test_the_law_of_open_trajectories_is_learnt_with_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """P(carts so far, no conversion yet | kind, outcome) after each look. With one action beside the conversion and
    three looks, hazards can express every such law."""
    part = method_of("telescoped", ages=HORIZONS)
    assert isinstance(part, Telescoped)
    net = part.nets["main"] = Tabular(1 + output_count(len(HORIZONS), 2))
    b = history_of(source_of([0]))
    part.observe(b)
    monkeypatch.setattr(telescoped, "_PULL", 1.0)  # a tabular net has no layers below its outputs
    minimise(lambda: part.warm_loss(b), net)
    no, still_open, _ = part.log_chain(b)
    psi = torch.stack([no, still_open], dim=1).detach().exp().numpy().reshape(KINDS, SIZE, 2, len(HORIZONS) + 1)
    for kind in range(KINDS):
        conversion, cart = delays_of(kind)
        converts = conversion <= D_MAX
        for row, (y, mine), h in product(range(SIZE), ((0, ~converts), (1, converts)), range(len(HORIZONS) + 1)):
            like = mine & (conversion > HORIZONS[h - 1]) if h else mine
            for end in HORIZONS[:h]:
                like = like & ((cart <= end) == (cart[row] <= end))
            assert psi[kind, row, y, h] == pytest.approx(like.sum() / mine.sum(), abs=3e-3), (kind, row, y, h)


# The completer.


def completer_of(method: str, gate: bool = True, **options: Any) -> tuple[Engine, Completer]:
    kind = registry.get("method", method)
    engine = Engine(kind(hidden=(8,), **options), SCHEMA, plugins=(Completer(hidden=(8,), gate=gate),))
    (plugin,) = engine.plugins
    assert isinstance(plugin, Completer)
    return engine, plugin


def prefixes(kind: int, length: int) -> Iterator[tuple[Tensor, float, int]]:
    """Each state of the first windows of a kind, its rate of conversion, and how many of 100 clicks have it."""
    actions = delays_of(kind)
    state = np.stack([[delay <= end for delay in actions] for end in HORIZONS]).transpose(2, 0, 1)  # (100, H, K)
    state[:, length:] = False
    for one in np.unique(state, axis=0):
        same = (state == one).all((1, 2))
        yield torch.from_numpy(one).float(), float((actions[0] <= D_MAX)[same].mean()), int(same.sum())


@pytest.mark.parametrize(("method", "shortest"), [("vanilla", 1), ("fnw", 0)])
def test_completer_learns_the_rate_given_the_first_windows(method: str, shortest: int) -> None:
    _, plugin = completer_of(method)
    net = plugin.nets["completer"] = TabularLogit()
    b = history_of(source_of([0], copies=200))

    def loss() -> Tensor:
        return plugin.helper_loss("completer", replace(b, rng=np.random.default_rng(7)))

    minimise(loss, net)
    asked = 0
    for kind, length in np.ndindex(KINDS, len(HORIZONS) + 1):
        for state, rate, clicks in prefixes(kind, length) if length >= shortest else ():
            visible = (torch.arange(len(HORIZONS)) < length).float()
            answer = plugin.call("completer", torch.tensor([[kind]]), state[None], visible[None])
            asked += 1
            # Lengths are drawn: about a quarter of 200 copies of so many clicks.
            assert rates(torch.sigmoid(answer)) == pytest.approx([rate], abs=3 * 0.5 / np.sqrt(50 * clicks)), state
    assert asked > 20
    assert len(net.known) == asked  # nothing else was asked in training: no other length, no state beyond it


@pytest.mark.parametrize(("method", "shortest"), [("vanilla", 1), ("fnw", 0)])
def test_completer_is_trained_on_trajectories_cut_at_a_random_length(method: str, shortest: int) -> None:
    _, plugin = completer_of(method)
    b = history_of(source_of([0], copies=20), rng=np.random.default_rng(4))
    logits = np.random.default_rng(3).normal(size=len(b))
    net = plugin.nets["completer"] = Rows(torch.from_numpy(logits).float())
    loss = plugin.helper_loss("completer", b).item()
    assert loss == pytest.approx(_cross_entropy(logits, b.truth.numpy() == 1).mean(), rel=1e-5)
    ((_, state, kept),) = net.asked
    length = kept.sum(1).long()
    share = torch.bincount(length, minlength=len(HORIZONS) + 1) / len(b)
    lengths = len(HORIZONS) + 1 - shortest
    assert share.tolist() == pytest.approx([0] * shortest + [1 / lengths] * lengths, abs=0.03)
    assert torch.equal(kept, (torch.arange(len(HORIZONS)) < length[:, None]).float())
    assert torch.equal(state, b.trajectory(HORIZONS)[0] * kept[:, :, None])
    assert (b.trajectory(HORIZONS)[0] != state).any()


def test_completer_is_trained_on_visible_windows_only() -> None:
    """Of history as known at its end, the last clicks are open: their later windows are hidden, not empty."""
    _, plugin = completer_of("vanilla")
    b = cut_off()
    net = plugin.nets["completer"] = Rows(torch.zeros(len(b)))
    plugin.helper_loss("completer", b)
    ((_, _, kept),) = net.asked
    visible = b.trajectory(HORIZONS)[1]
    assert (kept <= visible).all()
    assert (kept.sum(1) < visible.sum(1)).any()
    assert kept[visible.sum(1) == 1, 0].all()  # a trajectory of one window is never cut to none


@pytest.mark.parametrize(("window", "shortest"), [(HORIZONS[0] - 1, 0), (HORIZONS[0], 1), (HORIZONS[0] + 1, 1)])
def test_completer_learns_empty_trajectories_if_the_method_shows_them(window: int, shortest: int) -> None:
    _, plugin = completer_of("vanilla", window=window)
    assert plugin.shortest == shortest


@pytest.mark.parametrize("gate", [True, False])
def test_completer_pulls_with_the_mean_over_uncertain_clicks_weighted_by_the_gate(gate: bool) -> None:
    engine, plugin = completer_of("vanilla", gate=gate)
    for part in (engine.method, plugin):
        part.nets.eval()
    b = source_of([0]).reveals(tuple(After(age) for age in (0, HOUR, 7 * HOUR, DAY)), 0, END)
    state, visible = b.trajectory(HORIZONS)
    with torch.no_grad():
        posterior = engine.method.nets["main"](b.x)[:, 0]
        target = plugin.nets["completer"](b.x, state, visible)
        loss = plugin.loss(engine.method, b).item()
    weight = reliability(posterior, target, visible.mean(1)).double().numpy() if gate else np.ones(len(b))
    q, s = torch.sigmoid(target).double().numpy(), posterior.double().numpy()
    pull = q * np.logaddexp(0, -s) + (1 - q) * np.logaddexp(0, s)
    uncertain = ~b.converted.numpy() & (b.elapsed.numpy() < D_MAX)
    assert 0 < uncertain.sum() < len(b)
    assert loss == pytest.approx((weight * pull)[uncertain].sum() / weight[uncertain].sum(), rel=1e-5)
    assert gate == (np.ptp(weight) > 0.01)


# The same with real nets, trained by warm-up on the synthetic log; test_corrections.py does so for nets with an elapsed
# time, test_trace.py for trajectories. The two kinds above would be too few: their activations hardly differ, and the
# running statistics of batch normalisation then lag so far behind the weights that rates are off by .1.


def test_nets_of_pi_dp_and_rho_come_out_calibrated() -> None:
    """On the day after warm-up: on average, by segment (each has its own delay law) and click by click."""
    table = small_log(clicks=60_000)
    truth, wait = Truth(table), 6 * HOUR
    method = ESDFM(window=wait, hidden=(16, 8), batch_size=256, learning_rate=5e-3, warm_epochs=0, helper_epochs=3)
    engine = Engine(method, table.schema)
    engine.warm_up(TableSource(table).history(3 * DAY, "mature"))
    day = TableSource(table).known_at(4 * DAY - 1, 3 * DAY, 4 * DAY)
    row, segment = day.row.numpy(), np.asarray(table.truth["segment"])[day.row.numpy()]
    for learnt, exact in zip(method.estimates(day), (truth.delayed(wait), truth.real_negative(wait)), strict=True):
        mine, theirs = learnt.double().numpy(), exact[row]
        assert mine.mean() == pytest.approx(theirs.mean(), abs=0.03)
        by_segment = [np.array([v[segment == s].mean() for s in range(8)]) for v in (mine, theirs)]
        assert np.abs(by_segment[0] - by_segment[1]).mean() < 0.04
        assert np.corrcoef(mine, theirs)[0, 1] > 0.6


def test_nets_of_the_completer_come_out_calibrated() -> None:
    """Of open clicks of one age, as many convert as predicted, among high and among low predictions."""
    table = small_log(clicks=60_000)
    plugin = Completer(hidden=(16,), epochs=3)
    engine = Engine(
        Vanilla(hidden=(4,), batch_size=256, learning_rate=5e-3, warm_epochs=0), table.schema, plugins=(plugin,)
    )
    source = TableSource(table)
    engine.warm_up(source.history(3 * DAY, "mature"))
    for age in (HOUR, 6 * HOUR, DAY):
        events = source.reveals((After(age),), 3 * DAY + age, 4 * DAY + age)
        asked = events.take(torch.nonzero(events.open)[:, 0])
        predicted = torch.sigmoid(plugin.call("completer", asked.x, *asked.trajectory(plugin.ends))).double().numpy()
        label = table.label[asked.row.numpy()]
        assert predicted.mean() == pytest.approx(label.mean(), abs=0.03), age
        high = predicted > np.median(predicted)
        assert label[high].mean() - label[~high].mean() == pytest.approx(
            predicted[high].mean() - predicted[~high].mean(), abs=0.05
        )
