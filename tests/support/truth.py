"""What is true of a synthetic log, exactly: rates, delays and actions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tracecvr.data.table import ClickTable
from tracecvr.datasets.synthetic import CART, FAVOURITE, LAWS, Delay, Floats


@dataclass(frozen=True)
class Truth:
    """The exact quantities of a synthetic table, per click."""

    table: ClickTable

    @cached_property
    def p(self) -> Floats:
        """P(y = 1 | x, t)."""
        return np.asarray(self.table.truth["p"])

    def converted_by(self, t: int) -> Floats:
        """P(delay <= t | y = 1, x)."""
        by_law = np.array([_cdf(law, t, self.table.schema.d_max) for law in LAWS])
        share: Floats = by_law[self.table.truth["segment"] % len(LAWS)]
        return share

    def delayed(self, w: int) -> Floats:
        """pi_dp = P(y = 1, delay > w | x), the joint mass of delayed positives."""
        return self.p * (1 - self.converted_by(w))

    def real_negative(self, w: int) -> Floats:
        """rho = P(y = 0 | not converted by w, x)."""
        return (1 - self.p) / (1 - self.p + self.delayed(w))

    def delay_share(self, w: int) -> Floats:
        """g = P(delay > w | y = 1, x)."""
        return 1 - self.converted_by(w)

    def states(self, horizons: tuple[int, ...]) -> Floats:
        """psi = P(action k has happened by horizon h | x, y): (N, 2, H, K)."""
        psi = np.zeros((len(self.table), 2, len(horizons), len(self.table.schema.actions)))
        for h, end in enumerate(horizons):
            psi[:, 1, h, 0] = self.converted_by(end)
            for k, (law, *shares) in enumerate((CART, FAVOURITE), start=1):
                for y in (0, 1):
                    psi[:, y, h, k] = shares[y] * _cdf((law,), end, self.table.schema.d_max)
        return psi


def _cdf(law: tuple[Delay, ...], t: int, d_max: int) -> float:
    return sum(c.weight * cdf(c, float(t), d_max) for c in law)


def cdf(component: Delay, t: float, d_max: int) -> float:
    """P(delay <= t) at whole seconds t >= 0."""
    if component.kind == "atom":
        return float(t >= min(component.mean, d_max))
    by = -math.expm1(-min(t, d_max) / component.mean)
    if component.kind == "capped":
        return 1.0 if t >= d_max else by
    return by / -math.expm1(-d_max / component.mean)
