"""FSIW: a window's labels, weighted by how likely a conversion has been seen by then."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tracecvr.authoring.losses import cross_entropy
from tracecvr.authoring.part import Helper
from tracecvr.families.counterfactual_deadline import CounterfactualDeadline
from tracecvr.stream.reveal import After, LabelledReveals, Reveals, Schedule


@dataclass
class FSIW(CounterfactualDeadline):
    """Shows a click once, when its window ends. A positive has the weight 1 / P(seen by now | converts), a negative
    P(never converts | not seen by now). So it converges to the true rate.

    Two helpers estimate these probabilities from features and elapsed time. They learn from warm-up clicks before a
    deadline in the past: whether conversions came before it, and whether open clicks converted after it. Assumed,
    because the paper trains offline: the window, and that helpers are not trained again after warm-up.
    """

    name = "fsiw"
    title = "FSIW"
    reference = (
        "Yasui et al., A Feedback Shift Correction in Predicting Conversion Rates under Delayed Feedback, WWW 2020"
    )
    status = "code"

    def schedule(self) -> Schedule:
        return (After(self.wait),)

    def helpers(self) -> dict[str, Helper]:
        helper = Helper(self.elapsed_net, self.helper_epochs, usual=self.usual_epochs)
        return {"observed": helper, "negative": helper}

    def question(self, name: str, b: LabelledReveals) -> tuple[Tensor, Tensor, Tensor]:
        elapsed, before, after = self.known_and_later(b)
        return (elapsed, before | after, before) if name == "observed" else (elapsed, ~before, ~after)

    def loss(self, b: Reveals) -> Tensor:
        seen, never = self.estimate("observed", b), self.estimate("negative", b)
        weight = self.clip(torch.where(b.converted, 1 / seen, never), high=100.0)
        return (weight * cross_entropy(self.logit(b.x), b.label)).mean()
