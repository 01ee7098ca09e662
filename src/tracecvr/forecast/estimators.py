"""Estimates of final conversions from cells: of any day at any age, each from what was known at that moment alone.

With C conversions known at age k of N clicks, and F the share of conversions that is known at that age (the ladder):

- `so_far`: C;
- `projected`: C / F, with one curve for all segments;
- `ladder`: C / F, with the curve of the segment, shrunk to the common one;
- `bf` (Bornhuetter-Ferguson, in Cape Cod's form): C + N r (1 - F), where r is the segment's rate of the last two weeks;
- `model`: C + M (1 - F), where M is the sum of the probabilities that the model predicted at the clicks;
- `credibility`: the same with M corrected by how many conversions the segment had in the last weeks per one predicted;
- `blend`: a weighted mean of `credibility` and `bf`, the default. The weight of `bf` rises with the segment's recent
  conversions. Its full size is fitted to the errors that both made on the last days, as far as they are known by now.

The constants were chosen on days 34 to 49 of criteo_search and 38 to 59 of cryptokitties.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracecvr.data.table import Ints
from tracecvr.forecast.cells import Cells, Counts

ESTIMATORS = ("so_far", "projected", "ladder", "bf", "model", "credibility", "blend")
DEFAULT = "blend"

_LADDER = 10.0
"""Conversions by which a segment's development is shrunk to the common one."""
_LADDER_OF_MISSES = 50.0
"""The same where past forecasts are judged. More, because a curve that follows the past closely hides their errors."""
_RATE_DAYS = 14
"""Days that a segment's rate is taken from, and its correction of the model."""
_RATE = 5.0
"""Conversions by which a segment's rate is shrunk to what is expected without it: new segments have no rate."""
_CREDIBILITY = 3000.0
"""Conversions by which a segment's correction of the model is shrunk to the common one."""
_HALF = 100.0
"""Recent conversions with which a segment's own rate has half of its full weight."""
_WEIGHT, _WEIGHT_KNOWN = 0.5, 10.0
"""The prior of the full weight of `bf`, and the precision of that prior."""
LEARNT_FROM = 300
"""Segments whose past forecasts are learnt from: more would only take time."""
PAST_DAYS = 21
"""Days whose forecasts are learnt from."""
FEWEST_CLICKS = 5
"""Cells of fewer clicks are not learnt from."""
_SCORED = 0.5
"""The share of a cell's clicks that must have been scored. Where a stream begins or ends, only a few were."""
_NOTHING = 1e-6
"""A smaller share of the conversions counts as zero."""


@dataclass(frozen=True, eq=False)
class Estimates:
    """Of days at ages, (S, P) each: conversions known then, and final conversions by each estimator."""

    so_far: Counts
    final: dict[str, Counts]
    recent: Counts
    """Conversions of the segment that were known of the days before: how well it is known."""


def known_share(cells: Cells, moments: Ints, pooled: bool = False, shrunk: float = _LADDER) -> Counts:
    """(S, T, A) the share of conversions that is known at each age, by the ladder as of moments (T,): of each, how many
    days were over. A link from one age to the next is counted over the days of which both ages were known."""
    lags = cells.lags
    age = np.arange(lags)
    days = np.clip(moments[:, None] - 1 - age[None, :], 0, cells.days)
    num, den = (cells.first_days[:, days, later] for later in (age + 1, age))
    all_num, all_den = num.sum(0, keepdims=True), den.sum(0, keepdims=True)
    common = np.divide(all_num, all_den, out=np.ones_like(all_num), where=all_den > 0)
    factor = common if pooled else (num + shrunk * common) / (den + shrunk)
    developed = np.cumprod(factor[..., ::-1], axis=-1, dtype=np.float32)[..., ::-1]
    share = np.ones((*developed.shape[:2], lags + 1), np.float32)
    np.divide(1, developed, out=share[..., :lags], where=developed > 0)
    return share


def estimate(cells: Cells, day: Ints, age: Ints) -> Estimates:
    """Estimates of days at ages; an age must not be later than `cells.at`."""
    made = _estimate_apart(cells, day, age)
    weight = np.minimum(_trust(made) * _weights(cells.some(LEARNT_FROM), day, age), 1)
    bf, credibility = made.final["bf"], made.final["credibility"]
    made.final["blend"] = credibility + weight * (bf - credibility)
    return made


def due_by(cells: Cells, day: Ints, age: Ints, now: Ints) -> tuple[Counts, Counts]:
    """(S, ...) of the conversions that were still expected of days at ages: the share that should have come by `now`
    (days that were over by then), and how many did come."""
    moments, which = np.unique(now, return_inverse=True)
    share = known_share(cells, moments, shrunk=_LADDER_OF_MISSES)
    which, old = which.reshape(now.shape), np.minimum(now - 1 - day, cells.lags)
    then = share[:, which, age]
    due = np.zeros_like(then)
    np.divide(share[:, which, old] - then, 1 - then, out=due, where=np.abs(1 - then) > _NOTHING)
    return due, cells.conversions[:, day, old] - cells.conversions[:, day, age]


