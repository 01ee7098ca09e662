"""Metrics on final labels: exact, per interval and pooled; equal to scikit-learn's on the same scores.

Scores are log-odds, so NLL needs no clipping. A metric that one class leaves undefined is None, never NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.bool_]

TITLES = {
    "auc": "AUC",
    "pr_auc": "PR-AUC",
    "ap": "AP",
    "nll": "NLL",
    "ne": "NE",
    "ece": "ECE",
    "ece_gdfm": "ECE (GDFM's)",
    "mce": "MCE",
    "pcoc": "PCOC",
}
"""What metrics are called in tables and figures."""

INTERVAL_METRICS = ("auc", "pr_auc", "ap", "nll", "ece", "pcoc")


@dataclass(frozen=True)
class Metrics:
    """`pr_auc` is the trapezoid under the precision-recall curve (the field's habit), `ap` average precision. `ece` and
    `mce` use 15 equal-width bins, the mean prediction and (ece) weights by count; `ece_gdfm` uses 10 bins, their
    midpoints and no weights. `pcoc` is mean prediction over mean label. `ne`, normalised entropy, is NLL over
    that of the clicks' own mean label: 1 is no better than knowing it."""

    auc: float | None
    pr_auc: float | None
    ap: float | None
    nll: float
    ece: float
    ece_gdfm: float
    mce: float
    pcoc: float | None
    ne: float | None = None


def evaluate(
    log_odds: npt.NDArray[np.floating[Any]], label: Labels, weight: npt.NDArray[np.float64] | None = None
) -> Metrics:
    """All metrics of one set of clicks (at least one); a click counts as often as its weight says, once by default."""
    s = np.asarray(log_odds, dtype=np.float64)
    if weight is not None and (counts := weight > 0).any():  # the outcome of others is hidden by an outage
        s, label, weight = s[counts], label[counts], weight[counts]
    p = probability(s)
    positives = int(label.sum())
    auc, pr_auc, ap = _ranking(s, label, positives, weight)
    errors, weights = _bin_errors(p, label, bins=15, midpoint=False, weight=weight)
    gdfm_errors, _ = _bin_errors(p, label, bins=10, midpoint=True, weight=weight)
    loss, rate = _mean(nll(s, label), weight), _mean(label, weight)
    return Metrics(
        auc=auc,
        pr_auc=pr_auc,
        ap=ap,
        nll=loss,
        ece=float(errors @ weights),
        ece_gdfm=float(gdfm_errors.mean()),
        mce=float(errors.max()),
        pcoc=_mean(p, weight) / rate if positives else None,
        ne=loss / entropy(rate) if 0 < positives < len(label) else None,
    )


def reliability(p: Floats, label: Labels, bins: int, weight: Floats | None = None) -> tuple[Floats, Floats, Floats]:
    """Of each equal-width bin of predictions: clicks, the sum of predictions and conversions, each weighted."""
    which = np.minimum((p * bins).astype(np.int64), bins - 1)
    one: Any = 1 if weight is None else weight
    sums: list[Any] = [np.bincount(which, values, bins) for values in (weight, one * p, one * label)]
    return sums[0], sums[1], sums[2]


def population_weight(label: Labels, negatives_kept: float) -> Floats | None:
    """How many clicks each stands for, where only a share of those without a conversion was kept; None if all were."""
    return None if negatives_kept == 1 else np.where(label, 1.0, 1.0 / negatives_kept)


def probability(log_odds: npt.NDArray[np.floating[Any]]) -> Floats:
    """The logistic function, without overflow."""
    s = np.asarray(log_odds, dtype=np.float64)
    small = np.exp(-np.abs(s))
    return np.where(s >= 0, 1.0, small) / (1.0 + small)


def nll(log_odds: Floats, label: Labels) -> Floats:
    """Negative log-likelihood of each click, in nats."""
    return np.logaddexp(0.0, np.where(label, -log_odds, log_odds))


def entropy(rate: float) -> float:
    """Of a label with this rate, in nats: the NLL of a constant that knows it.

    >>> round(entropy(0.5), 4)
    0.6931
    """
    return float(-rate * np.log(rate) - (1 - rate) * np.log1p(-rate))


def average(parts: Sequence[Metrics], clicks: Sequence[float]) -> dict[str, Any]:
    """Interval metrics weighted by clicks; intervals that leave one undefined are skipped for it and counted."""
    summary: dict[str, Any] = {}
    skipped: dict[str, int] = {}
    for name in INTERVAL_METRICS:
        pairs = [(getattr(m, name), n) for m, n in zip(parts, clicks, strict=True)]
        defined = [(value, n) for value, n in pairs if value is not None]
        total = sum(n for _, n in defined)
        summary[name] = sum(value * n for value, n in defined) / total if total else None
        skipped[name] = len(pairs) - len(defined)
    return summary | {"intervals": len(parts), "skipped": skipped}


def _mean(values: npt.NDArray[Any], weight: Floats | None) -> float:
    return float(values.mean() if weight is None else np.average(values, weights=weight))


def _ranking(
    s: Floats, label: Labels, positives: int, weight: Floats | None
) -> tuple[float | None, float | None, float | None]:
    if positives == 0:
        return None, None, None
    true, false = _counts_above(s, label, weight)  # each starts with 0
    recall = np.diff(true) / true[-1]
    precision = np.append(1.0, true[1:] / (true[1:] + false[1:]))
    ap, pr_auc = float(recall @ precision[1:]), float(recall @ (precision[1:] + precision[:-1]) / 2)
    if positives == len(label):
        return None, pr_auc, ap
    return float(np.diff(false) @ (true[1:] + true[:-1]) / 2 / (true[-1] * false[-1])), pr_auc, ap


def _counts_above(s: Floats, label: Labels, weight: Floats | None) -> tuple[Floats, Floats]:
    """How many clicks with and without a conversion have at least each score, from the highest score down."""
    order = np.argsort(-s, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(s[order])), len(s) - 1)  # the last click of each score
    each = np.ones(len(s)) if weight is None else weight[order]
    true, false = (np.cumsum(each * of_class)[ends] for of_class in (label[order], ~label[order]))
    return np.append(0.0, true), np.append(0.0, false)


def _bin_errors(p: Floats, label: Labels, bins: int, midpoint: bool, weight: Floats | None) -> tuple[Floats, Floats]:
    """|mean label - predicted| of each non-empty equal-width bin, and its share of the clicks."""
    count, predicted, converted = reliability(p, label, bins, weight)
    used = count > 0
    rate, mean = converted[used] / count[used], predicted[used] / count[used]
    expected = (np.flatnonzero(used) + 0.5) / bins if midpoint else mean
    return np.abs(rate - expected), count[used] / count.sum()
