"""DFM: a rate and an exponential delay, learnt together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tracecvr.base.config import DAY
from tracecvr.families.survival import Survival


@dataclass
class DFM(Survival):
    """Models whether a click ever converts and, if so, an exponential delay, of rate lambda = exp(r) per day: a click
    without a conversion is a negative or one to come, as its age makes likely. Serves the share within d_max.

    The model is the paper's; streaming is ours, as the paper trains offline: when the window ends by the likelihood of
    the state then; at later looks, when a click converts and when it matures by that of the state then, given that it
    was open at the look before. `looks=[]` leaves out the looks between window and d_max.
    Unlike the field's port it takes a conversion's delay, not the age at which it was looked at, and days, not seconds.

    >>> DFM().heads()
    2
    """

    name = "dfm"
    title = "DFM"
    reference = "Chapelle, Modeling Delayed Feedback in Display Advertising, KDD 2014"
    status = "code"
    serves = "the net's rate times the share of conversions within d_max"

    def heads(self) -> int:
        return 2

    def log_density(self, law: Tensor, delay: Tensor) -> Tensor:
        return law[:, 0] + self.log_survival(law, delay)

    def log_survival(self, law: Tensor, elapsed: Tensor) -> Tensor:
        return -torch.exp(law[:, 0]) * (elapsed / DAY)
