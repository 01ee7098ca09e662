"""The engine: what a tick does, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from tracecvr.base import registry
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.errors import UserError
from tracecvr.base.seeds import generator
from tracecvr.checks.subject import Subject, plan_for, small_log
from tracecvr.learn.engine import Engine
from tracecvr.methods.vanilla import Vanilla
from tracecvr.nets.backbones import MLP
from tracecvr.plugins.completer import Completer
from tracecvr.runs.replay import FullPlan, Plan, replay
from tracecvr.stream.reveal import Reveals
from tracecvr.stream.source import TableSource

TABLE = small_log()
PLAN = plan_for(TABLE)


def warmed(method: str = "vanilla", publish_lag: int = 0, **options: object) -> tuple[Engine, TableSource]:
    engine, source = Subject(method).engine(TABLE.schema, publish_lag, **options), TableSource(TABLE)
    engine.warm_up(source.history(PLAN.split, PLAN.warm_labels))
    return engine, source


def test_a_tick_is_adam_on_shuffled_batches() -> None:
    """One tick against the same steps written out with plain torch."""
    engine, source = warmed(passes=2, backbone="wide_deep")
    twin, _ = warmed(passes=2, backbone="wide_deep")
    start, end = PLAN.bounds(0)
    engine.tick(source, start, end)
    net = twin.method.nets["main"].train()
    adam = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-6, fused=True)
    events = source.reveals(twin.schedule, start, end)
    for turn in range(2):
        order = torch.from_numpy(generator(1, "tick", start, turn).permutation(len(events)))
        for index in order.split(256):
            logit, label = net(events.x[index])[:, 0], events.label[index]
            adam.zero_grad()
            binary_cross_entropy_with_logits(logit, label, reduction="none").mean().backward()
            adam.step()
    for name, value in engine.method.nets["main"].state_dict().items():
        assert torch.equal(value, net.state_dict()[name]), name
    assert engine.steps == 2 * -(-len(events) // 256)
    assert engine.reveals == len(events)


def test_warm_start_is_shared_by_all_methods() -> None:
    nets = [warmed(method)[0].method.nets["main"].state_dict() for method in ("pretrain", "vanilla", "oracle", "trace")]
    for net in nets[1:]:
        assert all(torch.equal(value, nets[0][name]) for name, value in net.items())


def test_a_batch_of_one_is_skipped_and_counted() -> None:
    engine, source = warmed()
    start = PLAN.split
    ends = (end for end in range(start, start + DAY) if len(source.reveals(engine.schedule, start, end)) == 1)
    end = next(ends)
    engine.tick(source, start, end)
    assert (engine.steps, engine.skipped) == (0, 1)


def test_publish_lag_scores_with_the_model_of_so_many_intervals_ago() -> None:
    current = _scores(*warmed(), PLAN)
    frozen = _scores(*warmed("pretrain"), PLAN)
    engine, source = warmed(publish_lag=2)
    lagged = _scores(engine, source, PLAN)
    assert all(np.array_equal(lagged[i], frozen[i]) for i in (0, 1, 2))
    engine, source = warmed()
    for number in range(5):
        start, end = PLAN.bounds(number)
        if number + 2 < len(PLAN):
            later = source.clicks(*PLAN.bounds(number + 2))
            assert np.array_equal(engine.score(later.x), lagged[number + 2])
        engine.tick(source, start, end)
    assert not np.array_equal(current[3], lagged[3])


def _scores(engine: Engine, source: TableSource, plan: FullPlan) -> list[npt.NDArray[np.float32]]:
    return [done.log_odds for done in replay(engine, source, plan)]


def test_a_lagged_run_resumes_to_the_same_bytes() -> None:
    whole, source = warmed(publish_lag=2)
    expected = _scores(whole, source, PLAN)
    half, _ = warmed(publish_lag=2)
    for number in range(4):
        half.tick(source, *PLAN.bounds(number))
    restored = Subject("vanilla").engine(TABLE.schema, publish_lag=2)
    restored.load_state(half.state())
    rest = [done.log_odds for done in replay(restored, source, PLAN, first=4)]
    assert all(np.array_equal(a, b) for a, b in zip(rest, expected[4:], strict=True))


def test_a_loss_that_is_not_finite_stops_the_run() -> None:
    engine, source = warmed()
    engine.method.loss = lambda _: torch.tensor(float("nan"), requires_grad=True)  # type: ignore[assignment]
    with pytest.raises(UserError, match="learning_rate"):
        engine.tick(source, PLAN.split, PLAN.split + DAY)


def test_plugins_observe_the_stream_too() -> None:
    class Counting(Completer):
        def observe(self, b: Reveals) -> None:
            self.counts["seen"] = self.counts.get("seen", torch.zeros(())) + len(b)

    engine = Engine(Vanilla(hidden=(8,), batch_size=256), TABLE.schema, plugins=(Counting(),))
    source = TableSource(TABLE)
    engine.warm_up(source.history(PLAN.split, PLAN.warm_labels))
    before = engine.plugins[0].counts["seen"].item()
    events = engine.tick(source, PLAN.split, PLAN.split + DAY)
    assert engine.plugins[0].counts["seen"].item() == before + events - engine.skipped


def test_posteriors_lag_as_scores_do() -> None:
    engine, source = warmed(publish_lag=2)
    engine.tick(source, *PLAN.bounds(0))
    fresh = source.known_at(4 * DAY, 3 * DAY, 4 * DAY)
    assert np.array_equal(engine.posterior(fresh), engine.score(fresh.x))


def test_the_options_in_force_are_known() -> None:
    engine, _ = warmed("trace")
    options = engine.resolve_options()
    assert options["method"]["horizons"] == list(TABLE.schema.horizons)
    assert options["completer"]["hidden"] == [128, 128]
    assert warmed("vanilla")[0].resolve_options()["method"]["window"] == HOUR


def test_the_completer_of_an_oracle_has_nothing_to_add() -> None:
    engine, source = Subject("oracle", "completer").warmed(TABLE, PLAN)
    events = source.reveals(engine.schedule, PLAN.split, PLAN.split + DAY, truth=True)
    assert engine.plugins[0].loss(engine.method, events) == 0


def test_windows_by_option_dataset_and_method() -> None:
    def wait(window: int | None, of_schema: int | None) -> int:
        method = Vanilla(window=window)
        method.bind(replace(TABLE.schema, window=of_schema), 0)
        return method.wait

    assert wait(None, None) == HOUR
    assert wait(None, 12 * HOUR) == 12 * HOUR
    assert wait(60, 12 * HOUR) == 60


def test_a_third_partys_backbone_is_used_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(MLP):
        name = "mine"

    plain = registry.available
    monkeypatch.setattr(registry, "available", lambda kind: {"mine": Mine} if kind == "backbone" else plain(kind))
    engine = Engine(Vanilla(backbone="mine", hidden=(4,)), TABLE.schema)
    assert isinstance(engine.method.nets["main"], Mine)


def test_scored_clicks_are_those_whose_label_is_final_before_labels_end() -> None:
    schema = replace(TABLE.schema, observed_until=4 * DAY + TABLE.schema.d_max)
    plan = Plan().resolve(replace(TABLE, schema=schema))
    assert plan.until == 4 * DAY + 1
    engine, source = warmed("pretrain")
    rows = np.concatenate([done.row for done in replay(engine, source, plan)])
    assert TABLE.click_ts[rows].max() <= 4 * DAY
    assert TABLE.click_ts[rows].min() >= PLAN.split


@pytest.mark.parametrize("plan", [Plan(split=DAY), Plan(until=2 * DAY), Plan(split=10 * DAY)])
def test_plans_without_a_stream_are_refused(plan: Plan) -> None:
    with pytest.raises(UserError, match="split"):
        plan.resolve(TABLE)
