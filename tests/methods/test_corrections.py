"""FNW, FNC, FSIW and ULC: labels taken early, corrected; and helpers that learn from a deadline in the past."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from simulated import CELL, engine_of, rate_after_sgd
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.errors import UserError
from tracecvr.checks.loss import gradient, root
from tracecvr.checks.stream import scramble
from tracecvr.checks.subject import Exact, KnownLaw, Subject, plan_for, small_log
from tracecvr.data.table import NEVER, ClickTable
from tracecvr.families.counterfactual_deadline import CounterfactualDeadline
from tracecvr.learn.engine import Engine
from tracecvr.methods.fnw import FNW
from tracecvr.methods.ulc import ULC
from tracecvr.runs.replay import replay
from tracecvr.stream.reveal import After, On, Reveals, Schedule
from tracecvr.stream.source import History, TableSource
from truth import Truth

METHODS = ("fnw", "fnc", "fsiw", "ulc")
TABLE = small_log()
PLAN = plan_for(TABLE)


def hindsight_of(engine: Engine) -> CounterfactualDeadline:
    assert isinstance(engine.method, CounterfactualDeadline)
    return engine.method


def with_exact_helpers(method: FNW | ULC, cell: KnownLaw = CELL) -> Engine:
    """An engine for a method that is in no registry."""
    engine, exact = Engine(method, cell.schema), engine_of("ulc", cell=cell)
    method.nets["main"] = exact.method.nets["main"]
    for name in method.helpers():
        method.nets[name] = exact.method.nets[name]
    return engine


# Fixed points beyond the golden table.


def test_fnc_learns_p_over_one_plus_p_and_serves_p() -> None:
    engine = engine_of("fnc")
    assert root(engine, CELL.events(engine)) == pytest.approx(0.2, abs=2e-4)
    assert torch.sigmoid(engine.method.logit(torch.zeros(1, 1))).item() == pytest.approx(1 / 6, abs=2e-4)


def test_fnc_starts_the_stream_at_its_own_fixed_point() -> None:
    engine = engine_of("fnc")
    (history,) = CELL.source().history(1, "mature").batches(CELL.clicks, None)
    engine.method.loss = engine.method.warm_loss  # type: ignore[method-assign,assignment]
    assert root(engine, history) == pytest.approx(0.2, abs=2e-4)
    assert torch.sigmoid(engine.method.logit(torch.zeros(1, 1))).item() == pytest.approx(1 / 6, abs=2e-4)


@dataclass
class WithPositives(ULC):
    """Shows late conversions, too, as the other methods do: they count twice."""

    def schedule(self) -> Schedule:
        return (After(self.wait), On(0, later_than=self.wait))


def test_ulc_with_late_positives_counts_them_twice() -> None:
    engine = with_exact_helpers(WithPositives())
    assert root(engine, CELL.events(engine)) == pytest.approx(0.2857, abs=2e-4)
    assert rate_after_sgd(engine) == pytest.approx(0.2857, abs=0.005)


@dataclass
class ByLabel(FNW):
    """Takes what is known at the click for the label of its first copy."""

    def positive(self, b: Reveals) -> Tensor:
        return b.converted


def test_conversions_without_delay_have_a_negative_copy_too() -> None:
    cell = KnownLaw(conversions=((0, 80), (2 * HOUR, 120)))
    for method in ("fnw", "fnc"):
        engine = engine_of(method, cell=cell)
        assert len(cell.events(engine)) == 1200
        assert root(engine, cell.events(engine)) == pytest.approx(0.2, abs=2e-4)
    wrong = with_exact_helpers(ByLabel(), cell)
    assert root(wrong, cell.events(wrong)) > 0.25


EXPECTED: dict[str, Callable[[float], float]] = {
    "fnw": lambda f: (1 - f * f) * (f - 0.2),
    "fnc": lambda f: 1.2 * f - 0.2,
    "fsiw": lambda f: f - 0.2,
    "ulc": lambda f: f - 0.2,
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("logit", [-3.0, -1.0, 0.4, 2.0])
def test_expected_gradient_per_click(method: str, logit: float) -> None:
    engine = engine_of(method)
    events = CELL.events(engine)
    slope = gradient(engine, events, logit).item() * len(events) / CELL.clicks
    assert slope == pytest.approx(EXPECTED[method](1 / (1 + np.exp(-logit))), abs=1e-6)


@pytest.mark.parametrize("method", ["fsiw", "ulc"])
@pytest.mark.parametrize("window", [10 * 60, HOUR, 5 * HOUR, DAY])
def test_true_rate_at_several_elapsed_times(method: str, window: int) -> None:
    cell = KnownLaw(conversions=((300, 40), (HOUR // 2, 60), (4 * HOUR, 70), (20 * HOUR, 30)), window=window)
    engine = engine_of(method, cell=cell)
    assert root(engine, cell.events(engine)) == pytest.approx(0.2, abs=2e-4)


# Losses, against NumPy and at the edges.


@pytest.mark.parametrize("method", METHODS)
def test_loss_equals_a_plain_numpy_form(method: str) -> None:
    engine, source = Subject(method).engine(TABLE.schema), TableSource(TABLE)
    events = source.reveals(engine.schedule, 4 * DAY, 4 * DAY + 6 * HOUR)
    helpers = {
        name: _sigmoid(engine.method.nets[name].eval()(events.x, events.elapsed)) for name in engine.method.helpers()
    }
    f = _sigmoid(engine.method.logit(events.x))
    known = TABLE.action_ts[events.row.numpy(), 0] - TABLE.click_ts[events.row.numpy()] <= HOUR
    second = events.trigger.numpy() == 1
    total = 0.0
    for i in range(len(events)):
        positive, negative = -np.log(f[i]), -np.log(1 - f[i])
        if method == "fnw":
            total += (1 + f[i]) * positive if second[i] else (1 + f[i]) * (1 - f[i]) * negative
        elif method == "fnc":
            total += positive if second[i] else negative
        elif method == "fsiw":
            a1, a0 = helpers["observed"][i], helpers["negative"][i]
            total += positive / max(a1, 0.01) if known[i] else a0 * negative
        else:
            b = helpers["later"][i]
            total += positive if known[i] else b * positive + (1 - b) * negative
    assert engine.method.loss(events).item() == pytest.approx(total / len(events), rel=1e-4)


def _sigmoid(logits: Tensor) -> npt.NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-logits.detach().double().numpy())))


def test_fnc_serves_a_rate_below_one_for_any_logit() -> None:
    engine = engine_of("fnc")
    logits = torch.tensor([-40.0, -3.0, -0.5, 0.0, 40.0], requires_grad=True)
    engine.method.logit = lambda _: logits  # type: ignore[assignment,method-assign]
    served = engine.method.log_odds(torch.zeros(5, 1))
    q = _sigmoid(logits[1:3])
    assert torch.sigmoid(served[1:3]).tolist() == pytest.approx((q / (1 - q)).tolist(), rel=1e-5)
    assert served[0].item() == pytest.approx(-40)
    assert torch.sigmoid(served[3:]).tolist() == pytest.approx([1 - 4e-5] * 2, abs=1e-6)
    served.sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_fsiw_counts_positives_whose_weight_is_cut() -> None:
    engine = engine_of("fsiw")
    engine.method.nets["observed"] = Exact(0.004)
    events = CELL.events(engine)
    loss = engine.method.loss(events)
    assert engine.clipped == 80
    f = 0.5
    never = 0.8 / 0.92
    assert loss.item() == pytest.approx((80 * 100 + 920 * never) * -np.log(f) / 1000, rel=1e-5)


# What helpers learn from.


@pytest.mark.parametrize("labels", ["mature", "censored"])
@pytest.mark.parametrize("deadline", [HOUR, DAY, 2 * DAY])
@pytest.mark.parametrize("as_of", ["deadline", "window"])
def test_helpers_learn_from_what_was_known_then_and_a_deadline_later(labels: str, deadline: int, as_of: str) -> None:
    """Against a plain walk through the log. Conversions after the end of history count as none, whatever its labels."""
    end, action_ts = PLAN.split, TABLE.action_ts.copy()
    action_ts[:300:3, 0] = TABLE.click_ts[:300:3] + TABLE.schema.d_max + HOUR  # too late to count, though before T
    table = replace(TABLE, action_ts=action_ts)
    history = TableSource(table).history(end, labels)
    (b,) = history.batches(len(history), None)
    asked: dict[str, list[tuple[int, bool]]] = {"observed": [], "negative": [], "later": []}
    for click, action in zip(table.click_ts.tolist(), action_ts[:, 0].tolist(), strict=True):
        then = end - deadline if as_of == "deadline" else click + HOUR
        elapsed = then - click
        if elapsed < 0 or then + deadline > end:
            continue
        conversion = action if action - click <= TABLE.schema.d_max and action <= then + deadline else None
        if conversion is not None:
            asked["observed"].append((elapsed, conversion <= then))
        if conversion is None or conversion > then:
            asked["negative"].append((elapsed, conversion is None))
            asked["later"].append((elapsed, conversion is not None))
    for method, names in (("fsiw", ("observed", "negative")), ("ulc", ("later",))):
        engine = Subject(method).engine(TABLE.schema, deadline=deadline, as_of=as_of)
        for name in names:
            seen = Listening()
            engine.method.nets[name] = seen
            loss = engine.method.helper_loss(name, b)
            assert seen.elapsed == [elapsed for elapsed, _ in asked[name]]
            logits = np.array([elapsed / DAY - 1 for elapsed, _ in asked[name]])
            sign = np.array([1 if label else -1 for _, label in asked[name]])
            assert loss.item() == pytest.approx(np.log1p(np.exp(-sign * logits)).mean(), rel=1e-4)


class Listening(nn.Module):
    """Answers by elapsed time alone, and remembers it."""

    def __init__(self) -> None:
        super().__init__()
        self.elapsed: list[int] = []

    def forward(self, x: Tensor, elapsed: Tensor) -> Tensor:
        self.elapsed += elapsed.tolist()
        return elapsed / DAY - 1


def test_deadline_by_default() -> None:
    def before_end(d_max: int, split: int, deadline: int | None = None) -> int:
        method = ULC(deadline=deadline, hidden=(4,))
        method.bind(replace(TABLE.schema, d_max=d_max, split=split, horizons=(HOUR,)), 0)
        return method.before_end

    assert before_end(30 * DAY, 31 * DAY) == 7 * DAY
    assert before_end(3 * DAY, 2 * DAY) == round(1.4 * DAY)
    assert before_end(2 * DAY, 31 * DAY) == 2 * DAY
    assert before_end(30 * DAY, 31 * DAY, 20 * DAY) == 20 * DAY


@pytest.mark.parametrize(("method", "name"), [("fsiw", "observed"), ("fsiw", "negative"), ("ulc", "later")])
def test_a_batch_without_clicks_before_the_deadline_teaches_nothing(method: str, name: str) -> None:
    engine = Subject(method).engine(TABLE.schema)
    (b,) = TableSource(TABLE).history(HOUR, "censored").batches(1000, None)
    assert len(b) > 2
    loss = engine.method.helper_loss(name, b)
    loss.backward()
    assert loss.item() == 0
    assert all(w.grad is not None and not w.grad.any() for w in engine.method.nets[name].parameters())


@pytest.mark.parametrize("method", ["fsiw", "ulc"])
def test_a_log_too_short_for_helpers_runs_all_the_same(method: str) -> None:
    engine, source = Subject(method).engine(TABLE.schema), TableSource(TABLE)
    engine.warm_up(source.history(6 * HOUR, "censored"))
    for start in range(6 * HOUR, 2 * DAY, 6 * HOUR):
        assert engine.tick(source, start, start + 6 * HOUR) > 0
    assert np.isfinite(engine.score(source.clicks(0, DAY).x)).all()


def test_helpers_come_near_the_truth() -> None:
    """At ages of one and six hours, on the day after the warm-up part."""
    table = small_log(clicks=60_000)
    truth, source = Truth(table), TableSource(table)
    day = source.clicks(3 * DAY, 4 * DAY)
    for method, names in (("fsiw", ("observed", "negative")), ("ulc", ("later",))):
        engine = Subject(method).engine(table.schema, learning_rate=0.005, warm_epochs=0, as_of="deadline")
        engine.warm_up(source.history(3 * DAY, "mature"))
        for elapsed, name in ((e, n) for e in (HOUR, 6 * HOUR) for n in names):
            exact = {
                "observed": truth.converted_by(elapsed),
                "negative": truth.real_negative(elapsed),
                "later": 1 - truth.real_negative(elapsed),
            }[name][day.row]
            logits = engine.method.nets[name](day.x, torch.full((len(day),), elapsed))
            assert _sigmoid(logits).mean() == pytest.approx(exact.mean(), abs=0.1), (name, elapsed)


# The daily refresh of ULC's helper.


def weights(engine: Engine) -> bytes:
    return b"".join(v.numpy().tobytes() for v in engine.method.nets["later"].state_dict().values())


class Asked(TableSource):
    """Remembers which histories it was asked for."""

    def __init__(self, table: ClickTable) -> None:
        super().__init__(table)
        self.histories: list[tuple[int, int, str]] = []

    def history(self, end: int, labels: str, start: int = 0) -> History:
        self.histories.append((start, end, labels))
        return super().history(end, labels, start)


def test_b_is_refreshed_once_a_day_from_what_is_known_then() -> None:
    engine, source = Subject("ulc").warmed(TABLE, PLAN)
    source = Asked(TABLE)
    changed = []
    for number in range(len(PLAN)):
        before = weights(engine)
        start, end = PLAN.bounds(number)
        engine.tick(source, start, end)
        if weights(engine) != before:
            changed.append(start)
        assert not any(w.requires_grad or w.grad is not None for w in engine.method.nets["later"].parameters())
        assert not engine.method.nets["later"].training
    assert changed == [4 * DAY, 5 * DAY]  # not at day 3, where warm-up has just ended
    assert source.histories == [(DAY, 4 * DAY, "censored"), (2 * DAY, 5 * DAY, "censored")]


def test_intervals_that_do_not_divide_a_day_refresh_at_the_first_start_after_midnight() -> None:
    engine, _ = Subject("ulc").warmed(TABLE, PLAN)
    source, step = Asked(TABLE), 5 * HOUR
    for start in range(3 * DAY, 6 * DAY, step):
        engine.tick(source, start, start + step)
    starts = [end for _, end, _ in source.histories]
    assert starts == [3 * DAY + 5 * step, 3 * DAY + 10 * step]


def test_never_refreshed_if_so_wished() -> None:
    engine, _ = Subject("ulc").warmed(TABLE, PLAN, refresh=None)
    before, source = weights(engine), Asked(TABLE)
    for _ in replay(engine, source, PLAN):
        pass
    assert weights(engine) == before
    assert source.histories == []


def test_a_refresh_knows_nothing_of_the_future() -> None:
    """Everything from the middle of day 4 on is altered: that day's refresh, and all up to there, stay the same."""
    plan = replace(PLAN, until=4 * DAY + 12 * HOUR)
    states = []
    for table in (TABLE, scramble(TABLE, plan.until)):
        engine, source = Subject("ulc").warmed(table, plan)
        before = weights(engine)
        scores = b"".join(done.log_odds.tobytes() for done in replay(engine, source, plan))
        assert weights(engine) != before
        states.append((engine.fingerprint(), scores))
    assert states[0] == states[1]


