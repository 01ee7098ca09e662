"""DFM: a rate and an exponential delay, learnt together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tracecvr.base.config import DAY
from tracecvr.families.survival import Survival


@dataclass
class DFM(Survival):
    """Models whether a click ever converts and, if it does, an exponential delay with rate lambda = exp(r) per day. A
    click without a conversion is a negative, or a conversion that is still to come; its age says how likely each is.
    The probability of a conversion within d_max is served.

    The model is the paper's. The paper trains offline, so the stream is ours: a click is shown when its window ends
    and, while it is open, at later looks, when it converts and at d_max. Each event has the likelihood of its state,
    given that the click was open before. `looks=[]` leaves out looks between window and d_max. Delays are in days.
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
