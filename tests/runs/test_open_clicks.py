"""Clicks that are still open: who is asked about, with which model, and what is made of the answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from test_run import same_bytes, spec
from tracecvr.base import metrics
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.errors import UserError
from tracecvr.checks.stream import scramble
from tracecvr.checks.subject import Subject, plan_for, small_log
from tracecvr.data.table import NEVER, ClickTable
from tracecvr.methods.trace import Trace
from tracecvr.runs.open_clicks import OpenClicks, survives
from tracecvr.runs.replay import Plan, replay
from tracecvr.runs.run import run
from tracecvr.stream.reveal import LabelledReveals
from tracecvr.stream.source import TableSource

TABLE = small_log()
SPLIT, STEP = TABLE.schema.split, TABLE.schema.interval


@pytest.mark.parametrize("interval", [0, 2, 6])
def test_it_is_clicks_of_the_stream_that_have_not_converted_by_an_age(interval: int) -> None:
    asked = OpenClicks(TableSource(TABLE), SPLIT, STEP, every=2)
    assert asked.ages == TABLE.schema.horizons[:-1]
    assert len(asked.events(1)) == 0
    events = asked.events(interval)
    start, end, expected = SPLIT + interval * STEP, SPLIT + (interval + 1) * STEP, set()
    for row in range(len(TABLE)):
        click, purchase = int(TABLE.click_ts[row]), int(TABLE.action_ts[row, 0])
        for number, age in enumerate(asked.ages):
            if click >= SPLIT and start <= click + age < end and purchase > click + age:
                expected.add((row, number))
    assert set(zip(events.row.tolist(), events.trigger.tolist(), strict=True)) == expected
    assert len(events) == len(expected) > 100
    assert not events.converted.any()
    assert not isinstance(events, LabelledReveals)


def test_judging_changes_nothing_and_uses_the_model_before_it_learns() -> None:
    plan = replace(plan_for(TABLE), until=SPLIT + DAY)
    plain, source = Subject("trace").warmed(TABLE, plan)
    before = plain.fingerprint()
    asked = OpenClicks(source, SPLIT, STEP, 1)
    first = asked.judged(plain, 0)
    assert plain.fingerprint() == before
    judging, _ = Subject("trace").warmed(TABLE, plan)
    scored = list(replay(judging, source, replace(plan, posterior_every=1)))
    for _ in replay(plain, source, plan):
        pass
    assert judging.fingerprint() == plain.fingerprint()
    assert (scored[0].judged == first).all()
    events = asked.events(0)
    fresh, _ = Subject("trace").warmed(TABLE, plan)
    assert (first[:, 1] == fresh.score(events.x)).all()
    assert metrics.probability(first[:, 0]) == pytest.approx(fresh.posterior(events), abs=1e-6)
    assert (first[:, 0] != first[:, 1]).any()


def test_what_comes_later_changes_no_answer() -> None:
    """Of the answers of a day, all that were given before its end, with labels as known at the split."""
    until = SPLIT + DAY
    plan = replace(plan_for(TABLE), until=until, posterior_every=1)
    answers = []
    for table in (TABLE, scramble(TABLE, until)):
        engine, source = Subject("trace").warmed(table, plan)
        answers.append(np.concatenate([done.judged for done in replay(engine, source, plan)]))
    assert len(answers[0]) > 100
    assert (answers[0] == answers[1]).all()


def test_estimates_by_hand() -> None:
    asked, history = OpenClicks(TableSource(TABLE), SPLIT, STEP, 1), TableSource(TABLE).history(SPLIT, "mature")
    judged = np.concatenate([np.tile([[0.5, -1.0]], (len(asked.events(n)), 1)) for n in range(4)]).astype(np.float32)
    estimates, _ = asked.evaluate(judged, 4, history)
    events = [asked.events(n) for n in range(4)]
    for number, age in enumerate(asked.ages):
        rows = np.concatenate([e.row[e.trigger == number].numpy() for e in events])
        if not len(rows):
            continue
        label, p, s = TABLE.label[rows], 1 / (1 + np.e), _survival(age)
        later = p * s / (1 - p + p * s)
        for estimate, rate in (("posterior", 1 / (1 + np.exp(-0.5))), ("static", p), ("survival", later)):
            (row,) = estimates.filter((pl.col("age_s") == age) & (pl.col("estimate") == estimate)).to_dicts()
            assert (row["clicks"], row["conversions"]) == (len(rows), label.sum())
            assert row["nll"] == pytest.approx(-np.log(np.where(label, rate, 1 - rate)).mean())
            assert row["ece"] == pytest.approx(abs(label.mean() - rate))


def test_days_of_the_stream_make_up_the_whole() -> None:
    source, every = TableSource(TABLE), 3
    asked, history = OpenClicks(source, SPLIT, STEP, every), source.history(SPLIT, "mature")
    intervals = 4 * DAY // STEP
    events = [asked.events(n) for n in range(intervals)]
    judged = np.random.default_rng(0).normal(-1, 1, (sum(map(len, events)), 2)).astype(np.float32)
    whole, days = asked.evaluate(judged, intervals, history)
    assert days["start"].unique().sort().to_list() == [SPLIT + n * DAY for n in range(4)]
    for row in whole.to_dicts():
        mine = days.filter(age_s=row["age_s"], estimate=row["estimate"])
        assert mine[["clicks", "conversions"]].sum().row(0) == (row["clicks"], row["conversions"])
        assert np.average(mine["nll"], weights=mine["clicks"]) == pytest.approx(row["nll"])
    first = [n for n in range(intervals) if n * STEP < DAY]  # the first day on its own
    alone, _ = asked.evaluate(judged[: sum(len(events[n]) for n in first)], len(first), history)
    assert days.filter(start=SPLIT).drop("start").equals(alone)


def _survival(age: int) -> float:
    first = np.searchsorted(TABLE.click_ts, SPLIT)
    delay = (TABLE.action_ts[:first, 0] - TABLE.click_ts[:first])[TABLE.label[:first]]
    return float((delay > age).mean())


def test_survival_is_counted_on_mature_clicks_when_labels_are_censored() -> None:
    click_ts = np.array([0, 0, 0, DAY, DAY, DAY])
    delay = np.array([HOUR, 5 * HOUR, NEVER, HOUR, HOUR, NEVER])
    schema = replace(TABLE.schema, d_max=DAY, horizons=(HOUR, DAY), split=DAY + 2 * HOUR)
    action = np.full((6, 3), NEVER)
    action[:, 0] = np.where(delay == NEVER, NEVER, click_ts + np.where(delay == NEVER, 0, delay))
    table = ClickTable(np.zeros((6, 3), np.int32), click_ts, np.arange(6), action, schema)
    source = TableSource(table)
    assert survives(source.history(schema.split, "mature"), HOUR) == 1 / 4
    assert survives(source.history(schema.split, "censored"), HOUR) == 1 / 2
    assert survives(source.history(schema.split, "mature"), 10 * HOUR) == 0.5 / 4  # never 0


def test_a_run_writes_them_and_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    asked = spec(
        plan=Plan(posterior_every=2), method=Trace(hidden=(16, 8), batch_size=256, warm_epochs=1, warm_batch_size=256)
    )
    run(asked, tmp_path / "whole")

    def crash(stage: str, done: int, total: int) -> None:
        if stage == "stream" and done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(asked, tmp_path / "cut", progress=crash, checkpoint_every=0)
    run(asked, tmp_path / "cut", resume=True)
    same_bytes(tmp_path / "whole", tmp_path / "cut")
    for name in ("posterior.parquet", "posterior_days.parquet"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()
    estimates = pl.read_parquet(tmp_path / "whole" / "posterior.parquet")
    assert estimates["estimate"].unique().sort().to_list() == ["posterior", "static", "survival"]
    assert estimates["age_s"].unique().sort().to_list() == [HOUR, DAY]
    static, survival = (estimates.filter(pl.col("estimate") == e).sort("age_s") for e in ("static", "survival"))
    assert static["auc"].to_list() == pytest.approx(survival["auc"].to_list())  # one factor for all of an age


def test_clicks_before_judge_from_are_not_asked_about() -> None:
    """Not even those that are open later."""
    start, source = SPLIT + DAY, TableSource(TABLE)
    late, every = (Plan(posterior_every=1, judge_from=t).resolve(TABLE).open_clicks(source) for t in (start, None))
    assert late is not None
    assert every is not None
    for number in range(len(Plan().resolve(TABLE))):
        rows = every.events(number).row.numpy()
        assert late.events(number).row.tolist() == rows[TABLE.click_ts[rows] >= start].tolist()


def test_nothing_is_written_unless_asked_for(tmp_path: Path) -> None:
    run(spec(), tmp_path / "run")
    assert not (tmp_path / "run" / "posterior.parquet").exists()
    assert not (tmp_path / "run" / "posterior.f32").exists()


# Tuning: the end of the warm-up part as a stream.


def test_tuning_ends_where_the_stream_starts() -> None:
    plan = Plan(tuning=True).resolve(TABLE)
    first = int(TABLE.click_ts[0])
    assert (plan.split, plan.until) == (first + round(0.7 * (SPLIT - first)), SPLIT)
    assert Plan(tuning=True, split=2 * DAY, until=9 * DAY).resolve(TABLE).until == SPLIT
    for split in (SPLIT, SPLIT + DAY, first):
        with pytest.raises(UserError, match="leaves nothing to tune on"):
            Plan(tuning=True, split=split).resolve(TABLE)
    with pytest.raises(UserError, match="the encoder was fitted"):
        Plan(split=2 * DAY).resolve(TABLE)


def test_tuning_sees_nothing_of_the_stream() -> None:
    """With all that comes from the split on altered, a trial with censored labels scores the same clicks the same."""
    scores = []
    for table in (TABLE, scramble(TABLE, SPLIT)):
        plan = Plan(tuning=True, warm_labels="censored").resolve(table)
        engine, source = Subject("trace").warmed(table, plan)
        scores.append(np.concatenate([done.log_odds for done in replay(engine, source, plan)]))
    assert len(scores[0]) > 300
    assert (scores[0] == scores[1]).all()
