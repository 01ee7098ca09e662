"""Methods that correct a window's labels need to know how much is still to come: the net they share for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tracecvr.authoring.losses import cross_entropy, mean_over
from tracecvr.authoring.method import Windowed
from tracecvr.authoring.part import Helper
from tracecvr.base.config import MINUTE, Seconds, option
from tracecvr.base.errors import UserError
from tracecvr.stream.reveal import LabelledReveals, Reveals


@dataclass
class DelayAware(Windowed):
    """A windowed method with a helper that estimates pi_dp = P(converts after the window | x), over all clicks, and
    rho = P(never converts | x, not converted by the end of the window)."""

    default_window: ClassVar[int] = 15 * MINUTE
    helper_epochs: int | None = option(None, "passes of the helper over the warm-up part; as `warm_epochs`", low=1)

    def helpers(self) -> dict[str, Helper]:
        return {"delay": Helper(lambda: self.net(2), self.helper_epochs)}

    def helper_loss(self, name: str, b: LabelledReveals) -> Tensor:
        logits, waiting = self.call(name, b.x), b.delay[:, 0] > self.wait
        late = cross_entropy(logits[:, 0], b.truth * waiting)
        never = cross_entropy(logits[:, 1], 1 - b.truth)
        return late.mean() + mean_over(never, waiting)

    def base_rates(self, name: str, b: LabelledReveals) -> tuple[tuple[Tensor, ...], Tensor] | None:
        if name != "delay":
            return super().base_rates(name, b)
        waiting = b.delay[:, 0] > self.wait
        return (b.x,), torch.stack([b.truth * waiting, (1 - b.truth).where(waiting, torch.nan)], dim=1)

    def estimates(self, b: Reveals) -> tuple[Tensor, Tensor]:
        """pi_dp and rho of each event's click."""
        rates = torch.sigmoid(self.call("delay", b.x)).clamp(1e-6, 1 - 1e-6)
        return rates[:, 0], rates[:, 1]


@dataclass
class Confirming(DelayAware):
    """A method that shows a click again, as a negative, if no conversion has come in time."""

    negative_after: Seconds | None = option(
        None, "when a click without conversion is confirmed as a negative; d_max by default, sooner is biased", low=0
    )

    @property
    def patience(self) -> int:
        """How long a click is given to convert."""
        return self.schema.d_max if self.negative_after is None else self.negative_after

    def check_options(self) -> None:
        super().check_options()
        if self.negative_after is not None and not self.wait <= self.negative_after <= self.schema.d_max:
            raise UserError(
                f"option 'negative_after' is {self.negative_after}: "
                f"must be at least the window, {self.wait}, and at most d_max, {self.schema.d_max}"
            )

    def fixed_point(self, p: float, delayed: float) -> float | None:
        return p if self.patience == self.schema.d_max else None
