"""Methods that correct a window's labels need to know how much is still to come: the net they share for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tracecvr.config import MINUTE, option
from tracecvr.method import Helper, Windowed, cross_entropy, mean_over
from tracecvr.reveal import Reveals


@dataclass
class DelayAware(Windowed):
    """A windowed method with a helper that estimates pi_dp = P(converts after the window | x), over all clicks, and
    rho = P(never converts | x, not converted by the end of the window)."""

    default_window: ClassVar[int] = 15 * MINUTE
    helper_epochs: int = option(1, "passes of the helper over the warm-up part", low=1)

    def helpers(self) -> dict[str, Helper]:
        return {"delay": Helper(lambda: self.net(2), self.helper_epochs)}

    def helper_loss(self, name: str, b: Reveals) -> Tensor:
        assert b.truth is not None
        assert b.delay is not None
        logits, waiting = self.nets[name](b.x), b.delay[:, 0] > self.wait
        late = cross_entropy(logits[:, 0], b.truth * waiting)
        never = cross_entropy(logits[:, 1], 1 - b.truth)
        return late.mean() + mean_over(never, waiting)

    def estimates(self, b: Reveals) -> tuple[Tensor, Tensor]:
        """pi_dp and rho of each event's click."""
        found = torch.sigmoid(self.frozen("delay", b.x)).clamp(1e-6, 1 - 1e-6)
        return found[:, 0], found[:, 1]
