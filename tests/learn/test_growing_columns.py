"""A model whose columns grow: every net in step with the map, and the same bytes whichever way it came there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor

from grown import FORMS, OPTIONS, SMALL, Grown, key_of, log, warmed
from tracecvr.base import registry
from tracecvr.base.config import DAY
from tracecvr.base.errors import UserError
from tracecvr.checks.subject import Subject, plan_for
from tracecvr.data.table import Schema
from tracecvr.datasets.synthetic import DEVICES
from tracecvr.learn.engine import Engine
from tracecvr.learn.optimisers import REGRESSION
from tracecvr.learn.row_optimisers import START_OF_ROW
from tracecvr.nets.backbones import Embedding
from tracecvr.runs.replay import replay
from tracecvr.stream.source import TableSource


def tables(engine: Engine) -> Iterator[Tensor]:
    for part in engine._parts.values():
        for module in part.nets.modules():
            if isinstance(module, Embedding):
                yield module.grown_tables[0].weight


def test_a_column_is_two_features_of_62_bits_and_one_embedding() -> None:
    table, _ = log()
    names = [feature.name for feature in table.schema.features]
    assert names == ["segment", "item", "item (high bits)", "device"]
    assert Schema.from_json(json.loads(json.dumps(table.schema.to_json()))) == table.schema
    raw = pl.DataFrame({"segment": [0, 0], "device": [0, 0], "item": ["a", "b"]})
    x = log()[1].encode(raw)
    assert (x[:, 1:3] >= 0).all()
    assert len(np.unique(x[:, 1:3], axis=0)) == 2
    embedding = Embedding(table.schema, 4)
    assert embedding(torch.from_numpy(x)).shape == (2, embedding.width) == (2, 2 * 4 + DEVICES)


def test_admission_changes_no_score_and_learning_is_apart_from_then_on() -> None:
    engine, source = warmed("es_dfm")
    table, plan = log()[0], plan_for(log()[0])
    growing, x = engine.growing.maps["item"], torch.from_numpy(np.array(table.x))
    start, end = plan.bounds(0)
    clicks = source.clicks(start, end)
    before, rows = engine.score(clicks.x), growing.rows(key_of(clicks.x))
    engine._grow(source, start, end)
    fresh = (rows == 0) & (growing.rows(key_of(clicks.x)) > 0)
    assert fresh.any()
    assert np.array_equal(engine.score(clicks.x), before)
    for weight in tables(engine):
        assert len(weight) == growing.capacity
        assert torch.equal(weight[growing.rows(key_of(clicks.x[fresh]))], weight[:1].expand(int(fresh.sum()), -1))
    engine.tick(source, start, end)
    assert not np.array_equal(engine.score(x), before)


def test_rows_that_are_given_back_start_anew_in_optimisers_and_average() -> None:
    engine, source = warmed()
    growing, plan, passed = engine.growing.maps["item"], plan_for(log()[0]), 0
    for number in range(len(plan)):
        start, end = plan.bounds(number)
        owners = dict(zip(growing.row.tolist(), growing.key.tolist(), strict=True))
        engine._grow(source, start, end)
        rows = [r for r, k in zip(growing.row.tolist(), growing.key.tolist(), strict=True) if r and owners.get(r) != k]
        passed += sum(row in owners for row in rows)
        table = next(tables(engine))
        state = engine._optimisers["lazy_adam"].state.get(table, {})
        for name in ("exp_avg", "exp_avg_sq") if state else ():
            assert not state[name][rows].any()
        if state:
            assert state["last"][rows].tolist() == [int(state["step"])] * len(rows)
        squares = [kept["squares"] for kept in engine._optimisers[REGRESSION].state.values()]
        grown = [each for each in squares if len(each) == growing.capacity]
        assert grown or not squares
        assert all((each[rows] == START_OF_ROW["squares"]).all() for each in grown)
        assert engine._average is not None
        averaged = next(m for m in engine._average.net.modules() if isinstance(m, Embedding)).grown_tables[0]
        torch.testing.assert_close(averaged.of(torch.tensor(rows).long()), averaged.of(torch.zeros(len(rows)).long()))
        engine.tick(source, start, end)
    assert passed > 20


@pytest.mark.parametrize(("method", "form", "lag"), [("vanilla", form, 0) for form in FORMS] + [("es_dfm", "lazy", 2)])
def test_a_restored_engine_goes_on_to_the_same_bytes(method: str, form: str, lag: int, tmp_path: Path) -> None:
    engine, source = warmed(method, form, lag)
    plan, scores = replace(plan_for(log()[0]), publish_lag=lag), []
    for done in replay(engine, source, plan):
        scores.append(done.log_odds)
        if done.number in (2, 7):
            engine.snapshot(tmp_path / f"{done.number}.safetensors")
    for first in (2, 7):
        method_again = registry.get("method", method)(**SMALL)
        again = Engine(method_again, log()[0].schema, 1, publish_lag=lag, stream=FORMS[form])
        again.restore(tmp_path / f"{first}.safetensors")
        rest = [done.log_odds for done in replay(again, source, plan, first + 1)]
        assert np.array_equal(np.concatenate(rest), np.concatenate(scores[first + 1 :]))
        assert again.fingerprint() == engine.fingerprint()


def test_answers_about_clicks_are_the_same_after_a_restart() -> None:
    """Rows of frozen nets are given to other values, and answers stay as they were."""
    engine, source = warmed("trace")
    plan = plan_for(log()[0])
    for number in range(6):
        engine.tick(source, *plan.bounds(number))
    rows = engine.growing.maps["item"].row.clone()
    again = Engine(registry.get("method", "trace")(**SMALL), log()[0].schema, 1, stream=FORMS["lazy"])
    again.load_state({name: value.clone() for name, value in engine.state().items()})
    for one in (again, engine):
        one.tick(source, *plan.bounds(6))
    assert again.growing.maps["item"].row.tolist() != rows.tolist()
    assert again.fingerprint() == engine.fingerprint()


def test_a_tick_that_is_undone_gives_rows_back() -> None:
    engine, source = warmed()
    plan = plan_for(log()[0])
    before, fingerprint = {k: v.clone() for k, v in engine.state().items()}, engine.fingerprint()
    for number in range(5):
        engine.tick(source, *plan.bounds(number))
    assert engine.fingerprint() != fingerprint
    engine.load_state(before)
    assert engine.fingerprint() == fingerprint


def test_no_information_from_the_future_reaches_the_map() -> None:
    """Other items after a moment: all scores up to it are the same."""
    table = log()[0]
    plan = plan_for(table)
    moment = plan.bounds(4)[0]
    x = np.array(table.x)
    x[table.click_ts >= moment, 1] ^= 1
    scores = []
    for one in (table, replace(table, x=x)):
        engine, source = Engine(registry.get("method", "vanilla")(**SMALL), table.schema, 1), TableSource(one)
        engine.warm_up(source.history(table.schema.split, "censored"))
        scores.append([done.log_odds for done in replay(engine, source, plan)][:4])
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(*scores, strict=True))


@pytest.mark.parametrize("backbone", ["deepfm", "dcn_v2"])
def test_every_backbone_takes_growing_columns(backbone: str) -> None:
    engine = Engine(
        registry.get("method", "vanilla")(**SMALL, backbone=backbone), log()[0].schema, stream=FORMS["lazy"]
    )
    source, plan = TableSource(log()[0]), plan_for(log()[0])
    engine.warm_up(source.history(plan.split, "censored"))
    engine.tick(source, *plan.bounds(0))
    assert np.isfinite(engine.score(source.clicks(*plan.bounds(1)).x)).all()


def test_a_value_may_not_be_forgotten_while_its_clicks_are_asked_about() -> None:
    class Hasty(Grown):
        forget = DAY

    schema = Hasty(**OPTIONS).prepare(None)[0].schema
    with pytest.raises(UserError, match=r"column 'item': forget = 1d is too short.*give 30h or more"):
        Subject("vanilla").engine(schema)
