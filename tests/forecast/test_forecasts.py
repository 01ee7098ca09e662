"""Forecasts of final conversions: cells, estimators, intervals, and what a run can be asked afterwards."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import tracecvr as tc
from shop import START, shop
from tracecvr.base.config import DAY, HOUR
from tracecvr.base.errors import UserError
from tracecvr.base.metrics import nll
from tracecvr.checks.stream import scramble
from tracecvr.checks.subject import small_log
from tracecvr.cli.commands import app
from tracecvr.data.table import NEVER
from tracecvr.forecast.cells import RECORD, Cells, Outcomes, Tally, count, outcomes_of, records_of
from tracecvr.forecast.estimators import ESTIMATORS, estimate, known_share
from tracecvr.forecast.figures import METRICS, ScoredCells, ScoredTally, compare, intervals
from tracecvr.forecast.forecast import between, forecast

TABLE = small_log()
SEGMENT = np.asarray(TABLE.x[:, 0]).astype(np.int64)
SERVED = np.full(len(TABLE), -2.0, np.float32)
SMALL: dict[str, Any] = {"hidden": [8], "warm_epochs": 1, "threads": 1, "progress": False}


def simulated(days: int = 90, segments: int = 60, seed: int = 0, refunds: float = 0.0, later: int = 5) -> Cells:
    """Cells of a simulated log, as known so many days after the last."""
    return count(simulate(days, segments, seed, refunds), segments, (days + later) * DAY)


def drifting(seed: int, days: int = 90, segments: int = 28) -> Cells:
    """Cells whose rates move by a fifth a day, those of all segments together; the model is three days late."""
    rng, lags = np.random.default_rng(seed), 5
    level = np.zeros(days)
    for day in range(1, days):
        level[day] = 0.93 * level[day - 1] + rng.normal(0, 0.2)
    rates = rng.beta(4, 30, segments)[:, None]
    clicks = np.repeat(rng.gamma(1, 150, segments).round()[:, None] + 5, days, 1)
    share = 1 - np.exp(-np.arange(0.5, lags + 1) / 1.2)
    comes = np.diff(share / share[-1], prepend=0)
    came = rng.poisson((clicks * rates * np.exp(level))[..., None] * comes)
    late = np.concatenate([np.zeros(3), 0.8 * level[:-3]])
    arrays = (clicks, came.cumsum(2), clicks * rates * np.exp(late))
    n, known, predicted = (np.asarray(one, np.float32) for one in arrays)
    return Cells(days * DAY, n, known, n, predicted)


def hurrying(seed: int, days: int = 90, segments: int = 28) -> Cells:
    """Cells whose delays become shorter and shorter from day 45 on, and differ from day to day."""
    rng, lags = np.random.default_rng(seed), 5
    rates = rng.beta(4, 30, segments)[:, None, None]
    clicks = np.repeat(rng.gamma(1, 150, segments).round()[:, None] + 5, days, 1)
    delay = 3 * np.exp(-0.04 * np.maximum(np.arange(days) - 45, 0) + rng.normal(0, 0.1, days))
    share = 1 - np.exp(-np.arange(0.5, lags + 1) / delay[:, None])
    came = rng.poisson(clicks[..., None] * rates * np.diff(share / share[:, -1:], prepend=0))
    arrays = (clicks, came.cumsum(2), clicks * rates[..., 0])
    n, known, predicted = (np.asarray(one, np.float32) for one in arrays)
    return Cells(days * DAY, n, known, n, predicted)


def simulate(days: int, segments: int, seed: int = 0, refunds: float = 0.0) -> Outcomes:
    """Clicks whose delays are exponential and whose segments and days differ; the model knows the segments' rates."""
    d_max, rng = 5, np.random.default_rng(seed)
    rates = rng.beta(4, 30, segments)
    clicks = rng.poisson(rng.gamma(1, 150, segments)[:, None] + 5, (segments, days))
    rate = np.clip(rates[:, None] * rng.gamma(100, 0.01, (segments, days)), 0, 1).repeat(clicks.ravel())
    segment, day = (one.ravel().repeat(clicks.ravel()) for one in np.indices(clicks.shape))
    click = day * DAY + rng.integers(0, DAY, len(day))
    delay = rng.exponential(1.5 * DAY, len(day)).astype(np.int64)
    known = np.where((rng.random(len(day)) < rate) & (delay <= d_max * DAY), click + delay, NEVER)
    taken = (rng.random(len(day)) < refunds) & (known != NEVER) & (known + HOUR <= click + d_max * DAY)
    within = 1 - np.exp(-d_max / 1.5)
    p = (rates[segment] * within).astype(np.float32)
    refund = (np.where(taken, known + HOUR, NEVER),) if refunds else ()
    return Outcomes(segment, click, click, known, np.log(p / (1 - p)), d_max * DAY, refund)


