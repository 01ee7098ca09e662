"""When a tick is undone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracecvr.base.metrics import Labels, nll, probability

_WORSE = 1.5
"""By which factor a calibration that was off before must get worse for a tick to be undone."""
_FEW = 0.05
"""The share of clicks whose log-odds may be anything: one strange click must not stop the learner."""
_GROWTH = 1.1
"""How much worse than a rate for all clicks predictions may become in a tick that were far worse than it before."""
_SURE = math.log(1e6)
"""A sane tick is undone by chance less often than once in a million."""
LogOdds = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Guard:
    """When a tick is undone. A model that was equally bad before is not, so that it can recover."""

    nll: float = 1.5
    """By how much the NLL of clicks with final labels may grow."""
    pcoc: float = 3.0
    """How far their mean prediction may be from the rate, either way, unless it was nearly as far before."""
    clicks: int = 500
    conversions: int = 20
    """Fewer than these do not show whether it grew."""
    base: float = 2.0
    """How many times the NLL of their own rate, predicted for each, their NLL may be, however few they are."""
    log_odds: float = 20.0
    """How far log-odds may be from 0, of all clicks but a few: no number of clicks would justify 20."""

    def verdict(self, label: Labels, before: LogOdds, after: LogOdds) -> str:
        """What is wrong with a tick by clicks with final labels; nothing, if it is to stay.

        Wrong is that one rate for all clicks predicts them far better, and not by chance: if predictions are right, the
        likelihood of the best rate exceeds theirs by t nats with a probability of at most exp(-t) times the sum over
        all counts k of the highest likelihood of k, which is below sqrt(2 n) + 1. Or that NLL or calibration got worse.
        """
        count = len(label)
        if not count:
            return ""
        old, new = (float(nll(s.astype(np.float64), label).mean()) for s in (before, after))
        rate, chance = float(label.mean()), _SURE + math.log(math.sqrt(2 * count) + 1)
        base = -sum(p * math.log(p) for p in (rate, 1 - rate) if p > 0)
        far = not math.isinf(self.base) and new > max(self.base * base, _GROWTH * old)
        if far and count * (new - base) > chance:
            return f"NLL of the newest {count} mature clicks is {new:.4f}, that of their rate {base:.4f}"
        if count < self.clicks or label.sum() < self.conversions:
            return ""
        if new > self.nll * old:
            return f"NLL of the newest {count} mature clicks went from {old:.4f} to {new:.4f}"
        old, new = (float(probability(s).mean() / label.mean()) for s in (before, after))
        if max(new, 1 / new) > max(self.pcoc, _WORSE * max(old, 1 / old)):
            return f"calibration of the newest {count} mature clicks went from {old:.2f} to {new:.2f}"
        return ""

    def extreme(self, before: LogOdds, after: LogOdds) -> str:
        """What is wrong with it by the newest clicks, most of which are open."""
        old, new = (float(np.quantile(np.abs(s), 1 - _FEW, method="lower")) if len(s) else 0.0 for s in (before, after))
        if new > max(self.log_odds, old):
            return f"log-odds of the newest {len(after)} clicks: their 95% quantile went from {old:.1f} to {new:.1f}"
        return ""
