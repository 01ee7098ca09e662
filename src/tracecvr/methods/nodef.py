"""NoDeF: a rate and a delay whose hazard is a mixture of bumps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tracecvr.base.config import option
from tracecvr.families.survival import Survival


@dataclass
class NoDeF(Survival):
    """Models whether a click ever converts and, if it does, a delay of any shape: the hazard is a sum of Gaussian bumps
    at fixed points, with heights between 0 and 1 that depend on the features. The probability of a conversion within
    d_max is served.

    Reconstructed from notes on the paper. Assumed: heads on one net instead of EM with linear models and PCA; time as
    u = log(1 + seconds), with points evenly spaced in u from 0 to d_max; their number and width; the stream, which is
    that of `dfm`. Densities are per unit of u.
    """

    name = "nodef"
    title = "NoDeF"
    reference = "Yoshikawa and Imai, A Nonparametric Delayed Feedback Model for Conversion Rate Prediction, 2018"
    status = "reconstructed"
    serves = "the net's rate times the share of conversions within d_max"

    points: int = option(32, "L, the number of bumps", low=2)
    width: float = option(1.5, "b, the standard deviation of a bump, in distances between points", above=0)

    def heads(self) -> int:
        return 1 + self.points

    def log_density(self, law: Tensor, delay: Tensor) -> Tensor:
        return self.log_hazard(law, delay) + self.log_survival(law, delay)

    def log_survival(self, law: Tensor, elapsed: Tensor) -> Tensor:
        at, b = self._grid()
        reach = math.sqrt(2) * b
        area = torch.erf(at / reach) + torch.erf((torch.log1p(elapsed)[:, None] - at) / reach)  # (B, L)
        return -b * math.sqrt(math.pi / 2) * (torch.sigmoid(law) * area).sum(1)

    def log_hazard(self, law: Tensor, delay: Tensor) -> Tensor:
        """log of the hazard per unit of u."""
        at, b = self._grid()
        bump = -((torch.log1p(delay)[:, None] - at) ** 2) / (2 * b**2)  # (B, L)
        return torch.logsumexp(F.logsigmoid(law) + bump, dim=1)

    def _grid(self) -> tuple[Tensor, float]:
        """The points in u, and the standard deviation of their bumps."""
        end = math.log1p(self.schema.d_max)
        return torch.linspace(0, end, self.points), self.width * end / (self.points - 1)