def test_cells_count_what_was_known() -> None:
    at = int(TABLE.click_ts[-1]) - DAY // 3
    some = (np.arange(len(TABLE)) % 3 == 0) & (TABLE.action_ts[:, 0] != NEVER)
    refund = np.where(some, np.where(some, TABLE.action_ts[:, 0], 0) + HOUR, NEVER)
    regained = np.where(some & (np.arange(len(TABLE)) % 2 == 0), np.where(some, refund, 0) + HOUR, NEVER)
    table = replace(TABLE, refund_ts=np.stack([refund, regained, np.full_like(refund, NEVER)], axis=1))
    cells = count(outcomes_of(table, SEGMENT, SERVED), 8, at)
    assert cells.lags == 2
    for segment, day, age in ((0, 0, 0), (1, 2, 1), (5, cells.days - 1, 0), (7, 1, 2), (3, cells.days - 2, 1)):
        end = at - (cells.days - 1 - day) * DAY
        mine = (segment == SEGMENT) & (TABLE.click_ts >= end - DAY) & (TABLE.click_ts < end)
        clock, had = end + age * DAY, TABLE.action_ts[:, 0]
        known = (had < clock) & (had - TABLE.click_ts <= 2 * DAY)
        last = np.minimum(clock - 1, TABLE.click_ts + 2 * DAY)
        undone = (refund <= last) & (regained > last)
        assert cells.clicks[segment, day] == mine.sum() > 0
        assert cells.conversions[segment, day, age] == (mine & known & ~undone).sum()
    assert cells.takes_back
    assert not count(outcomes_of(TABLE, SEGMENT, SERVED), 8, at).takes_back


@pytest.mark.parametrize("at", [3 * DAY, 4 * DAY + 5 * HOUR])
def test_nothing_after_the_moment_counts(at: int) -> None:
    frames = [forecast(count(outcomes_of(t, SEGMENT, SERVED), 8, at), {}) for t in (TABLE, scramble(TABLE, at))]
    assert frames[0].equals(frames[1])
    assert len(frames[0])


def test_past_estimates_are_those_that_were_made_then() -> None:
    whole = count(outcomes_of(TABLE, SEGMENT, SERVED), 8, 6 * DAY)
    then = count(outcomes_of(TABLE, SEGMENT, SERVED), 8, 4 * DAY)
    day, age = np.array([3, 2]), np.array([0, 1])
    for name in ESTIMATORS:
        assert np.array_equal(estimate(whole, day, age).final[name], estimate(then, day, age).final[name])


def test_the_ladder_is_the_chain_ladder() -> None:
    cells = simulated(days=12, segments=1)
    c = cells.conversions[0]
    factors = [c[: 10 - k, k + 1].sum() / c[: 10 - k, k].sum() for k in range(cells.lags)]
    share = known_share(cells, np.array([11]))[0, 0]
    assert share == pytest.approx(1 / np.cumprod([1, *factors[::-1]])[::-1], rel=1e-5)


