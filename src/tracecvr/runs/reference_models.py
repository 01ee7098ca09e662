"""References beside every method: what a constant and a logistic regression would have scored on the same clicks.

The constant is the conversion rate of the warm-up part. The regression has a weight for each id; it learns warm-up
history in one pass, then each click of the stream once, when its label is final: as `wait` does.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracecvr.base import metrics
from tracecvr.base.files import locked, read_json, write_json
from tracecvr.data.table import Schema
from tracecvr.runs.intervals import interval_edges
from tracecvr.runs.replay import FullPlan
from tracecvr.stream.reveal import After
from tracecvr.stream.source import TableSource

Floats = npt.NDArray[np.float64]

_BATCH, _STEP, _BLOCK, _VERSION = 64, 0.1, 65_536, 2


class Logistic:
    """Logistic regression with a weight per id of each feature: Adagrad, in small batches."""

    def __init__(self, schema: Schema, rate: float) -> None:
        sizes = [feature.size for feature in schema.features]
        self.first = np.cumsum([1, *sizes[:-1]]) if sizes else np.empty(0, np.int64)  # 0 is the intercept
        self.weight = np.zeros(1 + sum(sizes))
        self.squares = np.full(len(self.weight), 0.01)
        self.weight[0] = np.log(rate / (1 - rate))

    def log_odds(self, x: npt.NDArray[Any]) -> Floats:
        odds: Floats = self.weight[self._slots(x)].sum(1)
        return odds

    def learn(self, x: npt.NDArray[Any], label: npt.NDArray[Any]) -> None:
        """Every click once, in the order given."""
        all_slots = self._slots(x)
        for start in range(0, len(x), _BATCH):
            slots = all_slots[start : start + _BATCH]
            error = metrics.probability(self.weight.take(slots).sum(1)) - label[start : start + _BATCH]
            flat, each = slots.ravel(), np.repeat(error, slots.shape[1])
            np.add.at(self.squares, flat, each**2)  # of one dimension, it is twice as fast
            np.add.at(self.weight, flat, -_STEP * each / np.sqrt(self.squares.take(flat)))

    def _slots(self, x: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return np.concatenate([np.zeros((len(x), 1), np.int64), x + self.first], axis=1)


def scores(source: TableSource, plan: FullPlan) -> dict[str, npt.NDArray[np.float32]]:
    """Log-odds of every click of the stream, by reference."""
    history = source.history(plan.split, plan.warm_labels)
    label = np.concatenate([np.empty(0), *(b.truth for b in history.batches(_BLOCK, None))])
    rate = (label.sum() + 0.5) / (len(label) + 1)  # never 0 or 1
    model = Logistic(source.schema, rate)
    done = 0
    for b in history.batches(_BLOCK, None):
        model.learn(b.x.numpy(), label[done : (done := done + len(b))])
    served = [np.empty(0)]
    for number in range(len(plan)):
        start, end = plan.bounds(number)
        served.append(model.log_odds(source.clicks(start, min(end, plan.until)).x.numpy()))
        final = source.reveals((After(source.schema.d_max),), start, end)
        # Warm-up clicks with final labels are known already; as known at the split, some are corrected now.
        news = final.row.numpy() >= len(history) if plan.warm_labels == "mature" else np.ones(len(final), bool)
        model.learn(final.x.numpy()[news], final.label.numpy()[news])
    logistic = np.concatenate(served) + np.log(source.schema.negatives_kept)
    constant = np.full(len(logistic), np.log(rate / (1 - rate)) + np.log(source.schema.negatives_kept))
    return {"constant": constant.astype(np.float32), "logistic": logistic.astype(np.float32)}


def evaluate(source: TableSource, plan: FullPlan, folder: Path | None = None) -> dict[str, Any]:
    """How each reference did on the judged clicks: all metrics (`pooled`), and NLL of each interval that has judged
    clicks (`interval_nll`). Computed once for all runs that share a folder, a log and a plan."""
    if folder is None:
        return _evaluate(source, plan)
    facts = [_VERSION, source.table.fingerprint, plan.split, plan.interval, plan.until, plan.warm_labels]
    facts += [*plan.judged_rows(source.table), plan.outages]
    path = folder / f"references-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]}.json"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, name=f"{path.stem}.lock", patience=math.inf):
        if not path.exists():
            write_json(path, _evaluate(source, plan))
    references: dict[str, Any] = read_json(path)
    return references


def _evaluate(source: TableSource, plan: FullPlan) -> dict[str, Any]:
    first, last = plan.judged_rows(source.table)
    label = np.asarray(source.table.label[first:last])
    weight = source.table.weight(np.arange(first, last), plan.outages)
    judged = {name: served[-len(label) :] for name, served in scores(source, plan).items()}  # the stream's last clicks
    edges = interval_edges(plan, source.table)
    pooled = {name: asdict(metrics.evaluate(served, label, weight)) for name, served in judged.items()}
    # Its curve is one point. The area below the line from there to precision 1, which no threshold gives, misleads.
    pooled["constant"]["pr_auc"] = pooled["constant"]["ap"]
    interval_nll = {name: _interval_nll(served, label, weight, edges) for name, served in judged.items()}
    return {"pooled": pooled, "interval_nll": interval_nll}


def _interval_nll(
    log_odds: npt.NDArray[np.float32], label: npt.NDArray[np.bool_], weight: Floats | None, edges: npt.NDArray[np.int64]
) -> list[float]:
    loss = metrics.nll(log_odds.astype(np.float64), label)
    parts = [slice(first, last) for first, last in pairwise(edges) if first < last]
    parts = [part for part in parts if weight is None or weight[part].any()]
    return [float(np.average(loss[part], weights=None if weight is None else weight[part])) for part in parts]


_NOISE = 3.0
"""Standard errors beyond which PCOC is off for a reason. With n conversions, one of them is about 1 / sqrt(n)."""

_MATTERS = 0.03
"""How far PCOC must be from 1 to be worth a word, however many conversions there are."""


def advice(nll: float, pcoc: float | None, constant: float, conversions: int) -> str | None:
    """Advice for a model that is worse than the constant rate, or predicts too much or too little; else None."""
    if nll <= constant:
        noise = _NOISE / max(conversions, 1) ** 0.5
        if pcoc is None or abs(pcoc - 1) <= max(noise, _MATTERS):
            return None
        return (
            f"PCOC {pcoc:.3f}: it predicts {abs(pcoc - 1):.0%} too {'many' if pcoc > 1 else 'few'} conversions, and "
            f"chance explains at most {noise:.1%}. See PCOC over time: rates may have changed faster than the model "
            "follows."
        )
    if nll > 10 * constant:
        cause = "it has diverged: try a lower learning_rate"
    elif pcoc is not None and not 0.8 <= pcoc <= 1.25:
        cause = (
            f"its rates are off by a factor of {pcoc:.2f} (PCOC): check window, d_max and delays, or choose a method "
            "that corrects for late conversions"
        )
    else:
        cause = "it has learnt noise: give it a longer warm-up part, a lower learning_rate or smaller nets"
    return f"NLL {nll:.4g} is worse than {constant:.4g}, that of a constant rate; {cause}."
