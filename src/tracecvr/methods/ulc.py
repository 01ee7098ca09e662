"""ULC: a window's labels, the negatives among them corrected by the probability that they convert later."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tracecvr.authoring.losses import cross_entropy
from tracecvr.authoring.part import Helper
from tracecvr.base.config import DAY, Seconds, option
from tracecvr.base.errors import UserError
from tracecvr.families.counterfactual_deadline import CounterfactualDeadline
from tracecvr.stream.reveal import After, LabelledReveals, Reveals, Schedule


@dataclass
class ULC(CounterfactualDeadline):
    """Shows a click once, when its window ends. A negative gets the soft label b = P(converts later | not yet), so it
    converges to the true rate. Late conversions are not shown again, because they would count twice.

    A helper estimates b from features and elapsed time. It learns from clicks that were open at a deadline in the past:
    whether they have converted since. The paper trains offline, b and the model in turns, b on the model's embeddings.
    Assumed for a stream: the window, embeddings of its own, and one more pass of b over recent history each day.
    """

    name = "ulc"
    title = "ULC"
    reference = "Wang et al., Unbiased Delayed Feedback Label Correction for Conversion Rate Prediction, KDD 2023"
    status = "code"

    usual_epochs = 5
    helper_epochs: int | None = option(
        None, "passes of b over the warm-up part; as `warm_epochs`, but 5 if it is large", low=1
    )
    refresh: Seconds | None = option(DAY, "how often b is trained again; never if none", above=0)

    def check_options(self) -> None:
        super().check_options()
        back = max(self.schema.d_max, self.schema.split)
        if self.refresh is not None and self.before_end >= back:
            raise UserError(
                f"option 'deadline' is {self.before_end}: must be less than {back}, the stretch of clicks that a "
                "refresh learns from; or set refresh=none"
            )

    def schedule(self) -> Schedule:
        return (After(self.wait),)

    def helpers(self) -> dict[str, Helper]:
        return {"later": Helper(self.elapsed_net, self.helper_epochs, self.refresh, self.usual_epochs)}

    def question(self, name: str, b: LabelledReveals) -> tuple[Tensor, Tensor, Tensor]:
        elapsed, before, after = self.known_and_later(b)
        return elapsed, ~before, after

    def loss(self, b: Reveals) -> Tensor:
        label = torch.where(b.converted, 1.0, self.estimate("later", b))
        return cross_entropy(self.logit(b.x), label).mean()