def test_the_ladder_agrees_with_chainladder() -> None:
    chainladder, pandas = pytest.importorskip("chainladder"), pytest.importorskip("pandas")
    cells, now = simulated(days=12, segments=1), 6
    rows = [
        (f"{2000 + day}-01-01", f"{2000 + day + age}-12-31", float(cells.conversions[0, day, age]))
        for day in range(now)
        for age in range(min(cells.lags, now - 1 - day) + 1)
    ]
    frame = pandas.DataFrame(rows, columns=["origin", "development", "known"])
    triangle = chainladder.Triangle(frame, origin="origin", development="development", columns="known", cumulative=True)
    theirs = chainladder.Chainladder().fit(triangle).ultimate_.to_frame().to_numpy().ravel()
    age = np.minimum(np.arange(now)[::-1], cells.lags)
    ours = cells.conversions[0, np.arange(now), age] / known_share(cells, np.array([now]))[0, 0, age]
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_what_is_known_of_segments_makes_forecasts_better() -> None:
    cells = simulated()
    day = np.arange(40, 80)
    found = estimate(cells, day, np.zeros_like(day))
    truth, off = cells.conversions[:, day, -1], {}
    for name in ESTIMATORS:
        off[name] = np.abs(found.final[name] - truth).sum() / truth.sum()
        if name != "so_far":
            assert found.final[name].sum() == pytest.approx(truth.sum(), rel=0.02)
    assert off["blend"] < off["bf"] < off["ladder"] < off["so_far"]
    assert off["blend"] < 1.02 * min(off.values())


def test_a_few_scored_clicks_do_not_speak_for_a_day() -> None:
    cells = simulated(later=0)
    scored, predicted = np.array(cells.scored), np.array(cells.predicted)
    scored[:, -1] = predicted[:, -1] = 0
    without = forecast(replace(cells, scored=np.array(scored), predicted=np.array(predicted)), {}, days=1)
    scored[:, -1], predicted[:, -1] = 1, 0.9
    few = cells.clicks[:, -1] > 2
    assert few.all()
    assert forecast(replace(cells, scored=scored, predicted=predicted), {}, days=1).equals(without)


def test_a_new_segment_is_forecast_by_the_model() -> None:
    cells = simulated()
    clicks, conversions = np.array(cells.clicks), np.array(cells.conversions)
    clicks[0, :-1] = conversions[0, :-1] = 0
    clicks[0, -1], conversions[0, -1] = 100, 0
    scored, predicted = np.where(clicks, cells.scored, 0), np.where(clicks, cells.predicted, 0)
    scored[0, -1], predicted[0, -1] = 100, 30
    frame = forecast(Cells(cells.at, clicks, conversions, scored, predicted), {}, days=1)
    (new,) = frame.filter(segment="0").iter_rows(named=True)
    share = known_share(cells, np.array([cells.days]))[:, 0, 0].mean()
    assert new["expected"] == pytest.approx(30 * (1 - share), rel=0.1)


@pytest.mark.parametrize("age", [0, 1, 3])
@pytest.mark.parametrize("level", [0.8, 0.9])
def test_intervals_hold_what_they_promise(age: int, level: float) -> None:
    cells = simulated(seed=1)
    day = np.arange(45, 85)
    ages = np.full_like(day, age)
    found = estimate(cells, day, ages)
    final = found.final["blend"].astype(float)
    low, high = between(cells, day, ages, found, level)
    truth = cells.conversions[:, day, -1]
    inside = (truth >= low - 1e-6) & (truth <= high + 1e-6)
    for large in (cells.clicks[:, day] >= 150, (cells.clicks[:, day] < 150) & (cells.clicks[:, day] >= 20)):
        assert level - 0.03 < inside[large].mean() < level + 0.05
    assert (low <= final).all()
    assert (final <= high).all()