def _weights(cells: Cells, day: Ints, age: Ints) -> Counts:
    """(P,) the weight of `bf` in the blend at full trust: the error of `credibility` regressed on the difference of
    `bf` and `credibility`, over past forecasts of the same age."""
    back = day[:, None] - 1 - np.arange(PAST_DAYS)  # (P, past days)
    there, past, ages = back >= 0, np.maximum(back, 0), np.broadcast_to(age[:, None], back.shape)
    pairs, which = np.unique(past * (cells.lags + 1) + ages, return_inverse=True)
    then = _estimate_apart(cells, *np.divmod(pairs, cells.lags + 1))
    due, came = due_by(cells, past, ages, np.broadcast_to((day + 1 + age)[:, None], back.shape))
    bf, credibility = (then.final[name] - then.so_far for name in ("bf", "credibility"))
    beyond, expected = (a[:, which.reshape(back.shape)] * due for a in (_trust(then) * (bf - credibility), credibility))
    used = there & (cells.clicks[:, past] >= FEWEST_CLICKS) & (cells.scored[:, past] > 0)
    per_variance = used / (np.abs(expected) + 0.05 * expected**2 + 0.5)
    evidence = (per_variance * beyond * (came - expected)).sum((0, 2)) + _WEIGHT_KNOWN * _WEIGHT
    weight: Counts = evidence / ((per_variance * beyond**2).sum((0, 2)) + _WEIGHT_KNOWN)
    return np.maximum(weight, 0)


def _trust(estimates: Estimates) -> Counts:
    """(S, P) trust in a segment's own rate, from 0 to 1: it rises with the conversions that the rate is from."""
    return estimates.recent / (estimates.recent + np.float32(_HALF))


def _estimate_apart(cells: Cells, day: Ints, age: Ints) -> Estimates:
    """All estimates except the blend."""
    moments, which = np.unique(day + 1 + age, return_inverse=True)
    share, common = known_share(cells, moments), known_share(cells, moments, pooled=True)
    so_far, clicks = cells.conversions[:, day, age], cells.clicks[:, day]
    rest = 1 - share[:, which, age]
    known, exposed = _recent(cells, moments, share, cells.clicks)
    overall = known.sum(0, keepdims=True) / np.maximum(exposed.sum(0, keepdims=True), 1e-9)
    predicted = _predictions(cells)
    happened, expected = _recent(cells, moments, share, predicted)
    level = happened.sum(0, keepdims=True) / np.maximum(expected.sum(0, keepdims=True), 1e-9)
    level = np.where(happened.sum(0, keepdims=True) > 0, level, 1)
    correction = (happened + _CREDIBILITY * level) / (expected + _CREDIBILITY)
    # A click that the model did not score counts with the rate of all.
    model = np.where(np.isnan(predicted[:, day]), clicks * overall[:, which], predicted[:, day])
    corrected = np.where(np.isnan(predicted[:, day]), model, model * correction[:, which])
    prior = corrected / np.maximum(clicks, 1)
    by_rate = clicks * (known[:, which] + _RATE) / (exposed[:, which] + _RATE / np.maximum(prior, 1e-6))
    final = {
        "so_far": so_far,
        "projected": so_far / common[:, which, age],
        "ladder": so_far / share[:, which, age],
        "bf": so_far + by_rate * rest,
        "model": so_far + model * rest,
        "credibility": so_far + corrected * rest,
    }
    return Estimates(so_far, final, known[:, which])


def _predictions(cells: Cells) -> Counts:
    """(S, D) conversions that the model predicted, scaled up to all clicks; NaN where it scored too small a share."""
    scored = (cells.scored > 0) & (cells.scored >= _SCORED * cells.clicks)
    weight = np.divide(cells.clicks, cells.scored, out=np.full_like(cells.clicks, np.nan), where=scored)
    return cells.predicted * weight


def _recent(cells: Cells, moments: Ints, share: Counts, exposure: Counts) -> tuple[Counts, Counts]:
    """(S, T) of the last days before each moment: known conversions, and exposure times the share that should be known.
    Their quotient is a rate per unit of exposure. Days without exposure are left out."""
    known, exposed = (np.zeros((len(exposure), len(moments)), np.float32) for _ in range(2))
    for back in range(_RATE_DAYS):
        day, age = moments - 1 - back, min(back, cells.lags)
        there, day = day >= 0, np.maximum(day, 0)
        here = there[None, :] & (exposure[:, day] > 0)
        known += np.where(here, cells.conversions[:, day, age], 0)
        exposed += np.where(here, exposure[:, day] * share[:, :, age], 0)
    return known, exposed
