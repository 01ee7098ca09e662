"""The logs of the gauntlet: each has the hardship that it is named after, and its truth is what its clicks do."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from tracecvr.base.config import DAY, HOUR
from tracecvr.base.errors import UserError
from tracecvr.data.table import NEVER, ClickTable
from tracecvr.datasets.hardships import CAMPAIGN, HARDSHIPS, MIDDLE, OUTAGE, Hardships
from tracecvr.runs.spec import dataset_of

Bools = npt.NDArray[np.bool_]


@cache
def log(name: str) -> ClickTable:
    return Hardships(hardship=name).prepare(None)[0]


def delays(table: ClickTable, which: Bools, action: int = 0) -> npt.NDArray[np.int64]:
    """Of an action that some clicks have."""
    delay: npt.NDArray[np.int64] = (table.action_ts[:, action] - table.click_ts)[which]
    return delay


def judged(name: str, table: ClickTable) -> Bools:
    """Clicks whose labels are right: in `outage`, those of afterwards."""
    right: Bools = table.click_ts >= (OUTAGE[1] if name == "outage" else 0)
    return right


@pytest.mark.parametrize("name", HARDSHIPS)
def test_rates_are_the_true_ones(name: str) -> None:
    table = log(name)
    p, label, right = np.asarray(table.truth["p"]), table.label, judged(name, log(name))
    for part in (right, right & (p > np.median(p)), right & (table.click_ts >= table.schema.split)):
        error = np.sqrt((p * (1 - p))[part].sum())
        assert abs(label[part].sum() - p[part].sum()) < 4 * error


@pytest.mark.parametrize("name", HARDSHIPS)
def test_reading_is_deterministic_and_seeds_differ(name: str) -> None:
    one, again, other = (Hardships(hardship=name, clicks=3000, log_seed=s).prepare(None)[0] for s in (0, 0, 1))
    assert one.fingerprint == again.fingerprint != other.fingerprint


@pytest.mark.parametrize("name", HARDSHIPS)
def test_every_conversion_counts_and_part_of_warm_up_is_mature(name: str) -> None:
    table = log(name)
    happened = table.action_ts[:, 0] != NEVER
    assert (table.label == happened).all()
    assert (table.schema.split > table.schema.d_max) == (name != "young")


def test_stationary_rates_do_not_move_and_others_do() -> None:
    def by_click(name: str) -> dict[bytes, set[float]]:
        rates: dict[bytes, set[float]] = {}
        for x, p in zip(log(name).x, log(name).truth["p"], strict=True):
            rates.setdefault(x.tobytes(), set()).add(float(p))
        return rates

    assert all(len(rates) <= 2 for rates in by_click("stationary").values())  # two items may share an id
    assert np.median([len(rates) for rates in by_click("noise").values()]) > 3


def spread_after(name: str, days: int) -> float:
    """How far the log-odds of an item in a segment have moved after so many days: root of the mean square."""
    table = log(name)
    p, day = np.asarray(table.truth["p"]), np.asarray(table.click_ts) // DAY
    logit = np.log(p / (1 - p))
    seen = {(*x, d): value for x, d, value in zip(table.x.tolist(), day.tolist(), logit.tolist(), strict=True)}
    moves = [seen[*x, d + days] - value for (*x, d), value in seen.items() if (*x, d + days) in seen]
    return float(np.sqrt(np.median(np.square(moves)) / 0.455))  # the median of a squared normal number


def test_rates_wander_without_coming_back_but_in_a_season_they_do() -> None:
    near, far = (spread_after("noise", days) for days in (1, 9))
    assert 0.02 < near < 0.5 * far
    assert 0.1 < far < 0.3
    assert spread_after("drift", 9) > 1.8 * far
    assert spread_after("season", 4) > 0.5
    assert spread_after("season", 9) < 0.2 * spread_after("season", 4)


def test_sizes() -> None:
    assert len(log("stationary")) == 60_000
    assert len(log("tiny")) == 3_000
    assert 10_000 < len(log("dense")) / 24 < 12_000
    assert log("rare").label.mean() == pytest.approx(0.005, abs=0.001)
    assert log("daily").schema.interval == DAY


def test_a_campaign_starts_in_the_middle() -> None:
    table = log("new_campaign")
    new = table.truth["segment"] == CAMPAIGN
    assert table.click_ts[new].min() >= MIDDLE
    assert 0.15 < new[table.click_ts >= MIDDLE].mean() < 0.3
    assert table.label[new].mean() > 1.5 * table.label[~new].mean()


def test_rates_jump() -> None:
    table = log("jump")
    before, after = (table.label[(table.click_ts // DAY) == day].mean() for day in (16, 17))
    assert after > 1.4 * before


def test_nothing_is_recorded_in_the_outage() -> None:
    table, whole = log("outage"), log("noise")  # the same clicks and conversions, other actions aside
    times = table.action_ts[table.action_ts != NEVER]
    assert not ((times >= OUTAGE[0]) & (times < OUTAGE[1])).any()
    lost = whole.label & ~table.label
    assert (whole.action_ts[lost, 0] >= OUTAGE[0]).all()
    assert lost.sum() > 500
    assert not lost[table.click_ts >= OUTAGE[1]].any()


def test_delays_double() -> None:
    table = log("slower")
    early, late = (table.label & side for side in (table.click_ts < MIDDLE, table.click_ts >= MIDDLE))
    quantiles = [np.quantile(delays(table, part), [0.25, 0.5, 0.75]) for part in (early, late)]
    np.testing.assert_allclose(quantiles[1] / quantiles[0], 2, rtol=0.15)
    assert delays(table, late).max() == 2 * delays(table, early).max() == table.schema.d_max


def test_a_year_of_actions_in_order() -> None:
    table = log("year")
    payment, approval, application = table.action_ts.T
    assert (payment[table.label] >= approval[table.label]).all()
    assert (approval[approval != NEVER] >= application[approval != NEVER]).all()
    assert (application >= table.click_ts).all()
    assert (application != NEVER).sum() > (approval != NEVER).sum() > table.label.sum() > 0
    assert delays(table, table.label).max() == 365 * DAY
    assert (delays(table, table.label) > 100 * DAY).mean() > 0.15


@pytest.mark.parametrize(("name", "ratio"), [("telling", 15), ("noise", 1)])
def test_what_actions_tell(name: str, ratio: float) -> None:
    table = log(name)
    for action, tells in ((1, ratio), (2, ratio)):
        does = table.action_ts[:, action] != NEVER
        with_it, without = does[table.label].mean(), does[~table.label].mean()
        assert with_it / without == pytest.approx(1, abs=0.1) if tells == 1 else with_it / without > tells


def test_of_clicks_only_the_day_is_known() -> None:
    table = log("by_day")
    assert (table.click_ts % DAY == 0).all()
    assert len(np.unique(table.action_ts[table.label, 0] % DAY // HOUR)) == 24


def test_a_hardship_has_to_be_chosen() -> None:
    with pytest.raises(UserError, match=r"unknown hardship 'easy'.*known hardships: stationary, tiny"):
        dataset_of("hardships", ["hardship=easy"])
    with pytest.raises(UserError, match="known hardships"):
        Hardships().prepare(None)
    assert dataset_of("hardships", ["hardship=year", "clicks=10"]).horizons[-1] == 365 * DAY