@pytest.mark.parametrize("seed", [4, 5])
def test_intervals_hold_where_the_level_of_all_segments_moves(seed: int) -> None:
    cells, day = drifting(seed), np.arange(40, 80)
    made = estimate(cells, day, np.zeros_like(day))
    low, high = between(cells, day, np.zeros_like(day), made)
    truth, large = cells.conversions[:, day, -1], cells.clicks[:, day] >= 200
    inside = ((truth >= low - 1e-6) & (truth <= high + 1e-6))[large]
    assert 0.88 < inside.mean() < 0.97  # .88 and .84 if days counted as independent


@pytest.mark.parametrize("seed", [0, 1])
def test_intervals_become_wider_where_forecasts_keep_missing(seed: int) -> None:
    cells, day = hurrying(seed), np.arange(50, 85)
    made = estimate(cells, day, np.ones_like(day))
    low, high = between(cells, day, np.ones_like(day), made)
    truth, large = cells.conversions[:, day, -1], cells.clicks[:, day] >= 200
    inside = ((truth >= low - 1e-6) & (truth <= high + 1e-6))[large]
    assert inside.mean() > 0.86  # .77 and .83 with widths that do not adapt


def test_the_blend_follows_what_has_missed_less() -> None:
    cells, day = simulated(), np.arange(40, 80)
    blind = np.random.default_rng(0).gamma(2, 0.5, cells.predicted.shape)  # a model that knows nothing of a day
    made = estimate(replace(cells, predicted=(cells.predicted * blind).astype(np.float32)), day, np.zeros_like(day))
    truth = cells.conversions[:, day, -1]
    off = {name: np.abs(made.final[name] - truth).sum() for name in ("bf", "credibility", "blend")}
    assert off["bf"] < off["credibility"] / 2
    assert off["blend"] < 1.1 * off["bf"]  # twice, with the weight that is assumed at first


def test_refunds_lower_what_is_expected_and_the_lower_end() -> None:
    cells, open_days = simulated(refunds=0.4), forecast(simulated(refunds=0.4, later=0), {}, days=2)
    truth = cells.conversions[:, :, -1]
    assert cells.takes_back
    assert (open_days["low"] < open_days["conversions"]).any()
    day = np.arange(40, 80)
    found = estimate(cells, day, np.ones_like(day))
    assert found.final["blend"].sum() == pytest.approx(truth[:, day].sum(), rel=0.03)


def test_a_run_is_asked_by_feature_for_a_past_moment(tmp_path: Path) -> None:
    log = tc.dataset("synthetic", clicks=4000, days=12, split="6d", d_max="3d", horizons=["1h", "1d"])
    result = tc.replay(log, "vanilla", out=tmp_path / "run", **SMALL)
    frame = result.forecast(by="segment", at="8d")
    assert frame.columns[:8] == ["segment", "day", "age_days", "clicks", "conversions", "expected", "rate", "low"]
    assert set(frame["day"]) == {5 * DAY, 6 * DAY, 7 * DAY}
    table = log.prepared.table
    last = (table.click_ts >= 7 * DAY) & (table.click_ts < 8 * DAY)
    assert frame.filter(day=7 * DAY)["clicks"].sum() == last.sum()
    known = last & (table.action_ts[:, 0] < 8 * DAY)
    assert frame.filter(day=7 * DAY)["conversions"].sum() == known.sum()
    assert ((frame["low"] <= frame["expected"]) & (frame["expected"] <= frame["high"])).all()
    assert tc.load_result(tmp_path / "run").forecast(by="segment", at="8d").equals(frame)
    wide = result.forecast(by="segment", at="8d", level=0.99)
    assert (wide["high"] - wide["low"]).sum() > (frame["high"] - frame["low"]).sum()


def test_mistakes_are_told(tmp_path: Path) -> None:
    log = tc.dataset("synthetic", clicks=2000)
    result = tc.replay(log, "vanilla", **SMALL)
    for wrong, words in (
        ({"by": "segmnt"}, "segment"),
        ({"level": 90}, "between 0 and 1"),
        ({"at": "2026-01-01"}, "no calendar"),
        ({"at": 0}, "before the first click"),
    ):
        with pytest.raises(UserError, match=words):
            result.forecast(**wrong)
    with pytest.raises(UserError, match="no finished run"):
        tc.load_result(tmp_path)