def test_a_refresh_sees_late_conversions_that_warm_up_could_not() -> None:
    """Whether clicks of the warm-up part convert after the split changes the helper's net, if it is refreshed."""
    plan = replace(PLAN, warm_labels="censored")
    quiet = replace(TABLE, action_ts=np.where(TABLE.action_ts >= plan.split, NEVER, TABLE.action_ts))
    for refresh in (DAY, None):
        nets = []
        for table in (TABLE, quiet):
            engine, source = Subject("ulc").warmed(table, plan, refresh=refresh)
            for _ in replay(engine, source, plan):
                pass
            nets.append(torch.cat([weight.flatten() for weight in engine.method.nets["later"].parameters()]))
        assert torch.equal(*nets) == (refresh is None)


@pytest.mark.parametrize("stop", [3, 4, 5, 8])
def test_resumed_around_a_refresh_to_the_same_bytes(stop: int, tmp_path: Path) -> None:
    whole, source = Subject("ulc").warmed(TABLE, PLAN)
    for _ in replay(whole, source, PLAN):
        pass
    half, _ = Subject("ulc").warmed(TABLE, PLAN)
    for number in range(stop):
        half.tick(source, *PLAN.bounds(number))
    half.snapshot(tmp_path / "state.safetensors")
    restored = Subject("ulc").engine(TABLE.schema)
    restored.restore(tmp_path / "state.safetensors")
    for _ in replay(restored, source, PLAN, first=stop):
        pass
    assert restored.fingerprint() == whole.fingerprint()


def test_a_deadline_that_leaves_a_refresh_without_clicks_is_refused() -> None:
    with pytest.raises(UserError, match=r"deadline.*259200.*refresh=none"):
        Subject("ulc").engine(TABLE.schema, deadline=3 * DAY)
    assert hindsight_of(Subject("ulc").engine(TABLE.schema, deadline=3 * DAY, refresh=None)).before_end == 3 * DAY