def test_the_suite_judges_every_estimator(tmp_path: Path) -> None:
    options = ["--data-set", "clicks=6000", "--data-set", "days=20", "--set", "hidden=8", "--set", "warm_epochs=1"]
    asked = ["bench", "forecast", "--data", "synthetic", "--methods", "es_dfm", "--out", str(tmp_path / "b"), *options]
    ran = CliRunner().invoke(app, [*asked, "--workers", "1", "--by", "segment"])
    assert ran.exit_code == 0, ran.output
    found = pl.read_parquet(tmp_path / "b" / "forecast.parquet")
    assert set(found["estimator"]) == set(ESTIMATORS)
    assert found.filter(age_days=0, estimator="blend", size="20 to 199 clicks")["coverage"].is_between(0.7, 1).all()
    so_far = found.filter(estimator="so_far", size="20 to 199 clicks").sort("age_days")
    assert so_far["error"].is_sorted(descending=True)
    assert (so_far["error"] + so_far["bias"]).abs().max() < 1e-9  # type: ignore[operator]
    one_day = pl.read_parquet(tmp_path / "b" / "forecast_day.parquet")
    assert one_day["so_far"].is_sorted()
    assert one_day["blend"].is_between(one_day["low"] - 1e-6, one_day["high"] + 1e-6).all()
    table = (tmp_path / "b" / "table.md").read_text()
    assert "90% intervals of blend" in table
    assert all(f"| {name} |" in table for name in (*ESTIMATORS, "coverage of blend", "mean width, conversions"))
    report = (tmp_path / "b" / "report.html").read_text()
    assert f"conversions of one day ({one_day['final'][0]:.0f} in the end)" in report
    assert f"blend, 0: {one_day['blend'][0]:.1f}" in report


def test_a_tally_that_grows_by_intervals_is_the_count_of_the_log() -> None:
    late = np.where(np.arange(len(TABLE)) % 7 == 0, TABLE.click_ts + 30 * HOUR, TABLE.click_ts)
    refund = np.where(np.arange(len(TABLE)) % 3 == 0, TABLE.action_ts[:, 0], NEVER)
    table = replace(TABLE, late_arrival_ts=late, refund_ts=np.where(refund == NEVER, NEVER, refund + HOUR)[:, None])
    outcomes, tally = outcomes_of(table, SEGMENT, SERVED), Tally(table.schema.d_max)
    for end in range(6 * HOUR, 5 * DAY + 1, 6 * HOUR):
        records = records_of(outcomes, end - 6 * HOUR, end)
        tally.add(records["segment"], records)
        if end % DAY or end < 2 * DAY:
            continue
        live, log = tally.cells(end), count(outcomes, 8, end)
        known = np.arange(log.lags + 1) <= log.age[:, None]
        assert np.array_equal(live.clicks, log.clicks)
        assert live.predicted == pytest.approx(log.predicted, rel=1e-5)
        assert np.array_equal(np.where(known, live.conversions, 0), np.where(known, log.conversions, 0))


def test_a_tally_forgets_days_that_are_over() -> None:
    tally, record = Tally(2 * DAY), np.zeros(1, RECORD)
    record["age"], record["count"] = -1, 1
    for day in (5, 6, 300, 4):
        record["day"] = day
        tally.add(np.zeros(1, np.int64), record)
    assert tally.arrivals.shape == (1, 93, 3)
    assert tally.cells(301 * DAY).clicks.sum() == 1


def test_final_figures_are_those_of_the_scores() -> None:
    result = tc.replay(tc.dataset("synthetic", clicks=8000), "vanilla", **SMALL)
    frame = result.expected_figures("segment")
    label = result.scores.with_columns(day=pl.col("time") // DAY * DAY)
    assert set(frame["segment"]) > {"all"}
    whole = frame.filter(segment="all").drop_nulls()
    assert len(whole) >= 3
    for metric in METRICS:
        value, low, high = (whole[f"{metric}{end}"].to_numpy() for end in ("", "_low", "_high"))
        assert ((low <= value) & (value <= high)).all()
    for day, final in whole.select("day", "nll_final").iter_rows():
        mine = label.filter(day=day)
        exact = nll(mine["log_odds"].to_numpy().astype(np.float64), mine["label"].to_numpy()).mean()
        assert final == pytest.approx(exact, abs=0.006)  # scores are in bins, and a day has 300 clicks


def test_expected_figures_are_near_the_final_ones_and_intervals_hold_them() -> None:
    outcomes, at = simulate(70, 25), 75 * DAY
    tally = ScoredTally(outcomes.d_max, 25, 0)
    records = records_of(outcomes, 0, at)
    tally.count(records["segment"], records)
    frame = compare(ScoredCells(tally.cells(at)), ["all", *map(str, range(25))], np.arange(40, 70), 0, 0.9)
    for metric, near in (("nll", 0.012), ("pcoc", 0.06), ("auc", 0.02)):  # chance alone: about .007, .04 and .01
        ends = [f"{metric}{end}" for end in ("", "_low", "_high", "_final")]
        value, low, high, final = frame.filter(segment="all").select(ends).to_numpy().T
        assert np.abs(value - final).mean() < near
        value, low, high, final = frame.filter(pl.col("clicks") >= 50).drop_nulls().select(ends).to_numpy().T
        if metric != "auc":  # a segment has one score here
            assert 0.85 < ((low <= final) & (final <= high)).mean() < 0.96


def test_expected_figures_do_not_see_the_future() -> None:
    at = 4 * DAY
    frames = []
    for table in (TABLE, scramble(TABLE, at)):
        tally = ScoredTally(table.schema.d_max, 8, 0)
        records = records_of(outcomes_of(table, SEGMENT, SERVED), 0, 6 * DAY)
        tally.count(records["segment"], records)
        frames.append(intervals(ScoredCells(tally.cells(6 * DAY)), 2, 1, 0.9))
    for metric in METRICS:
        assert np.array_equal(frames[0][metric], frames[1][metric], equal_nan=True)


def test_before_there_are_past_misses_chance_alone_makes_the_intervals() -> None:
    tally = ScoredTally(TABLE.schema.d_max, 8, 0)
    records = records_of(outcomes_of(TABLE, SEGMENT, SERVED), 0, DAY)
    tally.count(records["segment"], records)
    figures = intervals(ScoredCells(tally.cells(DAY)), 0, 0, 0.9)
    value, low, high = figures["nll"][:, 0]
    assert low <= value <= high


def test_a_model_forecasts_clicks_in_memory() -> None:
    log = tc.read(shop().clicks, shop().sales, id="click", click_time="ts", d_max="2d", progress=False)
    model = tc.replay(log, "vanilla", interval="12h", **SMALL).model
    clicks = shop().wide
    at = START + timedelta(days=8)
    frame = model.forecast(clicks, by="campaign", at=at, click_time="ts", conversion_time="sold_at")
    assert set(frame["day"]) == {at - timedelta(days=1), at - timedelta(days=2)}
    day = clicks.filter(pl.col("ts").is_between(at - timedelta(days=1), at, closed="left"))
    assert frame.filter(age_days=0)["clicks"].sum() == len(day)
    assert frame.filter(age_days=0)["conversions"].sum() == (day["sold_at"] < at).sum()
    later = clicks.with_columns(pl.when(pl.col("sold_at") >= at).then(None).otherwise("sold_at").alias("sold_at"))
    early = later.filter(pl.col("ts") < at)
    assert model.forecast(early, by="campaign", at=at, click_time="ts", conversion_time="sold_at").equals(frame)
    with pytest.raises(UserError, match="sold_at"):
        model.forecast(clicks, click_time="ts", conversion_time="sold")
